//! The tiers of a device's memory through [`Device::buffer`], on a device that records what is registered with it and
//! refuses on request.
#![expect(clippy::unwrap_used, reason = "a test fails at the first unexpected result")]
#![expect(clippy::print_stderr, reason = "a failing run is repeated from its seed")]

use headwater_dma::iova::Iova;
use headwater_dma::pool::{DynamicError, PinTier, Pool, PoolError, PoolRequest, TierThresholds};
use headwater_host::clock::Nanos;
use headwater_host::shared_memory::SharedMemory;
use headwater_io::namespace_request::NamespaceRequest;
use headwater_io::{
    Buffer, ClientNamespace, Device, DeviceBackend, DevicePool, IoError, MemoryRegistrar, PoolSettings,
    QueueTransport,
};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// Bytes of the static tier: sixteen slots.
const STATIC: usize = 64 * KIB;
/// The shortest large request.
const LARGE: usize = (128 << 10) + 1;

#[derive(Debug, Default)]
struct Registrations {
    /// Registered bytes by device address.
    ranges: BTreeMap<u64, usize>,
    /// The lengths in the order of registration.
    history: Vec<usize>,
    refuses: bool,
    keeps_memory: bool,
}

/// The registrar of the device.
#[derive(Clone, Debug, Default)]
struct RecordingRegistrar(Arc<Mutex<Registrations>>);

impl RecordingRegistrar {
    fn bytes(&self) -> usize {
        self.0.lock().unwrap().ranges.values().sum()
    }

    fn last(&self) -> usize {
        *self.0.lock().unwrap().history.last().unwrap()
    }
}

impl MemoryRegistrar for RecordingRegistrar {
    fn register(&self, start: Iova, _: &Arc<OwnedFd>, _: u64, bytes: usize) -> Result<(), IoError> {
        let mut state = self.0.lock().unwrap();
        if state.refuses {
            return Err(IoError::Limit { reason: "the device has no region left".to_owned() });
        }
        state.history.push(bytes);
        assert!(state.ranges.insert(start.0, bytes).is_none(), "registered twice");
        Ok(())
    }

    fn unregister(&self, start: Iova) -> Result<(), IoError> {
        let mut state = self.0.lock().unwrap();
        if state.keeps_memory {
            return Err(IoError::Limit { reason: "the device still uses it".to_owned() });
        }
        assert!(state.ranges.remove(&start.0).is_some(), "unregistered what was not registered");
        Ok(())
    }
}

/// A device with a pool and no queues.
#[derive(Debug)]
struct MemoryOnly(DevicePool<RecordingRegistrar>);

impl DeviceBackend for MemoryOnly {
    fn namespaces(&mut self) -> Result<Vec<ClientNamespace>, IoError> {
        Ok(vec![ClientNamespace::key_space(1)])
    }

    fn change_namespace(&mut self, _: u8, _: NamespaceRequest) -> Result<u8, IoError> {
        Err(IoError::Unsupported { reason: "no administration".to_owned() })
    }

    fn region(&mut self, bytes: usize) -> Result<Buffer, IoError> {
        self.0.buffer(bytes)
    }

    fn pool(&self) -> &Pool {
        self.0.pool()
    }

    fn pool_error(&self, error: PoolError) -> IoError {
        self.0.error(error)
    }

    fn queue(&mut self, _: u32) -> Result<Box<dyn QueueTransport>, IoError> {
        Err(IoError::Unsupported { reason: "no queues".to_owned() })
    }
}

/// Returns settings with chunks of 2 MiB and a cap of 32 MiB; time passes only by ticks of the test.
fn settings() -> PoolSettings {
    PoolSettings {
        chunk_bytes: Some(2 * MIB),
        cap_bytes: Some(32 * MIB),
        idle: Some(Nanos(u64::MAX / 4)),
        tiers: Some(TierThresholds::PAPER_5_2.into()),
        static_bytes: Some(STATIC),
        node: None,
    }
}

fn device(settings: &PoolSettings) -> (Device, RecordingRegistrar) {
    let registrar = RecordingRegistrar::default();
    let pool = DevicePool::open(registrar.clone(), settings).unwrap();
    (Device::over(Box::new(MemoryOnly(pool)), 1).unwrap(), registrar)
}

fn tier_bytes(device: &Device) -> [u64; 3] {
    device.pool().statistics().tier_bytes
}

fn refused(result: Result<Buffer, IoError>) -> PoolError {
    match result {
        Err(IoError::Pool(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_length_registers_its_tier_and_the_cap_counts_all() {
    let (mut device, registrar) = device(&settings());
    assert_eq!((tier_bytes(&device), registrar.bytes()), ([0; 3], 0), "nothing before the first request");
    let held = [4 * KIB, 4 * KIB + 1, 128 * KIB, LARGE].map(|bytes| device.buffer(bytes).unwrap());
    let large = LARGE.next_multiple_of(4 * KIB);
    assert_eq!(tier_bytes(&device), [STATIC as u64, 2 << 20, large as u64]);
    assert_eq!(device.pool().statistics().tiers.served, [1, 2, 1]);
    assert_eq!(registrar.bytes(), STATIC + 2 * MIB + large, "the device has registered exactly these bytes");
    assert_eq!(registrar.last(), large, "a large buffer is a region of its own");
    let addresses = held.iter().map(|buffer| (buffer.address(), buffer.bytes()));
    let ranges = registrar.0.lock().unwrap().ranges.clone();
    for (address, bytes) in addresses {
        let (start, length) = ranges.range(..=address).next_back().unwrap();
        assert!(address + bytes as u64 <= start + *length as u64, "{address:#x}");
    }
    drop(held);
    assert_eq!(tier_bytes(&device)[2], 0, "a large buffer is unregistered as it returns");
    device.pool().trim();
    assert_eq!((tier_bytes(&device), registrar.bytes()), ([STATIC as u64, 0, 0], STATIC));
    drop(device);
    assert_eq!(registrar.bytes(), 0, "closing unregisters everything");
}

#[test]
fn small_buffers_reuse_the_slots_and_more_of_them_come_from_the_pool() {
    let (mut device, registrar) = device(&settings());
    let slots: Vec<Buffer> = (0..16).map(|_| device.buffer(4 * KIB).unwrap()).collect();
    assert_eq!((tier_bytes(&device), registrar.bytes()), ([STATIC as u64, 0, 0], STATIC));
    let more = device.buffer(100).unwrap();
    let statistics = device.pool().statistics();
    assert_eq!((statistics.tiers.overflowed, statistics.tiers.served), (1, [16, 1, 0]));
    drop((slots, more));
    device.pool().trim();
    for _ in 0..100 {
        drop(device.buffer(KIB).unwrap());
    }
    assert_eq!(registrar.0.lock().unwrap().history, [STATIC, 2 * MIB], "slots were registered once");
    assert_eq!(device.pool().statistics().tiers.served, [116, 1, 0]);
}

#[test]
fn large_buffer_is_fresh_zeroes_and_never_waits_in_a_cache() {
    let (mut device, registrar) = device(&settings());
    for round in 0..3 {
        let mut large = device.buffer(160 * KIB).unwrap();
        assert!(large.bytes_mut().unwrap().iter().all(|&byte| byte == 0), "round {round}");
        large.bytes_mut().unwrap().fill(7);
        drop(large);
        assert_eq!((registrar.bytes(), device.pool().statistics().cached_bytes), (0, 0));
    }
    assert_eq!(registrar.0.lock().unwrap().history, [160 * KIB; 3]);
}

#[test]
fn large_buffer_uses_free_memory_of_the_pool_if_the_cap_has_no_room() {
    let (mut device, registrar) = device(&PoolSettings { cap_bytes: Some(4 * MIB), ..settings() });
    let mut held: Vec<Buffer> = (0..32).map(|_| device.buffer(128 * KIB).unwrap()).collect();
    assert_eq!(tier_bytes(&device), [0, 4 << 20, 0]);
    held.sort_by_key(Buffer::process_address);
    let held: Vec<Buffer> = held.into_iter().step_by(2).collect();
    assert!(matches!(refused(device.buffer(MIB)), PoolError::WouldBlock { .. }));
    let pieces = device.buffers(MIB, 8).unwrap();
    assert_eq!((pieces.len(), device.pool().statistics().tiers.overflowed), (8, 1));
    drop((pieces, held));
    assert_eq!(registrar.0.lock().unwrap().history, [2 * MIB; 2]);
}

#[test]
fn cap_bounds_every_tier_and_a_raised_cap_serves_what_waited() {
    let (mut device, _) = device(&settings());
    assert!(matches!(refused(device.buffer(33 * MIB)), PoolError::OverCap { .. }));
    let first = device.buffer(20 * MIB).unwrap();
    assert!(matches!(refused(device.buffer(20 * MIB)), PoolError::WouldBlock { .. }));
    let (memory, late) = device.import(SharedMemory::anonymous(20 * MIB).unwrap()).unwrap_err();
    assert!(matches!(late, IoError::Pool(PoolError::WouldBlock { .. })) || memory.bytes() == 20 * MIB);
    drop(first);
    drop(device.buffer(20 * MIB).unwrap());
    let capped = device.pool().set_cap(33 * MIB).unwrap_err();
    assert!(matches!(capped, PoolError::CapTooHigh { .. }), "a device's cap is the most that it may pin");
    device.pool().set_cap(8 * MIB).unwrap();
    assert!(matches!(refused(device.buffer(20 * MIB)), PoolError::OverCap { .. }));
    let mut context = Context::from_waker(Waker::noop());
    let held = device.buffer(8 * MIB).unwrap();
    let mut waiting = pin!(device.buffer_async(6 * MIB));
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    device.pool().set_cap(16 * MIB).unwrap();
    assert!(matches!(waiting.as_mut().poll(&mut context), Poll::Ready(Ok(_))));
    drop(held);
}

#[test]
fn tiers_wait_in_one_order_and_time_out_and_a_cancelled_request_lets_later_ones_proceed() {
    let (mut device, _) = device(&settings());
    let held = device.buffer(32 * MIB).unwrap();
    let late = refused(device.buffer_within(LARGE, Nanos::ZERO));
    assert!(matches!(late, PoolError::Timeout { bytes: LARGE, .. }), "{late}");
    for bytes in [KIB, 64 * KIB] {
        let late = refused(device.buffer_within(bytes, Nanos::from_millis(1)));
        assert!(matches!(late, PoolError::Timeout { .. }), "{late}");
    }
    let mut context = Context::from_waker(Waker::noop());
    let mut first = pin!(device.buffer_async(20 * MIB));
    assert!(first.as_mut().poll(&mut context).is_pending());
    let mut medium = pin!(device.buffer_async(64 * KIB));
    assert!(medium.as_mut().poll(&mut context).is_pending());
    let mut small = pin!(device.buffer_async(KIB));
    assert!(small.as_mut().poll(&mut context).is_pending());
    let mut blocked = Box::pin(device.buffer_async(20 * MIB));
    assert!(blocked.as_mut().poll(&mut context).is_pending());
    let mut behind = pin!(device.buffer_async(2 * KIB));
    assert!(behind.as_mut().poll(&mut context).is_pending());
    drop(held);
    let mut served = Vec::new();
    for future in [&mut first, &mut medium, &mut small] {
        let Poll::Ready(Ok(buffer)) = future.as_mut().poll(&mut context) else { panic!("served in order") };
        served.push(buffer);
    }
    assert!(behind.as_mut().poll(&mut context).is_pending(), "a small request does not overtake");
    assert!(matches!(refused(device.buffer(KIB)), PoolError::WouldBlock { waiting: 2, .. }));
    drop(blocked);
    assert!(matches!(behind.as_mut().poll(&mut context), Poll::Ready(Ok(_))));
    let statistics = device.pool().statistics();
    assert_eq!((statistics.waiting, statistics.cancelled), (0, 4));
}

#[test]
fn waiter_on_a_thread_is_served_when_another_thread_releases_memory() {
    for bytes in [KIB, 64 * KIB, 20 * MIB] {
        let (mut device, _) = device(&settings());
        let held = device.buffer(32 * MIB).unwrap();
        let pool = device.pool().clone();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| device.buffer_within(bytes, Nanos(u64::MAX)).unwrap().bytes());
            while pool.statistics().waiting == 0 {
                std::thread::yield_now();
            }
            drop(held);
            assert_eq!(waiter.join().unwrap(), bytes);
        });
    }
}

#[test]
fn chunk_size_that_follows_the_load_reaches_the_next_chunk() {
    let (mut device, registrar) = device(&PoolSettings { chunk_bytes: None, ..settings() });
    let held: Vec<Buffer> = (0..160).map(|_| device.buffer(64 * KIB).unwrap()).collect();
    assert_eq!(registrar.last(), 256 * KIB, "the first chunks of a registered device");
    let large = device.buffer(8 * MIB).unwrap();
    for tick in 0..60 {
        device.pool().tick(Nanos(tick));
    }
    // An eighth of 10 MiB, rounded up; the large buffer, which has its own chunk, does not count.
    assert_eq!(device.pool().statistics().chunk_bytes, 2 << 20);
    let more: Vec<Buffer> = (0..4).map(|_| device.buffer(64 * KIB).unwrap()).collect();
    assert_eq!(registrar.last(), 2 * MIB);
    drop((held, large, more));
    // A named chunk size does not adapt.
    let (mut device, registrar) = self::device(&PoolSettings { chunk_bytes: Some(MIB), ..settings() });
    let held: Vec<Buffer> = (0..160).map(|_| device.buffer(64 * KIB).unwrap()).collect();
    (0..60).for_each(|tick| device.pool().tick(Nanos(tick)));
    assert_eq!((device.pool().statistics().chunk_bytes, registrar.last()), (1 << 20, MIB));
    drop(held);
}

#[test]
fn empty_chunk_is_unregistered_after_the_idle_time_and_slots_stay() {
    let (mut device, registrar) =
        device(&PoolSettings { idle: Some(Nanos::from_millis(3_600_000)), ..settings() });
    drop((device.buffer(KIB).unwrap(), device.buffer(64 * KIB).unwrap()));
    assert_eq!(registrar.bytes(), STATIC + 2 * MIB);
    // The ticks that find a cache unused empty it, and those that see the chunk empty for the idle time retire it.
    let hour = 3_600_000_000_000;
    (1..=8).for_each(|tick| device.pool().tick(Nanos(tick * hour / 8)));
    assert_eq!(registrar.bytes(), STATIC + 2 * MIB, "before the idle time is over");
    (9..=24).for_each(|tick| device.pool().tick(Nanos(tick * hour / 8)));
    assert_eq!((registrar.bytes(), tier_bytes(&device)), (STATIC, [STATIC as u64, 0, 0]));
}

#[test]
fn refusal_of_the_device_is_reported_and_counts_nothing() {
    let (mut device, registrar) = device(&settings());
    registrar.0.lock().unwrap().refuses = true;
    for bytes in [64 * KIB, LARGE] {
        let reason = device.buffer(bytes).unwrap_err().to_string();
        assert!(reason.contains("the device has no region left"), "{reason}");
    }
    assert_eq!((tier_bytes(&device), registrar.bytes()), ([0; 3], 0));
    registrar.0.lock().unwrap().refuses = false;
    assert_eq!(device.buffer(LARGE).unwrap().bytes(), LARGE);
    assert_eq!(device.buffer(64 * KIB).unwrap().bytes(), 64 * KIB);
}

#[test]
fn memory_that_the_device_may_still_access_is_never_reused() {
    let (mut device, registrar) = device(&settings());
    device.buffer(MIB).unwrap().leak();
    assert_eq!(tier_bytes(&device)[2], 1 << 20, "a command that never completed keeps its memory");
    registrar.0.lock().unwrap().keeps_memory = true;
    drop(device.buffer(2 * MIB).unwrap());
    assert_eq!(tier_bytes(&device)[2], 3 << 20, "the device did not unregister it");
    let addresses: Vec<usize> = (0..4).map(|_| device.buffer(MIB).unwrap().process_address()).collect();
    let mut unique = addresses.clone();
    unique.dedup();
    assert_eq!(unique, addresses);
}

#[test]
fn device_whose_memory_is_registered_by_messages_refuses_memory_of_the_caller_and_returns_it() {
    let (mut device, _) = device(&settings());
    let memory = SharedMemory::anonymous(64 * KIB).unwrap();
    let address = memory.address();
    let (memory, reason) = device.import(memory).unwrap_err();
    assert_eq!((memory.address(), memory.bytes()), (address, 64 * KIB));
    assert!(!reason.to_string().is_empty());
    let (memory, _) = device.import_within(memory, Nanos::ZERO).unwrap_err();
    assert_eq!(memory.address(), address);
    assert_eq!((tier_bytes(&device), device.pool().statistics().tiers.imported), ([0; 3], 0));
    // The pool itself says the same as the device.
    let direct = device.pool().import(memory).map(drop).unwrap_err().1;
    assert!(matches!(direct, DynamicError::Pool(PoolError::Pin(_))), "{direct}");
}

#[test]
fn tier_by_length_is_that_of_the_pool_for_every_length() {
    let (mut device, _) = device(&settings());
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut expected = [0; 3];
    for _ in 0..2_000 {
        let bytes = 1 << random.u32(0..21);
        let bytes = random.usize(bytes..bytes * 2).min(4 * MIB);
        let tier = match bytes {
            0..=4_096 => PinTier::Static,
            4_097..LARGE => PinTier::Pool,
            _ => PinTier::Dynamic,
        };
        assert_eq!(device.tier(bytes), tier, "{bytes}");
        drop(device.buffer(bytes).unwrap());
        expected[tier as usize] += 1;
    }
    let statistics = device.pool().statistics();
    assert_eq!((statistics.tiers.served, statistics.tiers.overflowed), (expected, 0));
    let request = PoolRequest::bytes(LARGE).scattered(4);
    assert!(device.pool().allocate(&request).is_ok());
}
