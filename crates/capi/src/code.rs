//! The codes that calls return.
//!
//! Output: [`ResultCode`] and its names. Invariant: a code keeps its number forever; new codes are added at the end.

use std::ffi::{CStr, c_char};

/// The result of a call.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultCode {
    /// Success.
    Ok = 0,
    /// A pointer that must not be null is null.
    Null = 1,
    /// A handle that this library did not return, or that has ended: a closed pool ends when its last buffer is freed,
    /// any other object when it is closed or destroyed.
    Handle = 2,
    /// A misaligned pointer, an undefined flag, or a struct of the wrong length.
    Argument = 3,
    /// A value of the configuration or of a parameter is not valid.
    Config = 4,
    /// The maximum number of pools, devices, queues, handles, movers or jobs is open, or of memories or steps in a job.
    TooManyPools = 5,
    /// A request for 0 bytes, or a memory or a step of a job with 0 bytes.
    Zero = 6,
    /// The length, rounded up to pages, or the end of a range, does not fit the address space.
    Overflow = 7,
    /// The alignment is not a power of two, or is too large.
    Align = 8,
    /// Scatter/gather in 0 segments.
    NoSegments = 9,
    /// The request exceeds what the cap leaves for requests: it can succeed only with a higher cap.
    OverCap = 10,
    /// The cap exceeds the addresses that were reserved when the pool was opened.
    CapTooHigh = 11,
    /// The pool has no memory on that node.
    NoSuchNode = 12,
    /// Not possible now: buffers must be freed, or events or ended jobs taken, first.
    WouldBlock = 13,
    /// No memory became free, or a job did not end, before the timeout.
    Timeout = 14,
    /// Memory could not be pinned.
    Pin = 15,
    /// The kernel provided no memory, or no addresses, or none on that node.
    NoMemory = 16,
    /// An address, or a range, that no buffer of this pool or device contains.
    Foreign = 17,
    /// Freed: an address inside a buffer instead of its start.
    Interior = 18,
    /// Freed: a buffer that is already free.
    DoubleFree = 19,
    /// Freed: a buffer that was never given to C.
    NotRaw = 20,
    /// The pool, device, queue, handle, mover or job belongs to the parent of this process.
    Forked = 21,
    /// The pool was closed, or the handle has no queue.
    Closed = 22,
    /// The system could not start a thread.
    NoThread = 23,
    /// An internal error of this library. The call may have done a part of its work.
    Panic = 24,
    /// Any other error; hw_last_error() says which.
    Other = 25,
    /// The pinning method needs an object that this interface cannot take.
    Unavailable = 26,
    /// The device completed the command with an error status; hw_last_error() says which.
    Status = 27,
    /// The offset or the length is not a whole number of blocks.
    Misaligned = 28,
    /// The bytes lie outside the range that the handle may access, or outside the memory of a job.
    OutOfRange = 29,
    /// A write, where the client may only read, or to memory that a job may only read.
    ReadOnly = 30,
    /// This kind of device does not support the request.
    Unsupported = 31,
    /// The device is permanently gone: open it again.
    Gone = 32,
    /// The daemon or the device refused.
    Refused = 33,
    /// In use: a handle by another thread, a queue by a handle, a handle by requests in flight, a job that runs, or a
    /// mover with jobs.
    Busy = 34,
    /// The device or work queue cannot be opened, or failed; hw_last_error() says why.
    Device = 35,
    /// The request can no longer be cancelled: it will complete.
    TooLate = 36,
    /// No request with that tag is in flight; no memory, step or result of that number is in the job.
    Unknown = 37,
    /// The request was cancelled while it waited.
    Cancelled = 38,
    /// A move job: memory that would be written overlaps memory that is also read or written.
    Overlap = 39,
}

impl ResultCode {
    /// Every code, in the order of the numbers.
    ///
    /// cbindgen:ignore
    pub const ALL: [Self; 40] = [
        Self::Ok,
        Self::Null,
        Self::Handle,
        Self::Argument,
        Self::Config,
        Self::TooManyPools,
        Self::Zero,
        Self::Overflow,
        Self::Align,
        Self::NoSegments,
        Self::OverCap,
        Self::CapTooHigh,
        Self::NoSuchNode,
        Self::WouldBlock,
        Self::Timeout,
        Self::Pin,
        Self::NoMemory,
        Self::Foreign,
        Self::Interior,
        Self::DoubleFree,
        Self::NotRaw,
        Self::Forked,
        Self::Closed,
        Self::NoThread,
        Self::Panic,
        Self::Other,
        Self::Unavailable,
        Self::Status,
        Self::Misaligned,
        Self::OutOfRange,
        Self::ReadOnly,
        Self::Unsupported,
        Self::Gone,
        Self::Refused,
        Self::Busy,
        Self::Device,
        Self::TooLate,
        Self::Unknown,
        Self::Cancelled,
        Self::Overlap,
    ];

    /// Returns its name in the header.
    #[must_use]
    pub const fn name(self) -> &'static CStr {
        match self {
            Self::Ok => c"HW_CODE_OK",
            Self::Null => c"HW_CODE_NULL",
            Self::Handle => c"HW_CODE_HANDLE",
            Self::Argument => c"HW_CODE_ARGUMENT",
            Self::Config => c"HW_CODE_CONFIG",
            Self::TooManyPools => c"HW_CODE_TOO_MANY_POOLS",
            Self::Zero => c"HW_CODE_ZERO",
            Self::Overflow => c"HW_CODE_OVERFLOW",
            Self::Align => c"HW_CODE_ALIGN",
            Self::NoSegments => c"HW_CODE_NO_SEGMENTS",
            Self::OverCap => c"HW_CODE_OVER_CAP",
            Self::CapTooHigh => c"HW_CODE_CAP_TOO_HIGH",
            Self::NoSuchNode => c"HW_CODE_NO_SUCH_NODE",
            Self::WouldBlock => c"HW_CODE_WOULD_BLOCK",
            Self::Timeout => c"HW_CODE_TIMEOUT",
            Self::Pin => c"HW_CODE_PIN",
            Self::NoMemory => c"HW_CODE_NO_MEMORY",
            Self::Foreign => c"HW_CODE_FOREIGN",
            Self::Interior => c"HW_CODE_INTERIOR",
            Self::DoubleFree => c"HW_CODE_DOUBLE_FREE",
            Self::NotRaw => c"HW_CODE_NOT_RAW",
            Self::Forked => c"HW_CODE_FORKED",
            Self::Closed => c"HW_CODE_CLOSED",
            Self::NoThread => c"HW_CODE_NO_THREAD",
            Self::Panic => c"HW_CODE_PANIC",
            Self::Other => c"HW_CODE_OTHER",
            Self::Unavailable => c"HW_CODE_UNAVAILABLE",
            Self::Status => c"HW_CODE_STATUS",
            Self::Misaligned => c"HW_CODE_MISALIGNED",
            Self::OutOfRange => c"HW_CODE_OUT_OF_RANGE",
            Self::ReadOnly => c"HW_CODE_READ_ONLY",
            Self::Unsupported => c"HW_CODE_UNSUPPORTED",
            Self::Gone => c"HW_CODE_GONE",
            Self::Refused => c"HW_CODE_REFUSED",
            Self::Busy => c"HW_CODE_BUSY",
            Self::Device => c"HW_CODE_DEVICE",
            Self::TooLate => c"HW_CODE_TOO_LATE",
            Self::Unknown => c"HW_CODE_UNKNOWN",
            Self::Cancelled => c"HW_CODE_CANCELLED",
            Self::Overlap => c"HW_CODE_OVERLAP",
        }
    }
}

/// Returns the name of a code as in this header, or "unknown" for a number that is no code. The string is static.
#[unsafe(no_mangle)]
pub extern "C" fn hw_code_name(code: i32) -> *const c_char {
    let known = usize::try_from(code).ok().and_then(|code| ResultCode::ALL.get(code));
    known.map_or(c"unknown", |code| code.name()).as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_number_and_name_in_the_header() {
        let header = include_str!("../include/headwater.h");
        for (number, code) in ResultCode::ALL.into_iter().enumerate() {
            assert_eq!(code as usize, number);
            let name = code.name().to_str().unwrap();
            assert!(header.contains(&format!("{name} = {number},")), "{name} = {number}");
        }
    }
}
