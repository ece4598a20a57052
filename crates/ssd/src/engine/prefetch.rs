//! Prefetch for the operations that run next.
//!
//! Input: the first new operations. Output: hints to the processor for their index slots and records. Invariant: no state
//! changes but the list of records that will be read.

use super::SsdDevice;
use crate::index::{IndexEntry, RecordIndex};
use crate::media::Media;
use headwater_host::copy::prefetch_read;

impl<M: Media> SsdDevice<M> {
    /// Prefetches the memory that the next operations will access: first all their index slots, then both ends of their
    /// records, because page table walks overlap only if no other work separates them. Fills `prefetched` with the records
    /// that will be read.
    pub(super) fn prefetch_batch(&self, batch: usize, ahead: &mut Vec<Option<IndexEntry>>) {
        let operations = || self.schedule.incoming.iter().take(batch).map(|&at| &self.operations[at]);
        for operation in operations() {
            self.ftl.index().prefetch(operation.span.first);
        }
        ahead.clear();
        ahead.extend(operations().map(|operation| {
            let entry = self.ftl.prefetch_record(operation.span.first)?;
            if !operation.reads_value() {
                // An operation that replaces or removes the record updates the counts of its block.
                prefetch_read(self.ftl.blocks().get(entry.address.block()));
                return None;
            }
            self.ftl.prefetch_end(entry);
            Some(entry)
        }));
    }
}
