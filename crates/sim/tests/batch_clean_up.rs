//! A complete batch stays whole through power cuts in a row, although each recovery moves part of it before any page says
//! that the batch is durable.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use bytes::Bytes;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::spec::status::Status;
use headwater_sim::faults::DamagePlan;
use headwater_sim::media::{SimMedia, SimMediaConfig};
use headwater_sim::presets::FEMU;
use headwater_sim::simulated_device::{BootTime, SimulatedDevice};
use headwater_ssd::command::{
    BatchWrite, NamespaceId, ReadRelease, RecordExpiry, SsdCommand, SsdCompletion, WriteCondition,
};
use headwater_ssd::engine::{DeviceConfig, Durability, SsdDevice};
use headwater_ssd::log::page::PageSpare;
use headwater_ssd::media::{BlockId, PAGE_DATA_BYTES, PAGES_PER_BLOCK, PageAddress};

const BLOCKS: u32 = 20;
const START: BootTime = BootTime { now: Nanos::ZERO, wall: UnixMillis(1_000) };
/// A value of several pages that is too short to span two blocks.
const PART: usize = 12_000;
/// A value that spans two blocks if it does not fit into the rest of one.
const LONG: usize = 100_000;

type TestDevice = SsdDevice<SimMedia>;

fn open(media: SimMedia) -> TestDevice {
    let config = DeviceConfig { durability: [Durability::OnFlush; 16], ..DeviceConfig::default() };
    <TestDevice as SimulatedDevice>::open(media, &config, START).unwrap()
}

/// Runs one command until it is completed and the medium has nothing more to do.
fn run(device: &mut TestDevice, command: SsdCommand) -> SsdCompletion {
    SimulatedDevice::submit(device, NamespaceId::FIRST, 0, command).unwrap();
    let (mut now, mut done) = (Nanos::ZERO, None);
    loop {
        let moved = SimulatedDevice::poll(device, now, START.wall);
        done = SimulatedDevice::next_completion(device).or(done);
        if !moved {
            match (SimulatedDevice::next_deadline(device), done) {
                (None, Some(done)) => return done,
                (deadline, other) => {
                    now = deadline.expect("a command is in flight").max(now);
                    done = other;
                }
            }
        }
    }
}

fn put(device: &mut TestDevice, key: &str, bytes: usize) {
    let (key, value) = (Bytes::copy_from_slice(key.as_bytes()), Bytes::from(vec![7; bytes]).into());
    let (condition, expiry) = (WriteCondition::Always, RecordExpiry::Never);
    let done = run(device, SsdCommand::Store { key, value, condition, expiry });
    assert_eq!(done.status, Status::SUCCESS);
}

fn put_batch(device: &mut TestDevice, values: impl Iterator<Item = (String, usize)>) {
    let writes = values.map(|(key, bytes)| BatchWrite::Store {
        key: Bytes::from(key),
        value: Bytes::from(vec![7; bytes]),
        condition: WriteCondition::Always,
        expiry: RecordExpiry::Never,
    });
    let done = run(device, SsdCommand::Batch { writes: writes.collect() });
    assert_eq!(done.status, Status::SUCCESS);
}

fn value_bytes(device: &mut TestDevice, key: &str) -> Option<u32> {
    let command = SsdCommand::Retrieve {
        key: Bytes::copy_from_slice(key.as_bytes()),
        sink: Vec::new().into(),
        bytes_max: u32::MAX,
        release: ReadRelease::WhenDurable,
    };
    let answer = run(device, command);
    (answer.status == Status::SUCCESS).then_some(answer.value_bytes)
}

/// Cuts the power: what the medium has not finished is lost.
fn cut(device: TestDevice) -> SimMedia {
    let image = device.media().crash_image();
    drop(device);
    image.next_boot(&mut fastrand::Rng::with_seed(0), &DamagePlan::CLEAN).unwrap()
}

fn spare(media: &SimMedia, page: PageAddress) -> Option<PageSpare> {
    PageSpare::decode(media.flash()?.page(page)?.bytes(), page.page)
}

/// Returns the programmed pages in the order of the log.
fn log_pages(media: &SimMedia) -> Vec<PageAddress> {
    let pages = (0..BLOCKS).flat_map(|block| {
        (0..u8::MAX).take(PAGES_PER_BLOCK).map(move |page| PageAddress::new(BlockId(block), page))
    });
    let mut pages: Vec<_> =
        pages.filter_map(|page| spare(media, page).map(|spare| (spare.order, page))).collect();
    pages.sort_unstable();
    pages.into_iter().map(|(_, page)| page).collect()
}

/// Leaves a page as a cut that tore the sector of its spare leaves it. Recovery collects its block before it serves.
fn tear(media: &mut SimMedia, page: PageAddress) {
    assert!(media.flash_mut().unwrap().change_page(page, |bytes| bytes[PAGE_DATA_BYTES..].fill(0xFF)));
}

fn part(number: usize) -> String {
    format!("part {number}")
}

/// Guards a regression: a recovery moved the end of a batch out of its block, and a move removes the batch flags. The
/// next recovery dropped those copies once their keys had newer values, and the one after it took the rest of the
/// batch, which was durable and read, for incomplete.
#[test]
fn batch_outlives_the_collection_of_its_moved_and_superseded_end() {
    const PARTS: usize = 30;
    /// All parts behind the first block, and some of the first block, get newer values.
    const KEPT: usize = 10;
    let mut device = open(SimMedia::new(SimMediaConfig::new(FEMU, BLOCKS)));
    put(&mut device, "first", 10);
    put_batch(&mut device, (0..PARTS).map(|number| (part(number), PART)));
    put(&mut device, "last", PART);
    let mut media = cut(device);
    let pages = log_pages(&media);
    let blocks: Vec<BlockId> = pages.iter().map(|page| page.block).collect();
    assert_ne!(blocks.first(), blocks.last(), "the batch lies in one block");
    tear(&mut media, *pages.last().unwrap());

    let mut device = open(media);
    for number in KEPT..PARTS {
        put(&mut device, &part(number), 10);
    }
    put(&mut device, "last", PART);
    let mut media = cut(device);
    let last = *log_pages(&media).last().unwrap();
    tear(&mut media, last);

    let media = cut(open(media));
    let mut device = open(media);
    for number in 0..PARTS {
        let bytes = if number < KEPT { PART } else { 10 };
        assert_eq!(value_bytes(&mut device, &part(number)), Some(u32::try_from(bytes).unwrap()), "{number}");
    }
}

/// Guards a regression: the recovery that collected the start of a batch left tombstones in place of its superseded
/// records. The next recovery dropped them, because no older block was left, and the one after it took the rest of the
/// batch for incomplete.
#[test]
fn batch_outlives_the_collection_of_the_tombstones_of_its_start() {
    const PARTS: usize = 30;
    /// All parts of the first block, and some behind it, get newer values.
    const SUPERSEDED: usize = 25;
    let long_key = |number: usize| format!("{number:060000}");
    let mut device = open(SimMedia::new(SimMediaConfig::new(FEMU, BLOCKS)));
    put(&mut device, "first", 10);
    put_batch(&mut device, (0..PARTS).map(|number| (part(number), PART)));
    for number in 0..SUPERSEDED {
        put(&mut device, &part(number), 10);
    }
    // So many tombstones that recovery erases all blocks of unknown contents: only a block in use keeps tombstones then.
    for number in 0..10 {
        put(&mut device, &long_key(number), 10);
        let key = Bytes::from(long_key(number));
        let done = run(&mut device, SsdCommand::Delete { key, condition: WriteCondition::Always });
        assert_eq!(done.status, Status::SUCCESS);
    }
    put(&mut device, "last", PART);
    let mut media = cut(device);
    // A page in the middle of the value of a part.
    let torn = log_pages(&media)[6];
    tear(&mut media, torn);

    let mut device = open(media);
    put(&mut device, "last", PART);
    let mut media = cut(device);
    let last = *log_pages(&media).last().unwrap();
    tear(&mut media, last);

    let media = cut(open(media));
    let mut device = open(media);
    for number in 0..PARTS {
        let bytes = if number < SUPERSEDED { 10 } else { PART };
        assert_eq!(value_bytes(&mut device, &part(number)), Some(u32::try_from(bytes).unwrap()), "{number}");
    }
}

/// Guards a regression: a record of a batch that spans two blocks was moved with the first of them, and replaced by a
/// tombstone with the second one, because the record at its old address was superseded by its own copy.
#[test]
fn chained_record_of_a_batch_outlives_the_collection_of_both_of_its_blocks() {
    let mut device = open(SimMedia::new(SimMediaConfig::new(FEMU, BLOCKS)));
    put(&mut device, "first", 10);
    for number in 0..16 {
        put(&mut device, &part(number), PART);
    }
    put_batch(
        &mut device,
        [("brief", 10), ("long", LONG)].map(|(key, bytes)| (key.to_owned(), bytes)).into_iter(),
    );
    put(&mut device, "last", PART);
    let mut media = cut(device);
    let pages = log_pages(&media);
    let second = pages.iter().position(|page| spare(&media, *page).is_some_and(|spare| spare.continues != 0));
    assert!(second.is_some_and(|at| at > 0 && at + 1 < pages.len()), "the record does not span two blocks");
    // A page in the middle of the value of a part, and the last page.
    tear(&mut media, pages[6]);
    tear(&mut media, *pages.last().unwrap());

    let media = cut(open(media));
    let mut device = open(media);
    assert_eq!(value_bytes(&mut device, "brief"), Some(10));
    assert_eq!(value_bytes(&mut device, "long"), Some(u32::try_from(LONG).unwrap()));
}
