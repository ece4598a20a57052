//! Commands whose client takes its memory away while they are in flight.
//!
//! What broke: the copy went on with zeroes in place of the pages that were gone, and the write succeeded with them.

use super::host::{FRONT_END, NamespaceHost, WALL, blocks, range};
use headwater_dma::iova::{ClientMemory, ClientSegments, Iova};
use headwater_host::fault_guard::LostPages;
use headwater_host::shared_memory::SharedMemory;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    Fua, Lba, NamespaceId, ReadRelease, RecordExpiry, SsdCommand, ValueSink, ValueSource, WriteCondition,
};
use headwater_ssd::engine::DeviceConfig;
use headwater_ssd::namespace::BlockFormat::B4096;
use headwater_testkit::unsealed_memory::unsealed_files;
use std::fs::File;
use std::os::fd::AsFd as _;

const PAGE: u64 = 4_096;
/// Pages of the value or the blocks, which begin in front of the border of a huge page.
const PAGES: u64 = 8;
const BORDER: u64 = 2 << 20;
const START: Iova = Iova(BORDER - PAGE);

/// Memory of a client, filled with one byte.
struct Shrinking {
    name: &'static str,
    file: File,
    segments: ClientSegments,
}

impl Shrinking {
    fn each(byte: u8) -> Vec<Self> {
        Self::each_at(byte, START, PAGES * PAGE)
    }

    /// Makes the memory, of which the range at `start` is used.
    fn each_at(byte: u8, start: Iova, bytes_used: u64) -> Vec<Self> {
        let files = unsealed_files(2 * BORDER).into_iter().map(|(name, file)| {
            let bytes = usize::try_from(2 * BORDER).unwrap();
            let region = SharedMemory::map_client(file.as_fd(), 0, bytes, &LostPages::default()).unwrap();
            let mut memory = ClientMemory::new();
            memory.register(Iova(0), region).unwrap();
            let segments = memory.resolve(start, bytes_used).unwrap();
            let content = vec![byte; segments.bytes()];
            assert_eq!(segments.copy_out(0, &content), content.len());
            Self { name, file: file.into(), segments }
        });
        files.collect()
    }

    /// Takes away all pages but the first.
    fn shrink(&self) {
        self.file.set_len(BORDER).unwrap();
    }
}

fn host() -> NamespaceHost {
    NamespaceHost::new(64, DeviceConfig::default())
}

fn store(segments: &ClientSegments) -> SsdCommand {
    SsdCommand::Store {
        key: b"key"[..].into(),
        value: ValueSource::Client(segments.clone()),
        condition: WriteCondition::Always,
        expiry: RecordExpiry::Never,
    }
}

fn retrieve(sink: ValueSink) -> SsdCommand {
    SsdCommand::retrieve_whole(b"key"[..].into(), sink, ReadRelease::WhenDurable)
}

#[test]
fn store_from_memory_that_is_gone_fails_and_the_older_value_stays() {
    for has_older in [false, true] {
        for client in Shrinking::each(5) {
            let mut host = host();
            if has_older {
                let stored = host.run(NamespaceId::FIRST, store(&client.segments));
                assert_eq!(stored.status, Status::SUCCESS, "{}", client.name);
            }
            client.shrink();
            for _ in 0..2 {
                let stored = host.run(NamespaceId::FIRST, store(&client.segments));
                assert_eq!(stored.status, Status::DATA_TRANSFER_ERROR, "{}", client.name);
            }
            for _ in 0..2 {
                let read = host.run(NamespaceId::FIRST, retrieve(ValueSink::Bytes(Vec::new())));
                let expected = if has_older {
                    (Status::SUCCESS, vec![5; client.segments.bytes()])
                } else {
                    (Status::KEY_DOES_NOT_EXIST, Vec::new())
                };
                assert!((read.status, read.sink) == expected, "{}: not the older value", client.name);
                host = host.reopened();
            }
        }
    }
}

#[test]
fn long_store_whose_memory_goes_between_its_parts_fails_and_the_older_value_stays() {
    // 1 MiB in front of the border, and 1 MiB behind it.
    let (start, bytes) = (Iova(BORDER / 2), BORDER);
    for turns in 1..8 {
        for client in Shrinking::each_at(5, start, bytes) {
            let mut host = host();
            assert_eq!(host.set(NamespaceId::FIRST, b"key", b"older"), Status::SUCCESS);
            let token = host.submit(NamespaceId::FIRST, store(&client.segments));
            for _ in 0..turns {
                host.device.poll(host.now, WALL);
            }
            client.shrink();
            let completion = (0..10_000).find_map(|_| {
                host.device.poll(host.now, WALL);
                host.device.next_completion(FRONT_END)
            });
            let status = completion.map(|completion| (completion.token, completion.status)).unwrap();
            let stored = host.get(NamespaceId::FIRST, b"key").unwrap();
            // What was copied before the memory went is stored; nothing else is.
            let expected = if status == (token, Status::SUCCESS) {
                vec![5; client.segments.bytes()]
            } else {
                assert_eq!(status, (token, Status::DATA_TRANSFER_ERROR), "{}, {turns} turns", client.name);
                b"older".to_vec()
            };
            assert!(stored == expected, "{}, {turns} turns: neither value", client.name);
            assert!(turns > 1 || stored == b"older", "{}: the store was copied in one turn", client.name);
        }
    }
}

#[test]
fn retrieve_into_memory_that_is_gone_fails() {
    for client in Shrinking::each(5) {
        let mut host = host();
        assert_eq!(host.run(NamespaceId::FIRST, store(&client.segments)).status, Status::SUCCESS);
        client.shrink();
        let read = host.run(NamespaceId::FIRST, retrieve(ValueSink::Client(client.segments.clone())));
        assert_eq!(read.status, Status::DATA_TRANSFER_ERROR, "{}", client.name);
    }
}

#[test]
fn block_commands_on_memory_that_is_gone_fail_and_write_no_block() {
    let blocks_moved = u32::try_from(PAGES).unwrap();
    let commands: [fn(&ClientSegments) -> SsdCommand; 3] = [
        |data| SsdCommand::Write { start: Lba(1), data: ValueSource::Client(data.clone()), fua: Fua::No },
        |data| SsdCommand::Compare { start: Lba(1), data: ValueSource::Client(data.clone()) },
        |data| SsdCommand::Read { range: range(1, 8), sink: ValueSink::Client(data.clone()) },
    ];
    for command in commands {
        for client in Shrinking::each(5) {
            let mut host = host();
            let disk = host.create(blocks(B4096, 100));
            // What the memory held, so that a comparison gets as far as the pages that are gone.
            let older = vec![5; client.segments.bytes()];
            assert_eq!(host.write(disk, 1, older.clone()), Status::SUCCESS);
            client.shrink();
            let status = host.run(disk, command(&client.segments)).status;
            assert_eq!(status, Status::DATA_TRANSFER_ERROR, "{}", client.name);
            assert!(host.read(disk, 1, blocks_moved).unwrap() == older, "{}: a block changed", client.name);
        }
    }
}
