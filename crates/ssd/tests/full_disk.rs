//! A device on a file whose file system has no space for a write: commands that write fail while it lasts, nothing is
//! lost, and writes go on when there is space again.

#![expect(clippy::unwrap_used, reason = "a test fails if its setup fails")]

use bytes::Bytes;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_host::uring::{FileTransfer, FinishedTransfer, RejectedTransfer};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    FrontEndId, NamespaceId, ReadRelease, ReceiptStep, RecordExpiry, SsdCommand, SsdCompletion, SubmitError,
    ValueReceipt, ValueSink, ValueSource, WriteCondition,
};
use headwater_ssd::engine::{DeviceConfig, FailedOperation, SsdDevice, StartTime};
use headwater_ssd::media::FlashGeometry;
use headwater_ssd::media::file::{
    FLASH_FILE_NAME, FileMedia, FileOptions, OpenAccess, TransferRing, ZeroFillMode,
};
use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::rc::Rc;
use tempfile::TempDir;

const ENOSPC: i32 = 28;
const FRONT_END: FrontEndId = FrontEndId(1);
const WALL: UnixMillis = UnixMillis(1_000_000);
/// Turns without a completion after which a command counts as hanging.
const TURNS_MAX: u32 = 100_000;
const PIECE: usize = 4_096;

/// The parts of a disk that have no space.
#[derive(Debug, Default)]
struct DiskFaults {
    /// Writes that begin in this range of bytes find no space; of several buffers the first one is written.
    full: Range<u64>,
    sync_errno: Option<i32>,
    syncs: u64,
}

/// A file whose transfers are carried out when they are submitted.
#[derive(Debug)]
struct FullDiskRing {
    file: File,
    faults: Rc<RefCell<DiskFaults>>,
    done: Vec<FinishedTransfer>,
}

impl FullDiskRing {
    fn write(&self, offset: u64, buffers: &[impl AsRef<[u8]>]) -> Result<usize, i32> {
        let is_full = self.faults.borrow().full.contains(&offset);
        let mut moved = 0;
        for (at, buffer) in buffers.iter().enumerate() {
            if is_full && (at > 0 || buffers.len() == 1) {
                return if moved > 0 { Ok(moved) } else { Err(ENOSPC) };
            }
            self.file.write_all_at(buffer.as_ref(), offset + moved as u64).unwrap();
            moved += buffer.as_ref().len();
        }
        Ok(moved)
    }
}

impl TransferRing for FullDiskRing {
    fn in_flight(&self) -> usize {
        self.done.len()
    }

    fn room(&self) -> usize {
        64
    }

    fn submit(&mut self, id: u64, transfer: FileTransfer) -> Result<(), RejectedTransfer> {
        let (buffers, result) = match transfer {
            FileTransfer::Read { offset, mut buffers } => {
                let mut moved = 0;
                for buffer in &mut buffers {
                    self.file.read_exact_at(buffer, offset + moved as u64).unwrap();
                    moved += buffer.len();
                }
                (buffers, Ok(moved))
            }
            FileTransfer::Write { offset, buffers } => {
                let bytes: Vec<&[u8]> = buffers.iter().map(|buffer| &buffer[..]).collect();
                let result = self.write(offset, &bytes);
                (buffers, result)
            }
            FileTransfer::SyncData => {
                let mut faults = self.faults.borrow_mut();
                faults.syncs += 1;
                (Vec::new(), faults.sync_errno.map_or(Ok(0), Err))
            }
            other => panic!("the medium has no registered buffers: {other:?}"),
        };
        self.done.push(FinishedTransfer { id, buffers, fixed: None, result });
        Ok(())
    }

    fn kick(&mut self) {}

    fn poll(&mut self, _now: Nanos, done: &mut Vec<FinishedTransfer>) {
        done.append(&mut self.done);
    }

    fn wait(&mut self, now: Nanos) -> Nanos {
        now
    }
}

struct FullDiskHost {
    device: SsdDevice<FileMedia<FullDiskRing>>,
    faults: Rc<RefCell<DiskFaults>>,
    now: Nanos,
}

impl FullDiskHost {
    fn create(directory: &Path) -> Self {
        let geometry = FlashGeometry::with_blocks(32);
        drop(FileMedia::create(directory, geometry, [7; 16], FileOptions::default()).unwrap());
        Self::open(directory)
    }

    fn open(directory: &Path) -> Self {
        let path = directory.join(FLASH_FILE_NAME);
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let faults = Rc::new(RefCell::new(DiskFaults::default()));
        let ring =
            FullDiskRing { file: file.try_clone().unwrap(), faults: Rc::clone(&faults), done: Vec::new() };
        let media =
            FileMedia::open_over(&file, ring, path, OpenAccess::ReadWrite, ZeroFillMode::Never).unwrap();
        let start = StartTime { now: Nanos::ZERO, wall: WALL };
        let device = SsdDevice::open(media, DeviceConfig::default(), start, &mut |_| {}).unwrap();
        Self { device, faults, now: Nanos::ZERO }
    }

    fn fill(&self, range: Range<u64>) {
        self.faults.borrow_mut().full = range;
    }

    /// Runs a command. The time moves only when a test says so.
    fn run(&mut self, command: SsdCommand) -> SsdCompletion {
        self.device.submit(FRONT_END, NamespaceId::FIRST, 7, command).unwrap();
        for _ in 0..TURNS_MAX {
            self.device.poll(self.now, WALL);
            if let Some(completion) = self.device.next_completion(FRONT_END) {
                return completion;
            }
        }
        panic!("a command has no completion after {TURNS_MAX} turns: {:?}", self.device.stats());
    }

    /// Moves the time to the next deadline, and runs turns until nothing moves.
    fn pass_time(&mut self) {
        self.now = self.device.next_deadline().expect("nothing would repeat the write that waits for space");
        while self.device.poll(self.now, WALL) {}
    }

    fn set(&mut self, key: &str, value: &[u8]) -> Status {
        let (key, value) = (Bytes::copy_from_slice(key.as_bytes()), Bytes::copy_from_slice(value));
        let (condition, expiry) = (WriteCondition::Always, RecordExpiry::Never);
        self.run(SsdCommand::Store { key, value: ValueSource::Bytes(value), condition, expiry }).status
    }

    /// Gives the device the bytes of a value, from `done` on, until it has `up_to` of them.
    fn give(&mut self, receipt: &ValueReceipt, value: &[u8], (mut done, up_to): (usize, usize)) {
        for _ in 0..TURNS_MAX {
            let left = &value[done..up_to];
            let step = self.device.receive(receipt, &mut |slices| {
                let part = slices[0].len().min(left.len());
                slices[0][..part].copy_from_slice(&left[..part]);
                Ok(part)
            });
            match step.unwrap() {
                ReceiptStep::Received(bytes) => done += bytes,
                ReceiptStep::NoRoom => _ = self.device.poll(self.now, WALL),
            }
            if done == up_to {
                return;
            }
        }
        panic!("the device took {done} of {up_to} bytes");
    }

    fn get(&mut self, key: &str) -> Result<Vec<u8>, Status> {
        let done = self.run(SsdCommand::retrieve_whole(
            Bytes::copy_from_slice(key.as_bytes()),
            ValueSink::Bytes(Vec::new()),
            ReadRelease::WhenDurable,
        ));
        if done.status.is_success() { Ok(done.sink) } else { Err(done.status) }
    }
}

#[test]
fn write_without_space_is_an_error_and_writes_go_on_when_there_is_space_again() {
    let directory = TempDir::new().unwrap();
    let mut host = FullDiskHost::create(directory.path());
    assert_eq!(host.set("kept", b"before"), Status::SUCCESS);
    host.fill(PIECE as u64..u64::MAX);
    // Many pages in one transfer, which the kernel cuts short.
    let long = vec![0x5A; 200_000];
    assert_eq!(host.set("first", &long), Status::CAPACITY_EXCEEDED);
    let lack = host.device.stats().lack_of_space.unwrap();
    // Pages and commit records wait; the last one that was refused is shown.
    assert!(matches!(lack.operation, FailedOperation::Program | FailedOperation::CommitRecord), "{lack:?}");
    assert_eq!(lack.errno, Some(ENOSPC));
    assert_eq!(host.set("second", b"refused"), Status::CAPACITY_EXCEEDED);
    let delete = SsdCommand::Delete { key: Bytes::from_static(b"kept"), condition: WriteCondition::Always };
    assert_eq!(host.run(delete).status, Status::CAPACITY_EXCEEDED);
    assert_eq!(host.run(SsdCommand::Flush).status, Status::CAPACITY_EXCEEDED);
    assert_eq!(host.get("kept"), Ok(b"before".to_vec()));
    assert_eq!(host.get("first"), Err(Status::INTERNAL_ERROR), "a write without space was shown as durable");
    for _ in 0..3 {
        host.pass_time();
        assert_eq!(host.set("second", b"refused"), Status::CAPACITY_EXCEEDED);
    }
    host.fill(0..0);
    host.pass_time();
    let stats = host.device.stats();
    assert_eq!((stats.lack_of_space, stats.failed_write), (None, None));
    assert_eq!(host.set("third", b"written"), Status::SUCCESS);
    // A command that was answered with an error may have been carried out; a refused one was not.
    let expected = [
        ("kept", Ok(&b"before"[..])),
        ("first", Ok(&long[..])),
        ("third", Ok(b"written")),
        ("second", Err(Status::KEY_DOES_NOT_EXIST)),
    ];
    for restarted in [false, true] {
        if restarted {
            drop(host);
            host = FullDiskHost::open(directory.path());
        }
        for (key, value) in expected {
            assert_eq!(host.get(key), value.map(<[u8]>::to_vec), "{key}, restarted: {restarted}");
        }
    }
}

#[test]
fn value_on_its_way_is_refused_without_space_and_the_next_one_is_stored() {
    let directory = TempDir::new().unwrap();
    let mut host = FullDiskHost::create(directory.path());
    let value: Vec<u8> = (0..600_000_u32).map(|number| number.to_le_bytes()[0]).collect();
    let received = |receipt: &ValueReceipt| {
        let rest = Bytes::copy_from_slice(&value[receipt.bytes()..]);
        let value = ValueSource::Received { receipt: receipt.clone(), rest };
        let (condition, expiry) = (WriteCondition::Always, RecordExpiry::Never);
        SsdCommand::Store { key: Bytes::from_static(b"long"), value, condition, expiry }
    };
    let receipt = host.device.begin_receipt(NamespaceId::FIRST, value.len()).unwrap();
    host.give(&receipt, &value, (0, 300_000));
    host.fill(PIECE as u64..u64::MAX);
    assert_eq!(host.set("other", b"refused"), Status::CAPACITY_EXCEEDED);
    assert!(host.device.begin_receipt(NamespaceId::FIRST, value.len()).is_none());
    host.give(&receipt, &value, (300_000, receipt.bytes()));
    let refused = host.device.submit(FRONT_END, NamespaceId::FIRST, 1, received(&receipt));
    assert_eq!(refused, Err(SubmitError::Refused(Status::CAPACITY_EXCEEDED)));
    host.fill(0..0);
    while host.device.poll(host.now, WALL) {}
    while host.device.stats().lack_of_space.is_some() {
        host.pass_time();
    }
    assert_eq!(host.get("long"), Err(Status::KEY_DOES_NOT_EXIST));
    drop(receipt);
    for _ in 0..20 {
        let receipt =
            host.device.begin_receipt(NamespaceId::FIRST, value.len()).expect("there is space again");
        host.give(&receipt, &value, (0, receipt.bytes()));
        assert_eq!(host.run(received(&receipt)).status, Status::SUCCESS);
        assert_eq!(host.get("long").as_deref(), Ok(&value[..]));
    }
}

#[test]
fn commit_record_without_space_delays_its_flush_and_loses_nothing() {
    let directory = TempDir::new().unwrap();
    let mut host = FullDiskHost::create(directory.path());
    // Two superblocks and half of the commit cells lie before the first page of the flash.
    host.fill(0..100_000);
    let value = |number: usize| vec![u8::try_from(number).unwrap(); 100_000];
    let acknowledged =
        (0..60).take_while(|&number| host.set(&format!("{number}"), &value(number)) == Status::SUCCESS);
    let acknowledged = acknowledged.count();
    assert!(acknowledged < 60, "no commit needed a cell in front");
    let lack = host.device.stats().lack_of_space.unwrap();
    assert_eq!((lack.operation, lack.errno), (FailedOperation::CommitRecord, Some(ENOSPC)));
    assert_eq!(host.device.stats().failed_write, None);
    host.fill(0..0);
    host.pass_time();
    assert_eq!(host.set("last", b"written"), Status::SUCCESS);
    drop(host);
    let mut host = FullDiskHost::open(directory.path());
    for number in 0..acknowledged {
        assert_eq!(host.get(&format!("{number}")), Ok(value(number)), "key {number}");
    }
    assert_eq!(host.get("last"), Ok(b"written".to_vec()));
}

#[test]
fn sync_that_fails_for_want_of_space_is_final() {
    let directory = TempDir::new().unwrap();
    let mut host = FullDiskHost::create(directory.path());
    host.faults.borrow_mut().sync_errno = Some(ENOSPC);
    assert_eq!(host.set("lost", b"value"), Status::MEDIUM_FAILED);
    host.faults.borrow_mut().sync_errno = None;
    let syncs = host.faults.borrow().syncs;
    assert_eq!(host.set("refused", b"value"), Status::MEDIUM_FAILED);
    let failed = host.device.stats().failed_write.unwrap();
    assert_eq!((failed.operation, failed.errno), (FailedOperation::Flush, Some(ENOSPC)));
    assert_eq!(
        host.faults.borrow().syncs,
        syncs,
        "the kernel may have dropped bytes: no later sync proves anything"
    );
}

#[test]
fn shutdown_without_space_ends_with_an_error() {
    let directory = TempDir::new().unwrap();
    let mut host = FullDiskHost::create(directory.path());
    assert_eq!(host.set("kept", b"before"), Status::SUCCESS);
    host.fill(PIECE as u64..u64::MAX);
    assert_eq!(host.set("first", b"value"), Status::CAPACITY_EXCEEDED);
    assert!(host.device.shutdown(host.now, WALL).is_err());
    drop(host);
    assert_eq!(FullDiskHost::open(directory.path()).get("kept"), Ok(b"before".to_vec()));
}
