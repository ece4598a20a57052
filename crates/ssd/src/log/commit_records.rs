//! The commit records of one opening: their numbers, what they hold, and their way into the cells.
//!
//! Input: the end of a commit, and the checkpoint that records name. Output: two records a commit, under two numbers, so
//! that one lies in front of the blocks and one behind them. Invariant: a number is given out once in the life of a medium.

use super::commit_record::{CheckpointRoot, CommitKind, CommitRecord, EPOCH_ENDS_MAX};
use super::health_counters::HealthCounters;
use super::prefix::Prefix;
use crate::media::token::MediaPurpose;
use crate::media::{CellNumber, Media, MediaOp, MediaTraits, RefusedOp};
use crate::mutant::{Mutant, mutant};
use headwater_dma::frame::MediaFrame;
use headwater_host::clock::Nanos;
use std::collections::VecDeque;

/// Records of one commit.
pub(crate) const RECORDS_PER_COMMIT: usize = 2;

/// The state of the commit records.
#[derive(Debug, Default)]
pub(crate) struct CommitRecords {
    epoch: u64,
    number_next: u64,
    root: CheckpointRoot,
    epoch_ends: Vec<Prefix>,
    /// The counters at the opening, and those of the next record.
    health: [HealthCounters; 2],
    waiting: VecDeque<(CellNumber, MediaFrame)>,
    in_flight: usize,
}

/// The part of a record that changes with each commit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommitFields {
    pub(crate) kind: CommitKind,
    pub(crate) end: Prefix,
    pub(crate) durable: Prefix,
    pub(crate) accepted: Prefix,
    pub(crate) namespaces: u32,
}

impl CommitRecords {
    /// Makes the records of an epoch, after those that recovery found.
    pub(crate) fn new(
        epoch: u64,
        last_number: u64,
        root: CheckpointRoot,
        mut epoch_ends: Vec<Prefix>,
        health: HealthCounters,
    ) -> Self {
        // Pages name the end of the epoch before theirs as well, so the oldest ends are the ones to leave out.
        let extra = epoch_ends.len().saturating_sub(EPOCH_ENDS_MAX);
        epoch_ends.drain(..extra);
        Self {
            epoch,
            number_next: last_number + 1,
            root,
            epoch_ends,
            health: [health; 2],
            waiting: VecDeque::new(),
            in_flight: 0,
        }
    }

    /// Returns the epoch.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the checkpoint that the next record names.
    pub(crate) fn root(&self) -> &CheckpointRoot {
        &self.root
    }

    /// Returns the counters of the SMART log with which this opening began.
    pub(crate) fn health_at_opening(&self) -> HealthCounters {
        self.health[0]
    }

    /// Sets the counters of the next records.
    pub(crate) fn set_health(&mut self, health: HealthCounters) {
        self.health[1] = health;
    }

    /// Returns the number of ends of epochs in a record.
    pub(crate) fn epoch_ends(&self) -> usize {
        self.epoch_ends.len()
    }

    /// Makes the records from the next one on name a checkpoint.
    pub(crate) fn set_root(&mut self, root: CheckpointRoot) {
        assert!(root.number > self.root.number, "a checkpoint is older than the one that records name");
        self.epoch_ends.retain(|end| end.tick.epoch() >= root.start.epoch());
        self.root = root;
    }

    /// Encodes the next record into a frame.
    pub(crate) fn encode_next(
        &mut self,
        fields: &CommitFields,
        traits: &MediaTraits,
        frame: &mut MediaFrame,
    ) -> CellNumber {
        let CommitFields { kind, end, durable, accepted, namespaces } = *fields;
        let number = self.number_next;
        self.number_next += if mutant(Mutant::CommitRecordsOnOneSide) { 2 } else { 1 };
        let record = CommitRecord {
            kind,
            number,
            epoch: self.epoch,
            end,
            durable,
            accepted,
            namespaces,
            root: self.root,
            epoch_ends: self.epoch_ends.clone(),
            health: Some(self.health[1]),
        };
        record.encode(&mut frame[..crate::media::CELL_BYTES], traits.checksum_seed);
        traits.cell_of(number)
    }

    /// Queues an encoded record.
    pub(crate) fn push(&mut self, cell: CellNumber, frame: MediaFrame) {
        self.waiting.push_back((cell, frame));
    }

    /// Returns the first bytes of the queued records, with their cells.
    pub(crate) fn queued(&self, bytes: usize) -> Vec<(CellNumber, Box<[u8]>)> {
        self.waiting.iter().map(|(cell, frame)| (*cell, frame[..bytes].into())).collect()
    }

    /// Submits queued records while the medium accepts them. Returns true if any was submitted.
    pub(crate) fn submit<M: Media>(&mut self, media: &mut M, now: Nanos) -> bool {
        let mut moved = false;
        while let Some((cell, frame)) = self.waiting.pop_front() {
            match media.submit(MediaPurpose::Cell.encode(), MediaOp::WriteCell { cell, frame }, now) {
                Ok(()) => {
                    self.in_flight += 1;
                    moved = true;
                }
                Err(RefusedOp { op: MediaOp::WriteCell { frame, .. }, reason }) => {
                    assert!(
                        reason == crate::media::RefusalReason::QueueFull,
                        "the medium refused {cell}: {reason:?}"
                    );
                    self.waiting.push_front((cell, frame));
                    break;
                }
                Err(RefusedOp { op, .. }) => unreachable!("the medium rejected {cell} and returned {op:?}"),
            }
        }
        moved
    }

    /// Notes that a write completed.
    pub(crate) fn complete(&mut self) {
        self.in_flight = self.in_flight.checked_sub(1).expect("more cells were written than submitted");
    }

    /// Returns true if no record waits or is in flight.
    pub(crate) fn is_written(&self) -> bool {
        self.waiting.is_empty() && self.in_flight == 0
    }
}
