//! The transfers of a medium on a simulated file, in virtual time.
//!
//! Input: transfers. Output: their completions. Invariant: each accepted transfer completes once, with or without
//! power; transfers that are in flight together finish in any order.

use super::{EIO, FaultyOperation, FileMisuse, SECTOR_BYTES, SimFile, SimFileState};
use headwater_host::clock::Nanos;
use headwater_host::mapped_region::SectorBuffer;
use headwater_host::uring::{FileTransfer, FinishedTransfer, RejectedReason, RejectedTransfer};
use headwater_ssd::media::file::TransferRing;
use std::ops::Range;
use std::sync::Arc;

/// Most transfers in flight.
const ENTRIES: usize = 2_048;
/// The kernel's number of an invalid argument.
const EINVAL: i32 = 22;

/// A transfer in flight.
#[derive(Debug)]
pub(super) struct InFlight {
    /// The caller's id.
    id: u64,
    work: FileWork,
    failed: Option<i32>,
}

#[derive(Debug)]
enum FileWork {
    Read { offset: u64, buffers: Vec<SectorBuffer> },
    Write { write: u64, bytes: usize, buffers: Vec<SectorBuffer> },
    Sync { covered: Vec<u64> },
}

impl InFlight {
    pub(super) fn into_failed(self, errno: i32) -> FinishedTransfer {
        self.into_finished(Err(errno))
    }

    fn into_finished(self, result: Result<usize, i32>) -> FinishedTransfer {
        let buffers = match self.work {
            FileWork::Read { buffers, .. } | FileWork::Write { buffers, .. } => buffers,
            FileWork::Sync { .. } => Vec::new(),
        };
        FinishedTransfer { id: self.id, buffers, fixed: None, result }
    }
}

/// The ring of one simulated file.
#[derive(Debug)]
pub struct SimRing {
    file: SimFile,
}

impl SimRing {
    pub(super) fn new(file: SimFile) -> Self {
        Self { file }
    }

    /// Returns the file.
    #[must_use]
    pub fn file(&self) -> &SimFile {
        &self.file
    }
}

impl SimFileState {
    fn begin_transfer(&mut self, id: u64, transfer: FileTransfer) {
        let range = match &transfer {
            FileTransfer::Read { offset, buffers } | FileTransfer::Write { offset, buffers } => {
                *offset..offset + buffers.iter().map(|buffer| buffer.len() as u64).sum::<u64>()
            }
            _ => 0..0,
        };
        if let Some(misuse) = self.check_transfer(&transfer, &range) {
            self.misuse.get_or_insert(misuse);
            self.next_id += 1;
            self.ready.push_back((self.next_id, transfer.into_failed(id, EINVAL)));
            return;
        }
        let (work, failed, nanos) = match transfer {
            FileTransfer::Read { offset, buffers } => {
                let failed = self.strike(FaultyOperation::Read, range);
                self.next_id += 1;
                (FileWork::Read { offset, buffers }, failed, 8_000..30_000)
            }
            FileTransfer::Write { offset, buffers } => {
                let failed = self.strike(FaultyOperation::Program, range);
                let written: Arc<[u8]> = match &buffers[..] {
                    [buffer] => Arc::from(&**buffer),
                    many => many.iter().map(|buffer| &**buffer).collect::<Vec<_>>().concat().into(),
                };
                let bytes = written.len();
                let write = self.begin_write(offset, written);
                (FileWork::Write { write, bytes, buffers }, failed, 15_000..60_000)
            }
            FileTransfer::SyncData => {
                let failed = self.strike(FaultyOperation::Flush, range);
                self.next_id += 1;
                (FileWork::Sync { covered: self.bytes.covered_by_sync() }, failed, 60_000..140_000)
            }
            fixed @ (FileTransfer::ReadFixed { .. } | FileTransfer::WriteFixed { .. }) => {
                // The medium registers no buffers.
                self.next_id += 1;
                self.ready.push_back((self.next_id, fixed.into_failed(id, EINVAL)));
                return;
            }
        };
        self.in_flight.insert(self.next_id, InFlight { id, work, failed });
        let due = self.now.after(Nanos(self.rng.u64(nanos)));
        self.steps.push(due, self.next_id);
    }

    fn check_transfer(&mut self, transfer: &FileTransfer, range: &Range<u64>) -> Option<FileMisuse> {
        let (FileTransfer::Read { offset, buffers } | FileTransfer::Write { offset, buffers }) = transfer
        else {
            return None;
        };
        let whole = |number: u64| number.is_multiple_of(SECTOR_BYTES);
        let aligned =
            |buffer: &SectorBuffer| whole(buffer.as_ptr().addr() as u64) && whole(buffer.len() as u64);
        if !whole(*offset) || !buffers.iter().all(aligned) {
            return Some(FileMisuse::Misaligned { offset: *offset });
        }
        match transfer {
            FileTransfer::Write { .. } => self.check_write(range),
            _ => None,
        }
    }

    fn advance(&mut self, now: Nanos) {
        while !self.power_lost {
            let due = self.steps.next_at().filter(|&at| at <= now);
            if let Some(cut) = self.cut_time.filter(|&cut| cut <= now && due.is_none_or(|at| at > cut)) {
                self.now = self.now.max(cut);
                self.lose_power();
                break;
            }
            let Some((at, id)) = self.steps.pop_due(now) else { break };
            self.now = self.now.max(at);
            self.finish(id);
        }
        self.now = self.now.max(now);
    }

    fn finish(&mut self, id: u64) {
        let Some(mut op) = self.in_flight.remove(&id) else {
            return;
        };
        let result = match (&mut op.work, op.failed) {
            (FileWork::Read { .. }, Some(errno)) => Err(errno),
            (FileWork::Read { offset, buffers }, None) => self.read(*offset, buffers),
            (FileWork::Write { write, .. }, Some(errno)) => {
                self.bytes.fail(*write, &mut self.rng);
                Err(errno)
            }
            (FileWork::Write { write, bytes, .. }, None) => {
                self.bytes.finish(*write);
                Ok(*bytes)
            }
            (FileWork::Sync { covered }, Some(errno)) => {
                self.bytes.fail_sync(covered, &mut self.rng);
                Err(errno)
            }
            (FileWork::Sync { covered }, None) => {
                let covered = std::mem::take(covered);
                self.make_durable(covered);
                Ok(0)
            }
        };
        // The work is done before the cut, but its completion is not delivered.
        let dead_after = self.cut_point == Some(self.points + 1);
        let result = if dead_after { Err(EIO) } else { result };
        self.ready.push_back((id, op.into_finished(result)));
        self.pass_point();
    }

    fn read(&self, offset: u64, buffers: &mut [SectorBuffer]) -> Result<usize, i32> {
        let found = self.bytes.visible();
        let end = offset + buffers.iter().map(|buffer| buffer.len() as u64).sum::<u64>();
        if let Some(errno) = found.read_error(offset..end) {
            return Err(errno);
        }
        let mut read = 0;
        for buffer in buffers {
            read += found.read(offset + read as u64, buffer);
        }
        Ok(read)
    }
}

impl TransferRing for SimRing {
    fn in_flight(&self) -> usize {
        let state = self.file.lock();
        state.in_flight.len() + state.ready.len()
    }

    fn room(&self) -> usize {
        ENTRIES - self.in_flight()
    }

    fn submit(&mut self, id: u64, transfer: FileTransfer) -> Result<(), RejectedTransfer> {
        if self.room() == 0 {
            return Err(RejectedTransfer { transfer, reason: RejectedReason::Full });
        }
        let mut state = self.file.lock();
        if state.power_lost {
            state.next_id += 1;
            let failed = (state.next_id, transfer.into_failed(id, EIO));
            state.ready.push_back(failed);
            return Ok(());
        }
        state.begin_transfer(id, transfer);
        state.pass_point();
        Ok(())
    }

    fn kick(&mut self) {}

    fn poll(&mut self, now: Nanos, done: &mut Vec<FinishedTransfer>) {
        let mut state = self.file.lock();
        state.advance(now);
        while let Some((id, finished)) = state.ready.pop_front() {
            if finished.result.is_ok() {
                state.complete_to_caller(id);
            }
            done.push(finished);
        }
    }

    fn wait(&mut self, mut now: Nanos) -> Nanos {
        let mut state = self.file.lock();
        state.advance(now);
        while state.ready.is_empty() {
            let Some(next) = state.next_event() else { break };
            now = now.max(next);
            state.advance(now);
        }
        now.max(state.now)
    }

    fn virtual_now(&self) -> Option<Nanos> {
        Some(self.file.lock().now)
    }

    fn next_event(&self) -> Option<Nanos> {
        self.file.lock().next_event()
    }
}

/// The end of a ring waits for its transfers, as a ring of the kernel does: the next ring of the file is told of none of
/// them, and races with none.
impl Drop for SimRing {
    fn drop(&mut self) {
        let mut state = self.file.lock();
        while let Some(next) = state.steps.next_at() {
            state.advance(next);
            if state.power_lost {
                break;
            }
        }
        while let Some((id, finished)) = state.ready.pop_front() {
            if finished.result.is_ok() {
                state.complete_to_caller(id);
            }
        }
    }
}

impl SimFileState {
    fn next_event(&self) -> Option<Nanos> {
        if !self.ready.is_empty() {
            return Some(self.now);
        }
        let cut = self.cut_time.filter(|_| !self.power_lost);
        match (self.steps.next_at(), cut) {
            (Some(step), Some(cut)) => Some(step.min(cut)),
            (step, cut) => step.or(cut),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::{DamagePlan, FaultPlace, LyingProgram, OperationError, PowerCut, ProgramLie};
    use headwater_ssd::media::FlashGeometry;

    fn file() -> SimFile {
        SimFile::allocated(FlashGeometry::with_blocks(1), 1)
    }

    fn write(offset: u64, byte: u8) -> FileTransfer {
        let mut buffer = SectorBuffer::zeroed(9);
        buffer.fill(byte);
        FileTransfer::Write { offset, buffers: vec![buffer] }
    }

    fn run(ring: &mut SimRing, transfer: FileTransfer) -> FinishedTransfer {
        ring.submit(7, transfer).unwrap();
        let (now, mut done) = (ring.wait(Nanos::ZERO), Vec::new());
        ring.poll(now, &mut done);
        assert_eq!((done.len(), done[0].id), (1, 7));
        done.pop().unwrap()
    }

    #[test]
    fn transfers_that_a_disk_refuses_or_whose_order_is_undefined_are_misuse() {
        let misuse_of = |transfers: Vec<FileTransfer>| {
            let file = file();
            let mut ring = file.ring();
            for transfer in transfers {
                ring.submit(1, transfer).unwrap();
            }
            file.misuse()
        };
        assert_eq!(misuse_of(vec![write(100, 1)]), Some(FileMisuse::Misaligned { offset: 100 }));
        assert_eq!(misuse_of(vec![write(1 << 30, 1)]), Some(FileMisuse::BeyondEnd { offset: 1 << 30 }));
        let race = Some(FileMisuse::WriteRace { offset: 4_608 });
        assert_eq!(misuse_of(vec![write(512, 1), write(4_608, 1)]), race);
        assert_eq!(misuse_of(vec![write(0, 1), write(4_608, 1)]), None);
    }

    #[test]
    fn injected_errors_and_lies_strike_the_operation_that_they_name() {
        let file = file();
        let mut ring = file.ring();
        let error = OperationError {
            operation: FaultyOperation::Flush,
            place: FaultPlace::From(2),
            times: 1,
            errno: 110,
        };
        file.set_faults(Some(error), Some(LyingProgram { nth: 2, lie: ProgramLie::Lost }));
        for (byte, expected) in [(1, 1), (2, 1), (3, 3)] {
            assert_eq!(run(&mut ring, write(0, byte)).result, Ok(4_608));
            assert_eq!(file.bytes(0..1), [expected]);
        }
        let results: Vec<_> = (0..3).map(|_| run(&mut ring, FileTransfer::SyncData).result).collect();
        assert_eq!(results, [Ok(0), Err(110), Ok(0)]);
        assert_eq!(file.writes(), 3);
    }

    /// Repeats what broke: a medium that was opened again took the completion of a read of its predecessor for its own.
    #[test]
    fn a_ring_is_told_of_no_transfer_of_the_ring_before_it() {
        let file = file();
        let mut first = file.ring();
        first.submit(7, write(0, 1)).unwrap();
        let buffers = vec![SectorBuffer::zeroed(8)];
        first.submit(0, FileTransfer::Read { offset: 0, buffers }).unwrap();
        drop(first);
        let mut second = file.ring();
        assert_eq!(second.in_flight(), 0);
        assert_eq!(run(&mut second, write(0, 2)).result, Ok(4_608));
        assert_eq!((file.bytes(0..1), file.misuse()), (vec![2], None));
    }

    #[test]
    fn every_transfer_completes_when_the_power_is_cut_and_fails_from_then_on() {
        for point in 1..8 {
            let file = file();
            file.arm(PowerCut::Point(point));
            let mut ring = file.ring();
            let results: Vec<_> = (0..3_u8).map(|byte| run(&mut ring, write(0, byte + 1)).result).collect();
            let whole = results.iter().take_while(|result| result.is_ok()).count() as u64;
            assert_eq!(whole, ((point - 1) / 2).min(3), "{results:?}");
            assert!(results[usize::try_from(whole).unwrap()..].iter().all(|result| *result == Err(EIO)));
            assert_eq!(file.has_lost_power(), point < 7);
            let next = file.next_boot(&mut fastrand::Rng::with_seed(1), &DamagePlan::CLEAN);
            assert_eq!(next.bytes(0..1), [0]);
        }
    }
}
