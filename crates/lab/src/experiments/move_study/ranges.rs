//! The dimensions of the study for which no constant was published: node, direction, DDIO, and the memory's bandwidth.
//!
//! Input: a range of each unknown parameter. Output: the range of the break-even over it. Invariant: no row has one number
//! for a dimension that is not published; each says the range of its parameters, and how many of their values never win.

use super::{LONGEST, LONGEST_IN_FLIGHT, StudyFindings};
use crate::report::ReportRow;
use headwater_dma::mover::MoveDurability;
use headwater_dma::mover::policy::CacheWrites;
use headwater_sim::move_model::JobCosts;
use headwater_sim::move_model::study::{StudyPoint, StudySetup, StudyWay, break_even};
use headwater_sim::move_model::study_machines::{NO_CEILING, dsa_setup};

/// A dimension without published constants.
struct StudyRange {
    dimension: &'static str,
    /// The parameters that vary, and their ranges.
    varied: &'static str,
    cases: Vec<StudySetup>,
    durability: MoveDurability,
}

/// Returns a device whose latency and time of a byte are longer by factors.
fn slower(latency: f64, of_byte: f64) -> StudySetup {
    slowed(dsa_setup(1, NO_CEILING), latency, of_byte)
}

/// Returns a machine whose channels have a latency and a time of a byte that are longer by factors.
pub(super) fn slowed(mut setup: StudySetup, latency: f64, of_byte: f64) -> StudySetup {
    for channel in &mut setup.machine.channels {
        for piece in &mut channel.pieces {
            piece.fixed_ns *= latency;
            piece.bytes_per_ns /= of_byte;
        }
    }
    setup.costs.operation_min_ns *= of_byte;
    setup.costs.operation_bytes_per_ns /= of_byte;
    setup
}

/// Returns the cases of persistent memory: the device and the CPU each take up to ten times as long for a byte.
fn persistent(flush_line_ns: &[f64], cache_writes: CacheWrites) -> Vec<StudySetup> {
    let mut cases = Vec::new();
    for of_byte in [1.0, 3.0, 10.0] {
        for cpu_slower in [0.0, 2.0, 9.0] {
            for flush in flush_line_ns {
                let setup = slower(1.0, of_byte);
                let costs = JobCosts { cpu_slower, flush_line_ns: *flush, ..setup.costs };
                cases.push(StudySetup { costs, cache_writes, ..setup });
            }
        }
    }
    cases
}

fn all_ranges() -> Vec<StudyRange> {
    let far = [(1.0, 1.0), (1.5, 1.0), (2.0, 1.0), (1.0, 1.5), (1.0, 2.0), (2.0, 2.0)];
    let bypass = CacheWrites::NonAllocating;
    vec![
        StudyRange {
            dimension: "node: channel of another node",
            varied: "latency 1 to 2 times, time of a byte 1 to 2 times",
            cases: far.map(|(latency, of_byte)| slower(latency, of_byte)).to_vec(),
            durability: MoveDurability::Visible,
        },
        StudyRange {
            dimension: "direction: from persistent memory",
            varied: "time of a byte 1 to 10 times, of channel and CPU each",
            cases: persistent(&[0.0], bypass),
            durability: MoveDurability::Visible,
        },
        StudyRange {
            dimension: "direction: to persistent memory, DDIO off",
            varied: "time of a byte 1 to 10 times, of channel and CPU each",
            cases: persistent(&[0.0], bypass),
            durability: MoveDurability::Persistent,
        },
        StudyRange {
            dimension: "direction: to persistent memory, DDIO on",
            varied: "the same, and 1 to 20 ns for each line that the CPU flushes",
            cases: persistent(&[1.0, 5.0, 20.0], CacheWrites::Allocating),
            durability: MoveDurability::Persistent,
        },
    ]
}

/// Adds the range of the break-even for each dimension, and for each number of channels.
pub(super) fn ranges(findings: &mut StudyFindings) {
    let waited = StudyPoint::synchronous(64);
    let list = StudyPoint { copies: 32, depth: 2, ..waited };
    for (jobs, point, longest) in [("waited for", waited, LONGEST), ("lists of 32", list, LONGEST_IN_FLIGHT)]
    {
        for range in all_ranges() {
            let point = |bytes| StudyPoint { bytes, durability: range.durability, ..point };
            add_range(findings, (range.dimension, range.varied, jobs), &range.cases, longest, point);
        }
    }
    for (channels, dimension) in
        [(1, "1 channel"), (2, "2 channels"), (4, "4 channels"), (8, "8 channels"), (16, "16 channels")]
    {
        let cases = [40.0, 80.0, 160.0, NO_CEILING].map(|ceiling| dsa_setup(channels, ceiling));
        let varied = "memory moves 40 GB/s to any rate";
        let names = (dimension, varied, "pages scattered");
        add_range(findings, names, &cases, LONGEST, StudyPoint::in_pieces);
    }
}

fn add_range(
    findings: &mut StudyFindings,
    (dimension, varied, jobs): (&'static str, &'static str, &'static str),
    cases: &[StudySetup],
    longest: usize,
    point: impl Fn(usize) -> StudyPoint,
) {
    let (mut lengths, mut gains) = (Vec::new(), Vec::new());
    for setup in cases {
        let found = break_even((setup, &setup.by(StudyWay::Cpu)), longest, &point);
        findings.wrong_bytes += found.wrong_bytes;
        lengths.extend(found.bytes);
        gains.push(1.0 / (1.0 - found.gain));
    }
    gains.sort_by(f64::total_cmp);
    let never = cases.len() - lengths.len();
    let note = if never > 0 { format!("; {never} of {} never", cases.len()) } else { String::new() };
    findings.found.rows.push(
        ReportRow::new()
            .with("label", "MODEL")
            .with("part", "range")
            .with("dimension", dimension)
            .with("varied", varied)
            .with("jobs", jobs)
            .with("lowest_break_even_bytes", lengths.iter().min().map(|bytes| *bytes as u64))
            .with("highest_break_even_bytes", lengths.iter().max().map(|bytes| *bytes as u64))
            .with("never", never as u64)
            .with("cases", cases.len() as u64)
            .with("note", note)
            .with("least_times_the_cpu", gains.first().copied())
            .with("most_times_the_cpu", gains.last().copied()),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_has_the_lowest_and_the_highest_of_its_cases_and_counts_those_that_never_win() {
        let mut findings = StudyFindings::default();
        let cases = [slower(1.0, 1.0), slower(4.0, 1.0), slower(1.0, 10.0)];
        add_range(&mut findings, ("a", "b", "c"), &cases, LONGEST, StudyPoint::synchronous);
        let row = serde_json::to_value(&findings.found.rows[0]).unwrap();
        let (low, high) = (row["lowest_break_even_bytes"].as_u64(), row["highest_break_even_bytes"].as_u64());
        assert!(low.is_some_and(|bytes| (12_288..20_000).contains(&bytes)), "{row}");
        assert!(high.is_some_and(|bytes| (40_000..70_000).contains(&bytes)), "{row}");
        // 2.99 bytes a nanosecond are fewer than the CPU's at every length.
        assert_eq!((row["never"].as_u64(), row["cases"].as_u64()), (Some(1), Some(3)));
        assert_eq!(row["note"].as_str(), Some("; 1 of 3 never"));
        assert_eq!(findings.wrong_bytes, 0);
    }
}
