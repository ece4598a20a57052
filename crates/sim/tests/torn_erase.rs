//! An erase that a power cut interrupts leaves a block half erased; its remains are no damage of the device's data.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use bytes::Bytes;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::spec::status::Status;
use headwater_sim::faults::DamagePlan;
use headwater_sim::media::{SimMedia, SimMediaConfig};
use headwater_sim::presets::FEMU;
use headwater_sim::simulated_device::{BootTime, SimulatedDevice};
use headwater_ssd::command::{
    ListPosition, NamespaceId, ReadRelease, RecordExpiry, SsdCommand, SsdCompletion, WriteCondition,
};
use headwater_ssd::engine::{DeviceConfig, SsdDevice, VictimPolicy};
use headwater_ssd::limits::LIST_KEYS_MAX;
use headwater_ssd::log::page::PageSpare;
use headwater_ssd::media::{BlockId, PageAddress};

const BLOCKS: u32 = 16;
const START: BootTime = BootTime { now: Nanos::ZERO, wall: UnixMillis(1_000) };
/// Offsets of the fields of a record (`docs/formats/record.md`).
const SEQUENCE_AT: usize = 16;
const KEY_AT: usize = 48;

type TestDevice = SsdDevice<SimMedia>;

fn config() -> DeviceConfig {
    DeviceConfig { victim: VictimPolicy::Fifo, ..DeviceConfig::default() }
}

fn open(media: SimMedia) -> TestDevice {
    <TestDevice as SimulatedDevice>::open(media, &config(), START).unwrap()
}

/// Runs one command. `before_poll` sees the device before each of its turns.
fn run_watched(
    device: &mut TestDevice,
    command: SsdCommand,
    mut before_poll: impl FnMut(&TestDevice),
) -> SsdCompletion {
    SimulatedDevice::submit(device, NamespaceId::FIRST, 0, command).unwrap();
    let mut now = Nanos::ZERO;
    loop {
        before_poll(device);
        let moved = SimulatedDevice::poll(device, now, START.wall);
        if let Some(completion) = SimulatedDevice::next_completion(device) {
            return completion;
        }
        if !moved {
            now = SimulatedDevice::next_deadline(device).expect("a command is in flight").max(now);
        }
    }
}

fn run(device: &mut TestDevice, command: SsdCommand) -> SsdCompletion {
    run_watched(device, command, |_| {})
}

fn store(key: &str, value: Vec<u8>) -> SsdCommand {
    let (condition, expiry) = (WriteCondition::Always, RecordExpiry::Never);
    SsdCommand::Store { key: Bytes::copy_from_slice(key.as_bytes()), value: value.into(), condition, expiry }
}

fn get(key: &str) -> SsdCommand {
    SsdCommand::retrieve_whole(
        Bytes::copy_from_slice(key.as_bytes()),
        Vec::new().into(),
        ReadRelease::WhenDurable,
    )
}

/// A medium whose oldest block was collected, and whose erase has not taken effect yet.
struct Evacuated {
    media: SimMedia,
    block: BlockId,
    /// A sequence above that of the key's newest record, which no record has.
    unused_sequence: u64,
}

/// Returns the log block of the lowest order.
fn oldest_block(media: &SimMedia) -> BlockId {
    let order = |block: &BlockId| {
        let first = PageAddress::new(*block, 0);
        let image = media.flash()?.page(first)?;
        Some(PageSpare::decode(image.bytes(), first, 0)?.order)
    };
    (0..BLOCKS).map(BlockId).filter(|block| order(block).is_some()).min_by_key(order).unwrap()
}

/// Stores the key twice: its first record is the first of the oldest block, its second one lies in another block. Other
/// keys then fill the device until the oldest block is erased; returns the medium while that erase is in flight.
fn evacuated() -> Evacuated {
    let mut device = open(SimMedia::new(SimMediaConfig::new(FEMU, BLOCKS)));
    let put = |device: &mut TestDevice, key: &str, value: Vec<u8>| {
        let done = run(device, store(key, value));
        assert_eq!(done.status, Status::SUCCESS);
        done.sequence.0
    };
    put(&mut device, "key", b"older".to_vec());
    for number in 0..40 {
        put(&mut device, &format!("other{number}"), vec![1; 12_000]);
    }
    let newest = put(&mut device, "key", b"newer".to_vec());
    let image = device.media().crash_image();
    drop(device);
    // Recovery skips a sequence.
    let media = image.next_boot(&mut fastrand::Rng::with_seed(0), &DamagePlan::CLEAN).unwrap();
    let block = oldest_block(&media);
    let mut device = open(media);
    let mut latest = device.media().snapshot().unwrap();
    for number in 0..1_000 {
        let mut erased = false;
        let command = store(&format!("other{}", number % 40), vec![2; 12_000]);
        run_watched(&mut device, command, |device| {
            if !erased {
                let now = device.media().snapshot().unwrap();
                erased = now.flash().unwrap().page(PageAddress::new(block, 0)).is_none();
                if !erased {
                    latest = now;
                }
            }
        });
        if erased {
            return Evacuated { media: latest, block, unused_sequence: newest + 1 };
        }
    }
    panic!("the oldest block was never erased");
}

/// Leaves a block as an interrupted erase may leave it: some pages are blank, and one is changed.
fn interrupt_erase(evacuated: &mut Evacuated, change: impl FnOnce(&mut [u8])) {
    let flash = evacuated.media.flash_mut().unwrap();
    for page in (3..64).step_by(3) {
        flash.blank_page(PageAddress::new(evacuated.block, page));
    }
    // The first page holds only the stamp of the opening.
    let holds_key = |page: &u8| {
        let image = flash.page(PageAddress::new(evacuated.block, *page));
        image.is_some_and(|image| image.bytes()[KEY_AT..].starts_with(b"key"))
    };
    let page = (0..64).find(holds_key).expect("no page begins with the record of the key");
    assert!(flash.change_page(PageAddress::new(evacuated.block, page), |bytes| change(bytes)));
}

/// A medium as a client and an operator see it.
#[derive(Debug, PartialEq)]
struct SeenMedium {
    value: Result<Vec<u8>, Status>,
    keys_listed: usize,
    inspection: Result<(), String>,
}

/// Returns the newest value of the key, and a list of all keys.
fn seen_whole() -> SeenMedium {
    SeenMedium { value: Ok(b"newer".to_vec()), keys_listed: 41, inspection: Ok(()) }
}

/// Inspects and opens a medium, reads the key, and lists all keys.
fn read_back(media: SimMedia) -> SeenMedium {
    let copy = media.snapshot().unwrap();
    let inspection = <TestDevice as SimulatedDevice>::inspect(copy, &config(), START);
    let mut device = open(media);
    let read = run(&mut device, get("key"));
    let value = if read.status.is_success() { Ok(read.sink.clone()) } else { Err(read.status) };
    let list = SsdCommand::List { position: ListPosition::START, keys_max: LIST_KEYS_MAX };
    SeenMedium { value, keys_listed: run(&mut device, list).keys.len(), inspection }
}

#[test]
fn block_under_erase_is_not_needed() {
    let Evacuated { mut media, block, .. } = evacuated();
    (0..64).for_each(|page| media.flash_mut().unwrap().blank_page(PageAddress::new(block, page)));
    assert_eq!(read_back(media), seen_whole());
}

/// Guards a regression: recovery took a changed record in a half erased block for damage of a durable record, because
/// the block had been durable once. The sequence in its header made it the newest record of its key, whose reads failed.
#[test]
fn changed_sequence_in_a_half_erased_block_hides_no_newer_record() {
    let mut medium = evacuated();
    let sequence = medium.unused_sequence.to_le_bytes();
    interrupt_erase(&mut medium, |page| page[SEQUENCE_AT..SEQUENCE_AT + 8].copy_from_slice(&sequence));
    assert_eq!(read_back(medium.media), seen_whole());
}

/// Guards a regression: see above. The key in the header was one that no client ever stored, and the inspection of the
/// medium reported a damaged record of it.
#[test]
fn changed_key_in_a_half_erased_block_adds_no_key() {
    let mut medium = evacuated();
    interrupt_erase(&mut medium, |page| page[KEY_AT] ^= 2);
    assert_eq!(read_back(medium.media), seen_whole());
}
