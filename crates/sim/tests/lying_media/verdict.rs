//! The verdict about a damaged file: what the device answers, compared with what was acknowledged.
//!
//! Input: a file and the history of its keys. Output: a [`Verdict`]. Invariant: an answer is right if it is the last
//! acknowledged one, or the last one before a commit of which nothing says that it was durable; an explicit error and a
//! refusal to open are honest; everything else is silent.

use crate::history::{KeyState, KeyStates, get, inspects_as_whole, open, run};
use headwater_host::clock::Nanos;
use headwater_nvme::spec::status::Status;
use headwater_sim::simulated_file::SimFile;
use headwater_ssd::command::Sequence;
use headwater_ssd::media::file::OpenAccess;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A wrong answer without a word, or no answer at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Silence {
    /// An older value.
    Older,
    /// A stored key does not exist.
    Absent,
    /// A deleted key exists.
    Back,
    /// A value that was never stored under the key.
    Foreign,
    /// A panic.
    Panic,
    /// A command without completion, or refused for ever.
    Hang,
}

/// The answers of a device on one file.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// The reason why it does not open.
    pub(crate) refused: Option<String>,
    /// Keys answered with an error.
    pub(crate) errors: u32,
    /// Wrong answers, each with its number.
    pub(crate) silent: BTreeMap<Silence, u32>,
    /// True if `device check` finds nothing.
    pub(crate) whole: bool,
}

impl Verdict {
    /// Opens a damaged file, asks for every key that was ever used, and checks another copy of it.
    /// Acknowledged writes behind `unwitnessed` may be gone.
    pub(crate) fn of(
        keys: &BTreeMap<u32, KeyStates>,
        unwitnessed: Option<Sequence>,
        damaged: impl Fn() -> SimFile,
    ) -> Self {
        let whole = catch_unwind(AssertUnwindSafe(|| inspects_as_whole(&damaged()).unwrap_or(false)));
        let asked = catch_unwind(AssertUnwindSafe(|| ask_all(&damaged(), keys, unwitnessed)));
        let mut verdict = asked.unwrap_or_else(|_| {
            let mut panicked = Self::default();
            panicked.note(Silence::Panic);
            panicked
        });
        match whole {
            Ok(whole) => verdict.whole = whole,
            Err(_) => verdict.note(Silence::Panic),
        }
        verdict
    }

    /// Returns true if an answer is wrong without a word.
    pub(crate) fn is_silent(&self) -> bool {
        !self.silent.is_empty()
    }

    /// Returns true if something is amiss for clients and `device check` finds nothing.
    pub(crate) fn is_unchecked(&self) -> bool {
        self.whole && (self.refused.is_some() || self.errors > 0 || self.is_silent())
    }

    pub(crate) fn note(&mut self, silence: Silence) {
        *self.silent.entry(silence).or_default() += 1;
    }
}

fn ask_all(file: &SimFile, keys: &BTreeMap<u32, KeyStates>, unwitnessed: Option<Sequence>) -> Verdict {
    let mut verdict = Verdict::default();
    let mut device = match open(file, OpenAccess::ReadWrite) {
        Ok(device) => device,
        Err(reason) => {
            verdict.refused = Some(reason);
            return verdict;
        }
    };
    let mut now = Nanos::ZERO;
    for (&key, states) in keys {
        let value_of = |state: &KeyState| state.value.clone();
        let last = states.last().and_then(value_of);
        let is_kept = |state: &&KeyState| unwitnessed.is_some_and(|durable| state.sequence <= durable);
        // Without the last commit, which took nothing else with it.
        let without = unwitnessed.map(|_| states.iter().rev().find(is_kept).and_then(value_of));
        let Ok(answer) = run(&mut device, &mut now, get(key)) else {
            verdict.note(Silence::Hang);
            return verdict;
        };
        let found = match answer.status {
            Status::SUCCESS => Some(Some(answer.sink.clone())),
            Status::KEY_DOES_NOT_EXIST => Some(None),
            _ => None,
        };
        if found.is_some() && found == without {
            continue;
        }
        match answer.status {
            Status::KEY_DOES_NOT_EXIST if last.is_some() => verdict.note(Silence::Absent),
            Status::KEY_DOES_NOT_EXIST => {}
            Status::SUCCESS => {
                let found = Some(answer.sink);
                if last == found {
                    continue;
                }
                let known = states.iter().any(|state| state.value == found);
                verdict.note(match (known, last) {
                    (false, _) => Silence::Foreign,
                    (true, None) => Silence::Back,
                    (true, Some(_)) => Silence::Older,
                });
            }
            _ => verdict.errors += 1,
        }
    }
    verdict
}
