//! Durable bytes of a memory, and the stores that are not durable yet.
//!
//! Input: recorded operations, in order. Output: the lines that a power cut can leave in more than one state. Invariant:
//! a line that is not listed has the durable bytes, whatever happens.

use super::MemoryOperation;
use super::line_stores::{LineStores, StoreRoute};
use headwater_host::persistent_memory::LINE_BYTES;
use std::collections::BTreeMap;
use std::ops::Range;

/// The state of a memory between two operations.
#[derive(Clone, Debug)]
pub(super) struct PendingStores {
    /// The bytes that no power cut takes away.
    pub(super) durable: Vec<u8>,
    /// Pending stores by the number of their line.
    pub(super) lines: BTreeMap<usize, LineStores>,
}

/// The effect of a flush or a fence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct UselessWork {
    /// Lines that a flush wrote back although no store waited for it.
    pub(super) lines: Vec<usize>,
    /// True for a fence before which nothing was flushed or streamed.
    pub(super) is_empty_fence: bool,
}

impl PendingStores {
    pub(super) fn new(initial: &[u8]) -> Self {
        Self { durable: initial.to_vec(), lines: BTreeMap::new() }
    }

    /// Applies the operation with this number. Returns the work in it that had no effect.
    pub(super) fn apply(&mut self, number: usize, operation: &MemoryOperation) -> UselessWork {
        let mut useless = UselessWork::default();
        match operation {
            MemoryOperation::Store { offset, bytes } => {
                self.store(number, StoreRoute::Cached, *offset, bytes);
            }
            MemoryOperation::StoreStreaming { offset, bytes } => {
                self.store(number, StoreRoute::Streaming, *offset, bytes);
            }
            MemoryOperation::Flush(range) => {
                for line in lines_of(range) {
                    if !self.lines.get_mut(&line).is_some_and(LineStores::flush) {
                        useless.lines.push(line);
                    }
                }
            }
            MemoryOperation::Fence => {
                let mut is_useful = false;
                for (line, stores) in &mut self.lines {
                    is_useful |= stores.fence(&mut self.durable[bytes_of(*line)]);
                }
                self.lines.retain(|_, stores| !stores.is_empty());
                useless.is_empty_fence = !is_useful;
            }
        }
        useless
    }

    fn store(&mut self, number: usize, route: StoreRoute, mut offset: usize, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let start = offset % LINE_BYTES;
            let (part, rest) = bytes.split_at(bytes.len().min(LINE_BYTES - start));
            self.lines.entry(offset / LINE_BYTES).or_default().store(number, route, start, part);
            (offset, bytes) = (offset + part.len(), rest);
        }
    }

    /// Returns the durable bytes of a line.
    pub(super) fn durable_line(&self, line: usize) -> &[u8] {
        &self.durable[bytes_of(line)]
    }
}

/// Returns the bytes of a line.
pub(super) fn bytes_of(line: usize) -> Range<usize> {
    line * LINE_BYTES..(line + 1) * LINE_BYTES
}

/// Returns the lines that a range touches.
fn lines_of(range: &Range<usize>) -> Range<usize> {
    if range.is_empty() { 0..0 } else { range.start / LINE_BYTES..range.end.div_ceil(LINE_BYTES) }
}
