//! The values that the device receives for the commands of one connection.
//!
//! Input: receipts, and bytes for which the device had no room. Output: what is left to receive, and what waits for room.
//! Invariant: a command has one receipt at most; while the next bytes of the stream have no room, nothing is read behind them.

use headwater_nvme::tcp::ExchangeSlot;
use headwater_ssd::command::ValueReceipt;
use std::fmt;

/// The value that the device receives for one command.
#[derive(Debug)]
pub(super) struct CommandReceipt {
    pub(super) slot: ExchangeSlot,
    pub(super) receipt: ValueReceipt,
    /// Bytes that the device has.
    pub(super) done: usize,
    /// True if the next part is requested when the device has room.
    pub(super) awaits_request: bool,
}

/// The values that the device receives for the commands of one connection.
#[derive(Default)]
pub(super) struct ConnectionReceipts {
    receipts: Vec<CommandReceipt>,
    /// Received bytes that are not processed: the first ones belong to a part for which the device had no room.
    unprocessed: Vec<u8>,
    /// True if the connection is not read, because the next bytes have no room.
    is_stalled: bool,
    /// True if the connection is in the list of those that wait for room.
    pub(super) is_listed: bool,
}

impl fmt::Debug for ConnectionReceipts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionReceipts")
            .field("receipts", &self.receipts)
            .field("unprocessed_bytes", &self.unprocessed.len())
            .field("is_stalled", &self.is_stalled)
            .finish_non_exhaustive()
    }
}

impl ConnectionReceipts {
    /// Returns true if no value is being received.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.receipts.is_empty()
    }

    /// Returns true if data of a part was requested and is not received: not of the rest of a value, which a buffer receives.
    pub(super) fn expects_parts(&self) -> bool {
        let expects =
            |received: &CommandReceipt| !received.awaits_request && received.done < received.receipt.bytes();
        self.receipts.iter().any(expects)
    }

    /// Returns true if reading waits for room in the device.
    #[inline]
    pub(super) fn is_stalled(&self) -> bool {
        self.is_stalled
    }

    /// Returns true if anything waits for room in the device.
    pub(super) fn awaits_room(&self) -> bool {
        self.is_stalled || self.receipts.iter().any(|received| received.awaits_request)
    }

    pub(super) fn begin(&mut self, received: CommandReceipt) {
        self.receipts.push(received);
    }

    /// Drops the receipt of a command, if it has one.
    #[inline]
    pub(super) fn end(&mut self, slot: ExchangeSlot) {
        self.receipts.retain(|received| received.slot != slot);
    }

    /// Drops the receipts of commands that are answered: the target does that without a step where it has no memory for the rest
    /// of a value.
    pub(super) fn end_answered(&mut self, is_unanswered: impl Fn(ExchangeSlot) -> bool) {
        self.receipts.retain(|received| is_unanswered(received.slot));
    }

    /// Drops the receipts of values that will not arrive, because the connection accepts no more data.
    pub(super) fn end_incomplete(&mut self) {
        self.receipts.retain(|received| received.done == received.receipt.bytes());
        self.receipts.iter_mut().for_each(|received| received.awaits_request = false);
        self.unprocessed = Vec::new();
        self.is_stalled = false;
    }

    pub(super) fn get_mut(&mut self, slot: ExchangeSlot) -> Option<&mut CommandReceipt> {
        self.receipts.iter_mut().find(|received| received.slot == slot)
    }

    /// Removes the receipt of a command, and returns it if the device has all of its bytes.
    pub(super) fn take_complete(&mut self, slot: ExchangeSlot) -> Option<ValueReceipt> {
        let at = self.receipts.iter().position(|received| received.slot == slot)?;
        let received = self.receipts.swap_remove(at);
        (received.done == received.receipt.bytes()).then_some(received.receipt)
    }

    /// Returns the commands whose next part waits to be requested.
    pub(super) fn awaiting_requests(&self) -> Vec<ExchangeSlot> {
        let waiting = self.receipts.iter().filter(|received| received.awaits_request);
        waiting.map(|received| received.slot).collect()
    }

    /// Pauses reading, and keeps what was received and not processed.
    pub(super) fn stall(&mut self, bytes: &[u8]) {
        self.is_stalled = true;
        self.unprocessed.extend_from_slice(bytes);
    }

    /// Lets reading go on. Returns what was received and not processed, or `None` if reading was not paused.
    pub(super) fn end_stall(&mut self) -> Option<Vec<u8>> {
        std::mem::take(&mut self.is_stalled).then(|| std::mem::take(&mut self.unprocessed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_keeps_the_input_and_ends_once() {
        let mut receipts = ConnectionReceipts::default();
        assert_eq!(receipts.end_stall(), None);
        receipts.stall(b"data");
        assert!(receipts.is_stalled() && receipts.awaits_room());
        assert_eq!(receipts.end_stall().as_deref(), Some(&b"data"[..]));
        assert!(!receipts.awaits_room());
        receipts.stall(b"");
        assert_eq!(receipts.end_stall().as_deref(), Some(&b""[..]));
        receipts.stall(b"of a connection that ends");
        receipts.end_incomplete();
        assert_eq!(receipts.end_stall(), None);
    }
}
