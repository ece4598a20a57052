//! The part of a connection's next value that the device has received.
//!
//! Input: a receipt, and bytes that the device took. Output: what is left. Invariant: no more is received than the receipt says.

use headwater_ssd::command::ValueReceipt;

/// The value that the device receives for a connection's next command.
#[derive(Debug)]
pub(crate) struct ReceivedBytes {
    pub(crate) receipt: ValueReceipt,
    /// Bytes that the device has.
    pub(crate) done: usize,
    /// True if the connection is queued to go on when the device has room.
    pub(crate) is_queued: bool,
}

impl ReceivedBytes {
    /// Returns true if the device waits for more bytes.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.done < self.receipt.bytes()
    }
}
