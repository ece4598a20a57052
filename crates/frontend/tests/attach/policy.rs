//! Who may do what, and how that changes under a client.

use crate::host::{Host, media, own_uid};
use headwater_frontend::attach::policy::Policy;
use headwater_io::attach::admin::{AdminAnswer, AdminRequest, Grant, NamespaceWish, Who};
use headwater_io::error::IoError;
use headwater_nvme::spec::status::Status;

fn own() -> Who {
    Who::Uid(own_uid())
}

fn host(folder: &std::path::Path, grant: Grant) -> Host {
    Host::start(folder, Policy::new([grant]), media())
}

#[test]
fn a_reader_reads_and_every_change_is_denied_by_the_device() {
    let folder = tempfile::tempdir().unwrap();
    let host = host(folder.path(), Grant::everything(own()));
    let mut client = host.client();
    client.put(b"k", b"v").unwrap();
    let reader = Grant { read_only: true, ..Grant::everything(own()) };
    assert_eq!(host.admin(AdminRequest::Grant(reader)).unwrap(), AdminAnswer::Reached(2));
    assert_eq!(client.get(b"k").unwrap().unwrap(), b"v");
    assert!(!client.namespaces().unwrap()[0].writable);
    assert_eq!(client.put(b"k", b"w").unwrap_err().status(), Some(Status::ACCESS_DENIED));
    assert_eq!(client.delete(b"k").unwrap_err().status(), Some(Status::ACCESS_DENIED));
    host.admin(AdminRequest::Grant(Grant::everything(own()))).unwrap();
    client.put(b"k", b"w").unwrap();
    assert_eq!(client.get(b"k").unwrap().unwrap(), b"w");
    drop(host.end());
}

#[test]
fn a_namespace_that_was_not_granted_is_neither_seen_nor_served() {
    let folder = tempfile::tempdir().unwrap();
    let host = host(folder.path(), Grant { namespaces: vec![1, 3], ..Grant::everything(own()) });
    let mut client = host.client();
    let seen: Vec<u32> = client.namespaces().unwrap().iter().map(|facts| facts.id).collect();
    assert_eq!(seen, [1, 3]);
    assert!(matches!(client.choose(2), Err(IoError::Namespace { namespace: 2, .. })));
    // A client that does not ask is told by the device.
    let buffer = client.buffer(64).unwrap();
    let mut queue = client.queue(1).unwrap();
    queue.submit(headwater_io::Command::get(2, b"k", buffer).unwrap(), 0).unwrap();
    assert_eq!(queue.wait(None).unwrap().unwrap().status, Status::ACCESS_DENIED);
    drop(host.end());
}

#[test]
fn a_revoked_client_is_cut_off_and_its_commands_fail() {
    let folder = tempfile::tempdir().unwrap();
    let host = host(folder.path(), Grant::everything(own()));
    let mut client = host.client();
    client.put(b"k", b"v").unwrap();
    // The connection that asks is this user's too.
    let _ = host.admin(AdminRequest::Revoke(own()));
    let refused = client.get(b"k").unwrap_err();
    assert!(
        matches!(&refused, IoError::Refused { reason } if reason.contains("nothing is granted")),
        "{refused}"
    );
    assert!(matches!(host.try_client(), Err(IoError::Refused { .. })));
    host.settle(headwater_frontend::attach::Holdings::default());
    drop(host.end());
}

#[test]
fn quotas_hold_for_queues_and_memory_and_change_under_a_client() {
    let folder = tempfile::tempdir().unwrap();
    let host = host(folder.path(), Grant { queues: 2, memory: 1 << 20, ..Grant::everything(own()) });
    let mut client = host.client();
    let _first = client.queue(8).unwrap();
    let second = client.queue(8).unwrap();
    assert!(matches!(client.queue(8), Err(IoError::Refused { .. })));
    assert!(matches!(client.buffer(1 << 20), Err(IoError::Refused { .. })), "the rings count too");
    let buffer = client.buffer(1 << 19).unwrap();
    assert!(matches!(client.buffer(1 << 19), Err(IoError::Refused { .. })));
    drop(buffer);
    client.buffer(1 << 19).unwrap();
    drop(second);
    let wider = AdminRequest::Quota { who: own(), queues: Some(5), memory: Some(8 << 20) };
    assert_eq!(host.admin(wider).unwrap(), AdminAnswer::Reached(2));
    client.buffer(1 << 20).unwrap();
    let _more: Vec<_> = (0..4).map(|_| client.queue(8).unwrap()).collect();
    drop(host.end());
}

#[test]
fn administration_lists_who_is_there_and_says_what_is_impossible() {
    let folder = tempfile::tempdir().unwrap();
    let host = host(folder.path(), Grant::everything(Who::Gid(4_000_000)));
    let mut client = host.client();
    let _queue = client.queue(8).unwrap();
    let AdminAnswer::List { grants, clients } = host.admin(AdminRequest::List).unwrap() else {
        panic!("not a list");
    };
    assert!(grants.iter().any(|grant| grant.who == Who::Gid(4_000_000)));
    let me = i32::try_from(std::process::id()).unwrap();
    assert!(clients.iter().all(|client| client.pid == me && client.uid == own_uid()));
    assert_eq!(clients.iter().map(|client| client.queues).sum::<u32>(), 1);
    for impossible in [
        AdminRequest::Revoke(Who::Gid(4_000_001)),
        AdminRequest::Quota { who: Who::Uid(4_000_001), queues: None, memory: None },
        AdminRequest::Grant(Grant { namespaces: vec![99], ..Grant::everything(own()) }),
        AdminRequest::Namespace { id: 99, wish: NamespaceWish::Delete },
    ] {
        assert!(matches!(host.admin(impossible), Err(IoError::Refused { .. })));
    }
    drop(host.end());
}
