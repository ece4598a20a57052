//! Grants, and their changes while a client is connected.

use crate::host::{AttachHost, media, own_uid};
use headwater_frontend::attach::policy::GrantPolicy;
use headwater_io::attach::admin::{AccessGrant, AdminAnswer, AdminRequest, GrantSubject};
use headwater_io::error::IoError;
use headwater_io::namespace_request::NamespaceRequest;
use headwater_nvme::spec::status::Status;

fn own() -> GrantSubject {
    GrantSubject::Uid(own_uid())
}

fn host(folder: &std::path::Path, grant: AccessGrant) -> AttachHost {
    AttachHost::start(folder, GrantPolicy::new([grant]), media())
}

#[test]
fn a_read_only_client_reads_and_its_writes_are_denied() {
    let folder = tempfile::tempdir().unwrap();
    let host = host(folder.path(), AccessGrant::everything(own()));
    let mut client = host.client();
    client.put(b"k", b"v").unwrap();
    let reader = AccessGrant { read_only: true, ..AccessGrant::everything(own()) };
    assert_eq!(host.admin(AdminRequest::Grant(reader)).unwrap(), AdminAnswer::Reached(2));
    assert_eq!(client.get(b"k").unwrap().unwrap(), b"v");
    assert!(!client.namespaces().unwrap()[0].writable);
    assert_eq!(client.put(b"k", b"w").unwrap_err().status(), Some(Status::ACCESS_DENIED));
    assert_eq!(client.delete(b"k").unwrap_err().status(), Some(Status::ACCESS_DENIED));
    host.admin(AdminRequest::Grant(AccessGrant::everything(own()))).unwrap();
    client.put(b"k", b"w").unwrap();
    assert_eq!(client.get(b"k").unwrap().unwrap(), b"w");
    drop(host.end());
}

#[test]
fn a_namespace_without_a_grant_is_neither_listed_nor_served() {
    let folder = tempfile::tempdir().unwrap();
    let host = host(folder.path(), AccessGrant { namespaces: vec![1, 3], ..AccessGrant::everything(own()) });
    let mut client = host.client();
    let seen: Vec<u32> = client.namespaces().unwrap().iter().map(|facts| facts.id).collect();
    assert_eq!(seen, [1, 3]);
    assert!(matches!(client.select_namespace(2), Err(IoError::Namespace { namespace: 2, .. })));
    // The device denies the command of a client that does not check.
    let buffer = client.buffer(64).unwrap();
    let mut queue = client.queue(1).unwrap();
    queue.submit(headwater_io::Command::get(2, b"k", buffer).unwrap(), 0).unwrap();
    assert_eq!(queue.wait(None).unwrap().unwrap().status, Status::ACCESS_DENIED);
    drop(host.end());
}

#[test]
fn a_revoked_client_is_disconnected_and_its_commands_fail() {
    let folder = tempfile::tempdir().unwrap();
    let host = host(folder.path(), AccessGrant::everything(own()));
    let mut client = host.client();
    client.put(b"k", b"v").unwrap();
    // The revoking connection belongs to the same user and ends too.
    let _ = host.admin(AdminRequest::Revoke(own()));
    let refused = client.get(b"k").unwrap_err();
    assert!(
        matches!(&refused, IoError::Daemon { reason } if reason.contains("nothing is granted")),
        "{refused}"
    );
    assert!(matches!(host.try_client(), Err(IoError::Daemon { .. })));
    host.until_holdings(headwater_frontend::attach::AttachHoldings::default());
    drop(host.end());
}

#[test]
fn quotas_limit_queues_and_memory_and_can_change_while_a_client_is_connected() {
    let folder = tempfile::tempdir().unwrap();
    let host =
        host(folder.path(), AccessGrant { queues: 2, memory: 1 << 20, ..AccessGrant::everything(own()) });
    let mut client = host.client();
    let _first = client.queue(8).unwrap();
    let second = client.queue(8).unwrap();
    assert!(matches!(client.queue(8), Err(IoError::Daemon { .. })));
    assert!(
        matches!(client.buffer(1 << 20), Err(IoError::Daemon { .. })),
        "ring memory counts against the quota"
    );
    let buffer = client.buffer(1 << 19).unwrap();
    assert!(matches!(client.buffer(1 << 19), Err(IoError::Daemon { .. })));
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
fn administration_lists_clients_and_refuses_invalid_requests() {
    let folder = tempfile::tempdir().unwrap();
    let host = host(folder.path(), AccessGrant::everything(GrantSubject::Gid(4_000_000)));
    let mut client = host.client();
    let _queue = client.queue(8).unwrap();
    let AdminAnswer::List { grants, clients } = host.admin(AdminRequest::List).unwrap() else {
        panic!("not a list");
    };
    assert!(grants.iter().any(|grant| grant.who == GrantSubject::Gid(4_000_000)));
    let me = i32::try_from(std::process::id()).unwrap();
    assert!(clients.iter().all(|client| client.pid == me && client.uid == own_uid()));
    assert_eq!(clients.iter().map(|client| client.queues).sum::<u32>(), 1);
    for invalid in [
        AdminRequest::Revoke(GrantSubject::Gid(4_000_001)),
        AdminRequest::Quota { who: GrantSubject::Uid(4_000_001), queues: None, memory: None },
        AdminRequest::Grant(AccessGrant { namespaces: vec![99], ..AccessGrant::everything(own()) }),
        AdminRequest::Namespace { id: 99, request: NamespaceRequest::Delete },
    ] {
        assert!(matches!(host.admin(invalid), Err(IoError::Daemon { .. })));
    }
    drop(host.end());
}
