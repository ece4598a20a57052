//! The tiers of memory through [`Device::buffer`], over every backend that a test can open.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test fails at the first unexpected result")]

use headwater::dma::pool::{PinTier, PoolError, TierThresholds};
use headwater::host::clock::{Clock, Nanos};
use headwater::host::shared_memory::SharedMemory;
use headwater::{Command, Device, IoError, NamespaceSpec, PoolSettings, TransferData, WriteDurability};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

fn settings() -> PoolSettings {
    PoolSettings {
        chunk_bytes: Some(MIB),
        cap_bytes: Some(8 * MIB),
        tiers: Some(TierThresholds::PAPER_5_2.into()),
        static_bytes: Some(64 * KIB),
        ..PoolSettings::default()
    }
}

/// Returns a file that is removed with the value.
fn file() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(4 << 20).unwrap();
    file
}

#[test]
fn each_length_gets_its_tier_over_every_backend() {
    let file = file();
    let uring = format!("io-uring:{}", file.path().display());
    for url in ["mem:64MiB", "model:64MiB?keep=1", &uring] {
        let mut device = Device::open_with(url, &settings()).unwrap();
        let held = [4 * KIB, 4 * KIB + 1, 200 * KIB].map(|bytes| device.buffer(bytes).unwrap());
        let statistics = device.pool().statistics();
        assert_eq!(statistics.tiers.served, [1, 1, 1], "{url}");
        assert_eq!(statistics.tier_bytes, [64 << 10, 1 << 20, 200 << 10], "{url}");
        assert_eq!((statistics.cap_bytes, statistics.chunk_bytes), (8 << 20, 1 << 20), "{url}");
        assert_eq!([1, 4_097, 1 << 20].map(|bytes| device.tier(bytes)), PinTier::ALL);
        drop(held);
        assert_eq!(device.pool().statistics().tier_bytes[2], 0, "{url}");
    }
}

#[test]
fn blocking_calls_stage_small_transfers_and_pin_large_ones() {
    let file = file();
    let mut device = Device::open_with(&format!("io-uring:{}", file.path().display()), &settings()).unwrap();
    for (lba, bytes) in [(8_u64, 4 * KIB), (64, 64 * KIB), (1_024, 512 * KIB)] {
        let written: Vec<u8> = (0..=255).cycle().take(bytes).collect();
        device.write(lba, &written, WriteDurability::NamespaceDefault).unwrap();
        let mut back = vec![0; bytes];
        device.read(lba, &mut back).unwrap();
        assert_eq!(back, written);
    }
    let served = device.pool().statistics().tiers.served;
    assert!(served.iter().all(|&count| count >= 2), "every tier served a write and a read: {served:?}");
}

#[test]
fn fragmented_pool_serves_one_command_in_several_pieces() {
    let file = file();
    let url = format!("io-uring:{}?pool-tiers=0:16777216", file.path().display());
    let mut device = Device::open_with(&url, &PoolSettings { tiers: None, ..settings() }).unwrap();
    let mut held = Vec::new();
    while let Ok(buffer) = device.buffer(64 * KIB) {
        held.push(buffer);
    }
    held.sort_by_key(headwater::Buffer::process_address);
    let held: Vec<_> = held.into_iter().step_by(2).collect();
    assert!(matches!(device.buffer(256 * KIB), Err(IoError::Pool(PoolError::WouldBlock { .. }))));
    let namespace = device.namespace().clone();
    let mut queue = device.queue(4).unwrap();
    let pieces = device.buffers(256 * KIB, 16).unwrap();
    assert_eq!(pieces.len(), 4);
    for (piece, byte) in pieces.iter().zip(1..) {
        piece.write(0, &vec![byte; piece.bytes()]).unwrap();
    }
    let block = namespace.block_bytes;
    let write =
        Command::write_gathered(namespace.id, 0, block, pieces, WriteDurability::NamespaceDefault).unwrap();
    assert!(matches!(&write.data, TransferData::Gather(pieces) if pieces.len() == 4));
    queue.submit(write, 1).unwrap();
    queue.wait(None).unwrap().unwrap().into_result().unwrap();
    // The blocking call reads into pieces too.
    let mut back = vec![0; 256 * KIB];
    device.read(0, &mut back).unwrap();
    for (part, byte) in back.chunks(64 * KIB).zip(1..) {
        assert!(part.iter().all(|&found| found == byte));
    }
    assert!(device.pool().statistics().steps.scattered >= 2);
    drop(held);
}

#[test]
fn buffers_of_all_tiers_wait_in_order_with_timeout_and_cancel() {
    let mut device = Device::open_with("model:64MiB", &settings()).unwrap();
    let held = device.buffer(8 * MIB).unwrap();
    let late = device.buffer_within(MIB, Nanos::ZERO).unwrap_err();
    assert!(matches!(late, IoError::Pool(PoolError::Timeout { .. })), "{late}");
    let mut context = Context::from_waker(Waker::noop());
    let mut large = pin!(device.buffer_async(6 * MIB));
    assert!(large.as_mut().poll(&mut context).is_pending());
    {
        let mut cancelled = pin!(device.buffer_async(6 * MIB));
        assert!(cancelled.as_mut().poll(&mut context).is_pending());
    }
    let mut small = pin!(device.buffer_async(KIB));
    assert!(small.as_mut().poll(&mut context).is_pending());
    let mut import = pin!(device.import_async(SharedMemory::anonymous(64 * KIB).unwrap()));
    assert!(import.as_mut().poll(&mut context).is_pending());
    drop(held);
    assert!(
        matches!(large.as_mut().poll(&mut context), Poll::Ready(Ok(buffer)) if buffer.bytes() == 6 * MIB)
    );
    assert!(matches!(small.as_mut().poll(&mut context), Poll::Ready(Ok(_))));
    let Poll::Ready(Ok(imported)) = import.as_mut().poll(&mut context) else { panic!("the cap has room") };
    assert_eq!(device.pool().statistics().tier_bytes[2], 64 << 10);
    drop(imported);
    let statistics = device.pool().statistics();
    assert_eq!((statistics.tier_bytes[2], statistics.tiers.imported), (0, 1));
    assert_eq!((statistics.waiting, statistics.cancelled), (0, 2));
}

#[test]
fn imported_memory_is_used_in_place_and_a_device_of_its_own_pool_refuses_it() {
    let file = file();
    let mut device = Device::open_with(&format!("io-uring:{}", file.path().display()), &settings()).unwrap();
    let memory = SharedMemory::anonymous(64 * KIB).unwrap();
    let address = memory.address();
    let buffer = device.import(memory).unwrap();
    assert_eq!(buffer.process_address(), address);
    buffer.write(0, &[9; 4_096]).unwrap();
    let namespace = device.namespace().clone();
    let mut queue = device.queue(1).unwrap();
    let part = buffer.slice(0, 4_096).unwrap();
    drop(buffer);
    let write =
        Command::write(namespace.id, 0, namespace.block_bytes, part, WriteDurability::NamespaceDefault);
    queue.submit(write.unwrap(), 1).unwrap();
    queue.wait(None).unwrap().unwrap().into_result().unwrap();
    let mut back = [0; 4_096];
    device.read(0, &mut back).unwrap();
    assert_eq!(back, [9; 4_096]);
    let mut keys = Device::open_with("mem:64MiB", &settings()).unwrap();
    let (memory, _) = keys.import(SharedMemory::anonymous(64 * KIB).unwrap()).unwrap_err();
    assert_eq!((memory.bytes(), keys.pool().statistics().tier_bytes[2]), (64 * KIB, 0));
    let blocks =
        keys.create_namespace(NamespaceSpec { block_bytes: 4_096, size: 64, ..NamespaceSpec::keys() });
    assert!(blocks.is_ok());
}

#[test]
fn idle_time_and_chunk_size_take_effect_without_a_call_on_every_device() {
    // Pools of devices without registration (null:, model:, nvme-tcp:) had no thread: named settings t had no effect.
    let file = file();
    let uring = format!("io-uring:{}", file.path().display());
    for url in ["null:1GiB", "model:64MiB", "mem:64MiB", &uring] {
        let settings = PoolSettings {
            chunk_bytes: None,
            cap_bytes: Some(64 * MIB),
            idle: Some(Nanos::from_millis(32)),
            ..settings()
        };
        let mut device = Device::open_with(url, &settings).unwrap();
        let first = device.pool().config().chunk as u64;
        let held: Vec<_> = (0..320).map(|_| device.buffer(128 * KIB).unwrap()).collect();
        // An eighth of 40 MiB, rounded up.
        while device.pool().statistics().chunk_bytes != 8 << 20 {
            assert!(device.pool().statistics().chunk_bytes >= first.min(2 << 20), "{url}");
            Clock::sleep(Nanos::from_millis(1));
        }
        drop(held);
        while device.pool().statistics().tier_bytes[1] > 0 {
            Clock::sleep(Nanos::from_millis(1));
        }
    }
}

#[test]
fn impossible_settings_are_refused_where_the_device_is_opened() {
    for (url, says) in [
        ("model:1GiB?pool-chunk=5KiB", "power of two"),
        ("mem:64MiB?pool-cap=1KiB", "a cap of 1024 bytes"),
        ("null:1GiB?pool-node=4000", "no memory node 4000"),
        ("null:1GiB?pool-static=100", "multiple of 4,096"),
    ] {
        let refused = Device::open(url).unwrap_err().to_string();
        assert!(refused.contains(says), "{url}: {refused}");
    }
}
