//! The codes that calls return.
//!
//! In: nothing. Out: [`Code`] and its names. Invariant: a code keeps its number for ever; new ones are added at the end.

use std::ffi::{CStr, c_char};

/// What became of a call.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// It is done.
    Ok = 0,
    /// A pointer that must point somewhere is null.
    Null = 1,
    /// A handle that this library did not give, or that was closed: a pool once all of its memory is back, anything else at once.
    Handle = 2,
    /// A pointer that is not aligned for what it points to, a flag that does not exist, a struct of the wrong length.
    Argument = 3,
    /// The configuration contradicts itself.
    Config = 4,
    /// More pools, devices, queues or handles are open than there is room for.
    TooManyPools = 5,
    /// A request for 0 bytes.
    Zero = 6,
    /// The length does not fit the address space once it is rounded up to pages.
    Overflow = 7,
    /// The alignment is no power of two, or too large.
    Align = 8,
    /// Scatter/gather in 0 segments.
    NoSegments = 9,
    /// More than the cap leaves for requests: never to be had before the cap is raised.
    OverCap = 10,
    /// More than addresses were reserved for when the pool was opened.
    CapTooHigh = 11,
    /// The pool has no memory on such a node.
    NoSuchNode = 12,
    /// Not now: buffers must come back first.
    WouldBlock = 13,
    /// It did not come free in time.
    Timeout = 14,
    /// Memory could not be pinned.
    Pin = 15,
    /// The kernel gave no memory, or no addresses, or not on that node.
    NoMemory = 16,
    /// Freed: an address that is not of this pool.
    Foreign = 17,
    /// Freed: an address inside of a buffer.
    Interior = 18,
    /// Freed: a buffer that was freed before.
    DoubleFree = 19,
    /// Freed: a buffer that was never handed to C.
    NotRaw = 20,
    /// The pool belongs to the parent of this process.
    Forked = 21,
    /// The pool was closed.
    Closed = 22,
    /// The system would not start a thread.
    NoThread = 23,
    /// A mistake in this library. The call may have done a part of its work.
    Panic = 24,
    /// Anything else; hw_last_error() says what.
    Other = 25,
    /// The way of pinning needs an object that this interface has no way to take.
    Unavailable = 26,
    /// The device answered with a failure; hw_last_error() says which.
    Status = 27,
    /// An offset or a length that is no whole number of blocks.
    Misaligned = 28,
    /// Bytes outside of what the handle may touch.
    OutOfRange = 29,
    /// A change, where the client may only read.
    ReadOnly = 30,
    /// This way to a device has no such thing.
    Unsupported = 31,
    /// The device is gone for good: open it again.
    Gone = 32,
    /// The daemon or the device refused.
    Refused = 33,
    /// Somebody else uses it: another thread a handle, a handle a queue.
    Busy = 34,
    /// The device cannot be opened, or failed; hw_last_error() says why.
    Device = 35,
    /// A request that cannot be cancelled any more: it will be answered.
    TooLate = 36,
    /// No request with that tag is on the way.
    Unknown = 37,
}

impl Code {
    /// Every code, in the order of the numbers.
    ///
    /// cbindgen:ignore
    pub const ALL: [Self; 38] = [
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
    ];

    /// Its name in the header.
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
        }
    }
}

/// The name of a code as it stands in this header. "unknown" for a number that is none.
#[unsafe(no_mangle)]
pub extern "C" fn hw_code_name(code: i32) -> *const c_char {
    let known = usize::try_from(code).ok().and_then(|code| Code::ALL.get(code));
    known.map_or(c"unknown", |code| code.name()).as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_stands_at_its_number_under_a_name_of_its_own() {
        let header = include_str!("../include/headwater.h");
        for (number, code) in Code::ALL.into_iter().enumerate() {
            assert_eq!(code as usize, number);
            let name = code.name().to_str().unwrap();
            assert!(header.contains(&format!("{name} = {number},")), "{name} = {number}");
        }
    }
}
