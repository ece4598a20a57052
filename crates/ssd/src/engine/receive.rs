//! The receipt of long values, before the commands that store them.
//!
//! Input: the length of a value, and a source of its bytes. Output: a [`ValueReceipt`], which a store then names. Invariant: a
//! receipt waits for blocks in the queue of the writes that wait for room, as one of them.

use super::SsdDevice;
use super::operation::OperationWork;
use crate::command::{FrontEndId, NamespaceId, ReceiptStep, SsdCommand, ValueReceipt, ValueSource};
use crate::ftl::ExtentStore;
use crate::media::Media;
use headwater_nvme::spec::status::Status;
use std::io::{self, IoSliceMut};

impl<M: Media> SsdDevice<M> {
    /// Begins to receive a value of `value_bytes` bytes straight into the blocks that keep it. [`receive`](Self::receive) takes
    /// the first bytes of the value, as many as the receipt says; a store with
    /// [`ValueSource::Received`] brings the rest and makes the value visible. Until then
    /// no command sees anything of it, and no key is held. A store whose condition did not hold leaves the receipt as it was.
    ///
    /// Returns `None` if the value is too short to lie in extents, if too many are being received, if they would hold more than a
    /// share of the free capacity, or if the namespace that it is for has limits: then the front end receives the value itself.
    pub fn begin_receipt(&mut self, namespace: NamespaceId, value_bytes: usize) -> Option<ValueReceipt> {
        self.ftl.begin_receipt(namespace, value_bytes)
    }

    /// Receives the next bytes of a value. The source is called at most once: it fills the slices in order, and returns how many
    /// bytes it wrote. Bytes that were received stay, whatever happens to the source later.
    ///
    /// # Errors
    /// Those of the source, which then wrote nothing.
    ///
    /// # Panics
    /// The source returns more bytes than it had room for.
    pub fn receive(
        &mut self,
        receipt: &ValueReceipt,
        source: &mut dyn FnMut(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
    ) -> io::Result<ReceiptStep> {
        if !self.operations.is_full() && self.ftl.takes_extent(receipt.number()) {
            let work = OperationWork::OpenExtent { receipt: receipt.number() };
            let at = self.operations.begin((FrontEndId(0), 0), NamespaceId::FIRST, work, self.now);
            self.run_operation(at);
        }
        self.ftl.receive(receipt.number(), source)
    }

    /// Ends the extents of a store that wrote no record. One whose condition did not hold returns them to their receipt, so that
    /// its front end can store the value under another condition; without a clone there the receipt ends.
    pub(super) fn end_unused_extents(&mut self, at: usize, store: ExtentStore, status: Status) {
        let is_unmet =
            matches!(status, Status::SEQUENCE_MISMATCH | Status::KEY_EXISTS | Status::KEY_DOES_NOT_EXIST);
        match &self.operations[at].work {
            OperationWork::Command(SsdCommand::Store {
                value: ValueSource::Received { receipt, .. },
                ..
            }) if is_unmet => self.ftl.return_receipt(receipt, store),
            _ => self.ftl.abandon_extents(store),
        }
    }
}
