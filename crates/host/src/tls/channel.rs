//! The two buffers between a session and its socket, and the callbacks by which the C library accesses them.
//!
//! Input: received bytes, sealed bytes. Output: the same, in order. Invariant: a caller of the library holds no lock,
//! so that the library's callbacks find the buffers unlocked; nothing here can panic, because no panic may cross C.

use s2n_tls::connection::Connection;
use s2n_tls::error::Error;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The received and the sealed bytes.
#[derive(Debug, Default)]
pub(super) struct TlsChannel {
    received: Vec<u8>,
    taken: usize,
    sealed: Vec<u8>,
}

impl TlsChannel {
    /// Appends what the socket received.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        if self.taken > 0 {
            self.received.drain(..self.taken);
            self.taken = 0;
        }
        self.received.extend_from_slice(bytes);
    }

    /// Moves sealed bytes to the end of `out`.
    pub(super) fn collect(&mut self, out: &mut Vec<u8>) {
        if out.is_empty() {
            std::mem::swap(out, &mut self.sealed);
        } else {
            out.append(&mut self.sealed);
        }
    }
}

/// The buffers of one session.
#[derive(Debug, Default)]
pub(super) struct SharedChannel(Arc<Mutex<TlsChannel>>);

impl SharedChannel {
    pub(super) fn lock(&self) -> MutexGuard<'_, TlsChannel> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a connection receive and send through these buffers.
    ///
    /// # Safety
    /// `self` outlives the connection's last call into the library.
    pub(super) unsafe fn install_callbacks(&self, connection: &mut Connection) -> Result<(), Error> {
        let context: *mut c_void = Arc::as_ptr(&self.0).cast_mut().cast();
        connection.set_receive_callback(Some(receive))?;
        connection.set_send_callback(Some(send))?;
        // SAFETY: the address stays that of the mutex, which does not move inside its `Arc`, and the caller promises
        // that it outlives the connection; the library only passes the pointer back to `receive`.
        unsafe { connection.set_receive_context(context) }?;
        // SAFETY: as above, for `send`.
        unsafe { connection.set_send_context(context) }?;
        Ok(())
    }
}

/// Copies received bytes to the library.
///
/// # Safety
/// `context` is what [`SharedChannel::install_callbacks`] set, and `into` has room for `bytes` bytes.
unsafe extern "C" fn receive(context: *mut c_void, into: *mut u8, bytes: u32) -> c_int {
    // SAFETY: `install_callbacks` set the address of a `Mutex<TlsChannel>` that outlives the connection. It is only
    // ever used through shared references, and the mutex guards against aliasing.
    let channel = unsafe { &*context.cast::<Mutex<TlsChannel>>() };
    let mut channel = channel.lock().unwrap_or_else(PoisonError::into_inner);
    let waiting = channel.received.get(channel.taken..).unwrap_or(&[]);
    let most = usize::try_from(bytes.min(i32::MAX.unsigned_abs())).unwrap_or(0);
    let count = waiting.len().min(most);
    if count == 0 {
        return would_block();
    }
    // SAFETY: `count` is within the waiting bytes and within the room that the library promises at `into`; the
    // library's buffer does not overlap `received`. Bytes have no alignment.
    unsafe { std::ptr::copy_nonoverlapping(waiting.as_ptr(), into, count) };
    channel.taken += count;
    c_int::try_from(count).unwrap_or(-1)
}

/// Takes all sealed bytes from the library.
///
/// # Safety
/// `context` is what [`SharedChannel::install_callbacks`] set, and `bytes` bytes lie at `from`.
unsafe extern "C" fn send(context: *mut c_void, from: *const u8, bytes: u32) -> c_int {
    // SAFETY: as in `receive`.
    let channel = unsafe { &*context.cast::<Mutex<TlsChannel>>() };
    let mut channel = channel.lock().unwrap_or_else(PoisonError::into_inner);
    let (Ok(count), Ok(answer)) = (usize::try_from(bytes), c_int::try_from(bytes)) else {
        return would_block();
    };
    // SAFETY: the library promises `count` initialised bytes at `from`, and does not write them before this returns.
    let sealed = unsafe { std::slice::from_raw_parts(from, count) };
    channel.sealed.extend_from_slice(sealed);
    answer
}

/// Reports EAGAIN as a socket does.
fn would_block() -> c_int {
    // SAFETY: the call takes nothing and returns the address of this thread's own errno.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: that address is valid and aligned for as long as the thread lives, and only this thread uses it.
    unsafe { *errno = libc::EAGAIN };
    -1
}
