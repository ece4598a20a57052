//! The pool of a device whose queues are kernel rings: each chunk is registered under one number with all rings.
//!
//! Input: rings, as they are opened. Output: buffers with the number of their chunk. Invariant: a number denotes the
//! same chunk in every ring that accepted its registration; it is free again when no ring has it registered.

use crate::buffer::Buffer;
use crate::buffer_pool::BufferPool;
use crate::error::IoError;
use crate::pool_settings::{PoolDefaults, PoolSettings};
use headwater_dma::pool::{MemoryPinner, PinError, PinToken, Pool, PoolConfig};
use headwater_host::device_ring::{DeviceRing, DeviceWork, RingOptions};
use headwater_host::pinning::MemoryRange;
use headwater_host::pinning::uring::BufferTable;
use std::fmt;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Slots of each ring's buffer table. Further chunks are used without registration.
pub(crate) const SLOTS: u32 = 1_024;

/// A pinner that registers chunks with every ring.
#[derive(Default)]
struct RingRegistrar {
    registered: Mutex<RegisteredChunks>,
    refusals: AtomicU64,
}

#[derive(Default)]
struct RegisteredChunks {
    /// The chunks, by number.
    chunks: Vec<Option<MemoryRange>>,
    /// The tables of the rings. Weak, because the pool is never freed as a whole and must keep no ring open.
    tables: Vec<Weak<BufferTable>>,
}

impl RegisteredChunks {
    /// Returns the tables of the rings that still exist.
    fn tables(&mut self) -> Vec<Arc<BufferTable>> {
        self.tables.retain(|table| table.strong_count() > 0);
        self.tables.iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns a free number, if there is one.
    fn allocate_number(&mut self) -> Option<u32> {
        let found = self.chunks.iter().position(Option::is_none).or_else(|| {
            let more = self.chunks.len() < SLOTS as usize;
            more.then(|| {
                self.chunks.push(None);
                self.chunks.len() - 1
            })
        });
        found.and_then(|number| u32::try_from(number).ok())
    }
}

impl RingRegistrar {
    fn lock_registered(&self) -> MutexGuard<'_, RegisteredChunks> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a chunk with a ring; a refused chunk is used without registration.
    fn register(&self, table: &BufferTable, number: u32, chunk: MemoryRange) {
        if table.update(number, &[chunk]).is_err() {
            self.refusals.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn add_ring(&self, table: &Arc<BufferTable>) {
        let mut known = self.lock_registered();
        for (number, chunk) in (0..).zip(&known.chunks) {
            if let Some(chunk) = chunk {
                self.register(table, number, *chunk);
            }
        }
        known.tables.push(Arc::downgrade(table));
    }
}

impl MemoryPinner for RingRegistrar {
    fn name(&self) -> &'static str {
        "io_uring"
    }

    /// Returns false: one transfer names one number.
    fn can_merge(&self) -> bool {
        false
    }

    fn pin(&self, address: usize, bytes: usize) -> Result<PinToken, PinError> {
        let chunk = MemoryRange::at(address, bytes);
        let mut known = self.lock_registered();
        let Some(number) = known.allocate_number() else {
            self.refusals.fetch_add(1, Ordering::Relaxed);
            return Ok(PinToken::at(address, bytes));
        };
        if let Some(slot) = known.chunks.get_mut(number as usize) {
            *slot = Some(chunk);
        }
        for table in known.tables() {
            self.register(&table, number, chunk);
        }
        Ok(PinToken { slot: Some(number), ..PinToken::at(address, bytes) })
    }

    fn unpin(&self, token: PinToken) -> Result<(), PinError> {
        let Some(number) = token.slot else {
            return Ok(());
        };
        let mut known = self.lock_registered();
        for table in known.tables() {
            if table.slot_memory(number).is_some() {
                table.unregister(number..number + 1)?;
            }
        }
        if let Some(slot) = known.chunks.get_mut(number as usize) {
            *slot = None;
        }
        Ok(())
    }
}

impl fmt::Debug for RingRegistrar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.lock_registered();
        let (chunks, rings) = (known.chunks.iter().flatten().count(), known.tables.len());
        write!(f, "RingRegistrar({chunks} chunks, {rings} rings)")
    }
}

/// A buffer pool, and the rings with which its memory is registered.
pub(crate) struct RingPool {
    pool: BufferPool,
    rings: Arc<RingRegistrar>,
}

impl RingPool {
    pub(crate) fn open(settings: &PoolSettings) -> Result<Self, IoError> {
        let rings = Arc::new(RingRegistrar::default());
        let pool = BufferPool::open(settings.apply(PoolConfig {
            pinner: Arc::clone(&rings) as Arc<dyn MemoryPinner>,
            ..PoolDefaults::PINNED.config()
        })?)?;
        Ok(Self { pool, rings })
    }

    pub(crate) fn buffer(&self, bytes: usize) -> Result<Buffer, IoError> {
        Ok(self.pool.buffer(bytes)?)
    }

    /// Opens a ring, and registers all present and future chunks with it.
    pub(crate) fn ring<W: DeviceWork>(
        &self,
        file: &Arc<File>,
        path: &Path,
        request: RingOptions,
    ) -> Result<DeviceRing<W>, IoError> {
        let ring = DeviceRing::open(Arc::clone(file), request)
            .map_err(|error| IoError::Device { reason: format!("{}: {error}", path.display()) })?;
        if let Some(table) = ring.table() {
            self.rings.add_ring(table);
        }
        Ok(ring)
    }

    /// Returns the number of refused registrations of a chunk with a ring.
    pub(crate) fn refusals(&self) -> u64 {
        self.rings.refusals.load(Ordering::Relaxed)
    }

    pub(crate) fn pool(&self) -> &Pool {
        self.pool.pool()
    }
}

impl fmt::Debug for RingPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RingPool({:?})", self.rings)
    }
}
