//! The eventfd of a client that the node does not trust, signalled without ever blocking.
//!
//! Input: an eventfd from another process, signals. Output: its counter goes up. Invariant: no call here blocks because
//! of anything the other process does with the file.
//!
//! A write cannot keep that promise: both processes share one open file, and `O_NONBLOCK` is a property of that file.
//! The other process can fill the counter and clear the flag between any check and the write. An eventfd cannot be
//! opened again (`open` of its `/proc/self/fd` name fails with ENXIO), and its writes take no flag of their own
//! (`pwritev2` with `RWF_NOWAIT` fails with EOPNOTSUPP). A signal that the kernel itself raises never waits: it stops at
//! the maximum of the counter. Asynchronous I/O raises one when an operation completes, whatever the flags of the file.
//! The operation here is a read of no bytes from `/dev/null`, which completes inside the call that submits it.

use crate::width::narrow;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use std::ffi::{c_long, c_ulong};
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::sync::OnceLock;

/// Completions that the kernel keeps before [`SignalContext::discard_completions`] must run.
const COMPLETIONS_MAX: usize = 64;
/// `IOCB_CMD_PREAD` of `linux/aio_abi.h`.
const COMMAND_READ: u16 = 0;
/// `IOCB_FLAG_RESFD` of `linux/aio_abi.h`: the completion signals an eventfd.
const FLAG_SIGNAL: u32 = 1;

/// The error that the kernel refused an eventfd or a signal to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "client eventfd: {call} failed with {errno}; interrupts need asynchronous I/O of the kernel (CONFIG_AIO, \
     io_setup and io_submit allowed, room under the sysctl fs.aio-max-nr)"
)]
pub struct ClientEventfdError {
    /// The system call.
    pub call: &'static str,
    /// The kernel's error.
    pub errno: Errno,
}

/// An eventfd that came from another process.
#[derive(Debug)]
pub struct ClientEventfd {
    descriptor: OwnedFd,
    context: &'static SignalContext,
}

impl ClientEventfd {
    /// Takes over a descriptor. Its file is not changed.
    ///
    /// # Errors
    /// [`ClientEventfdError`] with `EINVAL` for a descriptor that is no eventfd, and if
    /// [`check_support`](Self::check_support) fails.
    pub fn adopt(descriptor: OwnedFd) -> Result<Self, ClientEventfdError> {
        let name = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
        let kind = rustix::fs::readlink(name, Vec::new()).map_err(|errno| failed("readlink", errno))?;
        if kind.as_bytes() != b"anon_inode:[eventfd]" {
            return Err(failed("eventfd", Errno::INVAL));
        }
        Ok(Self { descriptor, context: SignalContext::get()? })
    }

    /// Checks that this kernel can signal eventfds without blocking, and prepares it.
    ///
    /// # Errors
    /// [`ClientEventfdError`] when the kernel has no asynchronous I/O, or refuses it to this process.
    pub fn check_support() -> Result<(), ClientEventfdError> {
        SignalContext::get().map(|_| ())
    }

    /// Adds one to the counter. A full counter stays full: its signal is pending.
    ///
    /// # Errors
    /// [`ClientEventfdError`] when the kernel refuses.
    pub fn signal(&self) -> Result<(), ClientEventfdError> {
        match self.context.submit(&self.descriptor) {
            Err(ClientEventfdError { errno: Errno::AGAIN, .. }) => {
                self.context.discard_completions();
                self.context.submit(&self.descriptor)
            }
            signalled => signalled,
        }
    }
}

fn failed(call: &'static str, errno: Errno) -> ClientEventfdError {
    ClientEventfdError { call, errno }
}

/// The `struct iocb` of `linux/aio_abi.h`.
#[derive(Default)]
#[repr(C)]
struct AioRequest {
    data: u64,
    key_and_flags: u64,
    command: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    eventfd: u32,
}

const _: () = assert!(size_of::<AioRequest>() == 64);

/// The `struct io_event` of `linux/aio_abi.h`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct AioCompletion([u64; 4]);

/// The asynchronous I/O context of this process. One serves every client, and it is never destroyed: destroying one
/// blocks the caller for milliseconds.
#[derive(Debug)]
struct SignalContext {
    id: c_ulong,
    /// `/dev/null`.
    null: OwnedFd,
}

impl SignalContext {
    fn get() -> Result<&'static Self, ClientEventfdError> {
        static CONTEXT: OnceLock<SignalContext> = OnceLock::new();
        if let Some(context) = CONTEXT.get() {
            return Ok(context);
        }
        let created = Self::create()?;
        // If another thread was first, its context is used; this one costs some memory until the process ends.
        Ok(CONTEXT.get_or_init(|| created))
    }

    fn create() -> Result<Self, ClientEventfdError> {
        let null = open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| failed("open of /dev/null", errno))?;
        let mut id: c_ulong = 0;
        let entries: c_ulong = COMPLETIONS_MAX as c_ulong;
        // SAFETY: the kernel writes the context's number to `id`, which lives through the call.
        let answer = unsafe { libc::syscall(libc::SYS_io_setup, entries, &raw mut id) };
        check("io_setup", answer)?;
        Ok(Self { id, null })
    }

    fn submit(&self, eventfd: &OwnedFd) -> Result<(), ClientEventfdError> {
        let mut request = AioRequest {
            command: COMMAND_READ,
            file: number(self.null.as_raw_fd()),
            flags: FLAG_SIGNAL,
            eventfd: number(eventfd.as_raw_fd()),
            ..AioRequest::default()
        };
        let mut requests = [&raw mut request];
        // SAFETY: the list and the request live through the call, which is the only time the kernel accesses them: it
        // copies the request and writes its `key`. The operation transfers no bytes, so it has no buffer.
        let answer =
            unsafe { libc::syscall(libc::SYS_io_submit, self.id, 1 as c_long, requests.as_mut_ptr()) };
        check("io_submit", answer)
    }

    /// Makes room for more completions. A failure leaves them, and the next submission reports that.
    fn discard_completions(&self) {
        let mut completions = [AioCompletion::default(); COMPLETIONS_MAX];
        let least: c_long = 0;
        let most: c_long = narrow(COMPLETIONS_MAX);
        let mut timeout = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let into = completions.as_mut_ptr();
        // SAFETY: the kernel writes at most `most` completions, which is the length of the array, and reads the time
        // limit; both live through the call. The limit of zero makes it return at once.
        let _ =
            unsafe { libc::syscall(libc::SYS_io_getevents, self.id, least, most, into, &raw mut timeout) };
    }
}

fn number(descriptor: RawFd) -> u32 {
    narrow(descriptor)
}

fn check(call: &'static str, answer: c_long) -> Result<(), ClientEventfdError> {
    if answer >= 0 {
        return Ok(());
    }
    let errno = Errno::from_io_error(&std::io::Error::last_os_error());
    Err(failed(call, errno.unwrap_or(Errno::IO)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    fn counter_of(descriptor: &OwnedFd) -> u64 {
        let mut counter = [0; 8];
        rustix::io::read(descriptor, &mut counter).unwrap();
        u64::from_le_bytes(counter)
    }

    fn shared() -> (ClientEventfd, OwnedFd) {
        let theirs = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        (ClientEventfd::adopt(theirs.try_clone().unwrap()).unwrap(), theirs)
    }

    #[test]
    fn every_signal_is_counted_also_after_the_completions_of_many() {
        let (ours, theirs) = shared();
        let signals = 10 * COMPLETIONS_MAX as u64 * 64;
        for _ in 0..signals {
            ours.signal().unwrap();
        }
        assert_eq!(counter_of(&theirs), signals);
    }

    /// Checks for a former defect: a write to a full counter of a blocking file never returned.
    #[test]
    fn a_full_counter_of_a_blocking_file_does_not_block_and_its_flag_is_left_alone() {
        let (ours, theirs) = shared();
        rustix::io::write(&theirs, &(u64::MAX - 1).to_le_bytes()).unwrap();
        for _ in 0..3 {
            ours.signal().unwrap();
        }
        assert!(!rustix::fs::fcntl_getfl(&theirs).unwrap().contains(OFlags::NONBLOCK));
        assert!(counter_of(&theirs) >= u64::MAX - 1, "the pending signal was lost");
        ours.signal().unwrap();
        assert_eq!(counter_of(&theirs), 1);
    }

    #[test]
    fn other_files_are_refused() {
        let (reader, writer) = std::io::pipe().unwrap();
        let file: OwnedFd = tempfile::tempfile().unwrap().into();
        for descriptor in [reader.into(), writer.into(), file] {
            let refused = ClientEventfd::adopt(descriptor).unwrap_err();
            assert_eq!((refused.call, refused.errno), ("eventfd", Errno::INVAL));
        }
    }
}
