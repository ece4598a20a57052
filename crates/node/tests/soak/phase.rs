//! The phases of a soak, and the slowest answer in each.
//!
//! Input: the phase that the run is in, and the time of each answer. Output: the slowest answer of each phase, with its
//! command, as text. Invariant: an answer belongs to the phase in which its command was sent.

use headwater_host::clock::Nanos;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// A phase of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SoakPhase {
    /// A node was started, and every key is read.
    Check,
    /// Reads and writes until the node is killed.
    Kill,
    /// Hostile clients attack.
    Attack,
    /// Hostile clients are gone, and the node closes their connections.
    Rest,
}

const PHASES: [SoakPhase; 4] = [SoakPhase::Check, SoakPhase::Kill, SoakPhase::Attack, SoakPhase::Rest];

/// The present phase. A clone is the same one.
#[derive(Clone, Default)]
pub(crate) struct PhaseNumber(Arc<AtomicU8>);

impl PhaseNumber {
    /// Begins a phase.
    pub(crate) fn set(&self, phase: SoakPhase) {
        self.0.store(phase as u8, Ordering::SeqCst);
    }

    /// Returns the present phase.
    pub(crate) fn get(&self) -> SoakPhase {
        PHASES[usize::from(self.0.load(Ordering::SeqCst))]
    }
}

struct SlowAnswer {
    took_us: u64,
    sent: Nanos,
    ended: SoakPhase,
    command: String,
}

/// The slowest answer of each phase.
#[derive(Default)]
pub(crate) struct SlowestAnswers(BTreeMap<SoakPhase, SlowAnswer>);

impl SlowestAnswers {
    /// Notes an answer to a command that was sent in the phase `began`, and came in the phase `ended`.
    pub(crate) fn record(
        &mut self,
        began: SoakPhase,
        ended: SoakPhase,
        sent: Nanos,
        took_us: u64,
        parts: &[&[u8]],
    ) {
        if self.0.get(&began).is_none_or(|slowest| slowest.took_us < took_us) {
            let name = |part: &&&[u8]| String::from_utf8_lossy(part).into_owned();
            let mut command = parts.iter().take(2).map(|part| name(&part)).collect::<Vec<_>>().join(" ");
            if let Some(value) = parts.get(2) {
                let _ = write!(command, " with {} bytes", value.len());
            }
            self.0.insert(began, SlowAnswer { took_us, sent, ended, command });
        }
    }

    /// Returns a line for each phase.
    pub(crate) fn text(&self) -> String {
        let line = |(phase, slowest): (&SoakPhase, &SlowAnswer)| {
            let SlowAnswer { took_us, sent, ended, command } = slowest;
            let seconds = sent.to_duration().as_secs_f64();
            format!("slowest in {phase:?}: {took_us} us for {command} at {seconds:.1} s, until {ended:?}")
        };
        self.0.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}
