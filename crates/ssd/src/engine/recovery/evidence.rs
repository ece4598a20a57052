//! Decides which prefix of the log counts, which ticks of it are lost, and what that puts in doubt
//! (`docs/formats/medium-2.md`, rules 4 and 5).
//!
//! Input: the commit records and the intact pages of the window. Output: the end of what counts, and the lost ticks.
//! Invariant: what counts is never less than what anything on the medium says is durable.

use super::recovery_error::RecoveryError;
use super::window::FoundWindow;
use crate::log::commit_record::CommitRecord;
use crate::log::page::PAGES_NAMED;
use crate::log::prefix::{Prefix, Tick};
use crate::mutant::{Mutant, mutant};
use std::collections::BTreeMap;

/// Namespaces of a loss of which nothing says what it held.
pub(super) const ALL_NAMESPACES: u32 = u32::MAX;

/// A run of lost pages that were durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LostPages {
    /// The first of them.
    pub(crate) first: Tick,
    /// The last of them.
    pub(crate) last: Tick,
    /// A sequence that no record on them exceeds.
    pub(crate) below: crate::command::Sequence,
    /// Bit `n` is set if they could hold a record of namespace `n`.
    pub(crate) namespaces: u32,
}

impl LostPages {
    /// Returns the number of pages.
    pub(crate) fn pages(&self) -> u64 {
        self.last.0 - self.first.0 + 1
    }
}

/// The part of the log that counts.
#[derive(Debug)]
pub(super) struct CountedLog {
    /// Its end.
    pub(super) accepted: Prefix,
    /// The ends of the epochs of the window in front of the last one, oldest first.
    pub(super) epoch_ends: Vec<Prefix>,
    pub(super) lost: Vec<LostPages>,
    /// True if a commit behind what is known to be durable does not count, because pages of it are not intact.
    pub(super) has_rejected: bool,
}

impl CountedLog {
    /// Decides by the records and the pages behind `start`.
    /// `torn` holds ticks of records that lack an extent.
    pub(super) fn new(
        records: &[CommitRecord],
        window: &FoundWindow,
        (start, torn): (Tick, &[Tick]),
    ) -> Self {
        let durable = durable_prefix(records, window);
        let newest = records.last();
        let epoch_ends = epoch_ends(newest, window, start);
        let mut counted = Self { accepted: durable, epoch_ends, lost: Vec::new(), has_rejected: false };
        // At most one commit lies behind what is known to be durable.
        if let Some(candidate) =
            newest.filter(|record| record.end > durable && record.epoch == newest_epoch(records))
        {
            let is_whole = |from: Tick| {
                counted.lost_ticks(window, from.max(start), candidate.end.tick).next().is_none()
                    || mutant(Mutant::HoleAccepted)
            };
            let end = candidate.end.tick;
            let is_torn = torn.iter().any(|tick| tick.epoch() == end.epoch() && *tick <= end);
            if is_whole(durable.tick) && !is_torn {
                counted.accepted = candidate.end;
            } else {
                counted.has_rejected = true;
            }
        }
        let end = counted.accepted.tick;
        let runs: Vec<(Tick, Tick)> = counted.lost_ticks(window, start, end).collect();
        counted.lost = runs.into_iter().map(|run| counted.doubt(records, window, run)).collect();
        counted
    }

    /// Refuses pages that count and say that two blocks have one order, or one block two.
    pub(super) fn check_orders(&self, window: &FoundWindow) -> Result<(), RecoveryError> {
        let (mut blocks, mut orders) = (BTreeMap::new(), BTreeMap::new());
        let mut last = None;
        for (_, page) in window.pages.iter().filter(|(tick, _)| self.counts(**tick)) {
            let (block, order) = (page.address.block, page.order);
            if last.replace((block, order)) == Some((block, order)) {
                continue;
            }
            if *blocks.entry(order).or_insert(block) != block
                || *orders.entry(block).or_insert(order) != order
            {
                return Err(RecoveryError::TwoBlocks { order });
            }
        }
        Ok(())
    }

    /// Returns true if a page with this tick counts.
    pub(super) fn counts(&self, tick: Tick) -> bool {
        if tick.epoch() == self.accepted.tick.epoch() {
            return tick <= self.accepted.tick || mutant(Mutant::UncountedAnswered);
        }
        let end = self.epoch_ends.iter().find(|end| end.tick.epoch() == tick.epoch());
        end.is_some_and(|end| tick <= end.tick) && tick < self.accepted.tick
    }

    /// Returns the runs of ticks behind `start` up to `end` that are on no intact page.
    fn lost_ticks<'a>(
        &'a self,
        window: &'a FoundWindow,
        start: Tick,
        end: Tick,
    ) -> impl Iterator<Item = (Tick, Tick)> + 'a {
        let epoch = if mutant(Mutant::OldLossIgnored) { end.epoch() } else { start.epoch() };
        (epoch..=end.epoch()).flat_map(move |epoch| {
            let first = start.max(Tick::before_epoch(epoch)).next();
            let last = if epoch == end.epoch() { Some(end) } else { self.end_of(epoch) };
            let mut runs = Vec::new();
            if let Some(last) = last.filter(|last| *last >= first) {
                let mut expected = first;
                for tick in window.pages.range(first..=last).map(|(tick, _)| *tick) {
                    if tick > expected {
                        runs.push((expected, Tick(tick.0 - 1)));
                    }
                    expected = tick.next();
                }
                if expected <= last {
                    runs.push((expected, last));
                }
            }
            runs
        })
    }

    fn end_of(&self, epoch: u64) -> Option<Tick> {
        self.epoch_ends.iter().map(|end| end.tick).find(|end| end.epoch() == epoch)
    }

    /// Returns what a run of lost ticks could hold.
    fn doubt(
        &self,
        records: &[CommitRecord],
        window: &FoundWindow,
        (first, last): (Tick, Tick),
    ) -> LostPages {
        let few = last.0 - first.0 < PAGES_NAMED;
        let named = |namespaces: u32| {
            if mutant(Mutant::LossNamesNothing) {
                0
            } else if few {
                namespaces
            } else {
                ALL_NAMESPACES
            }
        };
        let lost = |below, namespaces| LostPages { first, last, below, namespaces };
        if let Some(next) = window.pages.get(&last.next()) {
            return lost(next.before.sequence, named(next.before.namespaces));
        }
        let ends = self.epoch_ends.iter().chain([&self.accepted]);
        if let Some(end) = ends.into_iter().find(|end| end.tick == last) {
            // The record of an opening has the same end, and names no pages.
            let record =
                records.iter().find(|record| record.end.tick == last && record.epoch == last.epoch());
            return lost(end.sequence, record.map_or(ALL_NAMESPACES, |record| named(record.namespaces)));
        }
        lost(self.accepted.sequence, ALL_NAMESPACES)
    }
}

/// Returns the longest prefix that anything on the medium calls durable.
pub(super) fn durable_prefix(records: &[CommitRecord], window: &FoundWindow) -> Prefix {
    let of_window = if mutant(Mutant::DurableIgnored) { Prefix::default() } else { window.durable };
    let claims = records.iter().flat_map(|record| {
        let durable = if mutant(Mutant::DurableIgnored) { Prefix::default() } else { record.durable };
        [durable, record.accepted]
    });
    claims.chain([of_window]).max().unwrap_or_default()
}

fn newest_epoch(records: &[CommitRecord]) -> u64 {
    records.iter().map(|record| record.epoch).max().unwrap_or(0)
}

/// Returns the ends of the epochs behind `start`, from the newest record and from the pages behind each end.
fn epoch_ends(newest: Option<&CommitRecord>, window: &FoundWindow, start: Tick) -> Vec<Prefix> {
    let of_records = newest.into_iter().flat_map(|record| record.epoch_ends.iter().chain([&record.accepted]));
    let mut ends: Vec<Prefix> = of_records.chain(&window.accepted).copied().collect();
    ends.retain(|end| end.tick.place() > 0 && end.tick.epoch() >= start.epoch());
    ends.sort_unstable();
    if mutant(Mutant::EpochEndForgotten) {
        ends.drain(..ends.len().saturating_sub(1));
    }
    // Two claims for one epoch: the longer one counts, as everywhere.
    ends.reverse();
    ends.dedup_by_key(|end| end.tick.epoch());
    ends.reverse();
    ends
}
