//! Serving: a failed read fails its command, leaves nothing behind, and the next read asks the medium again.

use crate::failing_media::{EIO, ENODATA};
use crate::host::{ReadErrorHost, key, text, value};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    Fua, Lba, LbaRange, ListPosition, NamespaceId, SsdCommand, ValueReader, ValueSink, ValueSource,
};
use headwater_ssd::engine::{DeviceConfig, FailedRead};
use headwater_ssd::namespace::{BlockFormat, Namespace, NamespaceChange, NamespaceKind};

const KEYS: usize = 30;

/// Returns a device that has no page in device DRAM.
fn cold_host() -> ReadErrorHost {
    let mut host = ReadErrorHost::new(24, DeviceConfig::default());
    for number in 0..KEYS {
        assert_eq!(host.set(&key(number), &value(number)), Status::SUCCESS);
    }
    ReadErrorHost::open(host.stopped(), &DeviceConfig::default()).unwrap()
}

#[test]
fn failed_read_fails_its_command_and_the_next_one_asks_the_medium_again() {
    let mut host = cold_host();
    let page = host.device.media().page_with(&text(7));
    host.device.media_mut().reads.clear();
    host.device.media_mut().fail(page, EIO, 2);
    assert_eq!(host.get(&key(7)), Err(Status::UNRECOVERED_ERROR));
    assert_eq!(host.get(&key(7)), Err(Status::UNRECOVERED_ERROR), "the failed read was kept as zeroes");
    assert_eq!(host.get(&key(7)), Ok(value(7)));
    assert_eq!(host.device.media().reads[&page], 3);
    let stats = host.device.stats();
    assert_eq!(stats.read_errors, 2);
    assert_eq!(
        stats.last_read_error,
        Some(FailedRead { block: page.block.0, page: page.page, errno: Some(EIO) })
    );
    assert_eq!((stats.damaged, stats.quarantined), (0, 0), "an error that passes counts as damage");
}

#[test]
fn write_replaces_a_record_that_cannot_be_read() {
    let mut host = cold_host();
    let page = host.device.media().page_with(&text(7));
    host.device.media_mut().fail(page, ENODATA, u64::MAX);
    assert_eq!(host.set(&key(7), b"new"), Status::SUCCESS);
    assert_eq!(host.get(&key(7)), Ok(b"new".to_vec()));
    assert_eq!(host.device.keys(NamespaceId::FIRST), KEYS as u64);
}

#[test]
fn list_that_cannot_read_a_key_fails_instead_of_leaving_it_out() {
    let mut host = cold_host();
    let page = host.device.media().page_with(&text(7));
    host.device.media_mut().fail(page, EIO, 1);
    let list = || SsdCommand::List { position: ListPosition(0), keys_max: 1_000 };
    assert_eq!(host.run(list()).status, Status::UNRECOVERED_ERROR);
    assert_eq!(host.run(list()).keys.len(), KEYS);
}

#[test]
fn read_of_blocks_fails_with_unrecovered_read_error_and_returns_no_bytes() {
    const DISK: NamespaceId = NamespaceId(2);
    let mut host = cold_host();
    let disk = Namespace { kind: NamespaceKind::Block(BlockFormat::B4096), size: 64, ..Namespace::IMPLICIT };
    let created = host.run_in(DISK, SsdCommand::Namespace(NamespaceChange::Create(disk)));
    assert_eq!(created.status, Status::SUCCESS);
    let data: Vec<u8> = (100..108).flat_map(|number| [value(number), vec![0; 596]].concat()).collect();
    let write =
        SsdCommand::Write { start: Lba(0), data: ValueSource::Bytes(data.clone().into()), fua: Fua::No };
    assert_eq!(host.run_in(DISK, write).status, Status::SUCCESS);
    let mut host = ReadErrorHost::open(host.stopped(), &DeviceConfig::default()).unwrap();
    let page = host.device.media().page_with(&text(105));
    host.device.media_mut().fail(page, EIO, 1);
    let read = || SsdCommand::Read {
        range: LbaRange { start: Lba(0), blocks: 8 },
        sink: ValueSink::Bytes(Vec::new()),
    };
    let failed = host.run_in(DISK, read());
    assert_eq!((failed.status, failed.sink.len()), (Status::UNRECOVERED_READ_ERROR, 0));
    assert_eq!(host.run_in(DISK, read()).sink, data);
}

#[test]
fn part_of_a_value_that_cannot_be_read_fails_and_the_parts_before_it_are_right() {
    let mut host = cold_host();
    let long: Vec<u8> = (200..260).flat_map(value).collect();
    assert_eq!(host.set("long", &long), Status::SUCCESS);
    let mut host = ReadErrorHost::open(host.stopped(), &DeviceConfig::default()).unwrap();
    let page = host.device.media().page_with(&text(230));
    host.device.media_mut().fail(page, EIO, 1);
    let reader = ValueReader::new(1);
    let opened = host.run(SsdCommand::OpenValue { key: b"long".as_slice().into(), reader: reader.clone() });
    assert_eq!((opened.status, opened.value_bytes as usize), (Status::SUCCESS, long.len()));
    let (mut read, mut failed) = (Vec::new(), 0);
    while read.len() < long.len() {
        let (reader, offset) = (reader.clone(), u32::try_from(read.len()).unwrap());
        let part = SsdCommand::ReadPart { reader, offset, sink: Vec::new(), bytes_max: 50_000 };
        let part = host.run(part);
        if part.status == Status::UNRECOVERED_ERROR {
            assert!(part.sink.is_empty() && (80_000..=130_000).contains(&read.len()), "after {}", read.len());
            failed += 1;
            continue;
        }
        assert_eq!(part.status, Status::SUCCESS);
        read.extend(part.sink);
    }
    assert!(failed == 1 && read == long, "{failed} parts failed");
}
