//! The break-even length before and after each optimisation.
//!
//! Input: a step: a machine, a way to use it, and its jobs. Output: the smallest length from which on it beats the CPU with
//! the same jobs. Invariant: a step differs from the one that it is compared with in what its name says.

use super::{LONGEST, LONGEST_IN_FLIGHT, StudyFindings};
use crate::report::ReportRow;
use headwater_sim::move_model::JobCosts;
use headwater_sim::move_model::published::{DSA_HOST_RANDOM_RATES, DSA_PAGE_NS, HOST_PAGE_NS};
use headwater_sim::move_model::study::{BreakEven, StudyPoint, StudySetup, StudyWay, break_even};
use headwater_sim::move_model::study_machines::{NO_CEILING, amd_setup, dsa_setup};

pub(super) const WAITED: &str = "one copy, waited for";
pub(super) const IN_FLIGHT: &str = "32 copies in flight";
pub(super) const LIST: &str = "lists of 32, four in flight";
pub(super) const RATIO: &str = "pages: split by bandwidth ratio";
pub(super) const AFFINE: &str = "pages: affine split";

/// The break-even of a step.
pub(super) struct StepOutcome {
    pub(super) step: &'static str,
    pub(super) found: BreakEven,
}

/// A step of the study.
struct StudyStep {
    machine: &'static str,
    name: &'static str,
    setup: StudySetup,
    /// Copies of a job, jobs in flight, and offset of the source; `None` for one job after another in pages.
    jobs: Option<(usize, usize, usize)>,
}

impl StudyStep {
    fn point(&self, bytes: usize) -> StudyPoint {
        self.jobs.map_or_else(
            || StudyPoint::in_pieces(bytes),
            |(copies, depth, offset)| StudyPoint { copies, depth, offset, ..StudyPoint::synchronous(bytes) },
        )
    }

    fn longest(&self) -> usize {
        match self.jobs {
            _ if self.machine == "PTDMA" => 2 << 20,
            None | Some((1, 1, _)) => LONGEST,
            Some(_) => LONGEST_IN_FLIGHT,
        }
    }

    fn outcome(&self) -> BreakEven {
        break_even((&self.setup, &self.setup.by(StudyWay::Cpu)), self.longest(), |bytes| self.point(bytes))
    }
}

fn all_steps() -> Vec<StudyStep> {
    let dsa = dsa_setup(1, NO_CEILING);
    let random =
        StudySetup { costs: JobCosts { cpu_rates: &DSA_HOST_RANDOM_RATES, ..dsa.costs }, ..dsa.clone() };
    let missing = StudySetup {
        costs: JobCosts { channel_page_ns: DSA_PAGE_NS, cpu_page_ns: HOST_PAGE_NS, ..dsa.costs },
        ..dsa.clone()
    };
    let limited = StudySetup { jobs_max: 2, ..dsa.clone() };
    let step =
        |name, setup: &StudySetup, jobs| StudyStep { machine: "DSA", name, setup: setup.clone(), jobs };
    vec![
        step(WAITED, &dsa, Some((1, 1, 0))),
        step("8 bytes off a cache line, waited for", &dsa, Some((1, 1, 8))),
        step("every page missing, waited for", &missing, Some((1, 1, 0))),
        step(IN_FLIGHT, &dsa, Some((1, 32, 0))),
        step("32 in flight, at most 2 on the channel", &limited, Some((1, 32, 0))),
        step("lists of 32, waited for", &dsa, Some((32, 1, 0))),
        step(LIST, &dsa, Some((32, 4, 0))),
        step("lists of 32, four in flight, 8 bytes off", &dsa, Some((32, 4, 8))),
        step("random places: one copy, waited for", &random, Some((1, 1, 0))),
        step("random places: lists of 32, four in flight", &random, Some((32, 4, 0))),
        step("pages: one channel", &dsa, None),
        step("pages: scattered over four channels", &dsa_setup(4, NO_CEILING), None),
        step(RATIO, &dsa.by(StudyWay::RatioSplit), None),
        step(AFFINE, &dsa.by(StudyWay::AffineSplit), None),
        StudyStep {
            machine: "PTDMA",
            name: "one folio, waited for",
            setup: amd_setup(),
            jobs: Some((1, 1, 0)),
        },
    ]
}

/// Adds a row for each step, and returns them.
pub(super) fn steps(findings: &mut StudyFindings) -> Vec<StepOutcome> {
    let mut outcomes = Vec::new();
    for step in all_steps() {
        let found = step.outcome();
        findings.wrong_bytes += found.wrong_bytes;
        findings.found.rows.push(
            ReportRow::new()
                .with("label", "MODEL")
                .with("part", "break-even")
                .with("machine", step.machine)
                .with("step", step.name)
                .with("break_even_bytes", found.bytes.map(|bytes| bytes as u64))
                .with("longest_bytes", step.longest() as u64)
                .with("times_the_cpu_at_longest", 1.0 / (1.0 - found.gain)),
        );
        outcomes.push(StepOutcome { step: step.name, found });
    }
    outcomes
}

/// Adds the break-even for each number of jobs in flight.
pub(super) fn by_depth(findings: &mut StudyFindings) {
    let dsa = dsa_setup(1, NO_CEILING);
    for (series, copies) in [("single copies", 1), ("lists of 4", 4), ("lists of 32", 32)] {
        for depth in [1, 2, 4, 8, 16, 32] {
            // Beyond, a list has no room among the bytes in flight of a point.
            if copies * depth > 128 {
                continue;
            }
            let jobs = Some((copies, depth, 0));
            let step = StudyStep { machine: "DSA", name: series, setup: dsa.clone(), jobs };
            let found = step.outcome();
            findings.wrong_bytes += found.wrong_bytes;
            findings.found.rows.push(
                ReportRow::new()
                    .with("label", "MODEL")
                    .with("part", "depth")
                    .with("series", series)
                    .with("jobs_in_flight", depth as u64)
                    .with("break_even_bytes", found.bytes.map(|bytes| bytes as u64)),
            );
        }
    }
}
