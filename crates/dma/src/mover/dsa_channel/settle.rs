//! Settles a round: what the device did counts, what it did not do the CPU does.
//!
//! Input: a job with the pieces of its round, and the outcome of each operation. Output: the results of its steps, and what was
//! noted on the way. Invariant: pieces are settled in the order of the steps, each once; the pieces at the end of a round that
//! have no record are left for the next one.

use super::super::channel_job::{ChannelJob, PlannedPiece};
use super::super::job::MoveStep;
use headwater_host::dsa::{DsaOpcode, DsaOutcome, NextAction, OperationOutcome};

/// The account of a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SettledRound {
    /// False if no operation has a record.
    pub(super) has_progress: bool,
    /// True if the device must not be used any more.
    pub(super) is_failing: bool,
    pub(super) page_faults: u64,
    pub(super) finished_bytes: u64,
    pub(super) repeated: u64,
    pub(super) no_record: u64,
}

impl ChannelJob {
    /// Settles the round. `outcomes` has one entry for each operation that was planned.
    pub(super) fn settle(&mut self, outcomes: &[OperationOutcome]) -> SettledRound {
        let mut settled = SettledRound::default();
        let pieces = std::mem::take(&mut self.round);
        let has_record = |piece: &PlannedPiece| {
            outcomes[piece.operations.clone()]
                .iter()
                .any(|outcome| matches!(outcome, OperationOutcome::Ended(_)))
        };
        let Some(last) = pieces.iter().rposition(has_record) else { return settled };
        settled.has_progress = true;
        for piece in &pieces[..=last] {
            // A comparison that found a difference has ended its step.
            if piece.step == self.step() {
                self.settle_piece(piece, &outcomes[piece.operations.clone()], &mut settled);
            }
        }
        settled
    }

    fn settle_piece(
        &mut self,
        piece: &PlannedPiece,
        outcomes: &[OperationOutcome],
        settled: &mut SettledRound,
    ) {
        for outcome in outcomes {
            if let OperationOutcome::Ended(outcome) = outcome {
                settled.is_failing |= outcome.status.next_action() == NextAction::RepeatAndStop;
            }
        }
        if outcomes.iter().all(|outcome| outcome.success().is_some()) {
            return self.take_success(piece, outcomes);
        }
        match outcomes {
            [OperationOutcome::Ended(outcome)] if outcome.status.next_action() == NextAction::FinishRest => {
                settled.page_faults += 1;
                settled.finished_bytes += self.finish_rest(piece, outcome);
            }
            _ => {
                let is_missing = outcomes.contains(&OperationOutcome::NoRecord);
                *(if is_missing { &mut settled.no_record } else { &mut settled.repeated }) += 1;
                self.do_by_cpu(piece.bytes);
            }
        }
    }

    /// Takes a piece that the device did.
    fn take_success(&mut self, piece: &PlannedPiece, outcomes: &[OperationOutcome]) {
        let end = piece.at + piece.bytes;
        let step = self.job.steps[piece.step];
        let outcome = outcomes.first().and_then(OperationOutcome::success);
        match (step, outcome) {
            (MoveStep::CopyCrc32c { .. } | MoveStep::Crc32c { .. }, Some(outcome)) => {
                self.advance_crc(end, outcome.crc);
            }
            // The CPU finds the place of the difference itself, up to which it reads.
            (MoveStep::Compare { .. }, Some(outcome)) if outcome.result != 0 => self.do_by_cpu(piece.bytes),
            _ => self.advance(end),
        }
    }

    /// Does what a page fault left of a piece, and returns its bytes. The access of the CPU brings the page.
    fn finish_rest(&mut self, piece: &PlannedPiece, outcome: &DsaOutcome) -> u64 {
        use MoveStep::{Compare, Copy, CopyCrc32c, Crc32c, Dualcast, Fill, Flush};
        let step = self.job.steps[piece.step];
        let opcode = match step {
            Copy { .. } => DsaOpcode::MemoryMove,
            Dualcast { .. } => DsaOpcode::Dualcast,
            Fill { .. } => DsaOpcode::Fill,
            Compare { .. } if outcome.result == 0 => DsaOpcode::Compare,
            // The CRC of a part, and a comparison that went on behind a difference, are not used. A flush is cheap to repeat.
            Compare { .. } | CopyCrc32c { .. } | Crc32c { .. } | Flush { .. } => {
                self.do_by_cpu(piece.bytes);
                return piece.bytes as u64;
            }
        };
        let done = done_bytes(piece, outcome, opcode);
        if done > 0 {
            self.advance(piece.at + done);
        }
        self.do_by_cpu(piece.bytes - done);
        (piece.bytes - done) as u64
    }
}

/// Returns the bytes at the start of a piece that the device did: never all of them.
fn done_bytes(piece: &PlannedPiece, outcome: &DsaOutcome, opcode: DsaOpcode) -> usize {
    let bytes = u32::try_from(piece.bytes).unwrap_or(u32::MAX);
    let done = usize::try_from(outcome.done_from_start(opcode, bytes)).unwrap_or(usize::MAX);
    done.min(piece.bytes.saturating_sub(1))
}
