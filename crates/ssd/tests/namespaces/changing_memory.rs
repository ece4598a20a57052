//! Writes whose client changes its memory while the device copies it.
//!
//! The device promises a mixture of what the memory held during the copy, and a record that is intact.

use super::host::{NamespaceHost, blocks};
use headwater_dma::iova::{ClientMemory, ClientSegments, Iova};
use headwater_host::shared_memory::SharedMemory;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    Fua, Lba, NamespaceId, ReadRelease, RecordExpiry, SsdCommand, ValueSink, ValueSource, WriteCondition,
};
use headwater_ssd::engine::DeviceConfig;
use headwater_ssd::namespace::BlockFormat::B4096;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const BYTES: usize = 2 << 20;

/// Lengths of records on one page, on a few, of one part, and of several parts.
const LENGTHS: [(u64, usize); 6] =
    [(100, 400), (700, 400), (3_000, 400), (9_000, 200), (65_536, 40), (1_600_000, 6)];

/// The memory of a client. Before a write it is filled with the first byte; during it the client writes the second.
struct ClientBuffer {
    region: SharedMemory,
    memory: ClientMemory,
}

impl ClientBuffer {
    fn new() -> Self {
        let region = SharedMemory::anonymous(BYTES).unwrap();
        let mut memory = ClientMemory::new();
        memory.register(Iova(0), region.clone()).unwrap();
        Self { region, memory }
    }

    fn segments(&self, bytes: u64) -> ClientSegments {
        // An odd start: nothing is aligned.
        self.memory.resolve(Iova(7), bytes).unwrap()
    }

    /// Runs `device` for each round, while another thread writes two values to all of the first `bytes` bytes in turn. A
    /// round begins when that thread is seen to run: else all rounds could end before it starts.
    fn while_client_writes(&self, bytes: usize, rounds: usize, mut device: impl FnMut(usize)) {
        let (is_done, fills_done) = (AtomicBool::new(false), AtomicUsize::new(0));
        self.region.copy_out(0, &vec![0x55; bytes]).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let fills = [vec![0xAA; bytes], vec![0x55; bytes]];
                for fill in fills.iter().cycle().take_while(|_| !is_done.load(Ordering::Relaxed)) {
                    self.region.copy_out(0, fill).unwrap();
                    fills_done.fetch_add(1, Ordering::Relaxed);
                }
            });
            let _end = SetOnDrop(&is_done);
            for round in 0..rounds {
                let before = fills_done.load(Ordering::Relaxed);
                while fills_done.load(Ordering::Relaxed) == before {
                    std::thread::yield_now();
                }
                device(round);
            }
        });
    }
}

/// Ends the client's thread, also when a check of the device fails.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn is_mixture(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| [0x55, 0xAA].contains(byte))
}

#[test]
fn store_while_client_changes_its_memory_is_intact() {
    for (bytes, rounds) in LENGTHS {
        let (client, mut host) = (ClientBuffer::new(), NamespaceHost::new(64, DeviceConfig::default()));
        client.while_client_writes(7 + usize::try_from(bytes).unwrap(), rounds, |round| {
            let store = SsdCommand::Store {
                key: b"key"[..].into(),
                value: ValueSource::Client(client.segments(bytes)),
                condition: WriteCondition::Always,
                expiry: RecordExpiry::Never,
            };
            assert_eq!(host.run(NamespaceId::FIRST, store).status, Status::SUCCESS, "{bytes} {round}");
            let value = host.get(NamespaceId::FIRST, b"key").expect("an intact record");
            assert_eq!(value.len() as u64, bytes);
            assert!(is_mixture(&value), "{bytes} {round}: bytes that the client never wrote");
        });
        let value = host.get(NamespaceId::FIRST, b"key").unwrap();
        let value_again = host.reopened().get(NamespaceId::FIRST, b"key").expect("an intact record");
        assert!(value == value_again, "{bytes}: the stored value is one value");
    }
}

#[test]
fn retrieve_into_memory_that_the_client_changes_is_no_checksum_failure() {
    for (bytes, rounds) in LENGTHS {
        let (client, mut host) = (ClientBuffer::new(), NamespaceHost::new(64, DeviceConfig::default()));
        let value = vec![3; usize::try_from(bytes).unwrap()];
        assert_eq!(host.set(NamespaceId::FIRST, b"key", &value), Status::SUCCESS);
        let retrieve = |segments| {
            SsdCommand::retrieve_whole(
                b"key"[..].into(),
                ValueSink::Client(segments),
                ReadRelease::WhenDurable,
            )
        };
        client.while_client_writes(7 + value.len(), rounds, |round| {
            let read = host.run(NamespaceId::FIRST, retrieve(client.segments(bytes)));
            assert_eq!(read.status, Status::SUCCESS, "{bytes} {round}");
        });
        let read = host.run(NamespaceId::FIRST, retrieve(client.segments(bytes)));
        assert_eq!(read.status, Status::SUCCESS, "{bytes}");
        let mut copied = vec![0; value.len()];
        client.segments(bytes).copy_in(0, &mut copied);
        assert!(copied == value, "{bytes}: all bytes are copied");
    }
}

#[test]
fn blocks_written_while_client_changes_its_memory_are_intact() {
    let (client, mut host) = (ClientBuffer::new(), NamespaceHost::new(64, DeviceConfig::default()));
    let disk = host.create(blocks(B4096, 100));
    client.while_client_writes(7 + 8 * 4_096, 200, |round| {
        let data = ValueSource::Client(client.segments(8 * 4_096));
        let write = SsdCommand::Write { start: Lba(1), data, fua: Fua::No };
        assert_eq!(host.run(disk, write).status, Status::SUCCESS, "{round}");
        let read = host.read(disk, 1, 8).expect("intact blocks");
        assert!(is_mixture(&read), "{round}: bytes that the client never wrote");
    });
}
