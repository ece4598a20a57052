//! A model of the rules by which medium version 2 proves what it holds (`docs/formats/medium-2.md`): two keys in two
//! namespaces, four blocks of three pages, six commit cells, two extents, power cuts and one fault.
//!
//! Input: the rules. Output: every state that a device can reach keeps its promise, or the steps that break it.
//! Invariant: a read answers with the newest acknowledged state or a newer one, or with an error after a fault; without
//! a fault there is no error.
//!
//! Small devices are searched exhaustively; longer lives are walked at random from a seed. Each rule is also taken away,
//! one at a time: the walks, or a test with the steps, must then find a broken promise. One rule of the format is not
//! missed here and stands for read errors, which the model does not have: a page says what is durable.

#![expect(clippy::cast_possible_truncation, reason = "every number of the model is below 256")]
#![expect(clippy::print_stdout, reason = "the counts of a search are shown with --nocapture")]
#![expect(clippy::struct_excessive_bools, reason = "each rule is in force or taken away")]

mod device;
mod medium;
mod memory;
mod promise;
mod recovery;

use device::{Bounds, OUTCOMES, State, Step};
use medium::{Fault, Write, WriteOutcome};
use std::collections::HashSet;
use std::hash::Hash;
use xxhash_rust::xxh3::Xxh3;

/// The rules of the format, each of which can be taken away.
#[derive(Clone, Copy, Debug)]
struct Rules {
    /// A page that lies elsewhere than it says is damaged.
    own_address: bool,
    /// A commit is recorded in two cells.
    commits_have_two_records: bool,
    /// An opening is recorded in two cells.
    openings_have_two_records: bool,
    /// The two cells of a record lie on different sides of the file.
    two_sides: bool,
    /// A guard follows a commit where two pages share a sector.
    guards: bool,
    /// A commit that nothing says is durable counts only if every page of it is intact.
    whole_candidate: bool,
    /// Such a commit also needs the values that its records have in extents.
    whole_extents: bool,
    /// A record that was moved into such a commit does not need its value.
    moved_extents_are_old: bool,
    /// A lost page puts keys in doubt.
    doubt: bool,
    /// A run of lost pages that is longer than a mask covers puts all namespaces in doubt.
    long_runs_name_all: bool,
    /// At the end of an epoch the mask of a commit counts only if the commit ends there.
    masks_end_there: bool,
    /// At the end of an epoch the mask of a record of a later epoch does not count.
    masks_are_of_their_epoch: bool,
    /// A key without a record is in doubt as well.
    absence_needs_proof: bool,
    /// A page of a listed block that is gone puts keys in doubt when the index is rebuilt.
    rebuilding_doubts_lost_pages: bool,
    /// The index is rebuilt from the pages that counted when the checkpoint was written.
    rebuilding_stops_at_the_end: bool,
    /// A read compares the life of the block.
    reads_check_order: bool,
    /// A checkpoint keeps doubt.
    checkpoints_keep_doubt: bool,
    /// A checkpoint counts from the first commit after the one that made it durable.
    checkpoint_waits_for_flush: bool,
    /// A block opened after the start of the checkpoint that counts is not reused.
    reuse_waits_for_checkpoint: bool,
    /// A block is reused only after what was moved out of it is durable.
    reuse_waits_for_moves: bool,
    /// An extent is reused only after something says that what replaced it is durable.
    extents_wait_for_witness: bool,
    /// A rule: what was found is made durable before the record of the opening.
    flush_before_opening: bool,
    /// An opening fills a page only after its record is durable.
    opening_waits_for_flush: bool,
    /// A sequence that any page carries is not given out again.
    sequences_are_new: bool,
}

const ALL: Rules = Rules {
    own_address: true,
    commits_have_two_records: true,
    openings_have_two_records: true,
    two_sides: true,
    guards: true,
    whole_candidate: true,
    whole_extents: true,
    moved_extents_are_old: true,
    doubt: true,
    long_runs_name_all: true,
    masks_end_there: true,
    masks_are_of_their_epoch: true,
    absence_needs_proof: true,
    rebuilding_doubts_lost_pages: true,
    rebuilding_stops_at_the_end: true,
    reads_check_order: true,
    checkpoints_keep_doubt: true,
    checkpoint_waits_for_flush: true,
    reuse_waits_for_checkpoint: true,
    reuse_waits_for_moves: true,
    extents_wait_for_witness: true,
    flush_before_opening: true,
    opening_waits_for_flush: true,
    sequences_are_new: true,
};

/// The outcome of a search.
struct Search {
    states: usize,
    /// The steps to the first broken promise, and the promise.
    broken: Option<(Vec<Step>, String)>,
}

/// Visits every state that the rules can reach within the bounds, depth first.
fn search(rules: &Rules, bounds: &Bounds) -> Search {
    let mut seen: HashSet<u128> = HashSet::new();
    let mut stack = vec![(State::new(), None::<usize>)];
    // The steps that led to each state, as a tree.
    let mut path: Vec<(Option<usize>, Step)> = Vec::new();
    while let Some((state, from)) = stack.pop() {
        for step in state.steps(bounds, rules, &mut device::outcomes) {
            let mut next = state.clone();
            let result = next.take(&step, rules);
            if let Err(promise) = result {
                path.push((from, step));
                return Search {
                    states: seen.len(),
                    broken: Some((steps_to(&path, path.len() - 1), promise)),
                };
            }
            if seen.insert(digest(&next)) {
                path.push((from, step));
                stack.push((next, Some(path.len() - 1)));
            }
        }
    }
    Search { states: seen.len(), broken: None }
}

fn digest(state: &State) -> u128 {
    let mut hasher = Xxh3::new();
    state.hash(&mut hasher);
    hasher.digest128()
}

/// Takes random steps from the beginning, many times.
fn walk(rules: &Rules, bounds: &Bounds, walks: usize, seed: u64) -> Search {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut taken = 0;
    for _ in 0..walks {
        let mut state = State::new();
        let mut path = Vec::new();
        for _ in 0..60 {
            let mut cuts = |writes: &[Write]| {
                vec![writes.iter().map(|_| random.choice(OUTCOMES).expect("three")).collect()]
            };
            let steps = state.steps(bounds, rules, &mut cuts);
            if steps.is_empty() {
                break;
            }
            let Some(step) = choose(&mut random, steps) else { continue };
            taken += 1;
            path.push(step.clone());
            if let Err(promise) = state.take(&step, rules) {
                return Search { states: taken, broken: Some((path, promise)) };
            }
        }
    }
    Search { states: taken, broken: None }
}

/// Chooses among the kinds of steps first, so that the many faults and outcomes do not crowd out the rest; accidents
/// are rare.
fn choose(random: &mut fastrand::Rng, steps: Vec<Step>) -> Option<Step> {
    let is_accident = |step: &Step| matches!(step, Step::PowerCut(_) | Step::Kill);
    let accident = random.u8(..20) == 0 || steps.iter().all(is_accident);
    let steps: Vec<Step> = steps.into_iter().filter(|step| is_accident(step) == accident).collect();
    let fault = |step: &Step| match step {
        Step::Fault(fault) => Some(std::mem::discriminant(fault)),
        _ => None,
    };
    let steps = of_one_kind(random, steps, std::mem::discriminant);
    let steps = of_one_kind(random, steps, fault);
    random.choice(steps)
}

/// Returns the steps of a kind chosen at random.
fn of_one_kind<K: PartialEq>(
    random: &mut fastrand::Rng,
    steps: Vec<Step>,
    kind_of: impl Fn(&Step) -> K,
) -> Vec<Step> {
    let mut kinds: Vec<K> = Vec::new();
    for kind in steps.iter().map(&kind_of) {
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    let Some(chosen) = random.choice(kinds) else { return steps };
    steps.into_iter().filter(|step| kind_of(step) == chosen).collect()
}

fn steps_to(path: &[(Option<usize>, Step)], last: usize) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut at = Some(last);
    while let Some(index) = at {
        steps.push(path[index].1.clone());
        at = path[index].0;
    }
    steps.reverse();
    steps
}

const CRASHES: Bounds = Bounds { records: 2, moves: 0, checkpoints: 1, power_cuts: 1, faults: 0 };
const ONE_FAULT: Bounds = Bounds { records: 2, moves: 0, checkpoints: 0, power_cuts: 1, faults: 1 };
const LONG_CRASHES: Bounds = Bounds { records: 16, moves: 6, checkpoints: 5, power_cuts: 2, faults: 0 };
const LONG_FAULT: Bounds = Bounds { faults: 1, ..LONG_CRASHES };

#[test]
fn power_cuts_break_no_promise() {
    let found = search(&ALL, &CRASHES);
    println!("{} states", found.states);
    assert!(found.broken.is_none(), "{:?}", found.broken);
}

#[test]
fn one_fault_and_a_power_cut_break_no_promise() {
    let found = search(&ALL, &ONE_FAULT);
    println!("{} states", found.states);
    assert!(found.broken.is_none(), "{:?}", found.broken);
}

/// Most walks until a missing rule must have broken a promise.
const WALKS: usize = 20_000;

/// Returns each rule taken away, with the bounds and the seed of walks that find what that breaks.
fn broken_rules() -> Vec<(&'static str, Rules, Bounds, u64)> {
    vec![
        ("own_address", Rules { own_address: false, ..ALL }, LONG_FAULT, 3),
        ("commits_have_two_records", Rules { commits_have_two_records: false, ..ALL }, LONG_FAULT, 0),
        ("openings_have_two_records", Rules { openings_have_two_records: false, ..ALL }, LONG_FAULT, 25),
        ("two_sides", Rules { two_sides: false, ..ALL }, LONG_FAULT, 0),
        ("guards", Rules { guards: false, ..ALL }, LONG_CRASHES, 0),
        ("long_runs_name_all", Rules { long_runs_name_all: false, ..ALL }, LONG_FAULT, 5),
        ("masks_end_there", Rules { masks_end_there: false, ..ALL }, LONG_FAULT, 8),
        ("masks_are_of_their_epoch", Rules { masks_are_of_their_epoch: false, ..ALL }, LONG_FAULT, 0),
        ("whole_candidate", Rules { whole_candidate: false, ..ALL }, LONG_CRASHES, 0),
        ("whole_extents", Rules { whole_extents: false, ..ALL }, LONG_CRASHES, 0),
        ("moved_extents_are_old", Rules { moved_extents_are_old: false, ..ALL }, LONG_FAULT, 7),
        ("doubt", Rules { doubt: false, ..ALL }, LONG_FAULT, 0),
        ("absence_needs_proof", Rules { absence_needs_proof: false, ..ALL }, LONG_FAULT, 0),
        ("opening_waits_for_flush", Rules { opening_waits_for_flush: false, ..ALL }, LONG_FAULT, 0),
        ("reads_check_order", Rules { reads_check_order: false, ..ALL }, LONG_FAULT, 4),
        ("checkpoints_keep_doubt", Rules { checkpoints_keep_doubt: false, ..ALL }, LONG_FAULT, 0),
        ("checkpoint_waits_for_flush", Rules { checkpoint_waits_for_flush: false, ..ALL }, LONG_CRASHES, 0),
        ("reuse_waits_for_checkpoint", Rules { reuse_waits_for_checkpoint: false, ..ALL }, LONG_CRASHES, 0),
        ("reuse_waits_for_moves", Rules { reuse_waits_for_moves: false, ..ALL }, LONG_CRASHES, 1),
        ("extents_wait_for_witness", Rules { extents_wait_for_witness: false, ..ALL }, LONG_CRASHES, 0),
        ("flush_before_opening", Rules { flush_before_opening: false, ..ALL }, LONG_FAULT, 2),
        ("sequences_are_new", Rules { sequences_are_new: false, ..ALL }, LONG_FAULT, 10),
    ]
}

#[test]
fn every_rule_is_needed() {
    for (name, rules, bounds, seed) in broken_rules() {
        let found = walk(&rules, &bounds, WALKS, seed);
        let Some((steps, promise)) = found.broken else {
            panic!("nothing breaks without the rule {name} in {} steps, seed {seed}", found.states);
        };
        println!("{name:28} {:>8} steps, then {:2}: {promise}", found.states, steps.len());
    }
}

#[test]
fn long_walks_break_no_promise() {
    let walks = std::env::var("MODEL_WALKS").ok().and_then(|walks| walks.parse().ok()).unwrap_or(WALKS);
    for bounds in [LONG_CRASHES, LONG_FAULT] {
        let found = walk(&ALL, &bounds, walks, 12);
        println!("{} steps", found.states);
        assert!(found.broken.is_none(), "{:?}", found.broken);
    }
}

/// Runs these steps with all rules, which must keep the promise, and without one, which must not.
fn breaks_without(steps: &[Step], rules: &Rules) {
    let run = |rules: &Rules| {
        let mut state = State::new();
        steps.iter().try_for_each(|step| state.take(step, rules))
    };
    run(&ALL).expect("all rules keep the promise");
    run(rules).expect_err("the rule is needed");
}

/// Returns the steps by which a checkpoint begins to count.
fn checkpoint() -> Vec<Step> {
    use Step::{Acknowledge, BeginCheckpoint, Seal, WriteCheckpoint};
    vec![BeginCheckpoint, WriteCheckpoint, Seal, Acknowledge, Seal, Acknowledge]
}

/// Leaves a page behind the end of an epoch on a block that the map lists, and loses the index.
#[test]
fn an_index_built_again_leaves_out_what_never_counted() {
    use Step::{Acknowledge, FinishOpening, Open, PowerCut, Seal, Store};
    let mut steps = vec![Store(0), Seal, Acknowledge, Store(0)];
    steps.extend([PowerCut(vec![WriteOutcome::Arrived]), Open, FinishOpening, Store(1), Seal, Acknowledge]);
    steps.extend(checkpoint());
    steps.extend([PowerCut(Vec::new()), Step::Fault(Fault::RotIndex(1)), Open, FinishOpening]);
    breaks_without(&steps, &Rules { rebuilding_stops_at_the_end: false, ..ALL });
}

/// Fills the block of a removal again, while the block of the removed record is free and still on the map, and loses the
/// index.
#[test]
fn an_index_built_again_does_not_return_a_removed_key() {
    use Step::{Acknowledge, FinishOpening, Free, Open, PowerCut, Remove, Seal, Store};
    let commit = |steps: &[Step]| [steps, &[Seal, Acknowledge]].concat();
    let steps = [
        commit(&[Store(1), Store(1), Store(1)]),
        commit(&[Store(0)]),
        commit(&[Store(1)]),
        checkpoint(),
        vec![Free],
        commit(&[Remove(0)]),
        commit(&[Store(1)]),
        commit(&[Store(1)]),
        checkpoint(),
        vec![Free],
        commit(&[Store(1), Store(1)]),
        vec![PowerCut(Vec::new()), Step::Fault(Fault::RotIndex(0)), Open, FinishOpening],
    ]
    .concat();
    breaks_without(&steps, &Rules { rebuilding_doubts_lost_pages: false, ..ALL });
}
