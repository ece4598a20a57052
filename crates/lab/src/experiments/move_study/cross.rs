//! The full cross of the study: every combination of size, channels, depth, direction, DDIO and node.
//!
//! Input: published constants of DSA, and one assumed value for each parameter that is not published, within the range that
//! `move-study` sweeps. Output: a row for every combination, the break-even before and after each optimisation for every
//! direction, DDIO state and node, and the claims `p9.cross.*`. The baseline is the CPU of the same host with the same jobs.
//! Invariant: no DMA engine ran and nothing was measured: every time is virtual, and labelled `MODEL`; each byte that a mover
//! moved was compared with its source.
//!
//! # What is assumed
//! Persistent memory takes both engines twice as long to read as DRAM, four times as long to write, and six times as long to do
//! both. A channel of the other node has one and a half times the latency and the time of a byte. A line that the CPU flushes
//! takes it 5 ns. The memory's bandwidth limits nothing. What other values do is in the ranges of `move-study`.
//!
//! # What this does not do
//! It does not say how an unknown machine behaves: a mover that does not know the state of DDIO flushes as if it were on, and its
//! rows are those of that decision.

mod checks;
mod ladder;

use super::ranges::slowed;
use super::{StudyFindings, float};
use crate::claim::ClaimGoal;
use crate::experiment::{ExperimentFindings, LabError, LabExperiment, RunContext};
use crate::report::ReportRow;
use headwater_dma::mover::policy::{CacheWrites, MoveDirection};
use headwater_dma::mover::{MoveDurability, SourceKind};
use headwater_sim::move_model::JobCosts;
use headwater_sim::move_model::study::{StudyPoint, StudySetup, StudyWay};
use headwater_sim::move_model::study_machines::{NO_CEILING, dsa_setup};
use ladder::LadderPlan;

/// The experiment's entry in the table.
pub(crate) const EXPERIMENT: LabExperiment = LabExperiment {
    name: "move-cross",
    summary: "full cross of offload: every size, channels, depth, direction, DDIO state and node, over modelled channels",
    baseline: "the CPU of the same host with the same jobs; the sweeps of move-study at the points of both",
    claims: &["p9.cross.*"],
    run,
};

/// The CPU's time to write a line back that a channel left in the cache, in nanoseconds; assumed.
const FLUSH_LINE_NS: f64 = 5.0;

/// The machine of a number of channels: they and the DRAM of their jobs are of one node.
type MachineOf = fn(usize) -> StudySetup;

/// The values of the dimensions that have more of them than a run crosses. The first number of channels and of jobs in flight is
/// one. Every run crosses all directions, DDIO states and nodes.
#[derive(Clone, Copy, Debug)]
struct CrossValues {
    bytes: &'static [usize],
    channels: &'static [usize],
    depths: &'static [usize],
}

const FULL: CrossValues = CrossValues {
    bytes: &[256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10],
    channels: &[1, 2, 4],
    depths: &[1, 4, 16],
};
const QUICK: CrossValues =
    CrossValues { bytes: &[4 << 10, 16 << 10, 64 << 10], channels: &[1, 4], depths: &[1, 16] };

const DDIO_STATES: [CacheWrites; 3] =
    [CacheWrites::Allocating, CacheWrites::NonAllocating, CacheWrites::Unknown];

/// The directions and DDIO states of the plots: a direction to DRAM has the same rows in every state, and an unknown state has
/// those of DDIO.
const PLOTTED_FLOWS: [(MoveDirection, CacheWrites); 6] = [
    (MoveDirection::BetweenDram, CacheWrites::NonAllocating),
    (MoveDirection::FromPersistent, CacheWrites::NonAllocating),
    (MoveDirection::ToPersistent, CacheWrites::Allocating),
    (MoveDirection::ToPersistent, CacheWrites::NonAllocating),
    (MoveDirection::BetweenPersistent, CacheWrites::Allocating),
    (MoveDirection::BetweenPersistent, CacheWrites::NonAllocating),
];

/// The node of a channel, beside that of the memories of its jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChannelNode {
    Same,
    Other,
}

impl ChannelNode {
    const ALL: [Self; 2] = [Self::Same, Self::Other];

    const fn name(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Other => "other",
        }
    }

    /// Returns the factors of a channel's latency and of its time of a byte; assumed.
    const fn factors(self) -> (f64, f64) {
        match self {
            Self::Same => (1.0, 1.0),
            Self::Other => (1.5, 1.5),
        }
    }
}

const fn direction_name(direction: MoveDirection) -> &'static str {
    match direction {
        MoveDirection::BetweenDram => "DRAM to DRAM",
        MoveDirection::ToPersistent => "DRAM to persistent",
        MoveDirection::FromPersistent => "persistent to DRAM",
        MoveDirection::BetweenPersistent => "persistent to persistent",
    }
}

/// Returns the factor of every engine's time of a byte in a direction; assumed.
const fn medium_factor(direction: MoveDirection) -> f64 {
    match direction {
        MoveDirection::BetweenDram => 1.0,
        MoveDirection::FromPersistent => 2.0,
        MoveDirection::ToPersistent => 4.0,
        MoveDirection::BetweenPersistent => 6.0,
    }
}

const fn ddio_name(ddio: CacheWrites) -> &'static str {
    match ddio {
        CacheWrites::Allocating => "on",
        CacheWrites::NonAllocating => "off",
        CacheWrites::Unknown => "unknown",
    }
}

/// Returns the name of a direction and a DDIO state in a plot.
fn flow_name((direction, ddio): (MoveDirection, CacheWrites)) -> String {
    let name = direction_name(direction);
    if direction.writes_persistent() { format!("{name}, DDIO {}", ddio_name(ddio)) } else { name.to_owned() }
}

/// The values of all dimensions but size and depth: one mover does the jobs of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CrossPlace {
    channels: usize,
    direction: MoveDirection,
    ddio: CacheWrites,
    node: ChannelNode,
}

impl CrossPlace {
    /// Returns the machine of the place, whose channels do every job.
    fn setup(&self, machine: MachineOf) -> StudySetup {
        let (latency, of_byte) = self.node.factors();
        let medium = medium_factor(self.direction);
        let setup = slowed(machine(self.channels), latency, of_byte * medium);
        let costs = JobCosts { cpu_slower: medium - 1.0, flush_line_ns: FLUSH_LINE_NS, ..setup.costs };
        let known_cpu_rate = setup.known_cpu_rate / medium;
        StudySetup { costs, known_cpu_rate, cache_writes: self.ddio, ..setup }
    }

    /// Returns the point of jobs of so many bytes in pages, with so many in flight.
    fn point(&self, bytes: usize, depth: usize) -> StudyPoint {
        let source = match self.direction {
            MoveDirection::BetweenDram | MoveDirection::ToPersistent => SourceKind::Dram,
            MoveDirection::FromPersistent | MoveDirection::BetweenPersistent => SourceKind::Persistent,
        };
        let durability = if self.direction.writes_persistent() {
            MoveDurability::Persistent
        } else {
            MoveDurability::Visible
        };
        StudyPoint { depth, source, durability, ..StudyPoint::in_pieces(bytes) }
    }

    /// Returns true if the place has a direction and a DDIO state.
    fn is_flow(&self, (direction, ddio): (MoveDirection, CacheWrites)) -> bool {
        self.direction == direction && self.ddio == ddio
    }
}

/// A combination of the cross.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CrossKey {
    place: CrossPlace,
    bytes: usize,
    depth: usize,
}

/// The time of a combination.
#[derive(Clone, Copy, Debug, PartialEq)]
struct CrossRow {
    key: CrossKey,
    /// Virtual time of a byte, in nanoseconds.
    ns_per_byte: f64,
    /// The time of the CPU alone, over that.
    times_the_cpu: f64,
}

impl CrossRow {
    fn report(&self) -> ReportRow {
        let CrossKey { place, bytes, depth } = self.key;
        ReportRow::new()
            .with("label", "MODEL")
            .with("part", "cross")
            .with("bytes", bytes as u64)
            .with("channels", place.channels as u64)
            .with("jobs_in_flight", depth as u64)
            .with("direction", direction_name(place.direction))
            .with("ddio", ddio_name(place.ddio))
            .with("node", place.node.name())
            .with("gb_per_s", 1.0 / self.ns_per_byte)
            .with("times_the_cpu", self.times_the_cpu)
    }
}

fn run(context: &RunContext) -> Result<ExperimentFindings, LabError> {
    let (values, learned_jobs) = if context.is_quick() { (QUICK, 400) } else { (FULL, 2_000) };
    let plan = LadderPlan { machine: published_machine, learned_jobs };
    Ok(crossed(&values, &plan).found)
}

/// Returns the machine of published constants.
fn published_machine(channels: usize) -> StudySetup {
    dsa_setup(channels, NO_CEILING)
}

/// Runs the cross and the optimisations on a machine, and evaluates every claim.
fn crossed(values: &CrossValues, plan: &LadderPlan) -> StudyFindings {
    let mut findings = StudyFindings::default();
    let rows = cross(values, plan.machine, &mut findings);
    findings.found.rows.extend(rows.iter().map(CrossRow::report));
    plotted_rates(values, &rows, &mut findings);
    checks::row_claims(values, &rows, &mut findings);
    ladder::ladder(plan, &mut findings);
    let wrong = float(findings.wrong_bytes);
    findings.claim_named(
        "p9.cross.bytes".to_owned(),
        ClaimGoal::AtMost(0.0),
        (wrong, "bytes that differ from their source"),
        "a comparison of every byte of every job of this run",
    );
    findings
}

/// Returns the time of every combination.
fn cross(values: &CrossValues, machine: MachineOf, findings: &mut StudyFindings) -> Vec<CrossRow> {
    let mut rows = Vec::new();
    for direction in MoveDirection::ALL {
        let near = |channels| CrossPlace {
            channels,
            direction,
            ddio: CacheWrites::NonAllocating,
            node: ChannelNode::Same,
        };
        // The CPU alone knows nothing of channels, DDIO and their node, and does a job in flight when it is started.
        let alone = near(1).setup(machine).by(StudyWay::Cpu);
        let cpu = place_times(&near(1), &alone, (values, &values.depths[..1]), findings);
        for channels in values.channels {
            for ddio in DDIO_STATES {
                for node in ChannelNode::ALL {
                    let place = CrossPlace { ddio, node, ..near(*channels) };
                    let times = place_times(&place, &place.setup(machine), (values, values.depths), findings);
                    rows.extend(times.into_iter().enumerate().map(|(nth, (key, ns_per_byte))| {
                        let times_the_cpu = cpu[nth % cpu.len()].1 / ns_per_byte;
                        CrossRow { key, ns_per_byte, times_the_cpu }
                    }));
                }
            }
        }
    }
    rows
}

/// Returns the time of a byte in nanoseconds for every size at each depth, on one mover of a setup.
fn place_times(
    place: &CrossPlace,
    setup: &StudySetup,
    (values, depths): (&CrossValues, &[usize]),
    findings: &mut StudyFindings,
) -> Vec<(CrossKey, f64)> {
    let mut keys = Vec::new();
    for depth in depths {
        keys.extend(values.bytes.iter().map(|bytes| CrossKey {
            place: *place,
            bytes: *bytes,
            depth: *depth,
        }));
    }
    let points: Vec<StudyPoint> = keys.iter().map(|key| place.point(key.bytes, key.depth)).collect();
    let times = findings.times(setup, &points);
    let of_byte = points.iter().zip(times).map(|(point, time)| time.ns_per_copy / float(point.bytes as u64));
    keys.into_iter().zip(of_byte).collect()
}

/// Adds the rows of the plots of rates: by channels and depth between DRAM, and by direction and DDIO on one channel.
fn plotted_rates(values: &CrossValues, rows: &[CrossRow], findings: &mut StudyFindings) {
    let last = values.depths.len() - 1;
    let ends = [values.depths[0], values.depths[last]];
    let mut add = |plot: &'static str, series: String, bytes: usize, gb_per_s: f64| {
        findings.found.rows.push(
            ReportRow::new()
                .with("label", "MODEL")
                .with("part", plot)
                .with("series", series)
                .with("bytes", bytes as u64)
                .with("gb_per_s", gb_per_s),
        );
    };
    for row in rows.iter().filter(|row| row.key.place.node == ChannelNode::Same) {
        let CrossKey { place, bytes, depth } = row.key;
        let rate = 1.0 / row.ns_per_byte;
        if place.is_flow(PLOTTED_FLOWS[0]) && ends.contains(&depth) {
            if place.channels == 1 && depth == 1 {
                add("rates by channels and depth", "CPU".to_owned(), bytes, rate / row.times_the_cpu);
            }
            let jobs = if depth == 1 { "waited for".to_owned() } else { format!("{depth} in flight") };
            let channels = place.channels;
            let plural = if channels == 1 { "" } else { "s" };
            add("rates by channels and depth", format!("{channels} channel{plural}, {jobs}"), bytes, rate);
        }
        if place.channels == 1
            && depth == 1
            && let Some(flow) = PLOTTED_FLOWS.into_iter().find(|flow| place.is_flow(*flow))
        {
            add("rates by direction and DDIO", flow_name(flow), bytes, rate);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::{EvidenceLabel, LabClaim};
    use crate::report::RowCell;
    use std::collections::BTreeSet;

    /// The fewest values with which every dimension has two.
    const SMALL: CrossValues =
        CrossValues { bytes: &[1 << 10, 16 << 10], channels: &[1, 2], depths: &[1, 4] };

    fn row_claims_on(machine: MachineOf) -> Vec<LabClaim> {
        let mut findings = StudyFindings::default();
        let rows = cross(&SMALL, machine, &mut findings);
        checks::row_claims(&SMALL, &rows, &mut findings);
        assert_eq!(findings.wrong_bytes, 0);
        findings.found.claims
    }

    fn named<'a>(claims: &'a [LabClaim], name: &str) -> &'a LabClaim {
        claims.iter().find(|claim| claim.name == name).unwrap_or_else(|| panic!("{name} is missing"))
    }

    #[test]
    fn every_combination_has_one_row() {
        let mut findings = StudyFindings::default();
        let rows = cross(&SMALL, published_machine, &mut findings);
        let distinct: BTreeSet<String> = rows.iter().map(|row| format!("{:?}", row.key)).collect();
        assert_eq!((rows.len(), distinct.len()), (2 * 2 * 2 * 4 * 3 * 2, 2 * 2 * 2 * 4 * 3 * 2));
        assert!(rows.iter().all(|row| row.ns_per_byte > 0.0 && row.times_the_cpu > 0.0));
        let report = rows[0].report();
        assert_eq!(report.get("label"), Some(&RowCell::Text("MODEL".to_owned())));
        for values in [FULL, QUICK] {
            assert_eq!((values.channels[0], values.depths[0]), (1, 1));
        }
    }

    #[test]
    fn claims_of_rows_hold_for_the_published_machine_and_are_a_model() {
        let claims = row_claims_on(published_machine);
        for claim in &claims {
            assert!(claim.holds, "{claim:?}");
            assert_eq!(claim.label, EvidenceLabel::Model);
        }
    }

    #[test]
    fn wrong_constant_of_the_machine_is_found() {
        fn slow_submission(channels: usize) -> StudySetup {
            let mut setup = published_machine(channels);
            setup.machine.submit_ns *= 2.0;
            setup
        }
        let claims = row_claims_on(slow_submission);
        assert!(!named(&claims, "p9.cross.sweep").holds);
    }

    #[test]
    fn plots_of_rates_have_a_line_for_each_end_and_flow() {
        let mut findings = StudyFindings::default();
        let rows = cross(&SMALL, published_machine, &mut findings);
        plotted_rates(&SMALL, &rows, &mut findings);
        let series = |part: &str| {
            let of_part = |row: &&ReportRow| row.get("part") == Some(&RowCell::Text(part.to_owned()));
            let rows = findings.found.rows.iter().filter(of_part);
            rows.map(|row| format!("{:?}", row.get("series"))).collect::<BTreeSet<_>>().len()
        };
        assert_eq!(series("rates by channels and depth"), 5);
        assert_eq!(series("rates by direction and DDIO"), PLOTTED_FLOWS.len());
    }
}
