//! A fake device that completes in any order, fails on request, and loses data that is not durable at a power cut.
//!
//! Input: transfers. Output: completions, drawn from a seed. Invariant: the bytes of a write do not change while it is
//! in flight: the device reads them twice.

use headwater_dma::iova::Iova;
use headwater_host::clock::Nanos;
use headwater_host::shared_memory::SharedMemory;
use headwater_io::Buffer;
use headwater_io::cache::{
    BackingDevice, BackingLimits, BackingTransfer, BlockCache, CacheConfig, CacheRequest, CacheUser,
    DeviceShape, FinishedRequest, SubmitResult, TransferCompletion, TransferKind, TransferRefusal,
};
use headwater_io::command::WriteDurability;
use headwater_io::error::IoError;
use headwater_nvme::spec::status::Status;

pub(crate) struct FakeDevice {
    /// The data that reads return.
    pub(crate) now: Vec<u8>,
    /// The data that survive a power cut.
    pub(crate) durable: Vec<u8>,
    pub(crate) limits: BackingLimits,
    pub(crate) random: fastrand::Rng,
    /// Failures per 1000 reads; `failing_writes` for all other transfers.
    pub(crate) failing_reads: u32,
    pub(crate) failing_writes: u32,
    /// The range whose transfers of this kind always fail.
    pub(crate) broken: Option<(std::ops::Range<u64>, TransferKind)>,
    pub(crate) depth: usize,
    /// Transfers complete only while this is true.
    pub(crate) completing: bool,
    pub(crate) gone: bool,
    /// True if some transfers take effect at submission and complete later.
    pub(crate) early_effects: bool,
    /// Every accepted transfer: kind, offset, bytes.
    pub(crate) log: Vec<(TransferKind, u64, u64)>,
    in_flight: Vec<FakeTransfer>,
}

struct FakeTransfer {
    ticket: u64,
    transfer: BackingTransfer,
    seen: Vec<u8>,
    /// The data that a flush makes durable: the device's data at its submission.
    image: Vec<u8>,
    /// The result of a transfer that took effect at submission.
    outcome: Option<Status>,
}

impl FakeDevice {
    pub(crate) fn new(bytes: usize, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let now: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(bytes).collect();
        let limits =
            BackingLimits { transfer_bytes_max: 128 * 4_096, segments_max: 128, range_bytes_max: 1 << 20 };
        Self {
            durable: now.clone(),
            now,
            limits,
            random,
            failing_reads: 0,
            failing_writes: 0,
            broken: None,
            depth: 16,
            completing: true,
            gone: false,
            early_effects: true,
            log: Vec::new(),
            in_flight: Vec::new(),
        }
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    pub(crate) fn count(&self, kind: TransferKind) -> usize {
        self.log.iter().filter(|(of, ..)| *of == kind).count()
    }

    fn fails(&mut self, transfer: &BackingTransfer) -> bool {
        let per_mille = match transfer.kind {
            TransferKind::Read => self.failing_reads,
            _ => self.failing_writes,
        };
        let hit = self.broken.as_ref().is_some_and(|(range, kind)| {
            *kind == transfer.kind
                && range.start < transfer.offset + transfer.bytes
                && transfer.offset < range.end
        });
        hit || self.random.u32(0..1_000) < per_mille
    }

    /// Executes a transfer.
    fn execute(&mut self, flying: &FakeTransfer) -> Status {
        let FakeTransfer { transfer, seen, image, .. } = flying;
        let fails = self.fails(transfer);
        let from = usize::try_from(transfer.offset).unwrap();
        let bytes = usize::try_from(transfer.bytes).unwrap();
        // A failed transfer may have done part of its work, in whole blocks of 512 bytes.
        let done = if fails { self.random.usize(0..=bytes / 512) * 512 } else { bytes };
        match transfer.kind {
            TransferKind::Read if fails => scatter(&transfer.segments, &vec![0xEE; bytes]),
            TransferKind::Read => scatter(&transfer.segments, &self.now[from..from + bytes]),
            TransferKind::Write => {
                self.now[from..from + done].copy_from_slice(&seen[..done]);
                if transfer.durable == WriteDurability::Immediate {
                    // A flush submitted before this write and completed after it does not undo it.
                    let images = self
                        .in_flight
                        .iter_mut()
                        .filter(|flying| flying.transfer.kind == TransferKind::Flush);
                    let durable =
                        std::iter::once(&mut self.durable).chain(images.map(|flush| &mut flush.image));
                    durable.for_each(|to| to[from..from + done].copy_from_slice(&seen[..done]));
                }
            }
            TransferKind::Zeroes => self.now[from..from + done].fill(0),
            TransferKind::Discard => self.now[from..from + done].fill(0xDD),
            TransferKind::Flush if !fails => self.durable.clone_from(image),
            TransferKind::Flush => {}
        }
        if fails { Status::INTERNAL_ERROR } else { Status::SUCCESS }
    }

    fn finish(&mut self, flying: FakeTransfer) -> TransferCompletion {
        if flying.transfer.kind == TransferKind::Write {
            assert_eq!(gather(&flying.transfer.segments), flying.seen, "a write in flight changed");
        }
        let status = flying.outcome.unwrap_or_else(|| self.execute(&flying));
        TransferCompletion { ticket: flying.ticket, status }
    }
}

impl BackingDevice for FakeDevice {
    fn limits(&self) -> BackingLimits {
        self.limits
    }

    fn submit(&mut self, transfer: BackingTransfer, ticket: u64) -> Result<(), TransferRefusal> {
        if self.in_flight.len() >= self.depth {
            return Err(TransferRefusal::Full(transfer));
        }
        let segments: usize = transfer.segments.iter().map(Buffer::bytes).sum();
        if matches!(transfer.kind, TransferKind::Read | TransferKind::Write) {
            assert_eq!(u64::try_from(segments).unwrap(), transfer.bytes);
            assert!(segments <= self.limits.transfer_bytes_max);
            assert!(transfer.segments.len() <= self.limits.segments_max);
        }
        assert!(transfer.offset.is_multiple_of(512) && transfer.bytes.is_multiple_of(512));
        assert!(transfer.offset + transfer.bytes <= u64::try_from(self.now.len()).unwrap());
        if self.failing_writes + self.failing_reads > 0 && self.random.u32(0..200) == 0 {
            return Err(TransferRefusal::Failed(Status::INTERNAL_ERROR));
        }
        self.log.push((transfer.kind, transfer.offset, transfer.bytes));
        let seen = if transfer.kind == TransferKind::Write { gather(&transfer.segments) } else { Vec::new() };
        let image = if transfer.kind == TransferKind::Flush { self.now.clone() } else { Vec::new() };
        let mut flying = FakeTransfer { ticket, transfer, seen, image, outcome: None };
        if self.early_effects && flying.transfer.kind != TransferKind::Flush && self.random.bool() {
            flying.outcome = Some(self.execute(&flying));
        }
        self.in_flight.push(flying);
        Ok(())
    }

    fn poll(&mut self) -> Result<Option<TransferCompletion>, Status> {
        if self.gone {
            return Err(Status::NAMESPACE_NOT_READY);
        }
        if self.in_flight.is_empty() || !self.completing || self.random.u32(0..4) == 0 {
            return Ok(None);
        }
        let at = self.random.usize(0..self.in_flight.len());
        let flying = self.in_flight.swap_remove(at);
        Ok(Some(self.finish(flying)))
    }
}

fn gather(segments: &[Buffer]) -> Vec<u8> {
    segments.iter().flat_map(bytes_of).collect()
}

fn scatter(segments: &[Buffer], mut bytes: &[u8]) {
    for segment in segments {
        let (now, rest) = bytes.split_at(segment.bytes());
        segment.write(0, now).unwrap();
        bytes = rest;
    }
}

pub(crate) fn bytes_of(buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.bytes()];
    buffer.read(0, &mut bytes).unwrap();
    bytes
}

pub(crate) fn buffer(bytes: &[u8]) -> Buffer {
    let memory = SharedMemory::anonymous(bytes.len().max(1)).unwrap();
    let buffer = Buffer::from_region(memory, Iova(0)).slice(0, bytes.len()).unwrap();
    buffer.write(0, bytes).unwrap();
    buffer
}

pub(crate) fn memory(bytes: usize) -> Result<Buffer, IoError> {
    Ok(Buffer::from_region(SharedMemory::anonymous(bytes)?, Iova(0)))
}

/// A cache, its backing device, and one user.
pub(crate) struct CacheRig {
    pub(crate) cache: BlockCache,
    pub(crate) lower: FakeDevice,
    pub(crate) owner: CacheUser,
    pub(crate) now: Nanos,
    token: u64,
}

pub(crate) fn small_config() -> CacheConfig {
    CacheConfig { pages: 16, block_pages: 4, write_backs: 4, prefetch_pages: 0, ..CacheConfig::default() }
}

impl CacheRig {
    pub(crate) fn new(bytes: usize, config: CacheConfig, seed: u64) -> Self {
        let shape = DeviceShape { device_bytes: u64::try_from(bytes).unwrap(), block_bytes: 512 };
        let mut cache = BlockCache::new(shape, config, &mut memory).unwrap();
        let owner = cache.join();
        Self { cache, lower: FakeDevice::new(bytes, seed), owner, now: Nanos::ZERO, token: 0 }
    }

    pub(crate) fn submit(&mut self, request: CacheRequest) -> SubmitResult {
        self.token += 1;
        self.cache.submit(&mut self.lower, self.owner, request, self.token).unwrap()
    }

    pub(crate) fn turn(&mut self) {
        self.cache.poll(&mut self.lower, self.now);
    }

    /// Submits a request and waits until it finishes.
    pub(crate) fn run(&mut self, request: CacheRequest) -> FinishedRequest {
        match self.submit(request) {
            SubmitResult::Done(finished) => finished,
            SubmitResult::Pending => self.wait(),
        }
    }

    pub(crate) fn wait(&mut self) -> FinishedRequest {
        for _ in 0..100_000 {
            self.turn();
            if let Some(finished) = self.cache.take_finished(self.owner) {
                return finished;
            }
        }
        panic!("a request does not finish");
    }

    pub(crate) fn read(&mut self, offset: u64, bytes: usize) -> Vec<u8> {
        let finished = self.run(CacheRequest::Read { offset, into: buffer(&vec![0x99; bytes]) });
        assert_eq!(finished.status, Status::SUCCESS);
        bytes_of(&finished.data.unwrap())
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> Status {
        self.run(write(offset, bytes)).status
    }

    pub(crate) fn flush(&mut self) -> Status {
        self.run(CacheRequest::Flush).status
    }

    pub(crate) fn resize(&mut self, pages: usize) -> Status {
        match self.cache.resize(&mut self.lower, self.owner, (pages, 0), &mut memory).unwrap() {
            SubmitResult::Done(finished) => finished.status,
            SubmitResult::Pending => self.wait().status,
        }
    }
}

pub(crate) fn write(offset: u64, bytes: &[u8]) -> CacheRequest {
    CacheRequest::Write { offset, from: buffer(bytes), durable: WriteDurability::NamespaceDefault }
}
