//! The pool of one device: memory that is registered with it in chunks, once, and allocated as buffers.
//!
//! Input: a registrar of ranges of shared files. Output: [`Buffer`]s with device addresses. Invariant: a range is
//! registered from before its first buffer is allocated until its last one is released, or the device is gone.

use crate::buffer::Buffer;
use crate::buffer_pool::BufferPool;
use crate::error::IoError;
use crate::pool_settings::{PoolDefaults, PoolSettings};
use headwater_dma::iova::Iova;
use headwater_dma::pool::{
    MemoryPinner, NodeRange, PinError, PinToken, Pool, PoolConfig, PoolError, PoolSharing,
};
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

/// The registration of memory with a device.
pub trait MemoryRegistrar: Send + Sync + fmt::Debug {
    /// Registers a range of a file at the device addresses from `start` on.
    ///
    /// # Errors
    /// [`IoError`]: the range is not registered.
    fn register(&self, start: Iova, file: &Arc<OwnedFd>, offset: u64, bytes: usize) -> Result<(), IoError>;

    /// Unregisters the range that starts at `start`; returns when the device has. A device that is gone has
    /// unregistered it.
    ///
    /// # Errors
    /// [`IoError`]: the device may still use it.
    fn unregister(&self, start: Iova) -> Result<(), IoError>;
}

#[derive(Debug)]
struct NodeFile {
    address: usize,
    bytes: usize,
    /// The device address of its first byte.
    start: u64,
    file: Arc<OwnedFd>,
}

/// A pinner that registers memory. Device addresses start at [`FIRST_DEVICE_ADDRESS`] and follow the offsets in the files.
struct RegisteringPinner<R> {
    registrar: R,
    /// The file of each NUMA node.
    files: Mutex<Vec<NodeFile>>,
    /// The device's reason for the last refusal.
    refusal: Mutex<Option<IoError>>,
}

/// The lowest device address of memory; addresses below it are invalid.
pub const FIRST_DEVICE_ADDRESS: u64 = 1 << 32;

impl<R> fmt::Debug for RegisteringPinner<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RegisteringPinner")
    }
}

impl<R: MemoryRegistrar> MemoryPinner for RegisteringPinner<R> {
    fn name(&self) -> &'static str {
        "registered"
    }

    fn prepare_node(&self, grounds: NodeRange<'_>) -> Result<(), PinError> {
        let NodeRange { address, bytes, descriptor, .. } = grounds;
        let file = descriptor.ok_or(PinError::NotShared)?.try_clone_to_owned();
        let errno = |error: std::io::Error| error.raw_os_error().unwrap_or(0);
        let file = file.map_err(|error| PinError::Refused { bytes, errno: errno(error) })?;
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let start = files.last().map_or(FIRST_DEVICE_ADDRESS, |last| last.start + last.bytes as u64);
        files.push(NodeFile { address, bytes, start, file: Arc::new(file) });
        Ok(())
    }

    /// Returns false: adjacent memory has adjacent addresses, but may be two regions of the device.
    fn can_merge(&self) -> bool {
        false
    }

    fn pin(&self, address: usize, bytes: usize) -> Result<PinToken, PinError> {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let inside = |node: &&NodeFile| address.checked_sub(node.address).is_some_and(|at| at < node.bytes);
        let node = files.iter().find(inside).ok_or(PinError::NotShared)?;
        let offset = (address - node.address) as u64;
        let iova = node.start + offset;
        match self.registrar.register(Iova(iova), &node.file, offset, bytes) {
            Ok(()) => Ok(PinToken { iova: Some(iova), ..PinToken::at(address, bytes) }),
            Err(error) => {
                *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                Err(PinError::Refused { bytes, errno: 0 })
            }
        }
    }

    fn unpin(&self, token: PinToken) -> Result<(), PinError> {
        let bytes = token.bytes;
        let iova = token.iova.ok_or(PinError::Short { bytes, unpinned: 0 })?;
        self.registrar.unregister(Iova(iova)).map_err(|_| PinError::Short { bytes, unpinned: 0 })
    }
}

/// A pool of memory that is registered with one device.
pub struct DevicePool<R> {
    pool: BufferPool,
    pinner: Arc<RegisteringPinner<R>>,
}

impl<R: MemoryRegistrar + 'static> DevicePool<R> {
    /// Opens a pool whose chunks `registrar` registers. A pool is never freed as a whole, so it must not keep the
    /// device open.
    ///
    /// # Errors
    /// [`IoError`] for impossible settings, or when addresses, descriptors or threads are exhausted.
    pub fn open(registrar: R, settings: &PoolSettings) -> Result<Self, IoError> {
        let pinner = Arc::new(RegisteringPinner {
            registrar,
            files: Mutex::new(Vec::new()),
            refusal: Mutex::new(None),
        });
        let pool = BufferPool::open(settings.apply(PoolConfig {
            sharing: PoolSharing::Shared,
            pinner: Arc::clone(&pinner) as Arc<dyn MemoryPinner>,
            ..PoolDefaults::REGISTERED.config()
        })?)?;
        Ok(Self { pool, pinner })
    }

    /// Allocates a buffer of at least one byte. If registration fails, releases idle memory and retries.
    ///
    /// # Errors
    /// [`IoError`] of the failed registration, or [`IoError::Pool`].
    pub fn buffer(&self, bytes: usize) -> Result<Buffer, IoError> {
        self.pool.buffer(bytes).map_err(|error| self.error(error))
    }

    /// Returns the device's reason for a failed registration, if the error of the pool is that.
    #[must_use]
    pub fn error(&self, error: PoolError) -> IoError {
        let refusal = self.pinner.refusal.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (error, refusal) {
            (PoolError::Pin(_), Some(refusal)) => refusal,
            (error, _) => error.into(),
        }
    }

    /// Returns the pool.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        self.pool.pool()
    }
}

impl<R> fmt::Debug for DevicePool<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DevicePool({:?})", self.pool.pool())
    }
}
