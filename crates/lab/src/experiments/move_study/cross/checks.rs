//! The claims about the rows of the cross.
//!
//! Input: the rows of a run. Output: the claims `p9.cross.sweep`, `.ddio`, `.node`, `.depth` and `.channels`. Invariant: the
//! machines of the sweep are built here, from the published constants, and not by the rows that they are compared with; a claim
//! without a pair of rows to compare has no value.

use super::super::StudyFindings;
use super::super::ranges::slowed;
use super::{
    ChannelNode, CrossKey, CrossPlace, CrossRow, CrossValues, FLUSH_LINE_NS, medium_factor, place_times,
};
use crate::claim::ClaimGoal;
use headwater_dma::mover::policy::{CacheWrites, MoveDirection};
use headwater_sim::move_model::JobCosts;
use headwater_sim::move_model::study::StudySetup;
use headwater_sim::move_model::study_machines::{NO_CEILING, dsa_setup};

/// The largest share by which rows that must be equal may differ: the rounding of sums.
const EQUAL_WITHIN: f64 = 1e-6;
/// The largest ratio of times of which one must not be longer: the first and the last jobs in flight are not as many.
const NOT_LONGER: f64 = 1.02;

/// Evaluates the claims about rows.
pub(super) fn row_claims(values: &CrossValues, rows: &[CrossRow], findings: &mut StudyFindings) {
    let equal = ClaimGoal::AtMost(EQUAL_WITHIN);
    let swept = sweep_difference(values, rows, findings);
    findings.claim_named(
        "p9.cross.sweep".to_owned(),
        equal,
        (swept, "largest relative difference from the sweep"),
        "the machines that move-study has, at every size and depth of the rows in which one dimension differs",
    );
    ddio_claims(rows, findings);
    let near = |key: &CrossKey| {
        let place = CrossPlace { node: ChannelNode::Other, ..key.place };
        // As for DDIO: single jobs, which no poll finds later because they ended earlier.
        (key.place.node == ChannelNode::Same && key.depth == 1).then_some(CrossKey { place, ..*key })
    };
    longest_claim("node", "the same job alone by a channel of the other node", &ratios(rows, near), findings);
    let (first, last) = (values.depths[0], values.depths[values.depths.len() - 1]);
    let deep = |key: &CrossKey| {
        let is_deep = key.place.channels == 1 && key.depth == last;
        is_deep.then_some(CrossKey { depth: first, ..*key })
    };
    let against = format!("one job after another on one channel; {last} in flight");
    longest_claim("depth", &against, &ratios(rows, deep), findings);
    let most = values.channels[values.channels.len() - 1];
    let wide = |key: &CrossKey| {
        let place = CrossPlace { channels: 1, ..key.place };
        let is_wide = key.place.channels == most && key.depth == last;
        is_wide.then_some(CrossKey { place, ..*key })
    };
    let against = format!("one channel; {most} channels, {last} jobs in flight");
    longest_claim("channels", &against, &ratios(rows, wide), findings);
}

/// Evaluates what DDIO and its state change.
fn ddio_claims(rows: &[CrossRow], findings: &mut StudyFindings) {
    let in_state = |key: &CrossKey, ddio| CrossKey { place: CrossPlace { ddio, ..key.place }, ..*key };
    let writes_persistent = |key: &CrossKey| key.place.direction.writes_persistent();
    let to_dram = ratios(rows, |key| {
        let has_state = key.place.ddio != CacheWrites::NonAllocating && !writes_persistent(key);
        has_state.then_some(in_state(key, CacheWrites::NonAllocating))
    });
    findings.claim_named(
        "p9.cross.ddio.dram".to_owned(),
        ClaimGoal::AtMost(EQUAL_WITHIN),
        (largest_difference(&to_dram), "largest relative difference between DDIO states"),
        "the same job to DRAM with DDIO off: nothing is flushed in any state",
    );
    let unknown = ratios(rows, |key| {
        (key.place.ddio == CacheWrites::Unknown).then_some(in_state(key, CacheWrites::Allocating))
    });
    findings.claim_named(
        "p9.cross.ddio.unknown".to_owned(),
        ClaimGoal::AtMost(EQUAL_WITHIN),
        (largest_difference(&unknown), "largest relative difference from DDIO on"),
        "the same job with DDIO on: a mover that does not know flushes",
    );
    let off = ratios(rows, |key| {
        // With several jobs in flight, a job that ends earlier may only wait longer for the poll that finds it.
        let is_off = key.place.ddio == CacheWrites::NonAllocating && writes_persistent(key) && key.depth == 1;
        is_off.then_some(in_state(key, CacheWrites::Allocating))
    });
    let shortest = off.iter().copied().fold(f64::NAN, f64::min);
    let against = format!(
        "the same job alone to persistent memory with DDIO on; without a flush it takes {shortest:.2} at best"
    );
    longest_claim("ddio.off", &against, &off, findings);
}

/// Adds the claim that no ratio of two times is longer than one.
fn longest_claim(name: &str, against: &str, ratios: &[f64], findings: &mut StudyFindings) {
    let longest = ratios.iter().copied().fold(f64::NAN, f64::max);
    let value = (longest, "of the time, at the worst combination");
    findings.claim_named(format!("p9.cross.{name}"), ClaimGoal::AtMost(NOT_LONGER), value, against);
}

/// Returns the ratio of the time of each row to that of the row that `partner` names for it; nothing for a row without one.
fn ratios(rows: &[CrossRow], partner: impl Fn(&CrossKey) -> Option<CrossKey>) -> Vec<f64> {
    let ratio = |row: &CrossRow| {
        let key = partner(&row.key)?;
        rows.iter().find(|other| other.key == key).map(|other| row.ns_per_byte / other.ns_per_byte)
    };
    rows.iter().filter_map(ratio).collect()
}

fn largest_difference(ratios: &[f64]) -> f64 {
    ratios.iter().map(|ratio| (ratio - 1.0).abs()).fold(f64::NAN, f64::max)
}

/// Returns the places in which one dimension differs from one channel of the same node between DRAM, with machines that the
/// sweeps of the study have.
fn sweeps(values: &CrossValues) -> Vec<(CrossPlace, StudySetup)> {
    let one = dsa_setup(1, NO_CEILING);
    let (ddio, node) = (CacheWrites::NonAllocating, ChannelNode::Same);
    let near = CrossPlace { channels: 1, direction: MoveDirection::BetweenDram, ddio, node };
    let of_channels =
        |channels: &usize| (CrossPlace { channels: *channels, ..near }, dsa_setup(*channels, NO_CEILING));
    let of_direction = |direction: MoveDirection| {
        (CrossPlace { direction, ..near }, slowed(one.clone(), 1.0, medium_factor(direction)))
    };
    let mut sweeps: Vec<(CrossPlace, StudySetup)> = values.channels.iter().map(of_channels).collect();
    sweeps.extend(MoveDirection::ALL.map(of_direction));
    let (latency, of_byte) = ChannelNode::Other.factors();
    sweeps.push((CrossPlace { node: ChannelNode::Other, ..near }, slowed(one.clone(), latency, of_byte)));
    let (place, setup) = of_direction(MoveDirection::ToPersistent);
    let ddio = CacheWrites::Allocating;
    let costs = JobCosts { flush_line_ns: FLUSH_LINE_NS, ..setup.costs };
    sweeps.push((CrossPlace { ddio, ..place }, StudySetup { costs, cache_writes: ddio, ..setup }));
    sweeps
}

/// Returns the largest relative difference of a row from the same jobs on the machine of a sweep.
fn sweep_difference(values: &CrossValues, rows: &[CrossRow], findings: &mut StudyFindings) -> f64 {
    let mut differences = Vec::new();
    for (place, setup) in sweeps(values) {
        for (key, ns_per_byte) in place_times(&place, &setup, (values, values.depths), findings) {
            let row = rows.iter().find(|row| row.key == key);
            differences.push(row.map_or(f64::INFINITY, |row| (row.ns_per_byte / ns_per_byte - 1.0).abs()));
        }
    }
    differences.into_iter().fold(f64::NAN, f64::max)
}
