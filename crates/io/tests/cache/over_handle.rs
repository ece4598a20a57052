//! Tests of a cache over a handle with one queue: it sends NVMe commands inside the blocks that this client may access.

use crate::fake::{buffer, bytes_of, memory, small_config, write};
use headwater_host::clock::Nanos;
use headwater_io::backend::{ArmResult, CompletedCommand, IoLimits};
use headwater_io::cache::{
    BlockCache, CacheRequest, CacheUser, DISCARD_LISTS_BYTES, FinishedRequest, HandleBacking, SubmitResult,
};
use headwater_io::command::{TransferData, WriteDurability};
use headwater_io::error::{RejectedCommand, SubmitError};
use headwater_io::queue::Completion;
use headwater_io::{ClientNamespace, Command, Handle, IoError, Queue, QueueTransport};
use headwater_nvme::spec::status::Status;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

pub(crate) const BLOCK: usize = 512;
pub(crate) const FIRST: u64 = 3;
const BLOCKS: u64 = 200;

/// A block device that decodes the commands it receives.
#[derive(Debug)]
pub(crate) struct BlockDevice {
    bytes: Arc<Mutex<Vec<u8>>>,
    in_flight: VecDeque<(Command, u64)>,
    depth: usize,
    controls: Arc<DeviceControls>,
}

/// The commands that a device accepted, and the disturbances that a test causes.
#[derive(Debug, Default)]
pub(crate) struct DeviceControls {
    /// Opcode and first block of each accepted command.
    pub(crate) log: Mutex<Vec<(u8, u64)>>,
    /// Commands complete only while this is false.
    pub(crate) held: AtomicBool,
    /// Writes fail while this is true.
    pub(crate) failing: AtomicBool,
}

impl DeviceControls {
    /// Takes the first blocks of the commands with an opcode since the last call.
    pub(crate) fn taken(&self, opcode: u8) -> Vec<u64> {
        let log = std::mem::take(&mut *self.log.lock().unwrap());
        log.into_iter().filter(|(of, _)| *of == opcode).map(|(_, lba)| lba).collect()
    }
}

fn lba_of(command: &Command) -> u64 {
    u64::from(command.entry.cdw10.get()) | (u64::from(command.entry.cdw11.get()) << 32)
}

impl BlockDevice {
    fn execute(&mut self, command: &Command) -> Status {
        let entry = &command.entry;
        let mut bytes = self.bytes.lock().unwrap();
        let lba = lba_of(command);
        if entry.opcode == 1 && self.controls.failing.load(Ordering::Relaxed) {
            return Status::INTERNAL_ERROR;
        }
        let blocks = u64::from(entry.cdw12.get() & 0xFFFF) + 1;
        let inside =
            |lba: u64, blocks: u64| (FIRST..=FIRST + BLOCKS).contains(&lba) && lba + blocks <= FIRST + BLOCKS;
        let byte_offset = |lba: u64| usize::try_from(lba).unwrap() * BLOCK;
        let known = matches!(entry.opcode, 0 | 9);
        assert!(known || inside(lba, blocks), "{blocks} blocks from {lba} on belong to another client");
        let mut at = byte_offset(lba);
        match (entry.opcode, &command.data) {
            (0, TransferData::None) => {}
            (1 | 2, data) => {
                assert_eq!(data.bytes(), byte_offset(blocks));
                for segment in data.buffers() {
                    let range = at..at + segment.bytes();
                    if entry.opcode == 1 {
                        bytes[range.clone()].copy_from_slice(&bytes_of(segment));
                    } else {
                        segment.write(0, &bytes[range.clone()]).unwrap();
                    }
                    at = range.end;
                }
            }
            (8, TransferData::None) => bytes[at..at + byte_offset(blocks)].fill(0),
            (9, TransferData::ToDevice(list)) => {
                let list = bytes_of(list);
                let blocks = u64::from(u32::from_le_bytes(list[4..8].try_into().unwrap()));
                let lba = u64::from_le_bytes(list[8..].try_into().unwrap());
                assert!(inside(lba, blocks), "a discard exceeds this client's blocks");
                bytes[byte_offset(lba)..byte_offset(lba + blocks)].fill(0xDD);
            }
            (opcode, data) => panic!("opcode {opcode} with {data:?}"),
        }
        Status::SUCCESS
    }
}

impl QueueTransport for BlockDevice {
    fn limits(&self) -> IoLimits {
        IoLimits { transfer_bytes_max: 16_384, segments_max: 2, memory_align: 4 }
    }

    fn submit(&mut self, command: Command, token: u64) -> Result<(), RejectedCommand> {
        if self.in_flight.len() >= self.depth {
            return Err(RejectedCommand { command, reason: SubmitError::Full });
        }
        self.controls.log.lock().unwrap().push((command.entry.opcode, lba_of(&command)));
        self.in_flight.push_back((command, token));
        Ok(())
    }

    fn ring(&mut self) -> Result<(), IoError> {
        Ok(())
    }

    fn reap(&mut self) -> Result<Option<CompletedCommand>, IoError> {
        if self.controls.held.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let Some((command, token)) = self.in_flight.pop_front() else { return Ok(None) };
        let status = self.execute(&command);
        Ok(Some(CompletedCommand { completion: Completion { token, result: 0, status }, data: command.data }))
    }

    fn sleep(&mut self, _: Option<Nanos>) -> Result<(), IoError> {
        Ok(())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn arm(&mut self) -> Result<ArmResult, IoError> {
        Ok(ArmResult::Ready)
    }

    fn visit_tokens(&mut self, visit: &mut dyn FnMut(&mut u64)) {
        self.in_flight.iter_mut().for_each(|(_, token)| visit(token));
    }

    fn in_flight(&self) -> u32 {
        u32::try_from(self.in_flight.len()).unwrap()
    }

    fn depth(&self) -> u32 {
        u32::try_from(self.depth).unwrap()
    }
}

/// Returns a device and its bytes.
pub(crate) fn device() -> (BlockDevice, Arc<Mutex<Vec<u8>>>) {
    let bytes = Arc::new(Mutex::new(vec![0xAA; usize::try_from(FIRST + BLOCKS + 5).unwrap() * BLOCK]));
    (queue_of(&bytes).0, bytes)
}

/// Returns another queue of a device.
pub(crate) fn queue_of(bytes: &Arc<Mutex<Vec<u8>>>) -> (BlockDevice, Arc<DeviceControls>) {
    let controls = Arc::new(DeviceControls::default());
    let (bytes, in_flight) = (Arc::clone(bytes), VecDeque::new());
    (BlockDevice { bytes, in_flight, depth: 3, controls: Arc::clone(&controls) }, controls)
}

/// Returns the middle of the device, which this client may access.
pub(crate) fn facts() -> ClientNamespace {
    ClientNamespace {
        id: 1,
        block_bytes: u32::try_from(BLOCK).unwrap(),
        size: FIRST + BLOCKS + 5,
        writable: true,
        blocks: Some((FIRST, FIRST + BLOCKS)),
        retrieve_options: false,
    }
}

struct HandleCacheRig {
    cache: BlockCache,
    lower: HandleBacking,
    owner: CacheUser,
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl HandleCacheRig {
    fn new() -> Self {
        let (device, bytes) = device();
        let facts = facts();
        let lists = memory(DISCARD_LISTS_BYTES).unwrap();
        let handle = Handle::builder(&facts).queue(Queue::over(Box::new(device))).build().unwrap();
        let lower = HandleBacking::new(handle, &facts, &lists).unwrap();
        let mut cache = BlockCache::new(lower.shape(), small_config(), &mut memory).unwrap();
        let owner = cache.join();
        Self { cache, lower, owner, bytes }
    }

    fn run(&mut self, request: CacheRequest) -> FinishedRequest {
        match self.cache.submit(&mut self.lower, self.owner, request, 1).unwrap() {
            SubmitResult::Done(finished) => finished,
            SubmitResult::Pending => loop {
                self.cache.poll(&mut self.lower, Nanos::ZERO);
                if let Some(finished) = self.cache.take_finished(self.owner) {
                    break finished;
                }
            },
        }
    }
}

#[test]
fn byte_requests_become_commands_inside_this_clients_blocks() {
    let mut rig = HandleCacheRig::new();
    let bytes = usize::try_from(BLOCKS).unwrap() * BLOCK;
    let mut wanted = vec![0xAA; bytes];
    let mut random = fastrand::Rng::with_seed(11);
    for _ in 0..300 {
        let start = random.usize(0..bytes);
        let length = random.usize(1..9_000).min(bytes - start);
        let byte = random.u8(..);
        let offset = u64::try_from(start).unwrap();
        let blocks = u64::try_from(start / BLOCK * BLOCK).unwrap();
        match random.u32(0..10) {
            0 => {
                assert!(
                    rig.run(CacheRequest::Zeroes {
                        offset: blocks,
                        bytes: 512,
                        durable: WriteDurability::NamespaceDefault
                    })
                    .status
                    .is_success()
                );
                wanted[start / BLOCK * BLOCK..][..BLOCK].fill(0);
            }
            1 => {
                assert!(rig.run(CacheRequest::Discard { offset: blocks, bytes: 512 }).status.is_success());
                let read = rig.run(CacheRequest::Read { offset: blocks, into: buffer(&[0; BLOCK]) });
                wanted[start / BLOCK * BLOCK..][..BLOCK].copy_from_slice(&bytes_of(&read.data.unwrap()));
            }
            2..6 => {
                let read = rig.run(CacheRequest::Read { offset, into: buffer(&vec![0; length]) });
                assert!(bytes_of(&read.data.unwrap()) == wanted[start..start + length]);
            }
            _ => {
                assert!(rig.run(write(offset, &vec![byte; length])).status.is_success());
                wanted[start..start + length].fill(byte);
            }
        }
    }
    assert!(rig.run(CacheRequest::Flush).status.is_success());
    let device = rig.bytes.lock().unwrap();
    let first = usize::try_from(FIRST).unwrap() * BLOCK;
    assert!(device[first..first + bytes] == wanted);
    assert!(device[..first].iter().chain(&device[first + bytes..]).all(|&byte| byte == 0xAA));
}

#[test]
fn discards_reuse_their_lists() {
    let mut rig = HandleCacheRig::new();
    for round in 0..1_000 {
        let offset = round % BLOCKS * 512;
        assert!(rig.run(CacheRequest::Discard { offset, bytes: 512 }).status.is_success());
    }
}
