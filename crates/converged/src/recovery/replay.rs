//! The replay: of all records found, those that count.
//!
//! In: lines of the scan, and the checkpoint's index. Out: the index as it must be. Invariant: of one key the highest
//! sequence wins; of copies with one sequence the one in the youngest block; a batch counts only as a whole.

use super::rot::Durable;
use super::scan::{Line, Scanned};
use super::{Recovered, load, read_pages, rot, vanished};
use crate::checkpoint::stream::Decoded;
use crate::command::Sequence;
use crate::commit::Commit;
use crate::device::Progress;
use crate::index::{Entry, Index, KeyHash, Lifetime};
use crate::limits::SPACES;
use crate::media::{BlockId, Media, MediaError, PageAddress};
use crate::record::{
    FLAG_BATCH_MORE, FLAG_BATCH_REST, FLAG_CLEAR, FLAG_TOMBSTONE, FLAGS_BATCH, RecordAddress, UNIT_BYTES,
};
use crate::utl::{Found, Reach, Stall, Utl};
use headwater_host::clock::Nanos;
use std::collections::{BTreeMap, BTreeSet};

/// Puts index, counts, sequences and expiries right.
pub(super) fn replay<M: Media>(
    utl: &mut Utl<M>,
    scanned: Scanned,
    decoded: Option<&Decoded>,
    recovered: &mut Recovered,
    now: &mut Nanos,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), MediaError> {
    let durable = scanned.durable.max(decoded.map_or(Sequence(0), |decoded| decoded.durable));
    let last = scanned.lines.iter().map(|line| line.sequence).max().unwrap_or_default();
    let last = last.max(decoded.map_or(Sequence(0), |decoded| decoded.sequence)).max(durable);
    let Scanned { mut lines, mut rotten, blocks, .. } = scanned;
    lines.retain(|line| utl.blocks.get(line.address.block()).order == line.order);
    rotten.retain(|line| utl.blocks.get(line.address.block()).order == line.order);
    let torn = discard_incomplete(&mut lines, durable, recovered);
    rotten.retain(|line| !torn.contains(&line.address.block()));
    rot::add_rotten(&mut lines, rotten, &blocks, durable, recovered);
    let cleared = clears(utl, &lines, decoded);
    if let Some(decoded) = decoded {
        load::index(utl, decoded, &cleared);
        let surely = Durable::new(&lines, &blocks, durable);
        recovered.vanished = vanished::vanished(utl, decoded, &cleared, &lines, &surely);
        utl.stats.damaged += recovered.vanished.len() as u64;
    }
    keep_tombstones(utl, &lines);
    let newest = newest_of_each(lines);
    let total = newest.len() as u64;
    let mut done = 0;
    for lines in newest.chunks(LINES_AHEAD) {
        if decoded.is_some() {
            read_ahead(utl, lines, now)?;
        }
        for line in lines {
            done += 1;
            progress(Progress { stage: "replay", done, total });
            apply(utl, line, decoded.is_some(), now)?;
        }
    }
    account(utl, decoded);
    // One sequence is never used: it would complete a batch that was cut off right behind the last record found.
    let next = Sequence(last.0 + 2);
    utl.log.resume(next, recovered.accepted_order);
    utl.last_removal = last;
    utl.commit = Commit::new(last, durable, recovered.accepted_order);
    let stamp = if recovered.debris.blocks.is_empty() { last } else { durable };
    utl.log.stamp_durable(stamp, recovered.accepted_order);
    Ok(())
}

/// Takes out the records of batches that are not whole, and returns the blocks where they lie. Only what lies above the
/// durable sequence can be incomplete.
fn discard_incomplete(
    lines: &mut Vec<Line>,
    durable: Sequence,
    recovered: &mut Recovered,
) -> BTreeSet<BlockId> {
    let mut batch: BTreeMap<Sequence, u8> = BTreeMap::new();
    for line in lines.iter().filter(|line| line.sequence > durable) {
        // A moved copy stands alone, and then so does what it is a copy of.
        let flags = line.flags & FLAGS_BATCH;
        batch.entry(line.sequence).and_modify(|all| *all &= flags).or_insert(flags);
    }
    let mut discarded = BTreeSet::new();
    let mut lacks = |(sequence, flags): (&Sequence, &u8), flag: u8, neighbour: u64| {
        let neighbour = Sequence(neighbour);
        // A neighbour that stands alone was moved, and only whole batches are moved from.
        let gone = !batch.contains_key(&neighbour) && neighbour > durable;
        if flags & flag != 0 && (gone || discarded.contains(&neighbour)) {
            discarded.insert(*sequence);
        }
    };
    batch.iter().for_each(|entry| lacks(entry, FLAG_BATCH_REST, entry.0.0 - 1));
    batch.iter().rev().for_each(|entry| lacks(entry, FLAG_BATCH_MORE, entry.0.0 + 1));
    // The end may have been found missing after the front was looked at: once more from the front.
    batch.iter().for_each(|entry| lacks(entry, FLAG_BATCH_REST, entry.0.0 - 1));
    let mut torn = BTreeSet::new();
    lines.retain(|line| {
        let keep = !discarded.contains(&line.sequence);
        if !keep {
            torn.insert(line.address.block());
        }
        keep
    });
    let whole = batch.into_iter().filter(|(sequence, flags)| *flags != 0 && !discarded.contains(sequence));
    recovered.debris.believed = whole.map(|(sequence, _)| sequence).collect();
    recovered.debris.discarded = discarded;
    recovered.debris.blocks.extend(&torn);
    torn
}

/// Raises each namespace's clear sequence; says which were cleared after the checkpoint began.
fn clears<M: Media>(utl: &mut Utl<M>, lines: &[Line], decoded: Option<&Decoded>) -> [bool; SPACES] {
    let mut cleared = [false; SPACES];
    if let Some(decoded) = decoded {
        for (state, sequence) in utl.namespaces.iter_mut().zip(decoded.cleared) {
            state.cleared = sequence;
        }
    }
    for line in lines.iter().filter(|line| line.flags & FLAG_CLEAR != 0) {
        let state = &mut utl.namespaces[line.namespace.index()];
        if line.sequence > state.cleared {
            state.cleared = line.sequence;
            cleared[line.namespace.index()] = true;
        }
    }
    cleared
}

fn keep_tombstones<M: Media>(utl: &mut Utl<M>, lines: &[Line]) {
    for line in lines.iter().filter(|line| line.flags & (FLAG_TOMBSTONE | FLAG_CLEAR) != 0) {
        utl.blocks.add_tombstone(line.address, line.units, line.sequence);
    }
}

/// The line that counts for each key.
fn newest_of_each(mut lines: Vec<Line>) -> Vec<Line> {
    lines.retain(|line| line.flags & FLAG_CLEAR == 0);
    lines.sort_unstable_by_key(|line| (line.digest, line.sequence, line.order));
    let mut newest: Vec<Line> = Vec::new();
    for line in lines {
        match newest.last_mut() {
            Some(last) if last.digest == line.digest => *last = line,
            _ => newest.push(line),
        }
    }
    // In hash order the index is walked once from front to back.
    newest.sort_unstable_by_key(|line| line.hash);
    newest
}

/// Applies the newest record of a key on top of what the checkpoint has for it.
fn apply<M: Media>(utl: &mut Utl<M>, line: &Line, has_base: bool, now: &mut Nanos) -> Result<(), MediaError> {
    if line.sequence < utl.namespaces[line.namespace.index()].cleared {
        return Ok(());
    }
    let base = if has_base { base_of(utl, line, now)? } else { None };
    if let Some((found, sequence)) = base {
        // What rotted gives way to a copy of itself.
        if sequence > line.sequence || line.rotten && sequence == line.sequence {
            return Ok(());
        }
        utl.index.remove(line.hash, found.entry.address);
    }
    if line.flags & FLAG_TOMBSTONE == 0 {
        let lifetime = if line.expiry_ms == 0 { Lifetime::Unlimited } else { Lifetime::Limited };
        let entry = Entry { address: line.address, units: line.units, namespace: line.namespace, lifetime };
        utl.index.insert(line.hash, entry);
        utl.expiry.insert(line.expiry_ms, line.hash, line.address);
    }
    Ok(())
}

/// What the checkpoint has for the key of a line: found by reading keys, because a hash is not a key.
fn base_of<M: Media>(
    utl: &mut Utl<M>,
    line: &Line,
    now: &mut Nanos,
) -> Result<Option<(Found, Sequence)>, MediaError> {
    for nth in 0.. {
        let Some(entry) = utl.index.find(line.hash, nth) else { break };
        if entry.namespace != line.namespace {
            continue;
        }
        let read = reach(utl, now, |utl| match utl.header(entry, Reach::Key)? {
            Some(header) => Ok(Some((header, utl.key_of(entry, &header)?))),
            None => Ok(None),
        })?;
        let Some((header, key)) = read else {
            return Ok(Some((Found { entry, header: None }, Sequence(0))));
        };
        if utl.hasher.digest_of(&header, &key) == line.digest {
            return Ok(Some((Found { entry, header: Some(header) }, header.sequence)));
        }
    }
    Ok(None)
}

/// Lines whose pages are read together, before they are applied one by one.
const LINES_AHEAD: usize = 4_096;

/// Brings in the pages that the checkpoint's records for these lines lie on.
fn read_ahead<M: Media>(utl: &mut Utl<M>, lines: &[Line], now: &mut Nanos) -> Result<(), MediaError> {
    let mut pages = Vec::with_capacity(lines.len());
    for line in lines {
        let entries = (0..).map_while(|nth| utl.index.find(line.hash, nth));
        pages.extend(entries.map(|entry| entry.address.page()).filter(|page| utl.page(*page).is_none()));
    }
    pages.sort_unstable();
    pages.dedup();
    pages.truncate(utl.dram.available() / 2);
    bring_in(utl, pages, now)
}

/// Reads pages into device DRAM.
pub(crate) fn bring_in<M: Media>(
    utl: &mut Utl<M>,
    pages: Vec<PageAddress>,
    now: &mut Nanos,
) -> Result<(), MediaError> {
    let dram = &mut utl.dram;
    read_pages(&mut utl.media, &mut utl.recovery_frames, now, pages.into_iter(), |page, bytes| {
        if let Some(mut frame) = dram.take_frame() {
            match bytes {
                Some(bytes) => frame[..bytes.len()].copy_from_slice(bytes),
                None => frame.fill(0),
            }
            dram.insert(page, frame);
        }
    })
}

/// Asks until every page that is needed is within reach.
pub(crate) fn reach<M: Media, T>(
    utl: &mut Utl<M>,
    now: &mut Nanos,
    ask: impl Fn(&Utl<M>) -> Result<T, Stall>,
) -> Result<T, MediaError> {
    loop {
        let missing = match ask(utl) {
            Ok(answer) => return Ok(answer),
            Err(Stall::Pages(pages)) => pages,
            Err(Stall::Room { .. } | Stall::Durable(_)) => unreachable!("reading needs no room"),
        };
        bring_in(utl, missing, now)?;
    }
}

/// Live bytes by block, keys by namespace, and the expiries that the checkpoint knew.
fn account<M: Media>(utl: &mut Utl<M>, decoded: Option<&Decoded>) {
    let mut from = KeyHash(0);
    while let Some((hash, _)) = utl.index.next(from) {
        for nth in 0.. {
            let Some(entry) = utl.index.find(hash, nth) else {
                break;
            };
            utl.blocks.add_live(entry.address, entry.units);
            utl.reserve_for(entry.units as usize * UNIT_BYTES);
            utl.namespaces[entry.namespace.index()].add(entry);
        }
        from = KeyHash(hash.0 + 1);
    }
    for &(expiry_ms, hash, address) in decoded.map(|decoded| &decoded.expiries[..]).unwrap_or_default() {
        if in_medium(utl, address) && utl.index.contains(hash, address) {
            utl.expiry.insert(expiry_ms, hash, address);
        }
    }
}

fn in_medium<M: Media>(utl: &Utl<M>, address: RecordAddress) -> bool {
    address.block().0 < utl.geometry.blocks
}
