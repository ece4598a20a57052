//! The handle of a value that the device receives before the command that stores it.
//!
//! Input: number and length of a receipt. Output: clones for the front end and for the device. Invariant: the device sees when
//! it has the only clone.

use std::sync::Arc;

/// The first bytes of a long value, which the device receives straight into the blocks that keep them
/// ([`SsdDevice::begin_receipt`](crate::engine::SsdDevice::begin_receipt)). The device forgets them once every clone that it
/// returned is dropped and no command stored them.
#[derive(Clone, Debug)]
pub struct ValueReceipt(Arc<ReceiptIdentity>);

#[derive(Debug)]
struct ReceiptIdentity {
    number: u64,
    bytes: usize,
}

impl ValueReceipt {
    /// Makes the receipt with this number, of so many bytes.
    pub(crate) fn new(number: u64, bytes: usize) -> Self {
        Self(Arc::new(ReceiptIdentity { number, bytes }))
    }

    /// Returns its number.
    pub(crate) fn number(&self) -> u64 {
        self.0.number
    }

    /// Returns the bytes that the device receives itself. The rest of the value comes with the command.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// Returns true if there is no other clone.
    pub(crate) fn is_last(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

/// The result of one call of [`SsdDevice::receive`](crate::engine::SsdDevice::receive).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiptStep {
    /// So many bytes were received; none if the source had none.
    Received(usize),
    /// The device has no room for more now. It is asked again in a later turn.
    NoRoom,
}
