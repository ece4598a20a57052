//! Bit flips are detected: a damaged value is never returned as a good one.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use bytes::Bytes;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::spec::status::Status;
use headwater_sim::faults::DamagePlan;
use headwater_sim::media::{SimMedia, SimMediaConfig};
use headwater_sim::presets::FEMU;
use headwater_sim::simulated_device::{BootTime, SimulatedDevice};
use headwater_ssd::command::{
    NamespaceId, ReadRelease, RecordExpiry, SsdCommand, SsdCompletion, WriteCondition,
};
use headwater_ssd::engine::{DeviceConfig, SsdDevice};
use headwater_ssd::log::page::{PageKind, PageSpare};
use headwater_ssd::media::{BlockId, PageAddress};

const START: BootTime = BootTime { now: Nanos::ZERO, wall: UnixMillis(1_000) };
const KEYS: u64 = 60;

fn run(device: &mut SsdDevice<SimMedia>, command: SsdCommand) -> SsdCompletion {
    SimulatedDevice::submit(device, NamespaceId::FIRST, 0, command).unwrap();
    let mut now = Nanos::ZERO;
    loop {
        let moved = SimulatedDevice::poll(device, now, START.wall);
        if let Some(completion) = SimulatedDevice::next_completion(device) {
            return completion;
        }
        if !moved {
            now = SimulatedDevice::next_deadline(device).expect("a command is in flight").max(now);
        }
    }
}

fn value_of(key: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(key);
    let mut value = vec![0; rng.usize(0..9_000)];
    rng.fill(&mut value);
    value
}

fn store(key: u64) -> SsdCommand {
    SsdCommand::Store {
        key: Bytes::from(key.to_string()),
        value: value_of(key).into(),
        condition: WriteCondition::Always,
        expiry: RecordExpiry::Never,
    }
}

fn get(key: u64) -> SsdCommand {
    SsdCommand::retrieve_whole(Bytes::from(key.to_string()), Vec::new().into(), ReadRelease::WhenDurable)
}

#[test]
fn flipped_bits_never_reach_a_client() {
    let mut detected = 0;
    for seed in 0..150 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let media = SimMedia::new(SimMediaConfig::new(FEMU, 20));
        let mut image = media.crash_image();
        let config = DeviceConfig::default();
        let mut device = <SsdDevice<SimMedia> as SimulatedDevice>::open(media, &config, START).unwrap();
        for key in 0..KEYS {
            assert_eq!(run(&mut device, store(key)).status, Status::SUCCESS, "seed {seed}");
        }
        drop(device);
        let mut media = image.next_boot(&mut rng, &DamagePlan::CLEAN).unwrap();
        let written: Vec<PageAddress> = (0..20)
            .flat_map(|block| (0..64).map(move |page| PageAddress::new(BlockId(block), page)))
            .filter(|&page| media.flash().unwrap().page(page).is_some())
            .collect();
        // Up to three flips in a page: CRC-32C detects these for certain in records of any length.
        for _ in 0..rng.u32(1..4) {
            let (page, flips) = (written[rng.usize(0..written.len())], rng.usize(1..=3));
            media.flip_bits(&mut rng, page, flips);
        }
        image = media.crash_image();
        let mut device = match <SsdDevice<SimMedia> as SimulatedDevice>::open(media, &config, START) {
            Ok(device) => device,
            Err(why) => panic!("seed {seed}: the device does not open after bit flips: {why}"),
        };
        for key in 0..KEYS {
            let answer = run(&mut device, get(key));
            match answer.status {
                Status::SUCCESS => assert_eq!(answer.sink, value_of(key), "seed {seed} key {key}"),
                Status::UNRECOVERED_ERROR => detected += 1,
                // Nothing says that the last commit was durable.
                Status::KEY_DOES_NOT_EXIST if key + 1 == KEYS => detected += 1,
                other => panic!("seed {seed} key {key}: {other:?}"),
            }
        }
        assert_eq!(image.misuse(), None, "seed {seed}");
    }
    assert!(detected > 50, "only {detected} damaged values were detected");
}

/// Returns flash that holds every key and no checkpoint.
fn stored(keys: u64, seed: u64) -> SimMedia {
    let mut rng = fastrand::Rng::with_seed(seed);
    let media = SimMedia::new(SimMediaConfig::new(FEMU, 20));
    let image = media.crash_image();
    let mut device =
        <SsdDevice<SimMedia> as SimulatedDevice>::open(media, &DeviceConfig::default(), START).unwrap();
    for key in 0..keys {
        assert_eq!(run(&mut device, store(key)).status, Status::SUCCESS);
    }
    drop(device);
    image.next_boot(&mut rng, &DamagePlan::CLEAN).unwrap()
}

/// Returns the block that was opened last. Its pages are not yet known to be durable.
fn opened_last(media: &SimMedia) -> BlockId {
    let first = |block: &u32| media.flash().unwrap().page(PageAddress::new(BlockId(*block), 0));
    let order = |block: &u32| {
        let image = first(block).expect("only blocks with a first page remain");
        PageSpare::decode(image.bytes(), PageAddress::new(BlockId(*block), 0), 0)
            .expect("no page is damaged yet")
            .order
    };
    BlockId((0..20).filter(|block| first(block).is_some()).max_by_key(order).unwrap())
}

/// The answers to a read of every key: of the value, of an error, and of absence.
#[derive(Debug, Default)]
struct FlipAnswers {
    values: u64,
    errors: u64,
    absent: u64,
    /// The highest key with an error.
    last_error: Option<u64>,
}

/// Opens a medium and reads every key; a value other than the stored one fails the test.
fn answers(media: SimMedia, keys: u64, seed: u64) -> FlipAnswers {
    let mut device =
        <SsdDevice<SimMedia> as SimulatedDevice>::open(media, &DeviceConfig::default(), START).unwrap();
    let mut found = FlipAnswers::default();
    for key in 0..keys {
        let answer = run(&mut device, get(key));
        match answer.status {
            Status::SUCCESS => {
                assert_eq!(answer.sink, value_of(key), "seed {seed} key {key}");
                found.values += 1;
            }
            Status::UNRECOVERED_ERROR => {
                found.errors += 1;
                found.last_error = Some(key);
            }
            Status::KEY_DOES_NOT_EXIST => found.absent += 1,
            other => panic!("seed {seed} key {key}: {other:?}"),
        }
    }
    found
}

/// Damages the first page of a random full block of a device that has no checkpoint. Returns the answers.
fn damage_first_page(seed: u64, flips: usize) -> FlipAnswers {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut media = stored(MANY, seed);
    let last = opened_last(&media);
    let is_used = |block: &BlockId| media.flash().unwrap().page(PageAddress::new(*block, 0)).is_some();
    let full: Vec<BlockId> = (0..20).map(BlockId).filter(|block| *block != last && is_used(block)).collect();
    let damaged = full[rng.usize(0..full.len())];
    media.flip_bits(&mut rng, PageAddress::new(damaged, 0), flips);
    answers(media, MANY, seed)
}

const MANY: u64 = 200;

/// Checks what a page of the window puts in doubt that is lost: the records in front of it, and nothing behind it. Each key
/// is stored once, in order, so that no answer may be silent.
#[test]
fn flipped_bit_in_a_page_of_the_window_puts_older_keys_in_doubt_and_no_later_one() {
    let mut with_later_values = 0;
    for (seed, flips) in (0..100).map(|seed| (seed, 1)).chain((100..140).map(|seed| (seed, 5_000))) {
        let found = damage_first_page(seed, flips);
        assert_eq!(found.absent, 0, "seed {seed}: {found:?}");
        let last = found.last_error.unwrap_or_else(|| panic!("seed {seed}: no error {found:?}"));
        // All keys up to the lost page are in doubt, and none behind it.
        assert_eq!(found.errors, last + 1, "seed {seed}: {found:?}");
        assert_eq!(found.values, MANY - 1 - last, "seed {seed}: {found:?}");
        with_later_values += u32::from(found.values > 0);
    }
    assert!(with_later_values > 100, "{with_later_values} of 140 worlds keep the keys behind the damage");
}

/// Repeats what broke: a block behind whose lost first page nothing was looked for lost every key.
#[test]
fn lost_first_page_in_front_of_the_window_loses_only_its_own_records() {
    for seed in 0..40 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let media = stored(MANY, seed);
        let image = media.crash_image();
        let mut device =
            <SsdDevice<SimMedia> as SimulatedDevice>::open(media, &DeviceConfig::default(), START).unwrap();
        SimulatedDevice::shut_down(&mut device, START).unwrap();
        drop(device);
        let mut media = image.next_boot(&mut rng, &DamagePlan::CLEAN).unwrap();
        let log = (0..20).map(BlockId).filter(|block| {
            let page = PageAddress::new(*block, 0);
            let spare =
                media.flash().unwrap().page(page).map(|image| PageSpare::decode(image.bytes(), page, 0));
            spare.flatten().is_some_and(|spare| spare.kind == PageKind::Log)
        });
        let log: Vec<BlockId> = log.collect();
        media.flash_mut().unwrap().blank_page(PageAddress::new(log[rng.usize(0..log.len() - 1)], 0));
        let found = answers(media, MANY, seed);
        assert_eq!(found.absent, 0, "seed {seed}: {found:?}");
        // A page has the end of one record and the start of another at most, or several short ones.
        assert!((1..=6).contains(&found.errors), "seed {seed}: {found:?}");
    }
}
