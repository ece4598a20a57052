//! Pools over pinners that use a kernel interface: registered transfers, device mappings, memory shared by two
//! processes.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test fails at the first unexpected result")]
#![expect(clippy::print_stderr, reason = "a skipped test prints the reason")]

use headwater_dma::buffer::{LentBuffer, PoolBuffer};
use headwater_dma::pool::{
    ChunkRule, MemoryPinner, MlockPinner, NodeId, PinError, Pool, PoolConfig, PoolError, PoolSharing,
    SharedPinner, SharedRange, UringPinner, VfioPinner,
};
use headwater_host::clock::Nanos;
use headwater_host::file::{DirectChoice, FileMode, open};
use headwater_host::pinning::vfio::{ContainerLimits, SimulatedIommu, VfioContainer};
use headwater_host::pinning::{MemlockBudget, MemoryRange, PinCause};
use headwater_host::reservation::{Backing, BackingOrder};
use headwater_host::shared_memory::SharedMemory;
use headwater_host::uring::{FileRing, FileTransfer, RejectedReason, UringChoice};
use std::fs::File;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::Arc;

const KIB: usize = 1 << 10;
const CHUNK: usize = 256 * KIB;
const CAP: usize = 4 * CHUNK;

fn pool(pinner: Arc<dyn MemoryPinner>, sharing: PoolSharing) -> Result<Pool, PoolError> {
    Pool::open(PoolConfig {
        chunk: CHUNK,
        chunk_rule: ChunkRule::Fixed,
        cap: CAP,
        idle: Nanos(1_000),
        backing: BackingOrder::only(Backing::Small),
        cache_per_mille: 0,
        pinner,
        sharing,
        ..PoolConfig::default()
    })
}

/// Retires every idle chunk.
fn retire_idle_chunks(pool: &Pool) {
    for now in [1, 10_000, 20_000, 30_000] {
        pool.tick(Nanos(now));
    }
}

/// A ring on a new file that bypasses the page cache, and a pool registered with it.
struct RegisteredPool {
    ring: FileRing,
    pinner: Arc<UringPinner>,
    pool: Pool,
    _named: tempfile::NamedTempFile,
}

impl RegisteredPool {
    /// Opens both. Returns `None` and prints the reason if direct I/O or a buffer table is not available.
    fn open(slots: u32) -> Option<Self> {
        // On many machines the system's folder for temporary files is in memory; the build's folder is on a disk.
        let named = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (file, mode) = open(named.path(), DirectChoice::Auto).unwrap();
        if mode != FileMode::Direct {
            eprintln!("the file system has no direct I/O: the page cache is used");
        }
        let mut ring = FileRing::open(file, 8, UringChoice::Auto).unwrap();
        let table = match ring.table(slots) {
            Ok(table) => table,
            Err(error) => {
                eprintln!("skipped: {error}");
                return None;
            }
        };
        let pinner = Arc::new(UringPinner::new(table));
        match pool(pinner.clone(), PoolSharing::Private) {
            Ok(pool) => Some(Self { ring, pinner, pool, _named: named }),
            Err(error) => {
                eprintln!("skipped: {error}");
                None
            }
        }
    }

    /// Lends a buffer to the ring and waits for the completion.
    fn transfer(&mut self, buffer: PoolBuffer, offset: u64, write: bool) -> (PoolBuffer, Result<usize, i32>) {
        let (buffer, stub) = buffer.lend().into_fixed().unwrap();
        let transfer = if write {
            FileTransfer::WriteFixed { offset, buffer }
        } else {
            FileTransfer::ReadFixed { offset, buffer }
        };
        self.ring.submit(offset, transfer).unwrap();
        let mut done = Vec::new();
        while done.is_empty() {
            self.ring.wait();
            self.ring.poll(&mut done);
        }
        let finished = done.remove(0);
        stub.rejoin(finished.fixed.unwrap()).unwrap().complete(finished.result)
    }
}

#[test]
fn registered_buffers_are_written_to_a_file_and_read_back() {
    let Some(mut bench) = RegisteredPool::open(4) else { return };
    // Two chunks, so that two numbers are used, and buffers that start inside them.
    let sizes = [64 * KIB, CHUNK - 64 * KIB, 100 * KIB, 4 * KIB];
    let mut at = 0;
    for (number, bytes) in (1_u8..).zip(sizes) {
        let mut buffer = bench.pool.buffer(bytes).unwrap();
        for (byte, index) in buffer.iter_mut().zip(0_usize..) {
            *byte = number.wrapping_mul(u8::try_from(index % 251).unwrap());
        }
        let expected = buffer.to_vec();
        let (written, moved) = bench.transfer(buffer, at, true);
        assert_eq!((moved, written.len()), (Ok(bytes), bytes));
        // The first buffer is kept, so that the read uses other pages.
        let mut other = bench.pool.buffer(bytes).unwrap();
        other.fill(0xEE);
        let (read, moved) = bench.transfer(other, at, false);
        assert_eq!(moved, Ok(bytes));
        assert!(*read == *expected, "{bytes} bytes at {at}");
        at += bytes as u64;
    }
    assert!(bench.pinner.table().free_slots() <= 2, "one number per chunk");
    retire_idle_chunks(&bench.pool);
    assert_eq!(bench.pinner.table().free_slots(), 4, "each chunk was unregistered when retired");
    assert_eq!(bench.pool.statistics().quarantined_bytes, 0);
}

#[test]
fn a_full_table_is_an_error_until_a_chunk_is_retired() {
    let Some(bench) = RegisteredPool::open(1) else { return };
    let held = bench.pool.buffer(CHUNK).unwrap();
    let refused = bench.pool.buffer(KIB).unwrap_err();
    assert!(matches!(refused, PoolError::Pin(PinError::TableFull { bytes: CHUNK, .. })), "{refused}");
    drop(held);
    drop(bench.pool.buffer(KIB).unwrap());
}

#[test]
fn numbers_of_another_table_are_refused_and_the_buffer_is_returned() {
    let Some(bench) = RegisteredPool::open(2) else { return };
    let Some(mut other) = RegisteredPool::open(2) else { return };
    // The other table has the same number, for other memory.
    let _held = other.pool.buffer(KIB).unwrap();
    let (buffer, stub) = bench.pool.buffer(8 * KIB).unwrap().lend().into_fixed().unwrap();
    let rejected = other.ring.submit(0, FileTransfer::WriteFixed { offset: 0, buffer }).unwrap_err();
    assert_eq!(rejected.reason, RejectedReason::NotRegistered);
    let FileTransfer::WriteFixed { buffer, .. } = rejected.transfer else {
        panic!("the transfer is returned unchanged")
    };
    let (_strange, other_stub) = bench.pool.buffer(KIB).unwrap().lend().into_fixed().unwrap();
    let (_other_stub, buffer) = other_stub.rejoin(buffer).unwrap_err();
    let lent: LentBuffer<PoolBuffer> = stub.rejoin(buffer).unwrap();
    assert_eq!(lent.complete(Err::<(), _>(rejected.reason)).0.len(), 8 * KIB);
}

#[test]
fn pages_that_a_ring_did_not_return_are_counted_and_never_reused() {
    let Some(bench) = RegisteredPool::open(4) else { return };
    let (fixed, stub) = bench.pool.buffer(64 * KIB).unwrap().lend().into_fixed().unwrap();
    let address = fixed.address();
    drop(stub);
    drop(fixed);
    assert_eq!(bench.pool.statistics().quarantined_bytes, 64 * KIB as u64);
    let mut held = Vec::new();
    while let Ok(buffer) = bench.pool.buffer(64 * KIB) {
        assert_ne!(buffer.as_ptr().addr(), address);
        held.push(buffer);
    }
    assert_eq!(held.len(), (CAP - 64 * KIB) / (64 * KIB));
}

#[test]
fn a_buffer_of_another_pinner_has_no_number() {
    let Ok(pool) = pool(Arc::new(MlockPinner), PoolSharing::Private) else {
        return eprintln!("skipped: {}", MemlockBudget::read().check(CAP as u64).unwrap_err());
    };
    let lent = pool.buffer(KIB).unwrap().lend();
    assert!(MemlockBudget::read().locked_bytes >= CHUNK as u64);
    let lent = lent.into_fixed().unwrap_err();
    assert_eq!((lent.segments()[0].slot, lent.segments()[0].iova), (None, None));
    let _ = lent.complete(Ok::<(), ()>(()));
    retire_idle_chunks(&pool);
    assert_eq!(pool.statistics().nodes[0].pinned_bytes, 0);
}

fn container(mappings_max: u32) -> Arc<VfioContainer<SimulatedIommu>> {
    let ranges = vec![0..=0xfedf_ffff, 0xfef0_0000..=0x7f_ffff_ffff];
    let limits = ContainerLimits { ranges, page_sizes: !0xfff, mappings_max };
    Arc::new(VfioContainer::new(SimulatedIommu::new(limits.clone()), limits))
}

#[test]
fn every_byte_of_a_buffer_is_at_the_device_address_of_its_segment() {
    let container = container(8);
    let pool = pool(Arc::new(VfioPinner::new(container.clone())), PoolSharing::Private).unwrap();
    let mut held: Vec<LentBuffer<PoolBuffer>> = Vec::new();
    while let Ok(buffer) = pool.buffer(60 * KIB) {
        held.push(buffer.lend());
    }
    assert_eq!(held.len(), 4 * 4);
    assert_eq!(
        container.kernel().mappings(),
        4,
        "one mapping per chunk, regardless of the number of buffers"
    );
    for segment in held.iter().flat_map(LentBuffer::segments) {
        for within in [0, 1, segment.bytes / 2, segment.bytes - 1] {
            let found = container.kernel().translate(segment.iova.unwrap() + within as u64);
            assert_eq!(found, Some(segment.address + within));
        }
    }
    held.into_iter().for_each(|lent| drop(lent.complete(Ok::<(), ()>(())).0));
    retire_idle_chunks(&pool);
    assert_eq!((container.kernel().mappings(), container.mapped_bytes()), (0, 0));
}

#[test]
fn memory_that_a_device_did_not_release_is_never_reused() {
    let container = container(8);
    let pool = pool(Arc::new(VfioPinner::new(container.clone())), PoolSharing::Private).unwrap();
    drop(pool.buffer(KIB).unwrap());
    container.kernel().ignore_unmaps();
    retire_idle_chunks(&pool);
    let statistics = pool.statistics();
    assert_eq!(statistics.stuck_bytes, CHUNK as u64);
    container.kernel().fail_next_map(17);
    let stopped = pool.buffer(KIB).unwrap_err();
    assert_eq!(stopped, PoolError::Pin(PinError::Exists { bytes: CHUNK }));
    assert_eq!(pool.buffer(KIB).unwrap_err(), stopped, "the owner of the addresses is unknown");
    let cause = container.map(MemoryRange::at(4_096, 4_096)).unwrap_err().cause;
    assert_eq!(cause, PinCause::Exists);
}

#[test]
fn a_shared_region_needs_shared_memory() {
    let refused = pool(Arc::new(SharedPinner::default()), PoolSharing::Private).unwrap_err();
    assert_eq!(refused, PoolError::Pin(PinError::NotShared));
}

/// Contents of the range before and after the second process runs.
const QUESTION: u8 = 0x5C;
const ANSWER: u8 = 0xC5;

/// Runs the second process: it has the descriptor as its standard input and the range in its environment.
#[test]
fn as_second_process() {
    let Ok(range) = std::env::var("SHARED_RANGE") else {
        return eprintln!("skipped: another test runs this one");
    };
    let (offset, bytes) = range.split_once(' ').unwrap();
    let (offset, bytes): (u64, usize) = (offset.parse().unwrap(), bytes.parse().unwrap());
    let memory = SharedMemory::map_descriptor(std::io::stdin().as_fd(), offset, bytes).unwrap();
    let mut seen = vec![0; bytes];
    memory.copy_in(0, &mut seen).unwrap();
    assert!(seen.iter().all(|&byte| byte == QUESTION));
    memory.copy_out(0, &vec![ANSWER; bytes]).unwrap();
    // The file cannot be truncated while the pool uses it.
    let file = File::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    assert_eq!(file.set_len(0).unwrap_err().raw_os_error(), Some(1));
}

#[test]
fn a_second_process_reads_and_writes_a_shared_buffer() {
    let region = Arc::new(SharedPinner::default());
    let pool = pool(region.clone(), PoolSharing::Shared).unwrap();
    let _other = pool.buffer(12 * KIB).unwrap();
    let mut buffer = pool.buffer(20 * KIB).unwrap();
    buffer.fill(QUESTION);
    let lent = buffer.lend();
    let segment = lent.segments()[0];
    let offset = segment.iova.unwrap();
    let range = region.ranges()[0];
    assert_eq!(range, SharedRange { node: NodeId(0), offset: range.offset, bytes: CHUNK });
    assert!(range.offset <= offset && offset + 20 * KIB as u64 <= range.offset + CHUNK as u64);
    let second = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "as_second_process", "--nocapture"])
        .env("SHARED_RANGE", format!("{offset} {}", segment.bytes))
        .stdin(Stdio::from(region.descriptor(NodeId(0)).unwrap()))
        .output()
        .unwrap();
    assert!(second.status.success(), "{}", String::from_utf8_lossy(&second.stdout));
    let (buffer, _) = lent.complete(Ok::<(), ()>(()));
    assert!(buffer.iter().all(|&byte| byte == ANSWER));
    assert!(region.descriptor(NodeId(1)).is_err());
    drop((buffer, _other));
    retire_idle_chunks(&pool);
    assert_eq!(region.ranges(), []);
}
