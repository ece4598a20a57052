//! The transfers of a read of a long value from a cold device: each extent is one, and device DRAM holds no more than the
//! transfers in flight.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use bytes::Bytes;
use headwater_dma::frame::FramePool;
use headwater_dma::pool::Pool;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_host::uring::{FileTransfer, FinishedTransfer, RejectedTransfer};
use headwater_nvme::spec::status::Status;
use headwater_sim::simulated_file::{SimFile, SimRing};
use headwater_ssd::command::{
    FrontEndId, NamespaceId, ReadCaching, ReadRelease, RecordExpiry, SsdCommand, SsdCompletion, ValueReader,
    WriteCondition,
};
use headwater_ssd::engine::{DeviceConfig, SsdDevice, StartTime};
use headwater_ssd::media::file::{FileMedia, OpenAccess, TransferRing, ZeroFillMode, write_new_file};
use headwater_ssd::media::{FlashGeometry, PAGE_DATA_BYTES, PAGES_PER_BLOCK};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

const FRONT_END: FrontEndId = FrontEndId(1);
const START: StartTime = StartTime { now: Nanos::ZERO, wall: UnixMillis(1_000) };
const BLOCKS: u32 = 160;
const VALUE_BYTES: usize = 16 << 20;
const EXTENT: usize = PAGE_DATA_BYTES * PAGES_PER_BLOCK;
const EXTENTS: usize = VALUE_BYTES / EXTENT;
/// Bytes of the slot of a page in the file, and of the slots of an extent.
const SLOT_BYTES: usize = 4_608;
const RUN_BYTES: usize = SLOT_BYTES * PAGES_PER_BLOCK;
/// Bytes of a slab, in which the device takes its frames from the pool.
const SLAB_BYTES: usize = 1 << 20;

/// The way in which a file is opened for the reads, without those that look for zeros ahead of writes.
const COLD: (OpenAccess, ZeroFillMode) = (OpenAccess::ReadWrite, ZeroFillMode::Never);

/// The reads of a ring.
#[derive(Debug, Default)]
struct ReadCounts {
    /// Bytes of each read since the counts were taken last.
    reads: Vec<usize>,
    /// Bytes of each read in flight, by the id of its transfer.
    in_flight: BTreeMap<u64, usize>,
    /// The most bytes of reads in flight together.
    most: usize,
}

/// A ring that counts its reads.
#[derive(Debug)]
struct CountingRing {
    ring: SimRing,
    counts: Arc<Mutex<ReadCounts>>,
}

impl CountingRing {
    fn counts(&self) -> MutexGuard<'_, ReadCounts> {
        self.counts.lock().unwrap()
    }
}

impl TransferRing for CountingRing {
    fn in_flight(&self) -> usize {
        self.ring.in_flight()
    }

    fn room(&self) -> usize {
        self.ring.room()
    }

    fn submit(&mut self, id: u64, transfer: FileTransfer) -> Result<(), RejectedTransfer> {
        let read: Option<usize> = match &transfer {
            FileTransfer::Read { buffers, .. } => Some(buffers.iter().map(|buffer| buffer.len()).sum()),
            _ => None,
        };
        self.ring.submit(id, transfer)?;
        if let Some(bytes) = read {
            let mut counts = self.counts();
            counts.reads.push(bytes);
            counts.in_flight.insert(id, bytes);
            counts.most = counts.most.max(counts.in_flight.values().sum());
        }
        Ok(())
    }

    fn kick(&mut self) {
        self.ring.kick();
    }

    fn poll(&mut self, now: Nanos, done: &mut Vec<FinishedTransfer>) {
        let before = done.len();
        self.ring.poll(now, done);
        let mut counts = self.counts();
        for finished in &done[before..] {
            counts.in_flight.remove(&finished.id);
        }
    }

    fn wait(&mut self, now: Nanos) -> Nanos {
        self.ring.wait(now)
    }

    fn virtual_now(&self) -> Option<Nanos> {
        self.ring.virtual_now()
    }

    fn next_event(&self) -> Option<Nanos> {
        self.ring.next_event()
    }
}

/// A device on a simulated file, whose reads and whose memory are counted.
struct CountedDevice {
    device: SsdDevice<FileMedia<CountingRing>>,
    counts: Arc<Mutex<ReadCounts>>,
    pool: Pool,
    now: Nanos,
}

impl CountedDevice {
    fn open(file: &SimFile, (access, zero_fill): (OpenAccess, ZeroFillMode)) -> Self {
        let counts = Arc::new(Mutex::new(ReadCounts::default()));
        let ring = CountingRing { ring: file.ring(), counts: Arc::clone(&counts) };
        let media = FileMedia::open_over(file, ring, PathBuf::from("flash"), access, zero_fill).unwrap();
        let frames_max = DeviceConfig::default().frames_max;
        let pool = Pool::open(FramePool::pool_config_for(frames_max)).unwrap();
        let config = DeviceConfig { pool: Some(pool.clone()), ..DeviceConfig::default() };
        let device = SsdDevice::open(media, config, START, &mut |_| {}).unwrap();
        Self { device, counts, pool, now: Nanos::ZERO }
    }

    /// Returns the bytes that the device has from its pool.
    fn memory(&self) -> u64 {
        self.pool.statistics().in_use_bytes
    }

    /// Runs one command. Returns its completion, and the most memory that the device had while it ran.
    fn run(&mut self, command: SsdCommand) -> (SsdCompletion, u64) {
        self.device.submit(FRONT_END, NamespaceId::FIRST, 1, command).unwrap();
        let mut most = 0;
        for _ in 0..1_000_000 {
            let moved = self.device.poll(self.now, START.wall);
            most = most.max(self.memory());
            if let Some(completion) = self.device.next_completion(FRONT_END) {
                return (completion, most);
            }
            if !moved {
                let next = self.device.next_deadline().expect("a command is in flight");
                self.now = next.max(self.now.after(Nanos(1)));
            }
        }
        panic!("a command never completes");
    }

    /// Forgets the reads that were counted so far.
    fn forget_reads(&self) {
        let mut counts = self.counts.lock().unwrap();
        counts.reads.clear();
        counts.most = 0;
    }

    /// Asserts that the value was read with one transfer for each of its extents, and at most one for its record, and that
    /// the device held no more memory than `before`, the bytes in flight and a slab on either side.
    fn assert_few_reads(&self, before: u64, most: u64) {
        let counts = self.counts.lock().unwrap();
        let runs = counts.reads.iter().filter(|bytes| **bytes == RUN_BYTES).count();
        assert_eq!(runs, EXTENTS, "{:?}", counts.reads);
        let of_record = counts.reads.len() - runs;
        assert!(of_record <= 1, "{of_record} reads beside those of extents: {:?}", counts.reads);
        assert!(counts.most > 0 && counts.most * 8 <= VALUE_BYTES, "{} bytes in flight", counts.most);
        let bound = before + u64::try_from(counts.most + 2 * SLAB_BYTES).unwrap();
        assert!(most <= bound, "{most} bytes held, {before} before, {} in flight", counts.most);
    }
}

fn key() -> Bytes {
    Bytes::from_static(b"long")
}

/// Returns a file with a value of 16 MiB, as a device closed it, and the value.
fn closed_file() -> (SimFile, Vec<u8>) {
    let geometry = FlashGeometry::with_blocks(BLOCKS);
    let file = SimFile::allocated(geometry, 3);
    write_new_file(&file, geometry, *b"0123456789abcdef").unwrap();
    let mut value = vec![0; VALUE_BYTES];
    fastrand::Rng::with_seed(11).fill(&mut value);
    let mut counted = CountedDevice::open(&file, (OpenAccess::New, ZeroFillMode::Ahead));
    let (condition, expiry) = (WriteCondition::Always, RecordExpiry::Never);
    let store = SsdCommand::Store { key: key(), value: value.clone().into(), condition, expiry };
    assert_eq!(counted.run(store).0.status, Status::SUCCESS);
    counted.device.shutdown(counted.now, START.wall).unwrap();
    drop(counted);
    (file.snapshot(), value)
}

#[test]
fn a_cold_value_of_16_mib_is_read_with_one_transfer_for_each_extent() {
    let (file, value) = closed_file();
    let mut counted = CountedDevice::open(&file, COLD);
    for _ in 0..2 {
        counted.forget_reads();
        let before = counted.memory();
        let (sink, release) = (Vec::new().into(), ReadRelease::WhenDurable);
        let (offset, caching) = (0, ReadCaching::ByLength);
        let retrieve =
            SsdCommand::Retrieve { key: key(), sink, bytes_max: u32::MAX, offset, caching, release };
        let (found, most) = counted.run(retrieve);
        assert_eq!(found.status, Status::SUCCESS);
        assert!(found.sink == value, "the value has other bytes");
        // The second read is as cold: extents stay out of the page cache.
        counted.assert_few_reads(before, most);
    }
    assert_eq!(file.misuse(), None);
}

#[test]
fn a_cold_value_that_is_read_in_parts_takes_no_more_transfers() {
    let (file, value) = closed_file();
    // Parts as a front end asks for them.
    for part_bytes in [EXTENT, 2 * EXTENT, 4 * EXTENT] {
        let mut counted = CountedDevice::open(&file.snapshot(), COLD);
        counted.forget_reads();
        let before = counted.memory();
        let reader = ValueReader::new(1);
        let open = SsdCommand::OpenValue { key: key(), reader: reader.clone() };
        assert_eq!(counted.run(open).0.status, Status::SUCCESS);
        let (mut read, mut most_held) = (Vec::new(), 0);
        while read.len() < value.len() {
            let bytes_max = u32::try_from(part_bytes).unwrap();
            let (reader, offset) = (reader.clone(), u32::try_from(read.len()).unwrap());
            let part = SsdCommand::ReadPart { reader, offset, sink: Vec::new(), bytes_max };
            let (part, most) = counted.run(part);
            assert_eq!(part.status, Status::SUCCESS, "behind {} bytes", read.len());
            assert!(!part.sink.is_empty(), "no byte behind {} bytes", read.len());
            read.extend_from_slice(&part.sink);
            most_held = most.max(most_held);
        }
        assert!(read == value, "the value has other bytes in parts of {part_bytes}");
        counted.assert_few_reads(before, most_held);
    }
}

#[test]
fn a_part_of_a_cold_value_reads_nothing_that_lies_in_front_of_it() {
    let (file, value) = closed_file();
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..8 {
        let mut counted = CountedDevice::open(&file.snapshot(), COLD);
        counted.forget_reads();
        let reader = ValueReader::new(1);
        let open = SsdCommand::OpenValue { key: key(), reader: reader.clone() };
        assert_eq!(counted.run(open).0.status, Status::SUCCESS);
        let (start, bytes) = (random.usize(..VALUE_BYTES), random.usize(1..=2 * EXTENT));
        let (offset, bytes_max) = (u32::try_from(start).unwrap(), u32::try_from(bytes).unwrap());
        let (part, _) = counted.run(SsdCommand::ReadPart { reader, offset, sink: Vec::new(), bytes_max });
        assert_eq!(part.status, Status::SUCCESS, "seed {seed}: {bytes} bytes from {start} on");
        let end = start + part.sink.len();
        assert!(end > start && part.sink == value[start..end], "seed {seed}: other bytes from {start} on");
        // The pages of the part, and those of the record.
        let pages = end.div_ceil(PAGE_DATA_BYTES) - start / PAGE_DATA_BYTES + 2;
        let read: usize = counted.counts.lock().unwrap().reads.iter().sum();
        assert!(read <= pages * SLOT_BYTES, "seed {seed}: {read} bytes for a part of {pages} pages");
    }
}
