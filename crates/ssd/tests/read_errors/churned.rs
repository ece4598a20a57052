//! A log whose blocks were collected: whichever page of it is lost, no key is answered with an older state.

use crate::failing_media::FailingMedia;
use crate::host::{ReadErrorHost, key, value};
use headwater_nvme::spec::status::Status;
use headwater_ssd::engine::DeviceConfig;
use std::collections::BTreeMap;

const BLOCKS: u32 = 24;
const KEYS: usize = 300;
/// Changes in front of a checkpoint: they write the medium about twice.
const CHANGES: usize = 2_500;
/// Pages that are lost, one at a time.
const PAGES_LOST: usize = 200;
/// Changes behind it, in which the collector copies tombstones and records.
const LATER_CHANGES: usize = 300;

/// The number of the value that each key holds.
type Values = BTreeMap<usize, usize>;

/// Writes and deletes keys at random.
fn change(
    host: &mut ReadErrorHost,
    random: &mut fastrand::Rng,
    values: &mut Values,
    numbers: std::ops::Range<usize>,
) {
    for number in numbers {
        let changed = random.usize(..KEYS);
        if random.u8(..3) == 0 {
            let expected =
                if values.remove(&changed).is_some() { Status::SUCCESS } else { Status::KEY_DOES_NOT_EXIST };
            assert_eq!(host.delete(&key(changed)), expected);
        } else {
            assert_eq!(host.set(&key(changed), &value(number)), Status::SUCCESS);
            values.insert(changed, number);
        }
    }
    host.settle();
}

/// Returns a medium whose blocks were collected in front of its checkpoint and behind it, and what its keys hold.
fn churned_medium(seed: u64) -> (FailingMedia, Values) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut values = Values::new();
    let mut host = ReadErrorHost::new(BLOCKS, DeviceConfig::default());
    change(&mut host, &mut random, &mut values, 0..CHANGES);
    host.device.request_checkpoint();
    host.settle();
    let moved = host.device.stats().moved_bytes;
    change(&mut host, &mut random, &mut values, CHANGES..CHANGES + LATER_CHANGES);
    assert!(
        host.device.stats().moved_bytes > moved,
        "seed {seed}: nothing was collected behind the checkpoint"
    );
    (host.killed(), values)
}

/// Returns the number of a value.
fn number_in(value: &[u8]) -> usize {
    std::str::from_utf8(&value[7..13]).unwrap().parse().unwrap()
}

/// Checks for a former defect: the record of a key could not be read, and a tombstone from before it that the collector had
/// copied behind it made the key absent.
#[test]
fn no_lost_page_of_a_collected_log_changes_an_answer() {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let pages = churned_medium(seed).0.programmed_pages();
    let mut errors = 0;
    for _ in 0..PAGES_LOST {
        let (page, other) = (pages[random.usize(..pages.len())], pages[random.usize(..pages.len())]);
        let (mut media, values) = churned_medium(seed);
        media.misdirect(page, other, 0, u64::MAX);
        let mut host = ReadErrorHost::open(media, &DeviceConfig::default()).unwrap();
        for number in 0..KEYS {
            let found = match host.get(&key(number)) {
                Ok(found) => Some(number_in(&found)),
                Err(Status::KEY_DOES_NOT_EXIST) => None,
                Err(Status::UNRECOVERED_ERROR | Status::NAMESPACE_NOT_READY) => {
                    errors += 1;
                    continue;
                }
                Err(status) => panic!("seed {seed}: key {number} fails with {status:?} without {page}"),
            };
            assert_eq!(found, values.get(&number).copied(), "seed {seed}: key {number} without {page}");
        }
    }
    assert!(errors > PAGES_LOST / 10, "seed {seed}: {PAGES_LOST} lost pages led to {errors} errors");
}
