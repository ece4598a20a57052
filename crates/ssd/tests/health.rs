//! Tests of the counters of the SMART log: they live over restarts, and an unclean stop loses only what no commit kept.

#![expect(clippy::unwrap_used, reason = "a test fails if its setup fails")]

use bytes::Bytes;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::controller::admin::SubsystemHealth;
use headwater_nvme::controller::{
    AdminStep, ControllerConfig, DeviceController, NvmSubsystem, RegisterEffect,
};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::opcode::AdminOpcode;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    FrontEndId, NamespaceId, ReadRelease, RecordExpiry, SsdCommand, SsdCompletion, WriteCondition,
};
use headwater_ssd::engine::{DeviceConfig, SsdDevice, StartTime};
use headwater_ssd::media::file::{FileMedia, FileOptions};
use headwater_ssd::media::memory::MemoryMedia;
use headwater_ssd::media::{FlashGeometry, Media};
use zerocopy::little_endian::U32;

const FRONT_END: FrontEndId = FrontEndId(1);
const WALL: UnixMillis = UnixMillis(1_000_000);
const HOUR: Nanos = Nanos(3_600_000_000_000);

fn open<M: Media>(media: M) -> SsdDevice<M> {
    let start = StartTime { now: Nanos::ZERO, wall: WALL };
    SsdDevice::open(media, DeviceConfig::default(), start, &mut |_| {}).unwrap()
}

fn blank() -> SsdDevice<MemoryMedia> {
    open(MemoryMedia::erased(FlashGeometry::with_blocks(32)).unwrap())
}

fn cut(device: SsdDevice<MemoryMedia>) -> SsdDevice<MemoryMedia> {
    open(device.into_media().after_power_cut())
}

fn closed(mut device: SsdDevice<MemoryMedia>) -> SsdDevice<MemoryMedia> {
    device.shutdown(Nanos::ZERO, WALL).unwrap();
    cut(device)
}

fn run<M: Media>(device: &mut SsdDevice<M>, now: Nanos, command: SsdCommand) -> SsdCompletion {
    device.submit(FRONT_END, NamespaceId::FIRST, 7, command).unwrap();
    loop {
        device.poll(now, WALL);
        if let Some(completion) = device.next_completion(FRONT_END) {
            return completion;
        }
        device.media_mut().wait(now);
    }
}

fn store<M: Media>(device: &mut SsdDevice<M>, now: Nanos, bytes: usize) {
    let (key, condition) = (Bytes::from_static(b"key"), WriteCondition::Always);
    let command =
        SsdCommand::Store { key, value: vec![5; bytes].into(), condition, expiry: RecordExpiry::Never };
    assert_eq!(run(device, now, command).status, Status::SUCCESS);
}

fn read(device: &mut SsdDevice<MemoryMedia>) {
    let (key, release) = (Bytes::from_static(b"key"), ReadRelease::WhenDurable);
    let command = SsdCommand::retrieve_whole(key, Vec::new().into(), release);
    assert_eq!(run(device, Nanos::ZERO, command).status, Status::SUCCESS);
}

/// Returns reads, bytes read, writes, bytes written, power cycles and unsafe shutdowns.
fn counts<M: Media>(device: &SsdDevice<M>) -> [u64; 6] {
    let SubsystemHealth { host_reads, host_bytes_read, host_writes, host_bytes_written, .. } =
        device.health();
    let SubsystemHealth { power_cycles, unsafe_shutdowns, .. } = device.health();
    [host_reads, host_bytes_read, host_writes, host_bytes_written, power_cycles, unsafe_shutdowns]
}

#[test]
fn counters_live_over_restarts_and_an_unclean_stop_loses_only_what_no_commit_kept() {
    let mut device = blank();
    assert_eq!(counts(&device), [0, 0, 0, 0, 1, 0]);
    store(&mut device, Nanos::ZERO, 1_000);
    read(&mut device);
    read(&mut device);
    assert_eq!(counts(&device), [2, 2_000, 1, 1_000, 1, 0]);
    // A shutdown keeps everything, although nothing was written behind the reads.
    let mut device = closed(device);
    assert_eq!(counts(&device), [2, 2_000, 1, 1_000, 2, 0]);
    store(&mut device, Nanos::ZERO, 500);
    read(&mut device);
    // No commit kept the last read.
    let mut device = cut(device);
    assert_eq!(counts(&device), [2, 2_000, 2, 1_500, 3, 1]);
    read(&mut device);
    store(&mut device, Nanos::ZERO, 1);
    let device = cut(device);
    assert_eq!(counts(&device), [3, 2_500, 3, 1_501, 4, 2]);
    // An opening without any command, and one behind it.
    let device = closed(cut(device));
    assert_eq!(counts(&device), [3, 2_500, 3, 1_501, 6, 3]);
    assert_eq!(counts(&closed(device)), [3, 2_500, 3, 1_501, 7, 3]);
}

#[test]
fn writes_behind_a_shutdown_make_the_stop_unsafe_again() {
    let mut device = blank();
    store(&mut device, Nanos::ZERO, 10);
    device.shutdown(Nanos::ZERO, WALL).unwrap();
    store(&mut device, Nanos::ZERO, 10);
    assert_eq!(counts(&cut(device)), [0, 0, 2, 20, 2, 1]);
}

#[test]
fn hours_and_damage_live_over_restarts() {
    let mut device = blank();
    store(&mut device, HOUR, 10);
    device.shutdown(HOUR, WALL).unwrap();
    let mut device = cut(device);
    store(&mut device, Nanos(5 * HOUR.0 / 2), 10);
    assert_eq!(device.health().power_on_hours, 3);
    assert_eq!(cut(device).health().power_on_hours, 3);
}

#[test]
fn counters_of_a_file_are_in_the_health_log_page() {
    let directory = tempfile::TempDir::new().unwrap();
    let geometry = FlashGeometry::with_blocks(32);
    let mut device =
        open(FileMedia::create(directory.path(), geometry, [4; 16], FileOptions::default()).unwrap());
    store(&mut device, Nanos::ZERO, 600_000);
    // Killed, closed, and open.
    drop(device);
    let reopened = || open(FileMedia::open(directory.path(), FileOptions::default()).unwrap());
    let mut device = reopened();
    store(&mut device, Nanos::ZERO, 600_000);
    device.shutdown(Nanos::ZERO, WALL).unwrap();
    drop(device);
    let device = reopened();
    let mut controller = DeviceController::new(ControllerConfig::pcie(1));
    assert_eq!(controller.write_register(0x24, 4, 0x001F_001F, Nanos::ZERO), RegisterEffect::None);
    let effect = controller.write_register(0x14, 4, 0x0046_0061, Nanos::ZERO);
    assert!(matches!(effect, RegisterEffect::Enable(_)));
    controller.complete_enable();
    let entry = SubmissionEntry {
        opcode: AdminOpcode::GetLogPage.number(),
        cdw10: U32::new(0x007F_0002),
        ..SubmissionEntry::default()
    };
    let AdminStep::Done(answer) = controller.admin(&entry, &[], &device, Nanos::ZERO) else {
        panic!("no log page")
    };
    let count = |at: usize| u64::from_le_bytes(answer.data[at..at + 8].try_into().unwrap());
    assert_eq!(count(48), 1_200_000_u64.div_ceil(512_000), "data units written");
    assert_eq!(count(80), 2, "host write commands");
    assert_eq!(count(112), 3, "power cycles");
    assert_eq!(count(144), 1, "unsafe shutdowns");
}
