//! Tests of block commands on the device.

use super::host::{FRONT_END, NamespaceHost, WALL, blocks, pattern, range, read, write};
use headwater_dma::iova::{ClientMemory, ClientSegments, Iova};
use headwater_host::shared_memory::SharedMemory;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{Fua, Lba, NamespaceId, SsdCommand, SubmitError, ValueSink, ValueSource};
use headwater_ssd::engine::{DeviceConfig, Durability};
use headwater_ssd::limits::{DEALLOCATE_BATCH_MAX, LBA_RANGES_MAX, NAMESPACE_BLOCKS_MAX, NAMESPACES};
use headwater_ssd::namespace::BlockFormat::{B512, B4096};
use headwater_ssd::namespace::{NamespaceChange, NamespaceKind};

fn host() -> NamespaceHost {
    NamespaceHost::new(64, DeviceConfig::default())
}

fn compare(start: u64, data: Vec<u8>) -> SsdCommand {
    SsdCommand::Compare { start: Lba(start), data: data.into() }
}

fn copy(sources: &[(u64, u32)], destination: u64) -> SsdCommand {
    let sources = sources.iter().map(|(start, blocks)| range(*start, *blocks)).collect();
    SsdCommand::Copy { sources, destination: Lba(destination), fua: Fua::No }
}

#[test]
fn blocks_read_as_written_and_as_zeroes_before() {
    for format in [B512, B4096] {
        let mut host = host();
        let disk = host.create(blocks(format, 1_000));
        assert_eq!(host.read(disk, 0, 3).unwrap(), vec![0; 3 * format.bytes()]);
        assert_eq!(host.write(disk, 998, pattern(format, 7, 2)), Status::SUCCESS);
        assert_eq!(host.write(disk, 10, pattern(format, 1, 5)), Status::SUCCESS);
        assert_eq!(host.write(disk, 12, pattern(format, 9, 1)), Status::SUCCESS);
        for round in 0..3 {
            let bytes = format.bytes();
            let around = host.read(disk, 9, 7).unwrap();
            let firsts: Vec<u8> = around.chunks(bytes).map(|block| block[0]).collect();
            assert_eq!(firsts, [0, 1, 2, 9, 4, 5, 0], "round {round}");
            assert!(around.chunks(bytes).all(|block| block.iter().all(|byte| *byte == block[0])));
            assert_eq!(host.read(disk, 998, 2).unwrap(), pattern(format, 7, 2));
            assert_eq!((host.device.namespace_usage(disk), host.device.keys(disk)), (7, 7));
            host = if round == 0 { host.reopened() } else { host.restarted() };
        }
    }
}

#[test]
fn blocks_after_the_end_are_out_of_range() {
    let mut host = host();
    let disk = host.create(blocks(B512, 10));
    assert_eq!(host.read(disk, 10, 1), Err(Status::LBA_OUT_OF_RANGE));
    assert_eq!(host.read(disk, 9, 2), Err(Status::LBA_OUT_OF_RANGE));
    assert_eq!(host.write(disk, 9, pattern(B512, 1, 2)), Status::LBA_OUT_OF_RANGE);
    assert_eq!(host.deallocate(disk, &[(0, 1), (9, 2)]), Status::LBA_OUT_OF_RANGE);
    assert_eq!(host.run(disk, compare(10, vec![0; 512])).status, Status::LBA_OUT_OF_RANGE);
    assert_eq!(host.run(disk, SsdCommand::Verify { range: range(0, 11) }).status, Status::LBA_OUT_OF_RANGE);
    assert_eq!(host.run(disk, copy(&[(0, 2)], 9)).status, Status::LBA_OUT_OF_RANGE);
    assert_eq!(host.run(disk, copy(&[(9, 2)], 0)).status, Status::LBA_OUT_OF_RANGE);
    assert_eq!(host.read(disk, 9, 1).unwrap(), vec![0; 512], "a refused write changed a block");
}

#[test]
fn commands_that_can_never_work_are_refused_at_submission() {
    let mut host = host();
    let disk = host.create(blocks(B4096, 100));
    let large = host.device.transfer_bytes_max() / 4_096 + 1;
    let too_many = vec![range(0, 1); LBA_RANGES_MAX + 1];
    let all = u32::try_from(large).unwrap();
    let mut refused = |command: SsdCommand| match host.device.submit(FRONT_END, disk, 1, command) {
        Err(SubmitError::Refused(status)) => status,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(read(0, 0)), Status::INVALID_FIELD);
    assert_eq!(refused(read(0, all)), Status::INVALID_FIELD);
    assert_eq!(refused(read(u64::MAX, 1)), Status::LBA_OUT_OF_RANGE);
    assert_eq!(refused(read(NAMESPACE_BLOCKS_MAX, 1)), Status::LBA_OUT_OF_RANGE);
    assert_eq!(refused(write(0, vec![0; 4_095], Fua::No)), Status::INVALID_FIELD);
    assert_eq!(refused(write(0, Vec::new(), Fua::No)), Status::INVALID_FIELD);
    assert_eq!(refused(write(0, vec![0; large * 4_096], Fua::No)), Status::INVALID_FIELD);
    assert_eq!(refused(compare(0, vec![0; 1])), Status::INVALID_FIELD);
    assert_eq!(
        refused(SsdCommand::Deallocate { ranges: too_many.clone(), fua: Fua::No }),
        Status::INVALID_FIELD
    );
    let copy_of = |sources| SsdCommand::Copy { sources, destination: Lba(0), fua: Fua::No };
    assert_eq!(refused(copy_of(too_many)), Status::COMMAND_SIZE_LIMIT);
    assert_eq!(refused(copy_of(vec![range(0, all)])), Status::COMMAND_SIZE_LIMIT);
    assert_eq!(refused(copy_of(Vec::new())), Status::INVALID_FIELD);
    let short = ValueSink::Client(client(4_095).1);
    assert_eq!(refused(SsdCommand::Read { range: range(0, 1), sink: short }), Status::INVALID_FIELD);
    let in_keys = host.device.submit(FRONT_END, NamespaceId::FIRST, 1, read(0, 1));
    assert_eq!(in_keys, Err(SubmitError::Refused(Status::INVALID_NAMESPACE)));
}

#[test]
fn deallocated_blocks_read_as_zeroes_and_free_their_space() {
    let mut host = host();
    let disk = host.create(blocks(B4096, 1 << 30));
    let records = |host: &NamespaceHost| host.device.stats().live_bytes - host.device.stats().tombstone_bytes;
    let before = records(&host);
    assert_eq!(host.write(disk, 100, pattern(B4096, 1, 50)), Status::SUCCESS);
    assert_eq!(host.deallocate(disk, &[(0, 0)]), Status::SUCCESS, "no block at all");
    assert_eq!(host.deallocate(disk, &[(0, 110), (140, 1 << 29), (105, 10)]), Status::SUCCESS);
    assert_eq!(host.device.namespace_usage(disk), 25);
    for _ in 0..2 {
        assert_eq!(host.read(disk, 114, 2).unwrap(), [vec![0; 4_096], vec![16; 4_096]].concat());
        assert_eq!(host.read(disk, 139, 2).unwrap(), [vec![40; 4_096], vec![0; 4_096]].concat());
        host = host.reopened();
    }
    assert_eq!(host.deallocate(disk, &[(0, 1 << 30)]), Status::SUCCESS);
    assert_eq!((host.device.namespace_usage(disk), records(&host)), (0, before));
    host = host.restarted();
    assert_eq!(host.read(disk, 120, 1).unwrap(), vec![0; 4_096]);
}

#[test]
fn deallocation_of_more_than_one_batch_removes_all_blocks() {
    let mut host = host();
    let disk = host.create(blocks(B512, 1 << 20));
    let each = u64::try_from(DEALLOCATE_BATCH_MAX).unwrap() * 3 / 4;
    let data = vec![3; usize::try_from(each).unwrap() * 512];
    for part in 0..2 {
        assert_eq!(host.write(disk, part * each, data.clone()), Status::SUCCESS);
    }
    assert_eq!(host.write(disk, 999_999, vec![4; 512]), Status::SUCCESS);
    let removed = u32::try_from(2 * each - 1).unwrap();
    assert_eq!(host.deallocate(disk, &[(1, removed)]), Status::SUCCESS);
    host = host.reopened();
    assert_eq!(host.device.namespace_usage(disk), 2);
    assert_eq!(host.read(disk, 0, 2).unwrap(), [vec![3; 512], vec![0; 512]].concat());
    assert_eq!(host.read(disk, 999_999, 1).unwrap(), vec![4; 512]);
}

#[test]
fn the_largest_write_of_the_smallest_blocks_is_one_batch() {
    let mut host = NamespaceHost::new(256, DeviceConfig::default());
    let disk = host.create(blocks(B512, 1 << 16));
    let bytes = host.device.transfer_bytes_max();
    assert_eq!(bytes, 16 << 20);
    let mut random = fastrand::Rng::with_seed(9);
    let data: Vec<u8> = (0..bytes).map(|_| random.u8(..)).collect();
    assert_eq!(host.write(disk, 5, data.clone()), Status::SUCCESS);
    host = host.reopened();
    assert_eq!(host.device.namespace_usage(disk), 32_768);
    assert!(host.read(disk, 5, 32_768).unwrap() == data, "16 MiB differ after a power cut");
    assert_eq!(host.run(disk, compare(5, data)).status, Status::SUCCESS);
    assert_eq!(host.run(disk, SsdCommand::Verify { range: range(0, 1 << 16) }).status, Status::SUCCESS);
}

#[test]
fn compare_fails_if_a_byte_differs() {
    let mut host = host();
    let disk = host.create(blocks(B512, 100));
    assert_eq!(host.write(disk, 1, pattern(B512, 1, 3)), Status::SUCCESS);
    assert_eq!(host.run(disk, compare(1, pattern(B512, 1, 3))).status, Status::SUCCESS);
    assert_eq!(host.run(disk, compare(0, vec![0; 512])).status, Status::SUCCESS, "never written");
    assert_eq!(host.run(disk, compare(0, vec![1; 512])).status, Status::COMPARE_FAILURE);
    let mut other = pattern(B512, 1, 3);
    *other.last_mut().unwrap() ^= 1;
    assert_eq!(host.run(disk, compare(1, other)).status, Status::COMPARE_FAILURE);
}

#[test]
fn copy_reads_all_sources_before_it_writes() {
    let mut host = host();
    let disk = host.create(blocks(B512, 100));
    assert_eq!(host.write(disk, 0, pattern(B512, 1, 8)), Status::SUCCESS);
    assert_eq!(host.run(disk, copy(&[(0, 4), (6, 3)], 2)).status, Status::SUCCESS, "onto itself");
    for _ in 0..2 {
        let firsts: Vec<u8> = host.read(disk, 0, 10).unwrap().chunks(512).map(|block| block[0]).collect();
        assert_eq!(firsts, [1, 2, 1, 2, 3, 4, 7, 8, 0, 0]);
        assert_eq!(host.device.namespace_usage(disk), 8, "blocks of zeroes have records");
        host = host.reopened();
    }
}

#[test]
fn commands_read_and_write_client_memory_in_place() {
    let mut host = host();
    let disk = host.create(blocks(B4096, 100));
    let (memory, whole) = client(3 * 4_096);
    memory.copy_in_bytes(&pattern(B4096, 5, 3));
    let write = SsdCommand::Write { start: Lba(7), data: ValueSource::Client(whole.clone()), fua: Fua::No };
    assert_eq!(host.run(disk, write).status, Status::SUCCESS);
    assert_eq!(host.read(disk, 7, 3).unwrap(), pattern(B4096, 5, 3));
    let read = SsdCommand::Read { range: range(6, 3), sink: ValueSink::Client(whole.clone()) };
    assert_eq!(host.run(disk, read).status, Status::SUCCESS);
    let mut seen = vec![9; 3 * 4_096];
    assert_eq!(whole.copy_in(0, &mut seen), seen.len());
    assert_eq!(seen, [vec![0; 4_096], vec![5; 4_096], vec![6; 4_096]].concat());
    let same = SsdCommand::Compare { start: Lba(6), data: ValueSource::Client(whole) };
    assert_eq!(host.run(disk, same).status, Status::SUCCESS);
}

#[test]
fn forced_write_is_durable_before_its_completion() {
    let durability = [Durability::OnFlush; NAMESPACES];
    let mut host = NamespaceHost::new(64, DeviceConfig { durability, ..DeviceConfig::default() });
    let disk = host.create(blocks(B512, 100));
    let commits = |host: &NamespaceHost| host.device.stats().commits;
    let before = commits(&host);
    assert_eq!(host.write(disk, 0, vec![1; 512]), Status::SUCCESS);
    assert_eq!(commits(&host), before, "a write with on-flush durability caused a commit");
    assert_eq!(host.run(disk, write(1, vec![2; 512], Fua::Yes)).status, Status::SUCCESS);
    assert!(commits(&host) > before, "the completion came before the commit");
    let before = commits(&host);
    let ranges = vec![range(0, 1)];
    assert_eq!(host.run(disk, SsdCommand::Deallocate { ranges, fua: Fua::Yes }).status, Status::SUCCESS);
    assert!(commits(&host) > before);
}

#[test]
fn shrinking_removes_the_blocks_after_the_new_end_for_good() {
    let mut host = host();
    let disk = host.create(blocks(B512, 100));
    assert_eq!(host.write(disk, 40, pattern(B512, 1, 20)), Status::SUCCESS);
    assert_eq!(host.change(disk, NamespaceChange::Resize(50)), Status::SUCCESS);
    assert_eq!(host.device.namespace_usage(disk), 10);
    assert_eq!(host.read(disk, 50, 1), Err(Status::LBA_OUT_OF_RANGE));
    host = host.reopened();
    assert_eq!(host.change(disk, NamespaceChange::Resize(100)), Status::SUCCESS);
    host = host.restarted();
    assert_eq!(host.read(disk, 49, 2).unwrap(), [vec![10; 512], vec![0; 512]].concat());
}

#[test]
fn format_empties_a_namespace_and_refuses_commands_of_the_old_format() {
    let mut host = host();
    let disk = host.create(blocks(B512, 100));
    assert_eq!(host.write(disk, 0, pattern(B512, 1, 8)), Status::SUCCESS);
    let format = NamespaceKind::Block(B4096);
    host.submit(disk, SsdCommand::Namespace(NamespaceChange::Format(format)));
    host.submit(disk, write(0, vec![1; 512], Fua::No));
    let mut answers = Vec::new();
    while answers.len() < 2 {
        host.device.poll(host.now, WALL);
        answers.extend(host.device.next_completion(FRONT_END).map(|completion| completion.status));
    }
    answers.sort_by_key(|status| status.code);
    assert_eq!(answers, [Status::SUCCESS, Status::INVALID_NAMESPACE]);
    host = host.reopened();
    assert_eq!(host.device.namespace(disk).map(|made| made.size), Some(12));
    assert_eq!(host.read(disk, 0, 1).unwrap(), vec![0; 4_096]);
}

#[test]
fn full_medium_reports_it_and_deallocated_space_can_be_written_again() {
    let mut host = NamespaceHost::new(32, DeviceConfig::default());
    let disk = host.create(blocks(B4096, 10_000));
    let mut written = 0;
    while host.write(disk, written, pattern(B4096, 1, 16)) == Status::SUCCESS {
        written += 16;
        assert!(written < 4_096, "32 blocks hold 2,048 pages");
    }
    assert!(written > 1_000, "only {written} blocks fitted");
    assert_eq!(host.write(disk, 9_000, pattern(B4096, 1, 16)), Status::CAPACITY_EXCEEDED);
    assert_eq!(host.write(disk, 0, pattern(B4096, 2, 16)), Status::SUCCESS, "an overwrite was refused");
    let half = u32::try_from(written / 2).unwrap();
    assert_eq!(host.deallocate(disk, &[(0, half)]), Status::SUCCESS);
    assert_eq!(host.write(disk, 9_000, pattern(B4096, 3, 16)), Status::SUCCESS);
    assert_eq!(host.read(disk, 9_000, 16).unwrap(), pattern(B4096, 3, 16));
    let kept = u8::try_from(half % 16).unwrap() + 1;
    assert_eq!(host.read(disk, u64::from(half), 1).unwrap()[0], kept);
}

#[test]
fn written_blocks_are_not_counted_as_keys() {
    let mut host = NamespaceHost::new(32, DeviceConfig::default());
    let disk = host.create(blocks(B4096, 100));
    assert_eq!(host.set(NamespaceId::FIRST, b"one", b"value"), Status::SUCCESS);
    assert_eq!(host.write(disk, 7, pattern(B4096, 1, 3)), Status::SUCCESS);
    let stats = host.device.stats();
    assert_eq!((stats.keys[0], stats.blocks[0]), (1, 0));
    assert_eq!((stats.keys[disk.index()], stats.blocks[disk.index()]), (0, 3));
}

/// The memory of a client.
struct ClientBuffer(ClientSegments);

impl ClientBuffer {
    fn copy_in_bytes(&self, bytes: &[u8]) {
        assert_eq!(self.0.copy_out(0, bytes), bytes.len());
    }
}

fn client(bytes: usize) -> (ClientBuffer, ClientSegments) {
    let mut memory = ClientMemory::new();
    memory.register(Iova(0x1000), SharedMemory::anonymous(1 << 16).unwrap()).unwrap();
    let bytes = u64::try_from(bytes).unwrap();
    let segments = memory.resolve(Iova(0x1000), bytes).unwrap();
    (ClientBuffer(segments.clone()), segments)
}
