//! Reads of many blocks, and of long values into client memory: they are made in parts, between which other commands run.

use super::host::{FRONT_END, NamespaceHost, WALL, blocks, range};
use headwater_dma::iova::{ClientMemory, Iova};
use headwater_host::fault_guard::LostPages;
use headwater_host::shared_memory::SharedMemory;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    NamespaceId, ReadRelease, RecordExpiry, SsdCommand, ValueSink, ValueSource, WriteCondition,
};
use headwater_ssd::engine::DeviceConfig;
use headwater_ssd::namespace::BlockFormat::B4096;
use headwater_ssd::namespace::NamespaceChange;
use headwater_testkit::unsealed_memory::unsealed_files;
use std::os::fd::AsFd as _;

pub(super) const DISK: NamespaceId = NamespaceId(2);
pub(super) const MIB: usize = 1 << 20;

fn store(key: &'static [u8], value: Vec<u8>) -> SsdCommand {
    SsdCommand::Store {
        key: key.into(),
        value: ValueSource::Bytes(value.into()),
        condition: WriteCondition::Always,
        expiry: RecordExpiry::Never,
    }
}

fn retrieve(key: &'static [u8], sink: ValueSink) -> SsdCommand {
    SsdCommand::retrieve_whole(key.into(), sink, ReadRelease::WhenDurable)
}

fn read(start: u64, blocks: u32) -> SsdCommand {
    SsdCommand::Read { range: range(start, blocks), sink: ValueSink::Bytes(Vec::new()) }
}

fn text(bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|at| at.to_le_bytes()[0] ^ at.to_le_bytes()[1]).collect()
}

/// Returns a host with a disk of 8 MiB of data, and a short value.
pub(super) fn host() -> (NamespaceHost, Vec<u8>) {
    let mut host = NamespaceHost::new(128, DeviceConfig::default());
    let create = SsdCommand::Namespace(NamespaceChange::Create(blocks(B4096, 4_096)));
    assert_eq!(host.run(DISK, create).status, Status::SUCCESS);
    let data = text(8 * MIB);
    for (number, part) in (0..).zip(data.chunks(MIB)) {
        assert_eq!(host.write(DISK, number * 256, part.to_vec()), Status::SUCCESS);
    }
    assert_eq!(host.run(NamespaceId::FIRST, store(b"short", b"s".to_vec())).status, Status::SUCCESS);
    (host, data)
}

/// Submits a command, and returns the number of short reads that complete before it, each within one turn.
pub(super) fn short_reads_beside(
    host: &mut NamespaceHost,
    namespace: NamespaceId,
    command: SsdCommand,
) -> (usize, Vec<u8>) {
    let long = host.submit(namespace, command);
    for reads in 0..1_000 {
        let short = host.submit(NamespaceId::FIRST, retrieve(b"short", Vec::new().into()));
        host.device.poll(host.now, WALL);
        let mut is_answered = false;
        let mut end = None;
        while let Some(completion) = host.device.next_completion(FRONT_END) {
            assert_eq!(completion.status, Status::SUCCESS);
            is_answered |= completion.token == short;
            if completion.token == long {
                end = Some(completion.sink);
            }
        }
        assert!(is_answered, "a short read waits for a long command");
        if let Some(sink) = end {
            return (reads, sink);
        }
    }
    panic!("the long command does not complete");
}

#[test]
fn short_reads_complete_between_the_parts_of_a_read_of_many_blocks() {
    let (mut host, data) = host();
    let (reads, read) = short_reads_beside(&mut host, DISK, read(0, 2_048));
    assert!(reads >= 15 && read == data, "{reads} short reads");
    let (reads, _) = short_reads_beside(&mut host, DISK, SsdCommand::Verify { range: range(0, 2_048) });
    assert!(reads >= 15, "{reads} short reads beside a verification");
}

#[test]
fn short_reads_complete_between_the_parts_of_a_value_for_client_memory() {
    let (mut host, _) = host();
    let long = text(8 * MIB + 77);
    assert_eq!(host.run(NamespaceId::FIRST, store(b"long", long.clone())).status, Status::SUCCESS);
    let (_, file) = unsealed_files(10 << 20).into_iter().next().unwrap();
    let region = SharedMemory::map_client(file.as_fd(), 0, 10 * MIB, &LostPages::default()).unwrap();
    let mut memory = ClientMemory::new();
    memory.register(Iova(0), region).unwrap();
    for bytes in [10 * MIB, long.len(), 3 * MIB + 5, 100] {
        let segments = memory.resolve(Iova(0), bytes as u64).unwrap();
        assert_eq!(segments.copy_out(0, &vec![0xFF; bytes]), bytes);
        let sink = ValueSink::Client(segments.clone());
        let (reads, _) = short_reads_beside(&mut host, NamespaceId::FIRST, retrieve(b"long", sink));
        let parts = bytes.min(long.len()) / (512 << 10);
        assert!(reads + 1 >= parts, "{reads} short reads beside {parts} parts");
        let mut received = vec![0; bytes];
        assert_eq!(segments.copy_in(0, &mut received), bytes);
        let taken = bytes.min(long.len());
        assert!(received[..taken] == long[..taken], "{bytes} bytes");
        assert!(received[taken..].iter().all(|&byte| byte == 0xFF), "bytes behind the value were written");
    }
}

#[test]
fn read_of_blocks_whose_namespace_is_deleted_between_its_parts_fails_without_bytes() {
    let (mut host, _) = host();
    let long = host.submit(DISK, read(0, 2_048));
    host.device.poll(host.now, WALL);
    let delete = host.submit(DISK, SsdCommand::Namespace(NamespaceChange::Delete));
    let mut ended = 0;
    for _ in 0..1_000 {
        host.device.poll(host.now, WALL);
        while let Some(completion) = host.device.next_completion(FRONT_END) {
            ended += 1;
            if completion.token == long && completion.status != Status::SUCCESS {
                assert!(completion.sink.is_empty(), "{} bytes of a failed read", completion.sink.len());
            }
            assert!(completion.token == long || completion.token == delete);
        }
    }
    assert_eq!(ended, 2);
}
