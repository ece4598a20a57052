//! A medium that lies: every zone of a flash file is damaged, and every key is asked for.
//!
//! *No silent answer*: on a damaged medium each read answers with the last acknowledged value or with an explicit error,
//! or the device refuses to open. An older value, the absence of a stored key, a deleted key that is back, a panic and a
//! hang are silent. The one exception is the last commit while nothing says that it is durable.
//!
//! `make test-media` damages every place; without `HEADWATER_DAMAGE_ALL` each damage is aimed at few places of few histories.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]
#![expect(clippy::print_stdout, reason = "the log states what each damage led to")]

mod damages;
mod history;
mod verdict;

use damages::{AimedDamage, metadata_damages, page_damages, read_errors};
use headwater_sim::faults::{LyingProgram, ProgramLie};
use headwater_sim::media::struck::{RestingMedium, unwitnessed_above};
use headwater_ssd::media::FlashGeometry;
use history::{BLOCKS, DeviceHistory, Ending};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use verdict::{Silence, Verdict};

/// The seeds of the histories.
const SEEDS: Range<u64> = 3..11;
/// Writes of a history that lie, one in each run, of each kind.
const LIES: u64 = 16;
/// Histories, places of a damage in each of them, and writes that lie, of the short form.
const SHORT_SEEDS: u64 = 2;
const SHORT_PLACES: u32 = 1;
const SHORT_LIES: u64 = 2;

/// Returns true if every place is damaged.
fn is_long() -> bool {
    std::env::var_os("HEADWATER_DAMAGE_ALL").is_some()
}

fn seeds() -> Range<u64> {
    if is_long() { SEEDS } else { SEEDS.start..SEEDS.start + SHORT_SEEDS }
}

/// The outcomes of one damage, over all places it was aimed at.
#[derive(Default)]
struct DamageTally {
    places: u32,
    refused: u32,
    with_errors: u32,
    silent_places: u32,
    unchecked_places: u32,
    silent: BTreeMap<Silence, u32>,
}

/// The tallies by the name of the damage.
#[derive(Default)]
struct DamageTable(BTreeMap<String, DamageTally>);

impl DamageTable {
    fn add(&mut self, name: String, verdict: &Verdict) {
        let tally = self.0.entry(name).or_default();
        tally.places += 1;
        tally.refused += u32::from(verdict.refused.is_some());
        tally.with_errors += u32::from(verdict.errors > 0);
        tally.silent_places += u32::from(verdict.is_silent());
        tally.unchecked_places += u32::from(verdict.is_unchecked());
        for (&silence, keys) in &verdict.silent {
            *tally.silent.entry(silence).or_default() += keys;
        }
    }

    fn print(&self) {
        for (name, tally) in &self.0 {
            let DamageTally { places, refused, with_errors, silent_places, unchecked_places, silent } = tally;
            println!(
                "{name}: {places} places, {refused} refused, {with_errors} with errors, {silent_places} silent \
                 {silent:?}, {unchecked_places} that a check calls whole"
            );
        }
    }

    fn names(&self, which: impl Fn(&DamageTally) -> bool) -> BTreeSet<&str> {
        self.0.iter().filter(|(_, tally)| which(tally)).map(|(name, _)| name.as_str()).collect()
    }

    /// Asserts that no damage is silent.
    fn assert_honest(&self) {
        self.print();
        // A damaged header named a sequence that was never given out, and a read waited for it forever.
        let hung = self.names(|tally| tally.silent.contains_key(&Silence::Hang));
        assert_eq!(hung, BTreeSet::new(), "damages after which a command never completes");
        assert_eq!(self.names(|tally| tally.silent_places > 0), BTreeSet::new(), "silent damages");
    }

    /// Asserts that `device check` finds every damage but these, none of which it finds everywhere.
    fn assert_checked(&self, unchecked: &[&'static str]) {
        let known: BTreeSet<&str> = unchecked.iter().copied().collect();
        let found = self.names(|tally| tally.unchecked_places > 0);
        assert!(found.is_subset(&known), "damages a check calls whole: {found:?}");
        assert!(found == known || !is_long(), "damages that a check finds by now: {known:?}");
    }
}

/// Runs `check` for every ending, each on a thread.
fn for_every_ending(check: impl Fn(Ending) -> Vec<(String, Verdict)> + Sync) -> DamageTable {
    let check = &check;
    std::thread::scope(|scope| {
        let running = Ending::ALL.map(|ending| scope.spawn(move || check(ending)));
        let mut table = DamageTable::default();
        for (name, verdict) in running.into_iter().flat_map(|thread| thread.join().unwrap()) {
            table.add(name, &verdict);
        }
        table
    })
}

/// Returns the verdict about each damage to the history of a seed.
fn judge(
    seed: u64,
    ending: Ending,
    damages: impl Fn(&DeviceHistory) -> Vec<AimedDamage>,
) -> Vec<(String, Verdict)> {
    let history = DeviceHistory::new(seed, ending, None);
    let mut places = BTreeMap::<String, u32>::new();
    let chosen = damages(&history).into_iter().filter(|damage| {
        let places = places.entry(damage.name.clone()).or_default();
        *places += 1;
        is_long() || *places <= SHORT_PLACES
    });
    let judged = chosen.map(|damage| {
        let of = |unwitnessed| Verdict::of(&history.keys, unwitnessed, || damage.apply(&history.file));
        let mut verdict = of(None);
        if verdict.is_silent() {
            verdict = of(damage.unwitnessed_above(&history.file));
        }
        (damage.name, verdict)
    });
    judged.collect()
}

#[test]
fn an_undamaged_file_answers_every_key_and_passes_a_check() {
    for ending in Ending::ALL {
        for seed in seeds() {
            let history = DeviceHistory::new(seed, ending, None);
            let verdict = Verdict::of(&history.keys, None, || history.file.snapshot());
            let silent = verdict.errors > 0 || verdict.is_silent();
            assert!(verdict.refused.is_none() && !silent, "{ending:?} {seed} {verdict:?}");
            assert!(verdict.whole, "{ending:?} {seed} {verdict:?}");
        }
    }
}

#[test]
fn damaged_metadata_is_never_silent() {
    let table =
        for_every_ending(|ending| seeds().flat_map(|seed| judge(seed, ending, metadata_damages)).collect());
    table.assert_honest();
    table.assert_checked(&[]);
}

#[test]
fn damaged_pages_are_never_silent() {
    let table = for_every_ending(|ending| judge(SEEDS.start, ending, page_damages));
    table.assert_honest();
}

#[test]
fn unreadable_pages_are_never_taken_for_zeroes() {
    let table = for_every_ending(|ending| judge(SEEDS.start, ending, read_errors));
    // Nothing is left of a read that failed once.
    table.assert_honest();
    table.assert_checked(&["log page unreadable once"]);
}

/// Makes one write of a history lie: it is answered and does not arrive as it should; the device goes on and stops.
#[test]
fn lying_writes_are_never_silent() {
    let table = for_every_ending(|ending| {
        let writes = DeviceHistory::new(SEEDS.start, ending, None).writes;
        let lies = if is_long() { LIES } else { SHORT_LIES };
        let mut judged = Vec::new();
        for (name, lie) in [
            ("write lost", ProgramLie::Lost),
            ("write misdirected", ProgramLie::Misdirected { pages: 197 }),
            ("write done in part", ProgramLie::Partly { sectors: 5 }),
        ] {
            for part in 1..=lies {
                let nth = writes - writes / 2 * part / lies;
                let lied = DeviceHistory::new(SEEDS.start, ending, Some(LyingProgram { nth, lie }));
                let medium = RestingMedium::File(&lied.file, FlashGeometry::with_blocks(BLOCKS));
                let unwitnessed = unwitnessed_above(&lied.struck, medium, medium);
                let mut verdict = Verdict::of(&lied.keys, unwitnessed, || lied.file.snapshot());
                if lied.hung {
                    verdict.note(Silence::Hang);
                }
                judged.push((name.to_owned(), verdict));
            }
        }
        judged
    });
    table.assert_honest();
    table.assert_checked(&[]);
}
