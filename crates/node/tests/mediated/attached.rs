//! The attach face in front of a controller, with clients of the library: the same control plane as before any device.

use crate::desk::{BLOCK, NAMESPACE};
use crate::host::{Host, own_uid};
use headwater_frontend::attach::policy::Policy;
use headwater_io::attach::admin::{AdminAnswer, AdminRequest, Grant, NamespaceText, NamespaceWish, Who};
use headwater_io::attach::connection::Connection;
use headwater_io::attach::protocol::{Reply, Request};
use headwater_io::{Durable, IoError};
use headwater_nvme::spec::status::Status;

#[test]
fn a_client_of_the_library_uses_the_controllers_blocks() {
    let host = Host::start(Policy::new([]));
    let mut client = host.client();
    assert_eq!(client.namespace().block_bytes, 4_096);
    let data: Vec<u8> = (0..300 * BLOCK).map(|at| u8::try_from(at / 512 % 251).unwrap()).collect();
    client.write(10, &data, Durable::AsPromised).unwrap();
    client.flush().unwrap();
    let mut found = vec![0; data.len()];
    client.read(10, &mut found).unwrap();
    assert!(found == data);
    assert!(host.machine.lock().blocks[&NAMESPACE][10 * BLOCK..310 * BLOCK] == *data);
    let known: Vec<_> =
        client.namespaces().unwrap().iter().map(|facts| (facts.id, facts.block_bytes)).collect();
    assert_eq!(known, [(2, 4_096), (3, 512)], "key spaces of the controller are not shared");
    drop(client);
    host.end();
}

#[test]
fn a_grant_is_a_window_and_holds_from_the_next_command_on() {
    let part =
        Grant { namespaces: vec![2], blocks: Some((100, 200)), ..Grant::everything(Who::Uid(own_uid())) };
    let host = Host::start(Policy::new([part.clone()]));
    let mut client = host.client();
    assert_eq!(client.namespace().blocks, Some((100, 200)));
    client.write(100, &vec![1; 100 * BLOCK], Durable::AsPromised).unwrap();
    assert!(client.write(99, &vec![1; BLOCK], Durable::AsPromised).is_err());
    assert_eq!(
        host.admin(AdminRequest::Grant(Grant { blocks: Some((0, 50)), ..part })).unwrap(),
        AdminAnswer::Reached(2)
    );
    let denied = client.write(100, &vec![2; BLOCK], Durable::AsPromised).unwrap_err();
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
fn a_client_that_is_gone_in_mid_flight_leaves_nothing_behind_and_others_alone() {
    let host = Host::start(Policy::new([]));
    let mut good = host.client();
    good.write(0, &vec![1; BLOCK], Durable::AsPromised).unwrap();
    host.until(|held| held.clients == 1 && held.in_flight == 0);
    host.machine.lock().faults.holds = true;
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
    assert_eq!(host.seen().in_flight, 16, "the controller has them still");
    assert_eq!(host.machine.lock().lent.len(), 2, "and their memory");
    host.machine.lock().release();
    host.until(|held| held.in_flight == 0);
    good.write(1, &vec![2; BLOCK], Durable::AsPromised).unwrap();
    assert_eq!(host.machine.lock().lent.len(), 1);
    drop(good);
    host.end();
}

#[test]
fn namespaces_of_a_controller_are_told_and_not_changed() {
    let host = Host::start(Policy::new([]));
    let AdminAnswer::Namespaces(table) = host.admin(AdminRequest::Namespaces).unwrap() else { panic!() };
    let sizes: Vec<_> = table.iter().map(|(id, text)| (*id, text.block_bytes, text.size)).collect();
    assert_eq!(sizes, [(2, 4_096, 1 << 16), (3, 512, 1 << 19)]);
    let wish = NamespaceWish::Create(NamespaceText::keys());
    let refused = host.admin(AdminRequest::Namespace { id: 0, wish }).unwrap_err();
    assert!(refused.to_string().contains("nvme create-ns"), "{refused}");
    host.end();
}

#[test]
fn memory_that_cannot_be_mapped_is_refused_by_name() {
    use std::os::fd::AsFd as _;
    let host = Host::start(Policy::new([]));
    let mut connection = Connection::open(&host.path).unwrap();
    let (_, memfd) = headwater_host::foreign::Foreign::memfd(8_192).unwrap();
    for (bytes, why) in [(100, "whole pages"), (4_097, "whole pages")] {
        let region = Request::Region { start: 1 << 20, bytes, offset: 0 };
        let refused = connection.call(&region, &[memfd.as_fd()]).unwrap_err();
        assert!(refused.to_string().contains(why), "{refused}");
    }
    let region = Request::Region { start: 1 << 20, bytes: 8_192, offset: 0 };
    assert_eq!(connection.call(&region, &[memfd.as_fd()]).unwrap().0, Reply::Done);
    assert_eq!(host.machine.lock().lent.len(), 1);
    assert_eq!(connection.call(&Request::Release { start: 1 << 20 }, &[]).unwrap().0, Reply::Done);
    assert_eq!(host.machine.lock().lent.len(), 0, "unmapped before it is said");
    drop(connection);
    host.end();
}
