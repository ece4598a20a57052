//! Replays the records that were found into the index.
//!
//! Input: records of the log, and the checkpoint's index. Output: the recovered index. Invariant: of one key the
//! highest sequence wins; of copies with one sequence the one in the youngest block.

use super::page_reads::{PageBytes, read_pages};
use super::replaced::replaces_unreadable;
use crate::command::{NamespaceId, Sequence};
use crate::engine::checkpoint::stream::DecodedIndex;
use crate::engine::progress::OpenProgress;
use crate::ftl::recovering::RecoveringFtl;
use crate::ftl::{FoundRecord, Ftl, RecordPart, StallReason};
use crate::index::{EntryLifetime, FlatIndex, IndexEntry, KeyHash, KeyHasher, RecordIndex};
use crate::limits::{NAMESPACES, SPACES};
use crate::log::record::{FLAG_CLEAR, FLAG_TOMBSTONE, HEADER_BYTES, RecordAddress, RecordHeader};
use crate::media::unreadable::PageNeed;
use crate::media::{Media, MediaError, PageAddress, PageState};
use crate::mutant::{Mutant, mutant};
use headwater_host::clock::Nanos;

/// One record that was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    /// Digest of namespace and key.
    pub(super) digest: u128,
    pub(super) hash: KeyHash,
    pub(super) sequence: Sequence,
    /// Order of the block it lies in.
    pub(super) order: u64,
    pub(super) address: RecordAddress,
    pub(super) units: u32,
    pub(super) namespace: NamespaceId,
    pub(super) flags: u8,
    /// True if a part of its value lies in extents.
    pub(super) has_extents: bool,
    pub(super) expiry_ms: u64,
    /// True if its checksum is wrong and its header is trusted nevertheless: on a medium of version 1.
    pub(super) is_corrupt: bool,
}

impl Line {
    /// Makes the line of a record; `None` if its key is not there, or names a position that no index holds.
    pub(super) fn of_record(
        hasher: &KeyHasher,
        header: &RecordHeader,
        bytes: &[u8],
        address: RecordAddress,
        order: u64,
    ) -> Option<Self> {
        let key = bytes.get(HEADER_BYTES..HEADER_BYTES + usize::from(header.key_bytes))?;
        let hash = hasher.index_key(header, key);
        let line = Self {
            digest: hasher.digest_of(header, key),
            hash,
            sequence: header.sequence,
            order,
            address,
            units: header.units(),
            namespace: header.namespace,
            flags: header.flags,
            has_extents: header.extents > 0,
            expiry_ms: header.expiry_ms,
            is_corrupt: false,
        };
        (!hash.is_position() || FlatIndex::can_hold(hash)).then_some(line)
    }
}

/// Entries and clears of a checkpoint, from before the log that is replayed.
#[derive(Clone, Copy, Debug)]
pub(super) struct CheckpointBase<'a> {
    pub(super) start_order: u64,
    pub(super) cleared: Option<[Sequence; NAMESPACES]>,
    pub(super) index: Option<&'a DecodedIndex>,
}

/// Rebuilds index, counts and expiries.
pub(super) fn replay<M: Media>(
    ftl: &mut RecoveringFtl<M>,
    lines: Vec<Line>,
    base: &CheckpointBase<'_>,
    now: &mut Nanos,
    progress: &mut dyn FnMut(OpenProgress),
) -> Result<[bool; SPACES], MediaError> {
    let cleared = clears(ftl, &lines, base.cleared.as_ref());
    if let Some(index) = base.index {
        load_index(ftl, index, base.start_order, &cleared);
    }
    for line in lines.iter().filter(|line| line.flags & FLAG_TOMBSTONE != 0) {
        ftl.settle_removed(line.namespace, line.digest, line.sequence);
    }
    count_tombstones(ftl, &lines);
    let newest = newest_of_each(lines);
    let total = newest.len() as u64;
    let mut done = 0;
    for lines in newest.chunks(RECORDS_PER_READ) {
        if base.index.is_some() {
            read_checkpoint_pages(ftl, lines, now)?;
        }
        for line in lines {
            done += 1;
            progress(OpenProgress { stage: "replay", done, total });
            apply(ftl, line, base.index.is_some(), now)?;
        }
    }
    count_live_records(ftl, base.index);
    Ok(cleared)
}

/// Puts the checkpoint's entries into the index, except those that point into blocks opened or erased since, which may
/// hold other data now. The records of these entries are in the replayed part of the log.
fn load_index<M: Media>(
    ftl: &mut RecoveringFtl<M>,
    index: &DecodedIndex,
    start_order: u64,
    cleared: &[bool; SPACES],
) {
    // Index positions outside every namespace were refused when the stream was decoded.
    for (position, entry) in &index.flat {
        if is_valid(ftl, start_order, cleared, entry) {
            ftl.insert_block(*position, *entry);
        }
    }
    for (number, entries) in index.segments.iter().enumerate() {
        let valid = entries.iter().filter(|(_, entry)| is_valid(ftl, start_order, cleared, entry));
        let valid: Vec<(KeyHash, IndexEntry)> = valid.copied().collect();
        ftl.insert_segment(number, &valid);
    }
}

/// Returns true if a block of the checkpoint's time still holds the record of an entry, and no clear removed it since.
fn is_valid<M: Media>(
    ftl: &RecoveringFtl<M>,
    start_order: u64,
    cleared: &[bool; SPACES],
    entry: &IndexEntry,
) -> bool {
    let block = entry.address.block();
    block.0 < ftl.geometry().blocks
        && !cleared.get(entry.namespace.index()).copied().unwrap_or(true)
        && ftl.blocks().get(block).order != 0
        && (ftl.blocks().get(block).order < start_order || mutant(Mutant::EntryOfReusedBlockLoaded))
        && ftl.blocks().get(block).is_of_log()
}

/// Raises each namespace's clear sequence, and returns which namespaces were cleared after the checkpoint began.
fn clears<M: Media>(
    ftl: &mut RecoveringFtl<M>,
    lines: &[Line],
    base: Option<&[Sequence; NAMESPACES]>,
) -> [bool; SPACES] {
    let mut cleared = [false; SPACES];
    if let Some(base) = base {
        for (namespace, sequence) in (1..).map(NamespaceId).zip(*base) {
            ftl.raise_cleared(namespace, sequence);
        }
    }
    for line in lines.iter().filter(|line| line.flags & FLAG_CLEAR != 0) {
        ftl.settle_cleared(line.namespace, line.sequence);
        if ftl.raise_cleared(line.namespace, line.sequence) {
            cleared[line.namespace.index()] = true;
        }
    }
    cleared
}

fn count_tombstones<M: Media>(ftl: &mut RecoveringFtl<M>, lines: &[Line]) {
    for line in lines.iter().filter(|line| line.flags & (FLAG_TOMBSTONE | FLAG_CLEAR) != 0) {
        ftl.add_tombstone(line.address, line.units, line.sequence);
    }
}

/// Returns the newest record of each key.
fn newest_of_each(mut lines: Vec<Line>) -> Vec<Line> {
    let dropped = if mutant(Mutant::TombstonesNotReplayed) { FLAG_TOMBSTONE } else { 0 };
    lines.retain(|line| line.flags & (FLAG_CLEAR | dropped) == 0);
    lines.sort_unstable_by_key(|line| (line.digest, line.sequence, line.order));
    let mut newest: Vec<Line> = Vec::new();
    for line in lines {
        match newest.last_mut() {
            Some(last) if last.digest == line.digest && mutant(Mutant::LowerSequenceWins) => {}
            Some(last) if last.digest == line.digest => *last = line,
            _ => newest.push(line),
        }
    }
    // In hash order the index is walked once from front to back.
    newest.sort_unstable_by_key(|line| line.hash);
    newest
}

/// Applies the newest record of a key on top of what the checkpoint has for it.
fn apply<M: Media>(
    ftl: &mut RecoveringFtl<M>,
    line: &Line,
    has_base: bool,
    now: &mut Nanos,
) -> Result<(), MediaError> {
    if line.sequence < ftl.counts()[line.namespace.index()].cleared && !mutant(Mutant::ClearNotReplayed) {
        return Ok(());
    }
    let base = if has_base { checkpoint_record_of(ftl, line, now)? } else { None };
    if let Some((found, sequence)) = base {
        let is_newer = match sequence {
            // A copy of the same record takes precedence over a corrupt one.
            Some(sequence) => sequence > line.sequence || line.is_corrupt && sequence == line.sequence,
            None => !replaces_unreadable(line, ftl.blocks().get(found.entry.address.block()).max_sequence),
        };
        if is_newer {
            return Ok(());
        }
        if !mutant(Mutant::OutdatedEntryKept) {
            ftl.remove_outdated(line.hash, found.entry.address);
        }
    }
    if line.flags & FLAG_TOMBSTONE == 0 {
        let lifetime = if line.expiry_ms == 0 { EntryLifetime::Unlimited } else { EntryLifetime::Limited };
        let Line { address, units, namespace, has_extents, .. } = *line;
        let entry = IndexEntry { address, units, namespace, lifetime, has_extents };
        ftl.insert_record(line.hash, entry, line.expiry_ms);
    }
    Ok(())
}

/// Finds the checkpoint's record for the key of a scanned record, and its sequence if it can be read. Reads and compares
/// keys, because hashes may collide.
fn checkpoint_record_of<M: Media>(
    ftl: &mut RecoveringFtl<M>,
    line: &Line,
    now: &mut Nanos,
) -> Result<Option<(FoundRecord, Option<Sequence>)>, MediaError> {
    let mut unreadable = None;
    for nth in 0.. {
        let Some(entry) = ftl.index().find(line.hash, nth) else { break };
        if entry.namespace != line.namespace {
            continue;
        }
        let lost = FoundRecord { entry, header: None };
        let attempt = |ftl: &Ftl<M>| unless_unreadable(match_line(ftl, entry, line), Some(lost));
        match retry_with_pages(ftl, now, PageNeed::Index, attempt)? {
            Some(found @ FoundRecord { header: Some(header), .. }) => {
                return Ok(Some((found, Some(header.sequence))));
            }
            // Another entry may have this key for certain.
            Some(lost) => unreadable = unreadable.or(Some((lost, None))),
            None => {}
        }
    }
    Ok(unreadable)
}

/// Returns the record at an entry if it has the key of a line, or, without a header, if it is lost.
fn match_line<M: Media>(
    ftl: &Ftl<M>,
    entry: IndexEntry,
    line: &Line,
) -> Result<Option<FoundRecord>, StallReason> {
    let lost = FoundRecord { entry, header: None };
    let Some(header) = ftl.header(entry, RecordPart::Key)? else { return Ok(Some(lost)) };
    if !ftl.is_proven(entry, &header)? {
        return Ok(Some(lost));
    }
    let key = ftl.key_of(entry, &header)?;
    if ftl.hasher().digest_of(&header, &key) == line.digest {
        return Ok(Some(FoundRecord { entry, header: Some(header) }));
    }
    let is_of_another = header.units() == entry.units && ftl.hasher().index_key(&header, &key) == line.hash;
    Ok((!is_of_another && !mutant(Mutant::LostEntryMistaken)).then_some(lost))
}

/// Records whose pages are read together before the records are applied one by one.
const RECORDS_PER_READ: usize = 4_096;

/// Reads the pages of the checkpoint's records for these keys into device DRAM.
fn read_checkpoint_pages<M: Media>(
    ftl: &mut RecoveringFtl<M>,
    lines: &[Line],
    now: &mut Nanos,
) -> Result<(), MediaError> {
    let mut pages = Vec::with_capacity(lines.len());
    for line in lines {
        let entries = (0..).map_while(|nth| ftl.index().find(line.hash, nth));
        pages.extend(entries.map(|entry| entry.address.page()).filter(|page| ftl.page(*page).is_none()));
    }
    pages.sort_unstable();
    pages.dedup();
    pages.truncate(ftl.page_cache().available() / 2);
    read_into_dram(ftl, PageNeed::Index, pages, now)
}

/// Reads pages into device DRAM. Lookups on pages that cannot be read end from now on.
pub(crate) fn read_into_dram<M: Media>(
    ftl: &mut RecoveringFtl<M>,
    need: PageNeed,
    pages: Vec<PageAddress>,
    now: &mut Nanos,
) -> Result<(), MediaError> {
    let (proof, orders) = (ftl.proof(), pages.iter().map(|page| ftl.blocks().get(page.block).order));
    let orders: Vec<u64> = orders.collect();
    let mut orders = orders.into_iter();
    let (mut source, page_cache) = ftl.reading(need);
    let mut failed = Vec::new();
    read_pages(&mut source, now, pages.into_iter(), |page, bytes| {
        let order = orders.next().expect("one page was read for each that was asked for");
        let is_proven = match bytes {
            PageBytes::Programmed(bytes) => proof.holds_read(PageState::Programmed, bytes, page, order),
            PageBytes::Blank => proof.holds_read(PageState::Blank, &[], page, order),
            PageBytes::Unreadable => false,
        };
        if !is_proven {
            failed.push(page);
        } else if let Some(mut frame) = page_cache.take_frame() {
            match bytes.programmed() {
                Some(bytes) => frame[..bytes.len()].copy_from_slice(bytes),
                None => frame.fill(0),
            }
            page_cache.insert(page, frame);
        }
    })?;
    failed.into_iter().for_each(|page| ftl.add_failed_page(page));
    Ok(())
}

/// Returns the result of a lookup, or `otherwise` if a page of the record cannot be read.
pub(crate) fn unless_unreadable<T>(lookup: Result<T, StallReason>, otherwise: T) -> Result<T, StallReason> {
    match lookup {
        Err(StallReason::Unreadable(_) | StallReason::InDoubt) => Ok(otherwise),
        lookup => lookup,
    }
}

/// Repeats `ask` until it succeeds, and reads the pages that it lacks in between.
pub(crate) fn retry_with_pages<M: Media, T>(
    ftl: &mut RecoveringFtl<M>,
    now: &mut Nanos,
    need: PageNeed,
    attempt: impl Fn(&Ftl<M>) -> Result<T, StallReason>,
) -> Result<T, MediaError> {
    loop {
        let missing = match attempt(ftl) {
            Ok(answer) => return Ok(answer),
            Err(StallReason::Pages(pages)) => pages,
            Err(StallReason::Unreadable(page)) => return Err(MediaError::Unreadable { page }),
            Err(
                StallReason::Room { .. }
                | StallReason::Turn
                | StallReason::ExtentPages
                | StallReason::Runs(_)
                | StallReason::Moves(_)
                | StallReason::LogReserved
                | StallReason::NotDurable(_)
                | StallReason::InDoubt,
            ) => unreachable!("a read stalls only for pages"),
        };
        read_into_dram(ftl, need, missing, now)?;
    }
}

/// Counts live bytes by block and keys by namespace, and adds the expiries of the checkpoint.
fn count_live_records<M: Media>(ftl: &mut RecoveringFtl<M>, index: Option<&DecodedIndex>) {
    ftl.count_live_records();
    for &(expiry_ms, hash, address) in index.map(|index| &index.expiries[..]).unwrap_or_default() {
        if address.block().0 < ftl.geometry().blocks {
            ftl.insert_expiry(expiry_ms, hash, address);
        }
    }
}
