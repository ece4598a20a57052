//! The device: what every face submits to and is answered by.

use crate::command::{Command, Completion, FaceId, NamespaceId, SubmitError};
use crate::limits::NAMESPACES;
use crate::media::Media;
use headwater_host::clock::{Nanos, UnixMillis};

/// When an acknowledged write of a namespace is safe from a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Before it is acknowledged. Nothing acknowledged is ever lost.
    Always,
    /// At most so long after it is acknowledged.
    Interval(Nanos),
    /// After the next flush of the namespace that asks for it.
    OnFlush,
}

/// How a collection victim is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VictimPolicy {
    /// The block that was opened first (the UIO paper's).
    Fifo,
    /// The block with the fewest live bytes.
    Greedy,
}

/// How a device is set up. Every field has a default that suits a laptop.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// Durability of each namespace.
    pub durability: [Durability; NAMESPACES],
    /// How collection victims are chosen.
    pub victim: VictimPolicy,
    /// Frames of device DRAM (4,608 bytes each): open pages, reads in flight and the page cache.
    pub frames_max: usize,
    /// Seed of the key hash; any value, kept for the life of the process.
    pub hash_seed: u64,
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self {
            durability: [Durability::Always; NAMESPACES],
            victim: VictimPolicy::Greedy,
            frames_max: 16_384,
            hash_seed: 0x68_65_61_64,
        }
    }
}

/// Numbers a running device keeps; monotonic unless the name says otherwise.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceStats {
    /// Keys of each namespace now.
    pub keys: [u64; NAMESPACES],
    /// Commands completed.
    pub completed: u64,
    /// Bytes of records that clients wrote, headers included.
    pub client_bytes: u64,
    /// Bytes of pages programmed, data part.
    pub programmed_bytes: u64,
    /// Bytes of records that collection moved.
    pub moved_bytes: u64,
    /// Blocks erased.
    pub erases: u64,
    /// Flushes sent to the media.
    pub flushes: u64,
    /// Blocks free now.
    pub free_blocks: u32,
    /// Bytes of live records now.
    pub live_bytes: u64,
    /// Bytes of DRAM the index takes now.
    pub index_bytes: u64,
    /// Page reads answered from device DRAM.
    pub cache_hits: u64,
    /// Page reads that went to the media.
    pub cache_misses: u64,
    /// Keys that expired.
    pub expired: u64,
    /// Records whose checksum did not match.
    pub damaged: u64,
}

/// The converged device over one medium.
#[derive(Debug)]
pub struct Device<M> {
    media: M,
}

impl<M: Media> Device<M> {
    /// Submits a command for a face. `Ok` means exactly one completion will follow; `Err` means none will.
    ///
    /// # Errors
    /// [`SubmitError::Busy`] to ask again later, [`SubmitError::Refused`] for a command that can never work.
    pub fn submit(
        &mut self,
        face: FaceId,
        namespace: NamespaceId,
        token: u64,
        command: Command,
    ) -> Result<(), SubmitError> {
        let _ = (face, namespace, token, command);
        Err(SubmitError::Busy(0))
    }

    /// Runs every stage as far as it can go at this time; never blocks. Returns whether anything moved.
    pub fn poll(&mut self, now: Nanos, wall: UnixMillis) -> bool {
        let _ = (now, wall);
        false
    }

    /// Takes the next completion that may leave, for one face.
    pub fn next_completion(&mut self, face: FaceId) -> Option<Completion> {
        let _ = face;
        None
    }

    /// When the device next has work of its own (a durability interval, an expiry, a simulated media event);
    /// `None` when only a command or a media completion can wake it.
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.media.next_event()
    }

    /// The numbers.
    pub fn stats(&self) -> DeviceStats {
        DeviceStats::default()
    }
}
