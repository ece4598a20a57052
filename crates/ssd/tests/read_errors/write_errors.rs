//! Failed writes and flushes: every later write is refused, and nothing that may be lost is shown.

use crate::failing_media::EIO;
use crate::host::{ReadErrorHost, key, value};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{Fua, Lba, LbaRange, NamespaceId, Sequence, SsdCommand, ValueSink, ValueSource};
use headwater_ssd::engine::{DeviceConfig, Durability, FailedOperation, FailedWrite};
use headwater_ssd::namespace::{BlockFormat, Namespace, NamespaceChange, NamespaceKind};

/// File too large: a write above the limit of the process.
const EFBIG: i32 = 27;
const KEYS: usize = 30;
const DISK: NamespaceId = NamespaceId(2);

/// Returns a device with durable keys, none of them in device DRAM, and a disk with one written block.
fn cold_host(durability: Durability) -> ReadErrorHost {
    let mut config = DeviceConfig::default();
    config.durability[NamespaceId::FIRST.index()] = durability;
    let mut host = ReadErrorHost::new(24, config.clone());
    for number in 0..KEYS {
        assert_eq!(host.set(&key(number), &value(number)), Status::SUCCESS);
    }
    let disk = Namespace { kind: NamespaceKind::Block(BlockFormat::B4096), size: 64, ..Namespace::IMPLICIT };
    let create = SsdCommand::Namespace(NamespaceChange::Create(disk));
    assert_eq!(host.run_in(DISK, create).status, Status::SUCCESS);
    assert_eq!(write_block(&mut host, 0, 1), Status::SUCCESS);
    ReadErrorHost::open(host.stopped(), &config).unwrap()
}

fn write_block(host: &mut ReadErrorHost, block: u64, byte: u8) -> Status {
    let data = ValueSource::Bytes(vec![byte; 4_096].into());
    host.run_in(DISK, SsdCommand::Write { start: Lba(block), data, fua: Fua::No }).status
}

fn read_block(host: &mut ReadErrorHost, block: u64) -> Result<u8, Status> {
    let range = LbaRange { start: Lba(block), blocks: 1 };
    let done = host.run_in(DISK, SsdCommand::Read { range, sink: ValueSink::Bytes(Vec::new()) });
    if done.status.is_success() { Ok(done.sink[0]) } else { Err(done.status) }
}

/// Checks that writes of every kind are refused, and that everything durable is read.
fn assert_reads_only(host: &mut ReadErrorHost) {
    assert_eq!(host.set("second", b"refused"), Status::MEDIUM_FAILED);
    assert_eq!(host.delete(&key(1)), Status::MEDIUM_FAILED);
    assert_eq!(host.run(SsdCommand::Flush).status, Status::MEDIUM_FAILED);
    assert_eq!(host.run(SsdCommand::Clear).status, Status::MEDIUM_FAILED);
    assert_eq!(write_block(host, 0, 9), Status::MEDIUM_FAILED);
    for number in 0..KEYS {
        assert_eq!(host.get(&key(number)), Ok(value(number)), "key {number}");
    }
    assert_eq!(read_block(host, 0), Ok(1));
    assert_eq!(host.run(SsdCommand::Fence { up_to: Sequence(1) }).status, Status::SUCCESS);
}

/// Checks the price of version 2: it adds no flush to a commit, and its record in two cells.
#[test]
fn durable_store_costs_one_flush_and_two_copies_of_a_commit_record() {
    let mut host = cold_host(Durability::Always);
    host.settle();
    let counts = |host: &ReadErrorHost| {
        let media = host.device.media();
        (media.flushes, media.cells_written, host.device.stats().commits)
    };
    let (flushes, cells, commits) = counts(&host);
    for number in 0..KEYS {
        assert_eq!(host.set(&key(number), &value(number)), Status::SUCCESS);
    }
    let stores = KEYS as u64;
    assert_eq!(counts(&host), (flushes + stores, cells + 2 * stores, commits + stores));
}

#[test]
fn after_a_failed_flush_every_write_fails_and_no_flush_is_tried_again() {
    let mut host = cold_host(Durability::Always);
    host.device.media_mut().flush_errno = Some(EIO);
    assert_eq!(host.set("first", b"lost"), Status::MEDIUM_FAILED);
    let failed = host.device.stats().failed_write.unwrap();
    assert_eq!((failed.operation, failed.errno), (FailedOperation::Flush, Some(EIO)));
    let flushes = host.device.media().flushes;
    host.device.media_mut().flush_errno = None;
    assert_reads_only(&mut host);
    assert!(host.device.shutdown(host.now, crate::host::WALL).is_err());
    assert_eq!(host.device.media().flushes, flushes, "a flush after the failed one was sent in hope");
    assert_eq!(host.device.stats().failed_write, Some(failed), "the first failure was replaced");
}

#[test]
fn after_a_failed_program_every_write_fails_with_the_place_of_the_failure() {
    let mut host = cold_host(Durability::Always);
    host.device.media_mut().program_errno = Some(EFBIG);
    assert_eq!(host.set("first", b"lost"), Status::MEDIUM_FAILED);
    host.device.media_mut().program_errno = None;
    let FailedWrite { operation, errno, .. } = host.device.stats().failed_write.unwrap();
    assert_eq!((operation, errno), (FailedOperation::Program, Some(EFBIG)));
    assert_reads_only(&mut host);
    assert_eq!(host.get("first"), Err(Status::UNRECOVERED_ERROR), "an unacknowledged write was shown");
    let mut host = host.reopened();
    assert_eq!(host.set("first", b"kept"), Status::SUCCESS);
    assert_eq!(host.get("first"), Ok(b"kept".to_vec()));
}

/// Checks for a former defect: in a namespace whose writes are acknowledged before they are durable, reads returned after
/// a failed flush what only the page cache held, and an absence that a restart took back.
#[test]
fn after_a_failed_flush_no_read_shows_what_was_not_durable() {
    let mut host = cold_host(Durability::OnFlush);
    assert_eq!(host.set("soft", b"acknowledged, not durable"), Status::SUCCESS);
    assert_eq!(host.set(&key(2), b"newer"), Status::SUCCESS);
    assert_eq!(host.delete(&key(1)), Status::SUCCESS);
    assert_eq!(
        host.get("soft"),
        Ok(b"acknowledged, not durable".to_vec()),
        "the mode shows it before a failure"
    );
    host.device.media_mut().flush_errno = Some(EIO);
    assert_eq!(host.run(SsdCommand::Flush).status, Status::MEDIUM_FAILED);
    for unsure in ["soft", &key(1), &key(2)] {
        assert_eq!(host.get(unsure), Err(Status::UNRECOVERED_ERROR), "{unsure}");
    }
    let exists = SsdCommand::Exist {
        key: key(2).into_bytes().into(),
        release: headwater_ssd::command::ReadRelease::WhenDurable,
    };
    assert_eq!(host.run(exists).status, Status::UNRECOVERED_ERROR);
    for number in 3..KEYS {
        assert_eq!(host.get(&key(number)), Ok(value(number)), "key {number}");
    }
}

#[test]
fn read_of_blocks_that_cannot_become_durable_fails_as_an_unrecovered_read() {
    let mut host = cold_host(Durability::Always);
    host.device.set_durability(DISK, Durability::OnFlush);
    assert_eq!(write_block(&mut host, 5, 7), Status::SUCCESS);
    assert_eq!(read_block(&mut host, 5), Ok(7));
    host.device.media_mut().flush_errno = Some(EIO);
    assert_eq!(host.run_in(DISK, SsdCommand::Flush).status, Status::MEDIUM_FAILED);
    assert_eq!(read_block(&mut host, 5), Err(Status::UNRECOVERED_READ_ERROR));
    assert_eq!(read_block(&mut host, 0), Ok(1));
}
