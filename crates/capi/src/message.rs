//! The message of the last failure, for each thread.
//!
//! Input: faults. Output: a C string. Invariant: it is always terminated, and belongs to its thread; nothing is
//! allocated for it, so it can be written when there is no memory.

use std::cell::Cell;
use std::ffi::c_char;
use std::fmt::{self, Write};

/// Bytes of the longest message, its terminator included.
const MESSAGE_BYTES: usize = 512;

thread_local! {
    static LAST_MESSAGE: [Cell<u8>; MESSAGE_BYTES] = const { [const { Cell::new(0) }; MESSAGE_BYTES] };
}

/// A writer that truncates at the end of its room.
struct MessageWriter<'a> {
    room: &'a [Cell<u8>],
}

impl Write for MessageWriter<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let count = text.len().min(self.room.len());
        let (now, rest) = self.room.split_at(count);
        now.iter().zip(text.bytes()).for_each(|(to, byte)| to.set(byte));
        self.room = rest;
        Ok(())
    }
}

/// Stores a message for [`hw_last_error`].
pub(crate) fn set_last_error(message: &dyn fmt::Display) {
    // A thread whose thread-local storage is gone is ending, and reads no message.
    let _ = LAST_MESSAGE.try_with(|last| {
        let Some((end, room)) = last.split_last() else { return };
        end.set(0);
        let mut writer = MessageWriter { room };
        // A message whose `Display` fails is truncated.
        let _ = write!(writer, "{message}");
        if let Some(end) = writer.room.first() {
            end.set(0);
        }
    });
}

/// Returns the message of the last failure on this thread: what failed and what to change. Empty if there was none. The
/// string belongs to the library and is valid until the next call on this thread that fails, or the end of the thread.
#[unsafe(no_mangle)]
pub extern "C" fn hw_last_error() -> *const c_char {
    LAST_MESSAGE.try_with(|last| last.as_ptr().cast()).unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn last() -> String {
        // SAFETY: the message of this thread, which is terminated, and which nothing writes while it is read.
        unsafe { CStr::from_ptr(hw_last_error()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn message_belongs_to_its_thread_and_is_always_terminated() {
        assert_eq!(last(), "");
        set_last_error(&"first of all");
        set_last_error(&"second");
        assert_eq!(last(), "second");
        std::thread::scope(|scope| scope.spawn(|| assert_eq!(last(), "")).join().unwrap());
        set_last_error(&"x".repeat(2 * MESSAGE_BYTES));
        assert_eq!(last().len(), MESSAGE_BYTES - 1);
    }
}
