//! A device with its ring face on one desk, and well-behaved clients of it.

use headwater_dma::iova::Iova;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_host::foreign::Foreign;
use headwater_nvme::controller::QueueKind;
use headwater_nvme::queue_pair::CommandId;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::kv::{DataPointer, InlineKey};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{Command, FaceId, NamespaceId};
use headwater_ssd::engine::{Device, DeviceConfig, Start};
use headwater_ssd::media::Geometry;
use headwater_ssd::media::memory::MemoryMedia;
use headwater_ssd::nvme::rings::{ClientId, ClientQueue, RingFace};
use std::collections::BTreeMap;

pub(crate) const RINGS: FaceId = FaceId(3);
pub(crate) const OTHER: FaceId = FaceId(4);
pub(crate) const WALL: UnixMillis = UnixMillis(1_000_000);
pub(crate) const BASE: u64 = 0x10_0000;
pub(crate) const MEMORY_BYTES: usize = 1 << 20;

pub(crate) fn device() -> Device<MemoryMedia> {
    let media = MemoryMedia::erased(Geometry::with_blocks(64)).expect("a desk in order");
    let start = Start { now: Nanos::ZERO, wall: WALL };
    Device::open(media, DeviceConfig::default(), start, &mut |_| {}).expect("a desk in order")
}

/// A device and its face; clients are made from it.
pub(crate) struct Bench {
    pub(crate) device: Device<MemoryMedia>,
    pub(crate) face: RingFace,
}

/// One client with one queue and one region.
pub(crate) struct Client {
    pub(crate) id: ClientId,
    pub(crate) queue: ClientQueue,
    pub(crate) memory: Foreign,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self { device: device(), face: RingFace::new(RINGS).expect("a desk in order") }
    }

    pub(crate) fn client(&mut self, depth: u32, kind: QueueKind) -> Client {
        let id = self.face.rings.add_client();
        let memory = Foreign::anonymous(MEMORY_BYTES).expect("a desk in order");
        let table = self.face.rings.memory(id).expect("a desk in order");
        table.register(Iova(BASE), memory.clone()).expect("a desk in order");
        let queue = self.face.rings.create_queue_pair(id, depth, kind).expect("a desk in order");
        Client { id, queue, memory }
    }

    /// A turn of the core's loop.
    pub(crate) fn turn(&mut self) -> bool {
        let mut moved = self.face.poll(&mut self.device);
        moved |= self.device.poll(Nanos::ZERO, WALL);
        moved
    }

    pub(crate) fn settle(&mut self) {
        for _ in 0..100_000 {
            if !self.turn() {
                return;
            }
        }
        panic!("the device never comes to rest");
    }

    /// One command to its end.
    pub(crate) fn run(&mut self, client: &mut Client, entry: SubmissionEntry) -> (Status, u32) {
        let id = client.submit(entry);
        let answers = self.answers(client);
        assert_eq!(answers.len(), 1, "one answer a command");
        answers[&id]
    }

    /// All answers that come when everything is at rest.
    pub(crate) fn answers(&mut self, client: &mut Client) -> BTreeMap<CommandId, (Status, u32)> {
        let mut answers = BTreeMap::new();
        loop {
            self.settle();
            let before = answers.len();
            while let Some(completion) = client.queue.pair.reap().expect("a desk in order") {
                let answer = (completion.status, completion.result);
                assert!(answers.insert(completion.command, answer).is_none(), "answered twice");
            }
            let _ = client.queue.pair.ring();
            if answers.len() == before {
                return answers;
            }
        }
    }

    pub(crate) fn direct(&mut self, command: Command) -> headwater_ssd::command::Completion {
        self.device.submit(OTHER, NamespaceId::FIRST, 9, command).expect("a desk in order");
        self.settle();
        self.device.next_completion(OTHER).expect("a desk in order")
    }
}

impl Client {
    pub(crate) fn submit(&mut self, entry: SubmissionEntry) -> CommandId {
        let id = self.queue.pair.submit(entry).expect("a desk in order");
        let _ = self.queue.pair.ring();
        id
    }

    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> DataPointer {
        self.memory.copy_out(offset, bytes).expect("a desk in order");
        at(offset, bytes.len())
    }

    pub(crate) fn read(&self, offset: usize, bytes: usize) -> Vec<u8> {
        let mut into = vec![0; bytes];
        self.memory.copy_in(offset, &mut into).expect("a desk in order");
        into
    }
}

pub(crate) fn at(offset: usize, bytes: usize) -> DataPointer {
    DataPointer { address: BASE + offset as u64, bytes: u32::try_from(bytes).expect("a desk in order") }
}

pub(crate) fn key(bytes: &[u8]) -> InlineKey {
    InlineKey::new(bytes).expect("a desk in order")
}
