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
