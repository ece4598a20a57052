//! A simulated file beneath the real file medium: sectors, a volatile cache, syncs, virtual time, faults.
//!
//! Input: the transfers of a [`FileMedia`](headwater_ssd::media::file::FileMedia), a [`PowerCut`], injected errors and
//! lies. Output: completions in virtual time, in any order; the file as a power cut leaves it. Invariant: a sync makes
//! durable exactly the writes that were answered before it was submitted; the same seed gives the same run.
//!
//! A transfer that a disk would refuse or whose outcome is undefined (not in whole sectors, two writes of one place at a
//! time) is recorded as [`FileMisuse`].

mod cached_bytes;
mod damage;
mod journal;
mod ring;
mod sector_store;

pub use damage::{FileDamage, FileMoment};
pub use journal::FileJournal;
pub use ring::SimRing;
pub use sector_store::{PHYSICAL_SECTOR_BYTES, SECTOR_BYTES};

use crate::events::EventQueue;
use crate::faults::{DamagePlan, FaultyOperation, LyingProgram, OperationError, PowerCut, ProgramLie};
use cached_bytes::CachedBytes;
use headwater_host::clock::Nanos;
use headwater_host::uring::FinishedTransfer;
use headwater_ssd::media::file::StartupFile;
use headwater_ssd::media::file::zones::{FileZones, ZoneOwner};
use headwater_ssd::media::{BlockId, FlashGeometry, PageAddress};
use journal::FileEvent;
use ring::InFlight;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes on either side of a write within which lies every structure that it overlaps.
const REACH: u64 = 8_192;
/// The kernel's number of an input/output error.
const EIO: i32 = 5;

/// A transfer with which the medium violates the rules of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileMisuse {
    /// A buffer or an offset is not a multiple of a sector, which direct I/O refuses.
    #[error("transfer at byte {offset} is not in whole aligned sectors: fix the file medium")]
    Misaligned {
        /// The first byte.
        offset: u64,
    },
    /// A write reaches beyond the end of the file.
    #[error("write at byte {offset} reaches beyond the end of the file: fix the file medium")]
    BeyondEnd {
        /// The first byte.
        offset: u64,
    },
    /// A write overlaps another one that is in flight: their order is undefined.
    #[error("write at byte {offset} overlaps one in flight: fix the file medium")]
    WriteRace {
        /// The first byte.
        offset: u64,
    },
}

/// A handle to a simulated file. Clones are handles to the same file.
#[derive(Clone, Debug)]
pub struct SimFile {
    state: Arc<Mutex<SimFileState>>,
}

#[derive(Debug)]
struct SimFileState {
    bytes: CachedBytes,
    rng: fastrand::Rng,
    now: Nanos,
    steps: EventQueue<u64>,
    in_flight: BTreeMap<u64, InFlight>,
    ready: VecDeque<(u64, FinishedTransfer)>,
    next_id: u64,
    points: u64,
    cut_point: Option<u64>,
    cut_time: Option<Nanos>,
    power_lost: bool,
    misuse: Option<FileMisuse>,
    /// Number of operations so far, by [`FaultyOperation`].
    operations: [u64; 4],
    error: Option<OperationError>,
    lie: Option<LyingProgram>,
    /// The places that the lie struck: the first byte and the bytes that should be there.
    struck: Vec<(u64, Vec<u8>)>,
    /// Time of the first injected error.
    first_error: Option<Nanos>,
    journal: Option<FileJournal>,
}

impl SimFile {
    /// Creates an empty file for a medium of this geometry: zeros, as allocated space is. The seed decides the order
    /// and the duration of transfers.
    #[must_use]
    pub fn allocated(geometry: FlashGeometry, seed: u64) -> Self {
        Self::zeroed(FileZones::new(geometry).file_bytes(), seed)
    }

    /// Creates a file of this many zeros.
    #[must_use]
    pub fn zeroed(length: u64, seed: u64) -> Self {
        Self::with_bytes(CachedBytes::zeroed(length), seed)
    }

    fn with_bytes(bytes: CachedBytes, seed: u64) -> Self {
        let state = SimFileState {
            bytes,
            rng: fastrand::Rng::with_seed(seed),
            now: Nanos::ZERO,
            steps: EventQueue::new(),
            in_flight: BTreeMap::new(),
            ready: VecDeque::new(),
            next_id: 0,
            points: 0,
            cut_point: None,
            cut_time: None,
            power_lost: false,
            misuse: None,
            operations: [0; 4],
            error: None,
            lie: None,
            struck: Vec::new(),
            first_error: None,
            journal: None,
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Returns the ring for the transfers of a medium. A file has one ring at a time.
    #[must_use]
    pub fn ring(&self) -> SimRing {
        SimRing::new(self.clone())
    }

    /// Returns a file with the bytes that a read sees now, all of them durable, and without faults to come.
    #[must_use]
    pub fn snapshot(&self) -> Self {
        let state = self.lock();
        Self::with_bytes(CachedBytes::from_store(state.bytes.visible().clone()), 0)
    }

    /// Sets the moment of the power cut, counted from now.
    pub fn arm(&self, cut: PowerCut) {
        let mut state = self.lock();
        (state.cut_point, state.cut_time) = (None, None);
        match cut {
            PowerCut::Never | PowerCut::Cell(_) => {}
            PowerCut::Point(point) => state.cut_point = Some(state.points.saturating_add(point.max(1))),
            PowerCut::Time(at) => state.cut_time = Some(at),
        }
    }

    /// Sets the error and the lie to come. Operations are counted from now.
    pub fn set_faults(&self, error: Option<OperationError>, lie: Option<LyingProgram>) {
        let mut state = self.lock();
        (state.error, state.lie, state.operations) = (error, lie, [0; 4]);
    }

    /// Cuts the power now and returns the file that the next boot finds. A medium that still has the file gets errors.
    #[must_use]
    pub fn next_boot(&self, rng: &mut fastrand::Rng, damage: &DamagePlan) -> Self {
        let mut state = self.lock();
        state.lose_power();
        let mut bytes = state.bytes.clone();
        bytes.power_cut(rng, damage);
        Self::with_bytes(bytes, rng.u64(..))
    }

    /// Kills the process that uses the file now, and returns the file that the next one finds.
    #[must_use]
    pub fn after_kill(&self, rng: &mut fastrand::Rng) -> Self {
        let mut state = self.lock();
        state.lose_power();
        let mut bytes = state.bytes.clone();
        bytes.kill(rng);
        let next = Self::with_bytes(bytes, rng.u64(..));
        next.lock().next_id = state.next_id;
        next
    }

    /// Returns the number of writes since the faults were set, or since the file was made.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.lock().operations[FaultyOperation::Program as usize]
    }

    /// Returns the ranges that a lie struck, each with its first byte and the bytes that it should hold.
    #[must_use]
    pub fn struck(&self) -> Vec<(u64, Vec<u8>)> {
        self.lock().struck.clone()
    }

    /// Returns true if the power was cut.
    #[must_use]
    pub fn has_lost_power(&self) -> bool {
        self.lock().power_lost
    }

    /// Returns the number of points passed at which the power could have been cut (see [`PowerCut::Point`]).
    #[must_use]
    pub fn points(&self) -> u64 {
        self.lock().points
    }

    /// Returns the time of the last transfer that was submitted or finished.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.lock().now
    }

    /// Returns the time of the first injected error.
    #[must_use]
    pub fn first_error(&self) -> Option<Nanos> {
        self.lock().first_error
    }

    /// Returns the first transfer that violated the rules of a file.
    #[must_use]
    pub fn misuse(&self) -> Option<FileMisuse> {
        self.lock().misuse
    }

    fn lock(&self) -> MutexGuard<'_, SimFileState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SimFileState {
    fn pass_point(&mut self) {
        self.points += 1;
        if self.cut_point == Some(self.points) {
            self.lose_power();
        }
    }

    fn lose_power(&mut self) {
        self.power_lost = true;
        self.steps.clear();
        for (id, op) in std::mem::take(&mut self.in_flight) {
            self.ready.push_back((id, op.into_failed(EIO)));
        }
    }

    /// Counts an operation and returns its error, if it has one.
    fn strike(&mut self, operation: FaultyOperation, range: Range<u64>) -> Option<i32> {
        let count = &mut self.operations[operation as usize];
        *count += 1;
        let error = self.error.as_mut().filter(|error| error.operation == operation)?;
        let errno = error.strike(*count, range)?;
        self.first_error.get_or_insert(self.now);
        Some(errno)
    }

    /// Accepts a write, as it is or as the lie of the boot has it. Returns its id.
    fn begin_write(&mut self, offset: u64, mut bytes: Arc<[u8]>) -> u64 {
        self.next_id += 1;
        let id = self.next_id;
        let mut range = offset..offset + bytes.len() as u64;
        let programs = self.operations[FaultyOperation::Program as usize];
        let lie = self.lie.filter(|lie| lie.nth == programs).map(|lie| lie.lie);
        if lie.is_some() {
            self.struck.push((offset, bytes.to_vec()));
        }
        match lie {
            None => {}
            Some(ProgramLie::Lost) => return id,
            Some(ProgramLie::Misdirected { pages }) => {
                let slots = FileZones::new(FlashGeometry::with_blocks(1));
                let slot = slots.range(ZoneOwner::Slot(PageAddress::new(BlockId(0), 0)));
                let shift = u64::from(pages) * (slot.end - slot.start);
                range = range.start + shift..range.end + shift;
                if range.end > self.bytes.visible().length() {
                    return id;
                }
                // What overlaps it at either end is struck as well.
                let (start, end) = (range.start.saturating_sub(REACH), range.end + REACH);
                let held = self.bytes.visible().bytes(start..end.min(self.bytes.visible().length()));
                self.struck.push((start, held));
            }
            Some(ProgramLie::Partly { sectors }) => {
                let arrived = usize::try_from(u64::from(sectors) * SECTOR_BYTES).unwrap_or(usize::MAX);
                bytes = Arc::from(&bytes[..arrived.min(bytes.len())]);
            }
        }
        self.record(FileEvent::Began { id, offset: range.start, bytes: Arc::clone(&bytes) });
        self.bytes.begin(id, range.start, bytes);
        id
    }

    fn complete_to_caller(&mut self, id: u64) {
        self.record(FileEvent::Completed { id });
        self.bytes.complete_to_caller(id);
    }

    fn make_durable(&mut self, covered: Vec<u64>) {
        self.bytes.make_durable(&covered);
        self.record(FileEvent::Synced { covered });
    }

    fn check_write(&mut self, range: &Range<u64>) -> Option<FileMisuse> {
        let offset = range.start;
        if range.end > self.bytes.visible().length() {
            return Some(FileMisuse::BeyondEnd { offset });
        }
        // A write that was misdirected lies where the medium did not send it.
        let is_misdirected = self.lie.is_some_and(|lie| matches!(lie.lie, ProgramLie::Misdirected { .. }));
        let races = !is_misdirected && self.bytes.has_incomplete_write(range);
        races.then_some(FileMisuse::WriteRace { offset })
    }

    /// Passes the point of a blocking operation.
    fn begin_blocking(&mut self, operation: FaultyOperation, range: Range<u64>) -> io::Result<()> {
        self.pass_point();
        let failed = if self.power_lost { Some(EIO) } else { self.strike(operation, range) };
        failed.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
    }
}

impl StartupFile for SimFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.lock().bytes.visible().length())
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let mut state = self.lock();
        let range = offset..offset + bytes.len() as u64;
        state.begin_blocking(FaultyOperation::Read, range.clone())?;
        let found = state.bytes.visible();
        if let Some(errno) = found.read_error(range) {
            return Err(io::Error::from_raw_os_error(errno));
        }
        if found.read(offset, bytes) < bytes.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.lock();
        let range = offset..offset + bytes.len() as u64;
        if let Some(misuse) = state.check_write(&range) {
            state.misuse.get_or_insert(misuse);
        }
        state.begin_blocking(FaultyOperation::Program, range)?;
        let id = state.begin_write(offset, Arc::from(bytes));
        state.bytes.finish(id);
        state.complete_to_caller(id);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.lock();
        let covered = state.bytes.covered_by_sync();
        let begun = state.begin_blocking(FaultyOperation::Flush, 0..0);
        if begun.is_err() {
            if !state.power_lost {
                let SimFileState { bytes, rng, .. } = &mut *state;
                bytes.fail_sync(&covered, rng);
            }
            return begun;
        }
        state.make_durable(covered);
        Ok(())
    }
}
