//! Replays the records that the scan found into the index.
//!
//! Input: records of the scan, and the checkpoint's index. Output: the recovered index. Invariant: of one key the
//! highest sequence wins; of copies with one sequence the one in the youngest block; a batch counts only as a whole.

use super::corruption::Durable;
use super::page_reads::{PageBytes, read_pages};
use super::scan::{Line, Scanned};
use super::{Recovered, corruption, load, lost_records, unreadable};
use crate::command::{NamespaceId, Sequence};
use crate::engine::OpenProgress;
use crate::engine::checkpoint::stream::DecodedCheckpoint;
use crate::ftl::recovering::{LogEnd, RecoveringFtl};
use crate::ftl::{FoundRecord, Ftl, RecordPart, StallReason};
use crate::index::{EntryLifetime, IndexEntry, RecordIndex};
use crate::limits::SPACES;
use crate::log::record::{
    FLAG_BATCH_MORE, FLAG_BATCH_REST, FLAG_CLEAR, FLAG_TOMBSTONE, FLAGS_BATCH, RecordAddress,
};
use crate::media::unreadable::PageNeed;
use crate::media::{BlockId, Media, MediaError, PageAddress};
use crate::mutant::{Mutant, mutant};
use headwater_host::clock::Nanos;
use std::collections::{BTreeMap, BTreeSet};

/// Rebuilds index, counts, sequences and expiries.
pub(super) fn replay<M: Media>(
    ftl: &mut RecoveringFtl<M>,
    scanned: Scanned,
    decoded: Option<&DecodedCheckpoint>,
    recovered: &mut Recovered,
    now: &mut Nanos,
    progress: &mut dyn FnMut(OpenProgress),
) -> Result<(), MediaError> {
    let durable = scanned.durable.max(decoded.map_or(Sequence(0), |decoded| decoded.durable));
    let last = scanned.records.iter().map(|line| line.sequence).max().unwrap_or_default();
    let last = last.max(decoded.map_or(Sequence(0), |decoded| decoded.sequence)).max(durable);
    let Scanned { records: mut lines, is_corrupt: mut rotten, blocks, blank_pages, .. } = scanned;
    lines.retain(|line| ftl.blocks().get(line.address.block()).order == line.order);
    rotten.retain(|line| ftl.blocks().get(line.address.block()).order == line.order);
    let torn = discard_incomplete(&mut lines, durable, recovered);
    rotten.retain(|line| !torn.contains(&line.address.block()));
    recovered.durable_losses = unreadable::durable_losses(ftl, &lines, &blocks, durable);
    corruption::add_corrupt(&mut lines, rotten, (&blocks, &blank_pages), durable, recovered);
    let cleared = clears(ftl, &lines, decoded);
    if let Some(decoded) = decoded {
        load::load_index(ftl, decoded, &cleared);
        let surely = Durable::new(&lines, &blocks, durable);
        recovered.lost_records = lost_records::lost_records(ftl, decoded, &cleared, &lines, &surely);
        ftl.count_damaged(recovered.lost_records.len() as u64);
    }
    count_tombstones(ftl, &lines);
    let newest = newest_of_each(lines);
    let total = newest.len() as u64;
    let mut done = 0;
    for lines in newest.chunks(RECORDS_PER_READ) {
        if decoded.is_some() {
            read_checkpoint_pages(ftl, lines, now)?;
        }
        for line in lines {
            done += 1;
            progress(OpenProgress { stage: "replay", done, total });
            apply(ftl, line, decoded.is_some(), now)?;
        }
    }
    count_live_records(ftl, decoded);
    let stamp = if recovered.incomplete.blocks.is_empty() { last } else { durable };
    ftl.continue_at(LogEnd { last, stamped: durable, stamp, order: recovered.accepted_order });
    Ok(())
}

/// Removes the records of incomplete batches, which lie above the durable sequence, and returns their blocks.
fn discard_incomplete(
    lines: &mut Vec<Line>,
    durable: Sequence,
    recovered: &mut Recovered,
) -> BTreeSet<BlockId> {
    let mut batch: BTreeMap<Sequence, u8> = BTreeMap::new();
    for line in lines.iter().filter(|line| line.sequence > durable) {
        // A moved copy has no batch flags, and then its original needs none either.
        let flags = line.flags & FLAGS_BATCH;
        batch.entry(line.sequence).and_modify(|all| *all &= flags).or_insert(flags);
    }
    let mut discarded = BTreeSet::new();
    let mut lacks = |(sequence, flags): (&Sequence, &u8), flag: u8, neighbour: u64| {
        let neighbour = Sequence(neighbour);
        // A neighbour without batch flags was moved, and records are moved only out of whole batches.
        let gone = !batch.contains_key(&neighbour) && neighbour > durable;
        if flags & flag != 0 && (gone || discarded.contains(&neighbour)) {
            discarded.insert(*sequence);
        }
    };
    let more = if mutant(Mutant::BatchEndIgnored) { 0 } else { FLAG_BATCH_MORE };
    let rest = if mutant(Mutant::BatchStartIgnored) { 0 } else { FLAG_BATCH_REST };
    batch.iter().for_each(|entry| lacks(entry, rest, entry.0.0 - 1));
    batch.iter().rev().for_each(|entry| lacks(entry, more, entry.0.0 + 1));
    // The backward pass may have discarded more records: once more from the front.
    batch.iter().for_each(|entry| lacks(entry, rest, entry.0.0 - 1));
    let mut torn = BTreeSet::new();
    lines.retain(|line| {
        let keep = !discarded.contains(&line.sequence);
        if !keep {
            torn.insert(line.address.block());
        }
        keep
    });
    recovered.incomplete.complete_batches = counted_records(lines, durable);
    recovered.incomplete.discarded = discarded;
    recovered.incomplete.blocks.extend(&torn);
    torn
}

/// Returns the youngest copy of each record by which [`discard_incomplete`] counts a complete batch: of the records with
/// batch flags, and of the records next to them, which may have lost their own flags in a move.
fn counted_records(lines: &[Line], durable: Sequence) -> BTreeMap<Sequence, RecordAddress> {
    let mut flags: BTreeMap<Sequence, u8> = BTreeMap::new();
    let mut youngest: BTreeMap<Sequence, (u64, RecordAddress)> = BTreeMap::new();
    for line in lines.iter().filter(|line| line.sequence > durable) {
        // A copy without flags may be collected before the original with them, so the flags of every copy count.
        *flags.entry(line.sequence).or_default() |= line.flags & FLAGS_BATCH;
        let copy = (line.order, line.address);
        youngest.entry(line.sequence).and_modify(|last| *last = copy.max(*last)).or_insert(copy);
    }
    let has = |sequence: u64, flag: u8| flags.get(&Sequence(sequence)).is_some_and(|own| own & flag != 0);
    let counted = youngest.into_iter().filter(|(sequence, _)| {
        has(sequence.0, FLAGS_BATCH)
            || has(sequence.0 - 1, FLAG_BATCH_MORE)
            || has(sequence.0 + 1, FLAG_BATCH_REST)
    });
    counted.map(|(sequence, (_, address))| (sequence, address)).collect()
}

/// Raises each namespace's clear sequence, and returns which namespaces were cleared after the checkpoint began.
fn clears<M: Media>(
    ftl: &mut RecoveringFtl<M>,
    lines: &[Line],
    decoded: Option<&DecodedCheckpoint>,
) -> [bool; SPACES] {
    let mut cleared = [false; SPACES];
    if let Some(decoded) = decoded {
        for (namespace, sequence) in (1..).map(NamespaceId).zip(decoded.cleared) {
            ftl.raise_cleared(namespace, sequence);
        }
    }
    for line in lines.iter().filter(|line| line.flags & FLAG_CLEAR != 0) {
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
        // A copy of the same record takes precedence over a corrupt one.
        if sequence > line.sequence || line.is_corrupt && sequence == line.sequence {
            return Ok(());
        }
        if !mutant(Mutant::OutdatedEntryKept) {
            ftl.remove_outdated(line.hash, found.entry.address);
        }
    }
    if line.flags & FLAG_TOMBSTONE == 0 {
        let lifetime = if line.expiry_ms == 0 { EntryLifetime::Unlimited } else { EntryLifetime::Limited };
        let entry =
            IndexEntry { address: line.address, units: line.units, namespace: line.namespace, lifetime };
        ftl.insert_record(line.hash, entry, line.expiry_ms);
    }
    Ok(())
}

/// Finds the checkpoint's record for the key of a scanned record. Reads and compares keys, because hashes may collide.
fn checkpoint_record_of<M: Media>(
    ftl: &mut RecoveringFtl<M>,
    line: &Line,
    now: &mut Nanos,
) -> Result<Option<(FoundRecord, Sequence)>, MediaError> {
    for nth in 0.. {
        let Some(entry) = ftl.index().find(line.hash, nth) else { break };
        if entry.namespace != line.namespace {
            continue;
        }
        let header_and_key = |ftl: &Ftl<M>| match ftl.header(entry, RecordPart::Key)? {
            Some(header) => Ok(Some((header, ftl.key_of(entry, &header)?))),
            None => Ok(None),
        };
        let attempt = |ftl: &Ftl<M>| unless_unreadable(header_and_key(ftl), None);
        let read = retry_with_pages(ftl, now, PageNeed::Index, attempt)?;
        let Some((header, key)) = read else {
            return Ok(Some((FoundRecord { entry, header: None }, Sequence(0))));
        };
        if ftl.hasher().digest_of(&header, &key) == line.digest {
            return Ok(Some((FoundRecord { entry, header: Some(header) }, header.sequence)));
        }
    }
    Ok(None)
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
    let (mut source, page_cache) = ftl.reading(need);
    let mut failed = Vec::new();
    read_pages(&mut source, now, pages.into_iter(), |page, bytes| {
        if bytes == PageBytes::Unreadable {
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
        Err(StallReason::Unreadable(_)) => Ok(otherwise),
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
            Err(StallReason::Room { .. } | StallReason::NotDurable(_)) => {
                unreachable!("a read stalls only for pages")
            }
        };
        read_into_dram(ftl, need, missing, now)?;
    }
}

/// Counts live bytes by block and keys by namespace, and adds the expiries of the checkpoint.
fn count_live_records<M: Media>(ftl: &mut RecoveringFtl<M>, decoded: Option<&DecodedCheckpoint>) {
    ftl.count_live_records();
    for &(expiry_ms, hash, address) in decoded.map(|decoded| &decoded.expiries[..]).unwrap_or_default() {
        if address.block().0 < ftl.geometry().blocks {
            ftl.insert_expiry(expiry_ms, hash, address);
        }
    }
}
