//! Model hosts that build PRP lists and SGLs, and record the ranges of their data.

use super::*;
use std::cell::Cell;
use std::collections::BTreeMap;
use zerocopy::IntoBytes;

/// Host memory in 8-byte words; words never written are not readable.
#[derive(Debug, Default)]
pub(super) struct HostMemory {
    words: BTreeMap<u64, [u8; 8]>,
    reads: Cell<u64>,
}

impl HostMemory {
    pub(super) fn write(&mut self, start: u64, words: &[u64]) {
        for (at, word) in (start..).step_by(8).zip(words) {
            self.words.insert(at, word.to_le_bytes());
        }
    }

    /// Writes a segment and returns the descriptor that points to it.
    pub(super) fn segment(&mut self, start: u64, list: &[SglDescriptor], kind: SglKind) -> SglDescriptor {
        for (at, word) in (start..).step_by(8).zip(list.as_bytes().chunks(8)) {
            self.words.insert(at, word.try_into().unwrap());
        }
        SglDescriptor::new(kind, start, u32::try_from(list.len() * 16).unwrap())
    }

    pub(super) fn read(&self, at: Iova, into: &mut [u8]) -> Result<(), Status> {
        self.reads.set(self.reads.get() + 1);
        assert!(into.len().is_multiple_of(8) && !into.is_empty());
        for (at, into) in (0..).map(|word: u64| at.0.checked_add(word * 8)).zip(into.chunks_mut(8)) {
            let word = at.and_then(|at| self.words.get(&at)).ok_or(Status::DATA_TRANSFER_ERROR)?;
            into.copy_from_slice(word);
        }
        Ok(())
    }

    pub(super) fn reads(&self) -> u64 {
        self.reads.get()
    }
}

/// A contiguous range of data in host memory; discarded data if `start` is `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemoryRun {
    pub(super) start: Option<u64>,
    pub(super) bytes: u64,
}

/// Merges all adjacent ranges, so that results are comparable.
pub(super) fn merged_runs(ranges: &[DataRange]) -> Vec<MemoryRun> {
    let mut runs = Vec::new();
    for range in ranges {
        match *range {
            DataRange::Memory(range) => add(&mut runs, Some(range.start.0), u64::from(range.bytes)),
            DataRange::Discard(bytes) => add(&mut runs, None, u64::from(bytes)),
        }
    }
    runs
}

fn add(runs: &mut Vec<MemoryRun>, start: Option<u64>, bytes: u64) {
    match runs.last_mut() {
        Some(last) if start.is_some() && last.start.map(|first| first + last.bytes) == start => {
            last.bytes += bytes;
        }
        Some(last) if start.is_none() && last.start.is_none() => last.bytes += bytes,
        _ => runs.push(MemoryRun { start, bytes }),
    }
}

/// Generates a word that is often a plausible pointer into the first pages, or a descriptor's second half.
pub(super) fn wild_word() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        (0..4_u64).prop_map(|page| page * KIB4),
        (0..1_024_u64).prop_map(|word| word * 16),
        ((0..5_u64), (0..64_u64)).prop_map(|(kind, descriptors)| (kind << 60) | (descriptors * 16)),
        ((0..2_u64), (0..1_u64 << 20)).prop_map(|(kind, bytes)| (kind << 60) | bytes),
    ]
}

/// The parameters of a host that builds PRPs.
#[derive(Clone, Debug)]
pub(super) struct PrpHost {
    mps: u8,
    offset_words: u32,
    pub(super) bytes: u32,
    list_offset_words: u32,
    /// True if a page of data is contiguous with the previous one; repeated as often as needed.
    follows: Vec<bool>,
}

pub(super) struct BuiltPrp {
    pub(super) entry: SubmissionEntry,
    pub(super) memory: HostMemory,
    pub(super) data: Vec<MemoryRun>,
}

impl PrpHost {
    pub(super) fn any() -> impl Strategy<Value = Self> {
        let bytes = prop_oneof![1..=32_768_u32, 1..=16_u32 << 20];
        (0..=5_u8, any::<u32>(), bytes, any::<u32>(), prop::collection::vec(any::<bool>(), 1..64)).prop_map(
            |(mps, offset_words, bytes, list_offset_words, follows)| Self {
                mps,
                offset_words,
                bytes,
                list_offset_words,
                follows,
            },
        )
    }

    pub(super) fn page(&self) -> PageBytes {
        PageBytes::of_mps(self.mps).unwrap()
    }

    pub(super) fn build(&self) -> BuiltPrp {
        let page = u64::from(self.page().get());
        let mut next_page = 7;
        let mut pages = Vec::new();
        let mut left = u64::from(self.bytes);
        let mut data = Vec::new();
        let mut offset = u64::from(self.offset_words) * 4 % page;
        for follows in self.follows.iter().cycle() {
            next_page += if *follows { 1 } else { 3 };
            let here = left.min(page - offset);
            add(&mut data, Some(next_page * page + offset), here);
            pages.push(next_page * page + offset);
            left -= here;
            offset = 0;
            if left == 0 {
                break;
            }
        }
        let mut memory = HostMemory::default();
        let prp2 = match &pages[1..] {
            [] => 0xBAD,
            [second] => *second,
            rest => self.list(rest, &mut memory),
        };
        BuiltPrp { entry: prp(pages[0], prp2), memory, data }
    }

    /// Writes a list that starts at `list_offset_words` in its page, and returns its address.
    fn list(&self, mut entries: &[u64], memory: &mut HostMemory) -> u64 {
        let page = u64::from(self.page().get());
        let mut list_page = 1 << 40;
        let first = list_page + u64::from(self.list_offset_words) * 8 % page;
        let mut at = first;
        loop {
            let slots = usize::try_from((list_page + page - at) / 8).unwrap();
            if entries.len() <= slots {
                memory.write(at, entries);
                return first;
            }
            memory.write(at, &entries[..slots - 1]);
            entries = &entries[slots - 1..];
            let next = list_page + 5 * page;
            memory.write(list_page + page - 8, &[next]);
            list_page = next;
            at = next;
        }
    }
}

/// The parameters of a host that builds an SGL.
#[derive(Clone, Debug)]
pub(super) struct SglHost {
    /// Pieces of data: the length, and true for a bit bucket.
    pieces: Vec<(u32, bool)>,
    /// Data descriptors of each segment but the last.
    segments: Vec<usize>,
    to_host: bool,
    /// Bytes that the list describes beyond the data.
    excess: u32,
}

pub(super) struct BuiltSgl {
    pub(super) first: SglDescriptor,
    pub(super) memory: HostMemory,
    pub(super) data: Vec<MemoryRun>,
}

impl SglHost {
    pub(super) fn any() -> impl Strategy<Value = Self> {
        let pieces = prop::collection::vec((0..9_000_u32, any::<bool>()), 1..200);
        let segments = prop::collection::vec(0..60_usize, 0..8);
        (pieces, segments, any::<bool>(), 0..10_000_u32)
            .prop_map(|(pieces, segments, to_host, excess)| Self { pieces, segments, to_host, excess })
    }

    pub(super) fn transfer(&self) -> HostTransfer {
        let wanted = self.pieces.iter().filter(|(_, bucket)| self.to_host || !bucket);
        let bytes: u32 = wanted.map(|(bytes, _)| bytes).sum();
        let bytes = bytes.saturating_sub(self.excess);
        if self.to_host { HostTransfer::ToHost(bytes) } else { HostTransfer::FromHost(bytes) }
    }

    pub(super) fn build(&self) -> BuiltSgl {
        let mut left = u64::from(self.transfer().bytes());
        let mut data = Vec::new();
        let mut descriptors = Vec::new();
        for (number, &(bytes, bucket)) in (1_u64..).zip(&self.pieces) {
            let kind = if bucket { SglKind::BitBucket } else { SglKind::DataBlock };
            let start = number * 10_000;
            descriptors.push(SglDescriptor::new(kind, start, bytes));
            let here = u64::from(bytes).min(left);
            if here > 0 && (self.to_host || !bucket) {
                add(&mut data, (!bucket).then_some(start), here);
                left -= here;
            }
        }
        let mut memory = HostMemory::default();
        let first = self.lay_out(&descriptors, &mut memory);
        BuiltSgl { first, memory, data }
    }

    /// Writes the segments from the last to the first, because each points to the next.
    fn lay_out(&self, mut descriptors: &[SglDescriptor], memory: &mut HostMemory) -> SglDescriptor {
        if let ([only], true) = (descriptors, self.segments.is_empty()) {
            return *only;
        }
        let mut parts = Vec::new();
        for &count in &self.segments {
            let (part, rest) = descriptors.split_at(count.min(descriptors.len()));
            parts.push(part);
            descriptors = rest;
        }
        let mut at = 1 << 40;
        // A last segment is never empty.
        let spare = [SglDescriptor::new(SglKind::DataBlock, 0, 0)];
        let last = if descriptors.is_empty() { &spare[..] } else { descriptors };
        let mut next = memory.segment(at, last, SglKind::LastSegment);
        for part in parts.iter().rev() {
            at += 1 << 20;
            let mut list = part.to_vec();
            list.push(next);
            next = memory.segment(at, &list, SglKind::Segment);
        }
        next
    }
}
