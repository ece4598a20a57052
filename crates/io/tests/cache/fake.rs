//! A fake device that completes in any order, fails on request, and loses data that is not durable at a power cut.
//!
//! Input: transfers. Output: completions, drawn from a seed. Invariant: the bytes of a write do not change while it is
//! in flight: the device reads them twice.

use headwater_dma::iova::Iova;
use headwater_host::clock::Nanos;
use headwater_host::foreign::Foreign;
use headwater_io::Buffer;
use headwater_io::cache::{
    Cache, CacheConfig, Done, Finished, Kind, Lower, LowerLimits, NotTaken, Owner, Request, Shape, Submitted,
    Transfer,
};
use headwater_io::command::Durable;
use headwater_io::error::IoError;
use headwater_nvme::spec::status::Status;

pub(crate) struct Fake {
    /// The data that reads return.
    pub(crate) now: Vec<u8>,
    /// The data that survive a power cut.
    pub(crate) durable: Vec<u8>,
    pub(crate) limits: LowerLimits,
    pub(crate) random: fastrand::Rng,
    /// Failures per 1000 reads; `failing_writes` for all other transfers.
    pub(crate) failing_reads: u32,
    pub(crate) failing_writes: u32,
    /// The range whose transfers of this kind always fail.
    pub(crate) broken: Option<(std::ops::Range<u64>, Kind)>,
    pub(crate) depth: usize,
    /// Transfers complete only while this is true.
    pub(crate) answering: bool,
    pub(crate) gone: bool,
    /// True if some transfers take effect at submission and complete later.
    pub(crate) hasty: bool,
    /// Every accepted transfer: kind, offset, bytes.
    pub(crate) log: Vec<(Kind, u64, u64)>,
    flying: Vec<Flying>,
}

struct Flying {
    ticket: u64,
    transfer: Transfer,
    seen: Vec<u8>,
    /// The data that a flush makes durable: the device's data at its submission.
    image: Vec<u8>,
    /// The result of a transfer that took effect at submission.
    outcome: Option<Status>,
}

impl Fake {
    pub(crate) fn new(bytes: usize, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let now: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(bytes).collect();
        let limits =
            LowerLimits { transfer_bytes_max: 128 * 4_096, segments_max: 128, range_bytes_max: 1 << 20 };
        Self {
            durable: now.clone(),
            now,
            limits,
            random,
            failing_reads: 0,
            failing_writes: 0,
            broken: None,
            depth: 16,
            answering: true,
            gone: false,
            hasty: true,
            log: Vec::new(),
            flying: Vec::new(),
        }
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.flying.len()
    }

    pub(crate) fn count(&self, kind: Kind) -> usize {
        self.log.iter().filter(|(of, ..)| *of == kind).count()
    }

    fn fails(&mut self, transfer: &Transfer) -> bool {
        let per_mille = match transfer.kind {
            Kind::Read => self.failing_reads,
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
    fn carry_out(&mut self, flying: &Flying) -> Status {
        let Flying { transfer, seen, image, .. } = flying;
        let fails = self.fails(transfer);
        let from = usize::try_from(transfer.offset).unwrap();
        let bytes = usize::try_from(transfer.bytes).unwrap();
        // A failed transfer may have done part of its work, in whole blocks of 512 bytes.
        let done = if fails { self.random.usize(0..=bytes / 512) * 512 } else { bytes };
        match transfer.kind {
            Kind::Read if fails => scatter(&transfer.segments, &vec![0xEE; bytes]),
            Kind::Read => scatter(&transfer.segments, &self.now[from..from + bytes]),
            Kind::Write => {
                self.now[from..from + done].copy_from_slice(&seen[..done]);
                if transfer.durable == Durable::Now {
                    // A flush submitted before this write and completed after it does not undo it.
                    let images = self.flying.iter_mut().filter(|flying| flying.transfer.kind == Kind::Flush);
                    let durable =
                        std::iter::once(&mut self.durable).chain(images.map(|flush| &mut flush.image));
                    durable.for_each(|to| to[from..from + done].copy_from_slice(&seen[..done]));
                }
            }
            Kind::Zeroes => self.now[from..from + done].fill(0),
            Kind::Discard => self.now[from..from + done].fill(0xDD),
            Kind::Flush if !fails => self.durable.clone_from(image),
            Kind::Flush => {}
        }
        if fails { Status::INTERNAL_ERROR } else { Status::SUCCESS }
    }

    fn finish(&mut self, flying: Flying) -> Done {
        if flying.transfer.kind == Kind::Write {
            assert_eq!(gather(&flying.transfer.segments), flying.seen, "a write in flight changed");
        }
        let status = flying.outcome.unwrap_or_else(|| self.carry_out(&flying));
        Done { ticket: flying.ticket, status }
    }
}

impl Lower for Fake {
    fn limits(&self) -> LowerLimits {
        self.limits
    }

    fn submit(&mut self, transfer: Transfer, ticket: u64) -> Result<(), NotTaken> {
        if self.flying.len() >= self.depth {
            return Err(NotTaken::Full(transfer));
        }
        let segments: usize = transfer.segments.iter().map(Buffer::bytes).sum();
        if matches!(transfer.kind, Kind::Read | Kind::Write) {
            assert_eq!(u64::try_from(segments).unwrap(), transfer.bytes);
            assert!(segments <= self.limits.transfer_bytes_max);
            assert!(transfer.segments.len() <= self.limits.segments_max);
        }
        assert!(transfer.offset.is_multiple_of(512) && transfer.bytes.is_multiple_of(512));
        assert!(transfer.offset + transfer.bytes <= u64::try_from(self.now.len()).unwrap());
        if self.failing_writes + self.failing_reads > 0 && self.random.u32(0..200) == 0 {
            return Err(NotTaken::Failed(Status::INTERNAL_ERROR));
        }
        self.log.push((transfer.kind, transfer.offset, transfer.bytes));
        let seen = if transfer.kind == Kind::Write { gather(&transfer.segments) } else { Vec::new() };
        let image = if transfer.kind == Kind::Flush { self.now.clone() } else { Vec::new() };
        let mut flying = Flying { ticket, transfer, seen, image, outcome: None };
        if self.hasty && flying.transfer.kind != Kind::Flush && self.random.bool() {
            flying.outcome = Some(self.carry_out(&flying));
        }
        self.flying.push(flying);
        Ok(())
    }

    fn poll(&mut self) -> Result<Option<Done>, Status> {
        if self.gone {
            return Err(Status::NAMESPACE_NOT_READY);
        }
        if self.flying.is_empty() || !self.answering || self.random.u32(0..4) == 0 {
            return Ok(None);
        }
        let at = self.random.usize(0..self.flying.len());
        let flying = self.flying.swap_remove(at);
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
    let memory = Foreign::anonymous(bytes.len().max(1)).unwrap();
    let buffer = Buffer::whole(memory, Iova(0)).slice(0, bytes.len()).unwrap();
    buffer.write(0, bytes).unwrap();
    buffer
}

pub(crate) fn memory(bytes: usize) -> Result<Buffer, IoError> {
    Ok(Buffer::whole(Foreign::anonymous(bytes)?, Iova(0)))
}

/// A cache, its backing device, and one user.
pub(crate) struct Rig {
    pub(crate) cache: Cache,
    pub(crate) lower: Fake,
    pub(crate) owner: Owner,
    pub(crate) now: Nanos,
    token: u64,
}

pub(crate) fn small() -> CacheConfig {
    CacheConfig { pages: 16, block_pages: 4, write_backs: 4, ahead_pages: 0, ..CacheConfig::default() }
}

impl Rig {
    pub(crate) fn new(bytes: usize, config: CacheConfig, seed: u64) -> Self {
        let shape = Shape { device_bytes: u64::try_from(bytes).unwrap(), block_bytes: 512 };
        let mut cache = Cache::new(shape, config, &mut memory).unwrap();
        let owner = cache.join();
        Self { cache, lower: Fake::new(bytes, seed), owner, now: Nanos::ZERO, token: 0 }
    }

    pub(crate) fn submit(&mut self, request: Request) -> Submitted {
        self.token += 1;
        self.cache.submit(&mut self.lower, self.owner, request, self.token).unwrap()
    }

    pub(crate) fn turn(&mut self) {
        self.cache.turn(&mut self.lower, self.now);
    }

    /// Submits a request and waits until it finishes.
    pub(crate) fn run(&mut self, request: Request) -> Finished {
        match self.submit(request) {
            Submitted::Done(finished) => finished,
            Submitted::Later => self.wait(),
        }
    }

    pub(crate) fn wait(&mut self) -> Finished {
        for _ in 0..100_000 {
            self.turn();
            if let Some(finished) = self.cache.take(self.owner) {
                return finished;
            }
        }
        panic!("a request does not finish");
    }

    pub(crate) fn read(&mut self, offset: u64, bytes: usize) -> Vec<u8> {
        let finished = self.run(Request::Read { offset, into: buffer(&vec![0x99; bytes]) });
        assert_eq!(finished.status, Status::SUCCESS);
        bytes_of(&finished.data.unwrap())
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> Status {
        self.run(write(offset, bytes)).status
    }

    pub(crate) fn flush(&mut self) -> Status {
        self.run(Request::Flush).status
    }

    pub(crate) fn resize(&mut self, pages: usize) -> Status {
        match self.cache.resize(&mut self.lower, self.owner, (pages, 0), &mut memory).unwrap() {
            Submitted::Done(finished) => finished.status,
            Submitted::Later => self.wait().status,
        }
    }
}

pub(crate) fn write(offset: u64, bytes: &[u8]) -> Request {
    Request::Write { offset, from: buffer(bytes), durable: Durable::AsPromised }
}
