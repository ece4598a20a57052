//! Damages to the flash file of a stopped node, and what the program then says and answers.
//!
//! Input: two files that the program wrote, one of a closed node and one of a killed node, and the answers of the node
//! before any damage. Output: for each kind of damage how many answers were right, errors, silent or wrong.
//! Each damage is one fault of the table in `docs/formats/medium-2.md`. `headwater device check` looks at the damaged
//! file; then a node opens it and answers every key and the list of all keys. A *silent* damage is one after which an
//! answer is older, newer or another one than before, without an error, or one that a node answers with an error and the
//! check did not find.

mod damage;
mod image;
mod judge;
mod node;
mod resp;

use crate::claim::{ClaimGoal, EvidenceLabel, LabClaim};
use crate::experiment::{ExperimentFindings, LabError, LabExperiment, RunContext};
use crate::report::ReportRow;
use damage::{DAMAGE_KINDS, Damage, DamageKind};
use headwater_host::clock::Nanos;
use image::FlashImages;
use judge::{Judge, TamperVerdict};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The experiment's entry in the table.
pub(crate) const EXPERIMENT: LabExperiment = LabExperiment {
    name: "tamper",
    summary: "damages to the flash file of a stopped node: what the check finds and what a node then answers",
    baseline: "version 1 of the format: 25 of 220 random and 28 of 30 aimed damages were silent",
    claims: &["p6.rot.silent"],
    run,
};

/// Random and aimed damages of a full run.
const FULL: (u64, u64) = (10_000, 2_000);
/// Damages that a quick run makes at most.
const QUICK: (u64, u64) = (10_000, 10_000);
/// Time that a quick run leaves for the damage that it is judging.
const RESERVE: Nanos = Nanos::from_millis(3_000);
/// Failures that the report describes.
const DESCRIBED_MAX: usize = 20;

#[derive(Default)]
struct TamperTally {
    verdicts: BTreeMap<(DamageKind, TamperVerdict), u64>,
    failures: Vec<String>,
}

fn run(context: &RunContext) -> Result<ExperimentFindings, LabError> {
    let images = FlashImages::make(context)?;
    let (random, aimed) = if context.is_quick() { QUICK } else { FULL };
    let next = AtomicU64::new(0);
    let tally = Mutex::new(TamperTally::default());
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let started: Vec<_> = (0..workers)
            .map(|worker| {
                let (images, next, tally) = (&images, &next, &tally);
                scope.spawn(move || -> Result<(), LabError> {
                    let mut judge = Judge::new(context, worker)?;
                    while context.time_left(RESERVE) > Nanos::ZERO {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= random + aimed {
                            break;
                        }
                        // A quick run makes both kinds by turns.
                        let is_aimed = if context.is_quick() { number % 2 == 1 } else { number >= random };
                        let image = &images.of_nodes[usize::from(number / 2 % 2 == 1)];
                        let damage = Damage::draw(image, is_aimed, context.seed().wrapping_add(number));
                        let found = judge.judge(image, &damage)?;
                        let mut tally = tally.lock().expect("no worker panics while it counts");
                        *tally.verdicts.entry((damage.kind, found.verdict)).or_default() += 1;
                        if found.verdict.is_failure() {
                            tally.failures.push(format!("{damage}: {}", found.reason));
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        started.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })?;
    let tally = tally.into_inner().expect("no worker panics while it counts");
    Ok(findings(&tally))
}

fn findings(tally: &TamperTally) -> ExperimentFindings {
    let count = |kind: Option<DamageKind>, verdict: TamperVerdict| -> u64 {
        let of = tally
            .verdicts
            .iter()
            .filter(|((found, of), _)| kind.is_none_or(|kind| kind == *found) && *of == verdict);
        of.map(|(_, count)| count).sum()
    };
    let row = |name: &str, kind: Option<DamageKind>| {
        let total: u64 = TamperVerdict::ALL.iter().map(|verdict| count(kind, *verdict)).sum();
        let row = ReportRow::new().with("damage", name).with("made", total);
        TamperVerdict::ALL.iter().fold(row, |row, verdict| row.with(verdict.column(), count(kind, *verdict)))
    };
    let mut rows: Vec<ReportRow> = DAMAGE_KINDS.iter().map(|kind| row(kind.name(), Some(*kind))).collect();
    rows.push(row("all", None));
    for failure in tally.failures.iter().take(DESCRIBED_MAX) {
        rows.push(ReportRow::new().with("damage", failure.as_str()));
    }
    let failures =
        TamperVerdict::ALL.iter().filter(|verdict| verdict.is_failure()).map(|verdict| count(None, *verdict));
    let failures: u64 = failures.sum();
    let made: u64 = tally.verdicts.values().sum();
    let claim = if made == 0 {
        LabClaim::not_run("p6.rot.silent", ClaimGoal::AtMost(0.0), "damages", "no damage was made".to_owned())
    } else {
        #[expect(clippy::cast_precision_loss, reason = "a run makes fewer than 2^52 damages")]
        let value = failures as f64;
        LabClaim::found(
            "p6.rot.silent",
            ClaimGoal::AtMost(0.0),
            (value, "silent, wrong, crashed or hanging"),
            EvidenceLabel::Measured,
            format!("{made} damages; version 1: 25 of 220 random, 28 of 30 aimed"),
        )
    };
    ExperimentFindings { rows, claims: vec![claim] }
}
