//! Users that take every place they can get: the other users attach all the same.
//!
//! The rules are tested one by one beside them; here the kernel reports the users. A thread becomes another user by a
//! system call that only root may make: without root these tests are skipped.

use crate::host::{AttachHost, media};
use headwater_frontend::attach::policy::GrantPolicy;
use headwater_frontend::attach::{AttachHoldings, REGIONS_MAX, REGIONS_OF_ALL_MAX};
use headwater_host::shared_memory::SharedMemory;
use headwater_io::attach::admin::{AccessGrant, GrantSubject};
use headwater_io::attach::connection::AttachConnection;
use headwater_io::attach::protocol::AttachRequest;
use headwater_io::error::IoError;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::Uid;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;

/// A user with a grant that misuses it; none of these users need exist.
const GREEDY: u32 = 61_001;
/// A user with a grant.
const HONEST: u32 = 61_002;
/// A user without one.
const WITHOUT: u32 = 61_003;

/// Returns true, with a message, if this process cannot become other users.
fn is_skipped() -> bool {
    let skipped = !rustix::process::geteuid().is_root();
    if skipped {
        eprintln!("skipped: only root can connect as other users");
    }
    skipped
}

/// Runs work as another user, on a thread that ends with it.
fn as_user<T: Send>(uid: u32, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let uid = Uid::from_raw(uid);
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            work()
        });
        thread.join().unwrap()
    })
}

fn host(folder: &std::path::Path) -> AttachHost {
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
    let grants = [GREEDY, HONEST].map(|uid| AccessGrant::everything(GrantSubject::Uid(uid)));
    AttachHost::start(folder, GrantPolicy::new(grants), media())
}

#[test]
fn user_that_opens_all_connections_it_gets_keeps_no_other_user_from_attaching() {
    if is_skipped() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let host = host(folder.path());
    let crowd: Vec<AttachConnection> =
        as_user(GREEDY, || (0..400).filter_map(|_| AttachConnection::open(&host.path).ok()).collect());
    assert!((100..=248).contains(&crowd.len()), "{} connections", crowd.len());
    let refusal = as_user(GREEDY, || AttachConnection::open(&host.path).unwrap_err().to_string());
    assert!(refusal.contains("too many clients") && refusal.contains("61001"), "{refusal}");
    as_user(HONEST, || {
        let mut client = host.client();
        client.put(b"k", b"v").unwrap();
        assert_eq!(client.get(b"k").unwrap().unwrap(), b"v");
    });
    host.client().put(b"root", b"v").unwrap();
    drop(crowd);
    host.until_holdings(AttachHoldings::default());
    drop(host.end());
}

#[test]
fn silent_connections_and_users_without_a_grant_hold_no_place_of_other_users() {
    if is_skipped() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let host = host(folder.path());
    let silent = || -> OwnedFd {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(&host.path).unwrap()).unwrap();
        socket
    };
    for _ in 0..3 {
        let crowds = [GREEDY, WITHOUT].map(|uid| as_user(uid, || [(); 150].map(|()| silent())));
        as_user(HONEST, || host.client().put(b"k", b"v").unwrap());
        drop(crowds);
    }
    for _ in 0..50 {
        let refused = as_user(WITHOUT, || AttachConnection::open(&host.path).unwrap_err());
        assert!(
            matches!(&refused, IoError::Daemon { reason } if reason.contains("nothing is granted")),
            "{refused}"
        );
    }
    host.until_holdings(AttachHoldings::default());
    drop(host.end());
}

#[test]
fn regions_of_one_user_leave_regions_to_other_users() {
    if is_skipped() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let host = host(folder.path());
    let (_, page) = SharedMemory::memfd(4_096).unwrap();
    let register = |connection: &mut AttachConnection, number: u64| {
        let request = AttachRequest::Region { start: number * 4_096, bytes: 4_096, offset: 0 };
        connection.call(&request, &[page.as_fd()])
    };
    let crowd = as_user(GREEDY, || {
        let mut crowd: Vec<_> = (0..17).map(|_| AttachConnection::open(&host.path).unwrap()).collect();
        let mut taken = 0;
        let refused = crowd.iter_mut().find_map(|connection| {
            (1..=REGIONS_MAX as u64).find_map(|number| {
                let failed = register(connection, number).err();
                taken += usize::from(failed.is_none());
                failed
            })
        });
        let refused = refused.unwrap().to_string();
        assert!(refused.contains("share of"), "{refused}");
        assert!((4_000..=REGIONS_OF_ALL_MAX / 2).contains(&taken), "{taken} regions");
        crowd
    });
    as_user(HONEST, || {
        let mut connection = AttachConnection::open(&host.path).unwrap();
        (1..=400).for_each(|number| drop(register(&mut connection, number).unwrap()));
    });
    drop(crowd);
    host.until_holdings(AttachHoldings::default());
    drop(host.end());
}
