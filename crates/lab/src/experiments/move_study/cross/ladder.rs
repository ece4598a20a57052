//! The break-even before and after each optimisation, for every direction, DDIO state and node.
//!
//! Input: a machine. Output: a row for each optimisation at each place, and the claims `p9.cross.break_even.*` and
//! `p9.cross.policy.loss`. The length is that of a job in pages. Invariant: a step differs from the one before it in what its
//! name says.

use super::super::{StudyFindings, float};
use super::{
    ChannelNode, CrossPlace, DDIO_STATES, MachineOf, PLOTTED_FLOWS, ddio_name, direction_name, flow_name,
};
use crate::claim::ClaimGoal;
use crate::report::ReportRow;
use headwater_dma::mover::policy::{CacheWrites, MoveDirection};
use headwater_sim::move_model::study::{BreakEven, StudyPoint, StudyRun, StudyWay, compare};

/// The longest job that is compared, in bytes.
const LONGEST: usize = 256 << 10;
/// Jobs in flight of the step that starts them.
const IN_FLIGHT: usize = 4;
/// The share by which the policy may be slower than the CPU at the worst length, as for the policies of `move-study`.
const LOSS_MAX: f64 = 0.05;

/// The machine of the optimisations, and the jobs from which a policy learns.
#[derive(Clone, Copy, Debug)]
pub(super) struct LadderPlan {
    pub(super) machine: MachineOf,
    pub(super) learned_jobs: usize,
}

/// An optimisation, in the order in which they are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CrossStep {
    /// Each page is a job of one channel, which is waited for and flushed.
    PageJobs,
    /// The pages are one list.
    OneList,
    /// The state of DDIO is declared: nothing is flushed that it does not leave in the cache.
    DeclaredWrites,
    /// The list is scattered over two channels.
    TwoChannels,
    /// Several lists are in flight.
    InFlight,
    /// The policy of the mover, which learned the machine, splits a list between the CPU and the two channels.
    LearnedSplit,
}

impl CrossStep {
    const ALL: [Self; 6] = [
        Self::PageJobs,
        Self::OneList,
        Self::DeclaredWrites,
        Self::TwoChannels,
        Self::InFlight,
        Self::LearnedSplit,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::PageJobs => "each page a job, waited for",
            Self::OneList => "one list of pages",
            Self::DeclaredWrites => "state of DDIO declared",
            Self::TwoChannels => "scattered over two channels",
            Self::InFlight => "four lists in flight",
            Self::LearnedSplit => "policy: CPU and two channels",
        }
    }

    /// Returns the step that this one is compared with, and the last part of its claim; `None` if it has none. A policy gives
    /// short jobs to the CPU, so that its break-even may be longer: its claim is that it does not lose.
    const fn before(self) -> Option<(Self, &'static str)> {
        match self {
            Self::PageJobs | Self::LearnedSplit => None,
            Self::OneList => Some((Self::PageJobs, "list")),
            Self::DeclaredWrites => Some((Self::OneList, "ddio")),
            Self::TwoChannels => Some((Self::DeclaredWrites, "scatter")),
            Self::InFlight => Some((Self::TwoChannels, "in_flight")),
        }
    }

    /// Returns the place of the step: the channels that it uses, and what the mover knows of DDIO.
    fn place(self, place: &CrossPlace) -> CrossPlace {
        let (channels, ddio) = match self {
            Self::PageJobs | Self::OneList => (1, CacheWrites::Unknown),
            Self::DeclaredWrites => (1, place.ddio),
            Self::TwoChannels | Self::InFlight | Self::LearnedSplit => (2, place.ddio),
        };
        CrossPlace { channels, ddio, ..*place }
    }

    fn point(self, place: &CrossPlace, bytes: usize) -> StudyPoint {
        match self {
            Self::PageJobs => StudyPoint { copies: 1, ..place.point(bytes, 1) },
            Self::InFlight => place.point(bytes, IN_FLIGHT),
            Self::OneList | Self::DeclaredWrites | Self::TwoChannels | Self::LearnedSplit => {
                place.point(bytes, 1)
            }
        }
    }

    /// Compares the step with the CPU alone at a place.
    fn outcome(self, plan: &LadderPlan, place: &CrossPlace) -> BreakEven {
        let place = self.place(place);
        let setup = place.setup(plan.machine);
        let point = |bytes| self.point(&place, bytes);
        let mut cpu = StudyRun::new(&setup.by(StudyWay::Cpu), 2);
        if self == Self::LearnedSplit {
            let mut learned = StudyRun::new(&setup.by(StudyWay::Learned), 1);
            learned.learn(plan.learned_jobs, 1, point);
            learned.freeze();
            compare((&mut learned, &mut cpu), LONGEST, point)
        } else {
            compare((&mut StudyRun::new(&setup, 1), &mut cpu), LONGEST, point)
        }
    }
}

/// The break-even of a step at a place.
#[derive(Clone, Copy, Debug)]
struct CrossOutcome {
    place: CrossPlace,
    step: CrossStep,
    found: BreakEven,
}

/// Adds a row for each step at each place, and evaluates the claims about them.
pub(super) fn ladder(plan: &LadderPlan, findings: &mut StudyFindings) {
    let mut outcomes = Vec::new();
    for node in ChannelNode::ALL {
        for direction in MoveDirection::ALL {
            for ddio in DDIO_STATES {
                let place = CrossPlace { channels: 1, direction, ddio, node };
                outcomes.extend(CrossStep::ALL.map(|step| {
                    let found = step.outcome(plan, &place);
                    CrossOutcome { place, step, found }
                }));
            }
        }
    }
    findings.wrong_bytes += outcomes.iter().map(|outcome| outcome.found.wrong_bytes).sum::<u64>();
    findings.found.rows.extend(outcomes.iter().map(row));
    claims(&outcomes, findings);
}

fn row(CrossOutcome { place, step, found }: &CrossOutcome) -> ReportRow {
    let flow = PLOTTED_FLOWS.into_iter().find(|flow| place.is_flow(*flow));
    let plot = flow.map(|_| match place.node {
        ChannelNode::Same => "break-even, same node",
        ChannelNode::Other => "break-even, other node",
    });
    ReportRow::new()
        .with("label", "MODEL")
        .with("part", "break-even")
        .with("direction", direction_name(place.direction))
        .with("ddio", ddio_name(place.ddio))
        .with("node", place.node.name())
        .with("step", step.name())
        .with("break_even_bytes", found.bytes.map(|bytes| bytes as u64))
        .with("longest_bytes", LONGEST as u64)
        .with("slower_at_the_worst_length", found.loss)
        .with("times_the_cpu_at_longest", 1.0 / (1.0 - found.gain))
        .with("plot", plot)
        .with("flow", flow.map(flow_name))
}

fn claims(outcomes: &[CrossOutcome], findings: &mut StudyFindings) {
    for step in CrossStep::ALL {
        let Some((before, name)) = step.before() else { continue };
        let rising = rises(outcomes, before, step);
        let against = format!("{}: {}; {}", before.name(), span(outcomes, before), span(outcomes, step));
        findings.claim_named(
            format!("p9.cross.break_even.{name}"),
            ClaimGoal::AtMost(0.0),
            (float(rising as u64), "directions, DDIO states and nodes in which it rises"),
            &against,
        );
    }
    let learned = outcomes.iter().filter(|outcome| outcome.step == CrossStep::LearnedSplit);
    let loss = learned.map(|outcome| outcome.found.loss).fold(f64::NAN, f64::max);
    let against = format!(
        "the CPU alone, 64 B to 256 KiB; the policy was not told the machine, and is frozen; breaks even at {}",
        span(outcomes, CrossStep::LearnedSplit)
    );
    let value = (loss, "slower than the CPU at the worst length");
    findings.claim_named("p9.cross.policy.loss".to_owned(), ClaimGoal::AtMost(LOSS_MAX), value, &against);
}

/// Returns the number of places at which the break-even of a step is longer than that of the step before.
fn rises(outcomes: &[CrossOutcome], before: CrossStep, after: CrossStep) -> usize {
    // A step that does not win at the longest length has a break-even beyond it.
    let bytes = |outcome: &CrossOutcome| outcome.found.bytes.unwrap_or(usize::MAX);
    let of = |step: CrossStep| outcomes.iter().filter(move |outcome| outcome.step == step);
    of(after)
        .filter(|outcome| {
            of(before).any(|earlier| earlier.place == outcome.place && bytes(outcome) > bytes(earlier))
        })
        .count()
}

/// Returns the shortest and the longest break-even of a step as text.
fn span(outcomes: &[CrossOutcome], step: CrossStep) -> String {
    let of_step = || outcomes.iter().filter(move |outcome| outcome.step == step);
    let bytes: Vec<usize> = of_step().filter_map(|outcome| outcome.found.bytes).collect();
    let never = of_step().count() - bytes.len();
    let ends = match (bytes.iter().min(), bytes.iter().max()) {
        (Some(least), Some(most)) => format!("{least} to {most} bytes"),
        _ => "no length".to_owned(),
    };
    if never > 0 { format!("{ends}, never at {never}") } else { ends }
}

#[cfg(test)]
mod tests {
    use super::super::published_machine;
    use super::*;
    use headwater_sim::move_model::study::StudySetup;

    /// A place at which jobs of single pages win: persistent memory is slow beside the latency of one.
    const PLACE: CrossPlace = CrossPlace {
        channels: 1,
        direction: MoveDirection::BetweenPersistent,
        ddio: CacheWrites::NonAllocating,
        node: ChannelNode::Same,
    };

    fn outcomes(machine: MachineOf, steps: &[CrossStep]) -> Vec<CrossOutcome> {
        let plan = LadderPlan { machine, learned_jobs: 0 };
        let outcome = |step: &CrossStep| {
            let found = step.outcome(&plan, &PLACE);
            assert_eq!(found.wrong_bytes, 0);
            CrossOutcome { place: PLACE, step: *step, found }
        };
        steps.iter().map(outcome).collect()
    }

    #[test]
    fn list_lowers_the_break_even_unless_its_operations_are_slow() {
        fn slow_lists(channels: usize) -> StudySetup {
            let mut setup = published_machine(channels);
            setup.costs.operation_min_ns *= 100.0;
            setup
        }
        let steps = [CrossStep::PageJobs, CrossStep::OneList];
        let published = outcomes(published_machine, &steps);
        assert!(published.iter().all(|outcome| outcome.found.bytes.is_some()), "{published:?}");
        assert_eq!(rises(&published, CrossStep::PageJobs, CrossStep::OneList), 0);
        let slow = outcomes(slow_lists, &steps);
        assert_eq!(slow[0].found.bytes, published[0].found.bytes);
        assert_eq!(rises(&slow, CrossStep::PageJobs, CrossStep::OneList), 1);
        let mut findings = StudyFindings::default();
        claims(&slow, &mut findings);
        let list = findings.found.claims.iter().find(|claim| claim.name == "p9.cross.break_even.list");
        assert_eq!(list.map(|claim| claim.holds), Some(false));
    }

    #[test]
    fn step_that_never_wins_is_longer_than_any_length() {
        let of = |step, bytes| CrossOutcome {
            place: PLACE,
            step,
            found: BreakEven { bytes, ..BreakEven::default() },
        };
        let count = |before, after| {
            let both = [of(CrossStep::PageJobs, before), of(CrossStep::OneList, after)];
            rises(&both, CrossStep::PageJobs, CrossStep::OneList)
        };
        assert_eq!(count(None, Some(64)), 0);
        assert_eq!(count(None, None), 0);
        assert_eq!(count(Some(64), Some(64)), 0);
        assert_eq!(count(Some(64), Some(128)), 1);
        assert_eq!(count(Some(64), None), 1);
        assert_eq!(
            span(&[of(CrossStep::OneList, Some(64)), of(CrossStep::OneList, None)], CrossStep::OneList),
            "64 to 64 bytes, never at 1"
        );
    }

    #[test]
    fn row_of_a_plot_names_its_flow() {
        let found = BreakEven { bytes: Some(1_024), ..BreakEven::default() };
        let shown = row(&CrossOutcome { place: PLACE, step: CrossStep::OneList, found });
        let json = serde_json::to_value(&shown).unwrap();
        assert_eq!(json["plot"], "break-even, same node");
        assert_eq!(json["flow"], "persistent to persistent, DDIO off");
        let place = CrossPlace { ddio: CacheWrites::Unknown, ..PLACE };
        let json =
            serde_json::to_value(row(&CrossOutcome { place, step: CrossStep::OneList, found })).unwrap();
        assert!(json["plot"].is_null() && json["flow"].is_null(), "{json}");
    }
}
