//! The test harness: a device with its ring front end, and well-behaved clients.

use headwater_dma::iova::Iova;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_host::shared_memory::SharedMemory;
use headwater_nvme::controller::QueueKind;
use headwater_nvme::queue_pair::CommandId;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::kv::{DataPointer, InlineKey};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{FrontEndId, NamespaceId, SsdCommand};
use headwater_ssd::engine::{DeviceConfig, SsdDevice, StartTime};
use headwater_ssd::media::FlashGeometry;
use headwater_ssd::media::memory::MemoryMedia;
use headwater_ssd::nvme::rings::{ClientId, ClientQueue, RingFrontEnd};
use std::collections::BTreeMap;

pub(crate) const RING_FRONT_END: FrontEndId = FrontEndId(3);
pub(crate) const DIRECT_FRONT_END: FrontEndId = FrontEndId(4);
pub(crate) const WALL: UnixMillis = UnixMillis(1_000_000);
pub(crate) const BASE: u64 = 0x10_0000;
pub(crate) const MEMORY_BYTES: usize = 1 << 20;

pub(crate) fn device() -> SsdDevice<MemoryMedia> {
    let media = MemoryMedia::erased(FlashGeometry::with_blocks(64)).expect("test setup");
    let start = StartTime { now: Nanos::ZERO, wall: WALL };
    SsdDevice::open(media, DeviceConfig::default(), start, &mut |_| {}).expect("test setup")
}

/// A device and its ring front end, with methods to add clients.
pub(crate) struct RingHarness {
    pub(crate) device: SsdDevice<MemoryMedia>,
    pub(crate) front_end: RingFrontEnd,
}

/// One client with one queue and one region.
pub(crate) struct HarnessClient {
    pub(crate) id: ClientId,
    pub(crate) queue: ClientQueue,
    pub(crate) memory: SharedMemory,
}

impl RingHarness {
    pub(crate) fn new() -> Self {
        Self { device: device(), front_end: RingFrontEnd::new(RING_FRONT_END).expect("test setup") }
    }

    pub(crate) fn client(&mut self, depth: u32, kind: QueueKind) -> HarnessClient {
        let id = self.front_end.rings.add_client();
        let memory = SharedMemory::anonymous(MEMORY_BYTES).expect("test setup");
        let table = self.front_end.rings.memory(id).expect("test setup");
        table.register(Iova(BASE), memory.clone()).expect("test setup");
        let queue = self.front_end.rings.create_queue_pair(id, depth, kind).expect("test setup");
        HarnessClient { id, queue, memory }
    }

    /// Runs one turn of the core's loop.
    pub(crate) fn turn(&mut self) -> bool {
        let mut moved = self.front_end.poll(&mut self.device);
        moved |= self.device.poll(Nanos::ZERO, WALL);
        moved
    }

    pub(crate) fn run_until_idle(&mut self) {
        for _ in 0..100_000 {
            if !self.turn() {
                return;
            }
        }
        panic!("the device still makes progress after 100,000 turns");
    }

    /// Runs one command to its end.
    pub(crate) fn run(&mut self, client: &mut HarnessClient, entry: SubmissionEntry) -> (Status, u32) {
        let id = client.submit(entry);
        let answers = self.all_completions(client);
        assert_eq!(answers.len(), 1, "a command without exactly one answer");
        answers[&id]
    }

    /// Runs the device until it is idle, and returns all answers of the client.
    pub(crate) fn all_completions(
        &mut self,
        client: &mut HarnessClient,
    ) -> BTreeMap<CommandId, (Status, u32)> {
        let mut answers = BTreeMap::new();
        loop {
            self.run_until_idle();
            let before = answers.len();
            while let Some(completion) = client.queue.pair.reap().expect("test setup") {
                let answer = (completion.status, completion.result);
                assert!(answers.insert(completion.command, answer).is_none(), "answered twice");
            }
            let _ = client.queue.pair.ring();
            if answers.len() == before {
                return answers;
            }
        }
    }

    pub(crate) fn run_direct(&mut self, command: SsdCommand) -> headwater_ssd::command::SsdCompletion {
        self.device.submit(DIRECT_FRONT_END, NamespaceId::FIRST, 9, command).expect("test setup");
        self.run_until_idle();
        self.device.next_completion(DIRECT_FRONT_END).expect("test setup")
    }
}

impl HarnessClient {
    pub(crate) fn submit(&mut self, entry: SubmissionEntry) -> CommandId {
        let id = self.queue.pair.submit(entry, ()).expect("test setup");
        let _ = self.queue.pair.ring();
        id
    }

    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> DataPointer {
        self.memory.copy_out(offset, bytes).expect("test setup");
        at(offset, bytes.len())
    }

    pub(crate) fn read(&self, offset: usize, bytes: usize) -> Vec<u8> {
        let mut into = vec![0; bytes];
        self.memory.copy_in(offset, &mut into).expect("test setup");
        into
    }
}

pub(crate) fn at(offset: usize, bytes: usize) -> DataPointer {
    DataPointer { address: BASE + offset as u64, bytes: u32::try_from(bytes).expect("test setup") }
}

pub(crate) fn key(bytes: &[u8]) -> InlineKey {
    InlineKey::new(bytes).expect("test setup")
}
