//! The attach front end over a controller, with clients of the library: the same control plane as for any device.

use crate::harness::{BLOCK, NAMESPACE};
use crate::host::{MediatedHost, own_uid};
use headwater_frontend::attach::policy::GrantPolicy;
use headwater_io::attach::admin::{AccessGrant, AdminAnswer, AdminRequest, GrantSubject};
use headwater_io::attach::connection::AttachConnection;
use headwater_io::attach::protocol::{AttachReply, AttachRequest};
use headwater_io::namespace_request::{NamespaceRequest, NamespaceSpec};
use headwater_io::{IoError, WriteDurability};
use headwater_nvme::spec::status::Status;

#[test]
fn a_library_client_reads_and_writes_the_controllers_blocks() {
    let host = MediatedHost::start(GrantPolicy::new([]));
    let mut client = host.client();
    assert_eq!(client.namespace().block_bytes, 4_096);
    let data: Vec<u8> = (0..300 * BLOCK).map(|at| u8::try_from(at / 512 % 251).unwrap()).collect();
    client.write(10, &data, WriteDurability::NamespaceDefault).unwrap();
    client.flush().unwrap();
    let mut found = vec![0; data.len()];
    client.read(10, &mut found).unwrap();
    assert!(found == data);
    assert!(host.machine.lock().blocks[&NAMESPACE][10 * BLOCK..310 * BLOCK] == *data);
    let known: Vec<_> =
        client.namespaces().unwrap().iter().map(|facts| (facts.id, facts.block_bytes)).collect();
    assert_eq!(known, [(2, 4_096), (3, 512)], "a key-value namespace of the controller must not be shared");
    drop(client);
    host.end();
}

#[test]
fn a_grant_limits_blocks_and_its_change_applies_from_the_next_command_on() {
    let part = AccessGrant {
        namespaces: vec![2],
        blocks: Some((100, 200)),
        ..AccessGrant::everything(GrantSubject::Uid(own_uid()))
    };
    let host = MediatedHost::start(GrantPolicy::new([part.clone()]));
    let mut client = host.client();
    assert_eq!(client.namespace().blocks, Some((100, 200)));
    client.write(100, &vec![1; 100 * BLOCK], WriteDurability::NamespaceDefault).unwrap();
    assert!(client.write(99, &vec![1; BLOCK], WriteDurability::NamespaceDefault).is_err());
    assert_eq!(
        host.admin(AdminRequest::Grant(AccessGrant { blocks: Some((0, 50)), ..part })).unwrap(),
        AdminAnswer::Reached(2)
    );
    let denied = client.write(100, &vec![2; BLOCK], WriteDurability::NamespaceDefault).unwrap_err();
    assert!(matches!(denied, IoError::Status(Status::ACCESS_DENIED)), "{denied}");
    assert!(
        host.machine.lock().blocks[&NAMESPACE][99 * BLOCK..200 * BLOCK]
            .iter()
            .skip(BLOCK)
            .all(|byte| *byte == 1)
    );
    drop(client);
    host.end();
}

#[test]
fn a_client_that_disconnects_with_commands_in_flight_leaks_nothing() {
    let host = MediatedHost::start(GrantPolicy::new([]));
    let mut good = host.client();
    good.write(0, &vec![1; BLOCK], WriteDurability::NamespaceDefault).unwrap();
    host.until(|held| held.clients == 1 && held.in_flight == 0);
    host.machine.lock().faults.holds_commands = true;
    let mut dying = host.client();
    let mut queue = dying.queue(16).unwrap();
    for token in 0..16 {
        let buffer = dying.buffer(BLOCK).unwrap();
        queue.submit(headwater_io::Command::read(NAMESPACE, 0, 4_096, buffer).unwrap(), token).unwrap();
    }
    queue.ring().unwrap();
    host.until(|held| held.in_flight == 16);
    drop((queue, dying));
    host.until(|held| held.clients == 1);
    assert_eq!(host.observed().in_flight, 16, "the controller must still hold them");
    assert_eq!(host.machine.lock().lent.len(), 2, "their memory must stay mapped");
    host.machine.lock().complete_held();
    host.until(|held| held.in_flight == 0);
    good.write(1, &vec![2; BLOCK], WriteDurability::NamespaceDefault).unwrap();
    assert_eq!(host.machine.lock().lent.len(), 1);
    drop(good);
    host.end();
}

#[test]
fn namespaces_of_a_controller_are_listed_and_cannot_be_changed() {
    let host = MediatedHost::start(GrantPolicy::new([]));
    let AdminAnswer::Namespaces(table) = host.admin(AdminRequest::Namespaces).unwrap() else { panic!() };
    let sizes: Vec<_> = table.iter().map(|(id, text)| (*id, text.block_bytes, text.size)).collect();
    assert_eq!(sizes, [(2, 4_096, 1 << 16), (3, 512, 1 << 19)]);
    let request = NamespaceRequest::Create(NamespaceSpec::keys());
    let refused = host.admin(AdminRequest::Namespace { id: 0, request }).unwrap_err();
    assert!(refused.to_string().contains("nvme create-ns"), "{refused}");
    host.end();
}

#[test]
fn memory_of_an_invalid_length_is_refused_with_a_reason() {
    use std::os::fd::AsFd as _;
    let host = MediatedHost::start(GrantPolicy::new([]));
    let mut connection = AttachConnection::open(&host.path).unwrap();
    let (_, memfd) = headwater_host::shared_memory::SharedMemory::memfd(8_192).unwrap();
    for (bytes, why) in [(100, "whole pages"), (4_097, "whole pages")] {
        let region = AttachRequest::Region { start: 1 << 20, bytes, offset: 0 };
        let refused = connection.call(&region, &[memfd.as_fd()]).unwrap_err();
        assert!(refused.to_string().contains(why), "{refused}");
    }
    let region = AttachRequest::Region { start: 1 << 20, bytes: 8_192, offset: 0 };
    assert_eq!(connection.call(&region, &[memfd.as_fd()]).unwrap().0, AttachReply::Done);
    assert_eq!(host.machine.lock().lent.len(), 1);
    assert_eq!(
        connection.call(&AttachRequest::Release { start: 1 << 20 }, &[]).unwrap().0,
        AttachReply::Done
    );
    assert_eq!(host.machine.lock().lent.len(), 0, "the region is still mapped after the reply");
    drop(connection);
    host.end();
}
