//! The record of a file's writes and syncs, replayed: at every point the file is rebuilt with unsynced writes lost or
//! torn, and everything that was acknowledged by then is there.

use crate::device::{FRONT_END, complete, get, open_device, seeded};
use bytes::Bytes;
use headwater_host::clock::Nanos;
use headwater_nvme::spec::status::Status;
use headwater_sim::faults::DamagePlan;
use headwater_sim::simulated_file::SimFile;
use headwater_ssd::command::{NamespaceId, RecordExpiry, SsdCommand, WriteCondition};
use headwater_ssd::media::FlashGeometry;
use headwater_ssd::media::file::{OpenAccess, write_new_file};
use std::collections::BTreeMap;

const KEYS: u32 = 12;
const COMMANDS: u32 = 500;
/// Commands in flight at a time.
const DEPTH: u32 = 4;
/// One point in this many is rebuilt, from a random one on.
const EVERY: usize = 9;

/// The states that a key may have at a point: the last acknowledged one, and those of later commands.
#[derive(Default)]
struct KeyPast {
    /// Each state with the points at which its command was submitted and acknowledged.
    states: Vec<(Option<Vec<u8>>, usize, usize)>,
}

impl KeyPast {
    /// Returns true if a file of this point may hold the state.
    fn allows(&self, found: &Option<Vec<u8>>, point: usize) -> bool {
        let acknowledged = self.states.iter().rposition(|&(_, _, answered)| answered <= point);
        let later = acknowledged.map_or(0, |last| last);
        let nothing = acknowledged.is_none() && found.is_none();
        nothing
            || self.states[later..].iter().any(|(state, submitted, _)| *submitted <= point && state == found)
    }
}

fn key_bytes(key: u32) -> Bytes {
    Bytes::from(format!("key-{key}"))
}

/// Stores and deletes keys, a few commands at a time and never two of one key. Returns what each key went through.
fn fill(file: &SimFile, rng: &mut fastrand::Rng) -> BTreeMap<u32, KeyPast> {
    let mut device = open_device(file, OpenAccess::New).unwrap();
    file.start_journal();
    let (mut now, mut pasts) = (Nanos::ZERO, BTreeMap::<u32, KeyPast>::new());
    for round in 0..COMMANDS / DEPTH {
        if round == COMMANDS / DEPTH / 2 {
            device.request_checkpoint();
        }
        let keys = rng.choose_multiple(0..KEYS, DEPTH as usize);
        for &key in &keys {
            let mut bytes = vec![0; rng.usize(8..6_000)];
            rng.fill(&mut bytes);
            let value = (rng.u8(0..5) > 0).then_some(bytes);
            let (condition, expiry) = (WriteCondition::Always, RecordExpiry::Never);
            let command = match value.clone() {
                Some(value) => {
                    SsdCommand::Store { key: key_bytes(key), value: value.into(), condition, expiry }
                }
                None => SsdCommand::Delete { key: key_bytes(key), condition },
            };
            pasts.entry(key).or_default().states.push((value, file.journal_len(), usize::MAX));
            device.submit(FRONT_END, NamespaceId::FIRST, u64::from(key), command).unwrap();
        }
        for _ in &keys {
            let completion = complete(&mut device, &mut now);
            let ok = [Status::SUCCESS, Status::KEY_DOES_NOT_EXIST].contains(&completion.status);
            assert!(ok, "{:?}", completion.status);
            let key = u32::try_from(completion.token).unwrap();
            // From the next event on, the answer is known.
            pasts.get_mut(&key).unwrap().states.last_mut().unwrap().2 = file.journal_len();
        }
    }
    pasts
}

fn check(file: &SimFile, pasts: &BTreeMap<u32, KeyPast>, point: usize) -> Result<(), String> {
    let mut device = open_device(file, OpenAccess::ReadWrite)?;
    let mut now = Nanos::ZERO;
    for (&key, past) in pasts {
        let answer = get(&mut device, &mut now, NamespaceId::FIRST, &key_bytes(key));
        let found = match answer.status {
            Status::SUCCESS => Some(answer.sink),
            Status::KEY_DOES_NOT_EXIST => None,
            other => return Err(format!("key {key}: {other:?}")),
        };
        if !past.allows(&found, point) {
            let bytes = found.map(|found| found.len());
            return Err(format!("key {key} has {bytes:?} bytes, which was not its state at this point"));
        }
    }
    assert_eq!(file.misuse(), None);
    Ok(())
}

#[test]
fn acknowledged_data_is_in_the_file_at_every_point_of_its_write_record() {
    let (seed, mut rng) = seeded();
    let geometry = FlashGeometry::with_blocks(20);
    let file = SimFile::allocated(geometry, rng.u64(..));
    write_new_file(&file, geometry, *b"0123456789abcdef").unwrap();
    let pasts = fill(&file, &mut rng);
    let journal = file.take_journal().unwrap();
    let (first, mut rebuilt) = (rng.usize(0..EVERY), 0);
    let replayed = journal.replay(|point, rebuild| {
        if point % EVERY != first {
            return Ok(());
        }
        let damage = DamagePlan { unreadable_percent: 0, ..DamagePlan::draw(&mut rng) };
        rebuilt += 1;
        check(&rebuild(&mut rng, &damage), &pasts, point)
            .map_err(|wrong| format!("seed {seed} point {point} of {}: {wrong} ({damage:?})", journal.len()))
    });
    println!("{} events, {rebuilt} files rebuilt", journal.len());
    assert_eq!(replayed, Ok(()));
    assert!(rebuilt > 50, "{rebuilt}");
}
