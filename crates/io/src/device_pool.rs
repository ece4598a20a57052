//! The pool of one device: memory that is registered with it in chunks, once, and given out in buffers.
//!
//! In: a way to register ranges of one shared file. Out: [`Buffer`]s whose addresses the device knows. Invariant: a range is
//! registered from before its first buffer is given out until after its last one is back, or the device is gone.

use crate::buffer::Buffer;
use crate::buffer_pool::BufferPool;
use crate::error::IoError;
use headwater_dma::iova::Iova;
use headwater_dma::pool::{
    ChunkRule, Grounds, PROCESS_CAP, PinError, PinToken, Pinner, Pool, PoolConfig, PoolError, Sharing,
};
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

/// A chunk to begin with, small enough for a client that is allowed little.
const CHUNK: usize = 256 << 10;
/// Chunks follow the load between these.
const CHUNKS: ChunkRule = ChunkRule::Adaptive { least: 256 << 10, most: 64 << 20 };

/// Who registers memory with a device.
pub trait Registrar: Send + Sync + fmt::Debug {
    /// Makes a range of a file known to the device as the addresses from `start` on.
    ///
    /// # Errors
    /// [`IoError`]: the device does not know it.
    fn register(&self, start: Iova, file: &Arc<OwnedFd>, offset: u64, bytes: usize) -> Result<(), IoError>;

    /// Lets the device forget what begins at `start`; returns when it has. A device that is gone has forgotten.
    ///
    /// # Errors
    /// [`IoError`]: the device may still use it.
    fn forget(&self, start: Iova) -> Result<(), IoError>;
}

#[derive(Debug)]
struct NodeFile {
    address: usize,
    bytes: usize,
    /// Where its first byte is in the device's numbering.
    start: u64,
    file: Arc<OwnedFd>,
}

/// A pinner that registers. Addresses of the device begin at [`FIRST_ADDRESS`] and follow the offsets in the files.
struct Registered<R> {
    registrar: R,
    /// The file of each node of memory.
    files: Mutex<Vec<NodeFile>>,
    /// Why the device would not have the last range.
    refusal: Mutex<Option<IoError>>,
}

/// Where memory lies in a device's numbering; what is below is nobody's.
pub const FIRST_ADDRESS: u64 = 1 << 32;

impl<R> fmt::Debug for Registered<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Registered")
    }
}

impl<R: Registrar> Pinner for Registered<R> {
    fn name(&self) -> &'static str {
        "registered"
    }

    fn settle(&self, grounds: Grounds<'_>) -> Result<(), PinError> {
        let Grounds { address, bytes, descriptor, .. } = grounds;
        let file = descriptor.ok_or(PinError::NotShared)?.try_clone_to_owned();
        let errno = |error: std::io::Error| error.raw_os_error().unwrap_or(0);
        let file = file.map_err(|error| PinError::Refused { bytes, errno: errno(error) })?;
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let start = files.last().map_or(FIRST_ADDRESS, |last| last.start + last.bytes as u64);
        files.push(NodeFile { address, bytes, start, file: Arc::new(file) });
        Ok(())
    }

    /// What touches in memory has touching addresses, but may be two regions to the device.
    fn joins(&self) -> bool {
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
        self.registrar.forget(Iova(iova)).map_err(|_| PinError::Short { bytes, unpinned: 0 })
    }
}

/// The pool.
pub struct DevicePool<R> {
    pool: BufferPool,
    pinner: Arc<Registered<R>>,
}

impl<R: Registrar + 'static> DevicePool<R> {
    /// A pool whose chunks are registered by `registrar`. A pool is never freed as a whole, so that must not keep the device.
    ///
    /// # Errors
    /// [`IoError`] when there are no addresses, descriptors or threads for it.
    pub fn open(registrar: R) -> Result<Self, IoError> {
        let pinner =
            Arc::new(Registered { registrar, files: Mutex::new(Vec::new()), refusal: Mutex::new(None) });
        let pool = BufferPool::open(PoolConfig {
            chunk: CHUNK,
            chunk_rule: CHUNKS,
            cap: PROCESS_CAP,
            cap_max: PROCESS_CAP,
            sharing: Sharing::Shared,
            pinner: Arc::clone(&pinner) as Arc<dyn Pinner>,
            ..PoolConfig::default()
        })?;
        Ok(Self { pool, pinner })
    }

    /// A buffer of at least one byte. Where the device would register no more, idle memory is given back and it is asked again.
    ///
    /// # Errors
    /// [`IoError`] of the device that would not register more, or [`IoError::Pool`].
    pub fn buffer(&self, bytes: usize) -> Result<Buffer, IoError> {
        self.pool.buffer(bytes).map_err(|error| {
            let refusal = self.pinner.refusal.lock().unwrap_or_else(PoisonError::into_inner).take();
            match (error, refusal) {
                (PoolError::Pin(_), Some(refusal)) => refusal,
                (error, _) => error.into(),
            }
        })
    }

    /// The pool.
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
