//! The limits of a daemon's clients, for each user: queues and memory.
//!
//! Input: a daemon's attach socket, users, limits. Output: limits and codes. The daemon accepts only its own user and
//! root.

use crate::call_error::CallError;
use crate::code::ResultCode;
use crate::ffi::{OutPointer, check_pointer, run_call};
use headwater::io::IoError;
use headwater::io::attach::admin::{AdminAnswer, AdminRequest, GrantSubject};
use headwater::io::attach::connection::AttachConnection;
use headwater::io::attach::protocol::{AttachReply, AttachRequest};
use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Sends an administration request to a daemon and returns the answer.
///
/// # Safety
/// A `socket` that is not null is a string.
unsafe fn call_daemon(socket: *const c_char, request: AdminRequest) -> Result<AdminAnswer, CallError> {
    check_pointer(socket, "socket")?;
    // SAFETY: not null, so a terminated string by the caller's promise; the reference does not outlive this call.
    let socket = unsafe { CStr::from_ptr(socket) };
    let mut connection = AttachConnection::open(Path::new(OsStr::from_bytes(socket.to_bytes())))?;
    match connection.call(&AttachRequest::Admin(request), &[])? {
        (AttachReply::Admin(answer), _) => Ok(answer),
        _ => Err(IoError::Protocol {
            reason: "the daemon's reply is not that of an administration request".to_owned(),
        }
        .into()),
    }
}

/// Writes the number of queues and the bytes of memory that each client of user `uid` may have at the daemon that
/// listens on `socket`. HW_CODE_REFUSED for a user without a grant by uid.
///
/// # Safety
/// A `socket` that is not null is a string. `queues` and `memory_bytes`, neither null nor misaligned, are valid for a
/// write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_get_user_quota(
    socket: *const c_char,
    uid: u32,
    queues: *mut u32,
    memory_bytes: *mut u64,
) -> ResultCode {
    run_call(|| {
        // SAFETY: the caller's promise.
        let queues = unsafe { OutPointer::at(queues, "queues") }?;
        // SAFETY: the caller's promise.
        let memory = unsafe { OutPointer::at(memory_bytes, "memory_bytes") }?;
        // SAFETY: the caller's promise.
        let answer = unsafe { call_daemon(socket, AdminRequest::List) }?;
        let AdminAnswer::List { grants, .. } = answer else {
            return Err(IoError::Protocol { reason: "the daemon's answer is not a list".to_owned() }.into());
        };
        let grant = grants.iter().find(|grant| grant.who == GrantSubject::Uid(uid));
        let grant = grant.ok_or_else(|| IoError::Denied {
            reason: format!(
                "nothing is granted to uid {uid} by its number; grant it with `headwater attach grant --uid {uid}`"
            ),
        })?;
        queues.write(grant.queues);
        memory.write(grant.memory);
        Ok(())
    })
}

/// Changes the number of queues and the bytes of memory that each client of user `uid` may have at the daemon that
/// listens on `socket`. The limits apply to connected clients too, and persist over restarts of the daemon.
///
/// # Safety
/// A `socket` that is not null is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_set_user_quota(
    socket: *const c_char,
    uid: u32,
    queues: u32,
    memory_bytes: u64,
) -> ResultCode {
    run_call(|| {
        let who = GrantSubject::Uid(uid);
        let request = AdminRequest::Quota { who, queues: Some(queues), memory: Some(memory_bytes) };
        // SAFETY: the caller's promise.
        unsafe { call_daemon(socket, request) }.map(drop)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater::io::attach::admin::AccessGrant;
    use headwater_frontend::attach::policy::GrantPolicy;
    use headwater_frontend::attach::{AttachFrontEnd, AttachFrontEndIds, SsdExecutor};
    use headwater_frontend::front_end::FrontEnd as _;
    use headwater_host::clock::Clock;
    use headwater_ssd::command::FrontEndId;
    use headwater_ssd::engine::{DeviceConfig, SsdDevice, StartTime};
    use headwater_ssd::media::FlashGeometry;
    use headwater_ssd::media::memory::MemoryMedia;
    use std::ffi::CString;
    use std::sync::atomic::{AtomicBool, Ordering};

    const UID: u32 = 4_000_001;

    /// Runs a daemon that grants everything to [`UID`], until `stop` is set.
    fn run_daemon(socket: &Path, stop: &AtomicBool, ready: &AtomicBool) {
        let numbers = AttachFrontEndIds { rings: FrontEndId(2), control: FrontEndId(3) };
        let executor = SsdExecutor::<MemoryMedia>::new(numbers).unwrap();
        let policy = GrantPolicy::new([AccessGrant::everything(GrantSubject::Uid(UID))]);
        let mut front_end = AttachFrontEnd::bind(socket, policy, executor).unwrap();
        let clock = Clock::start();
        let media = MemoryMedia::erased(FlashGeometry::with_blocks(64)).unwrap();
        let start = StartTime { now: clock.now(), wall: clock.wall() };
        let mut device = SsdDevice::open(media, DeviceConfig::default(), start, &mut |_| {}).unwrap();
        ready.store(true, Ordering::Release);
        while !stop.load(Ordering::Relaxed) {
            front_end.poll(&mut device, clock.now(), clock.wall());
            device.poll(clock.now(), clock.wall());
        }
    }

    fn quota_of(socket: &CString, uid: u32) -> (ResultCode, u32, u64) {
        let (mut queues, mut memory) = (0, 0);
        // SAFETY: a terminated string, and two numbers to write to.
        let code = unsafe { hw_get_user_quota(socket.as_ptr(), uid, &raw mut queues, &raw mut memory) };
        (code, queues, memory)
    }

    #[test]
    fn quota_that_was_set_is_returned_and_a_user_without_a_grant_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("attach.sock");
        let socket = CString::new(path.as_os_str().as_bytes()).unwrap();
        assert_eq!(quota_of(&socket, UID).0, ResultCode::Gone, "no daemon listens");
        let (stop, ready) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let daemon = scope.spawn(|| run_daemon(&path, &stop, &ready));
            while !ready.load(Ordering::Acquire) && !daemon.is_finished() {
                std::thread::yield_now();
            }
            let everything = AccessGrant::everything(GrantSubject::Uid(UID));
            let before = quota_of(&socket, UID);
            // SAFETY: a terminated string.
            let set = unsafe { hw_set_user_quota(socket.as_ptr(), UID, 3, 5 << 20) };
            let after = quota_of(&socket, UID);
            let other = quota_of(&socket, UID + 1);
            // SAFETY: null is checked.
            let null = unsafe { hw_set_user_quota(std::ptr::null(), UID, 3, 5 << 20) };
            // Set before the assertions: the scope waits for the daemon.
            stop.store(true, Ordering::Relaxed);
            assert_eq!(before, (ResultCode::Ok, everything.queues, everything.memory));
            assert_eq!((set, after), (ResultCode::Ok, (ResultCode::Ok, 3, 5 << 20)));
            assert_eq!((other.0, null), (ResultCode::Refused, ResultCode::Null));
        });
    }
}
