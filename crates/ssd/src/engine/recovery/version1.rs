//! Recovery of a medium of version 1, which is only read: its blocks are identified by their first pages, the newest whole
//! checkpoint gives the index at its time, and the log from there on is scanned and replayed.
//!
//! Input: a medium in any state that a power cut can leave. Output: a translation layer that indexes all valid records.
//! Invariant: of one key the highest sequence wins; a batch counts only as a whole. What a medium of this version cannot
//! notice stays unnoticed: a lost, stale or misdirected page (`docs/formats/flash-file.md`).

mod block_pages;
mod corruption;
mod incomplete_batches;
mod load;
mod lost_records;
mod scan;
mod survey;
mod unreadable;

use super::replay::{self, CheckpointBase, Line};
use super::{Base, CheckpointFound, Recovered, namespace_table};
use crate::command::Sequence;
use crate::config::DeviceConfig;
use crate::engine::checkpoint::stream::DecodedCheckpoint;
use crate::engine::progress::OpenProgress;
use crate::ftl::recovering::{FoundLog, RecoveringFtl};
use crate::index::{IndexEntry, KeyHash, KeyHasher};
use crate::log::prefix::{EPOCH_SHIFT, Prefix, Tick};
use crate::log::record::{FLAG_BATCH_MORE, FLAG_BATCH_REST, FLAGS_BATCH};
use crate::media::geometry::{BlockId, PageAddress};
use crate::media::unreadable::UnreadablePages;
use crate::media::{Media, MediaError};
use corruption::Durable;
use headwater_host::clock::Nanos;
use incomplete_batches::IncompleteBatches;
use scan::Scanned;
use std::collections::{BTreeMap, BTreeSet};

/// The findings of a recovery, beside the translation layer itself.
#[derive(Debug, Default)]
struct Findings {
    incomplete: IncompleteBatches,
    /// Durable records that the checkpoint names in the log after it, and that are lost there.
    lost_records: Vec<(KeyHash, IndexEntry)>,
    /// Pages of the log that the medium calls lost although they were durable.
    durable_losses: BTreeSet<PageAddress>,
    unreadable: UnreadablePages,
}

/// Rebuilds a translation layer, and advances `now` by the time that the media takes.
pub(super) fn recover<M: Media>(
    ftl: &mut RecoveringFtl<M>,
    config: &DeviceConfig,
    base: Base,
    now: &mut Nanos,
    progress: &mut dyn FnMut(OpenProgress),
) -> Result<Recovered, MediaError> {
    let survey = survey::survey(ftl, now, progress)?;
    let (checkpoint, found) = match base {
        Base::Checkpoint => load::newest_checkpoint(ftl, &survey, now, progress)?,
        Base::Log(_) => (None, CheckpointFound::None),
    };
    let (checkpoint_blocks, decoded) = match checkpoint {
        Some((blocks, decoded)) => (blocks, Some(decoded)),
        None => (Vec::new(), None),
    };
    let hasher = match (&decoded, base) {
        (Some(decoded), _) => KeyHasher::from_parts(decoded.hasher),
        (None, Base::Log(hasher)) => hasher,
        (None, Base::Checkpoint) => KeyHasher::new(config.hash_seed, config.hash_bits),
    };
    ftl.set_hasher(hasher);
    let start_order = decoded.as_ref().map_or(0, |decoded| decoded.start_order);
    let scanned = scan::scan(ftl, &survey, start_order, now, progress)?;
    let highest = survey.highest_order.max(scanned.highest_order);
    load::adopt(ftl, &survey, &scanned, decoded.as_ref(), &checkpoint_blocks);
    ftl.finish_adoption((highest >> EPOCH_SHIFT) + 1);
    let mut findings = Findings::default();
    let last = replay_scanned(ftl, scanned, decoded.as_ref(), &mut findings, now, progress)?;
    let log = FoundLog {
        accepted: Prefix { tick: Tick(0), sequence: last },
        epoch: highest >> EPOCH_SHIFT,
        sequence: last,
        ..FoundLog::default()
    };
    ftl.continue_after(log.clone());
    namespace_table::load_namespace_table(ftl, now)?;
    unreadable::report_unreadable(ftl, &survey, &mut findings);
    ftl.release_frames();
    Ok(Recovered {
        checkpoint_blocks,
        checkpoint: found,
        log,
        discarded_records: findings.incomplete.discarded.len() as u64,
        unknown_blocks: survey.unknown_blocks(),
        lost_records: findings.lost_records,
        unreadable: findings.unreadable,
        ..Recovered::default()
    })
}

/// Replays what the scan found, and returns the highest sequence.
fn replay_scanned<M: Media>(
    ftl: &mut RecoveringFtl<M>,
    scanned: Scanned,
    decoded: Option<&DecodedCheckpoint>,
    findings: &mut Findings,
    now: &mut Nanos,
    progress: &mut dyn FnMut(OpenProgress),
) -> Result<Sequence, MediaError> {
    let durable = scanned.durable.max(decoded.map_or(Sequence(0), |decoded| decoded.durable));
    let last = scanned.records.iter().map(|line| line.sequence).max().unwrap_or_default();
    let last = last.max(decoded.map_or(Sequence(0), |decoded| decoded.sequence)).max(durable);
    let Scanned { records: mut lines, is_corrupt: mut rotten, blocks, blank_pages, .. } = scanned;
    lines.retain(|line| ftl.blocks().get(line.address.block()).order == line.order);
    rotten.retain(|line| ftl.blocks().get(line.address.block()).order == line.order);
    let torn = discard_incomplete(&mut lines, durable, findings);
    rotten.retain(|line| !torn.contains(&line.address.block()));
    findings.durable_losses = unreadable::durable_losses(ftl, &lines, &blocks, durable);
    corruption::add_corrupt(&mut lines, rotten, (&blocks, &blank_pages), durable);
    let surely = Durable::new(&lines, &blocks, durable);
    let base = CheckpointBase {
        start_order: decoded.map_or(0, |decoded| decoded.start_order),
        cleared: decoded.map(|decoded| decoded.cleared),
        index: decoded.map(|decoded| &decoded.index),
    };
    let replayed = lines.clone();
    let cleared = replay::replay(ftl, replayed, &base, now, progress)?;
    if let Some(decoded) = decoded {
        findings.lost_records = lost_records::lost_records(ftl, decoded, &cleared, &lines, &surely);
        ftl.count_damaged(findings.lost_records.len() as u64);
    }
    Ok(last)
}

/// Removes the records of incomplete batches, which lie above the durable sequence, and returns their blocks.
fn discard_incomplete(
    lines: &mut Vec<Line>,
    durable: Sequence,
    findings: &mut Findings,
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
    let more = FLAG_BATCH_MORE;
    let rest = FLAG_BATCH_REST;
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
    findings.incomplete.discarded = discarded;
    findings.incomplete.blocks.extend(&torn);
    torn
}
