//! The configuration of a simulated medium.
//!
//! Input: a preset and a number of blocks. Output: [`SimMediaConfig`].

use crate::flash::{CacheKind, PageAddressing};
use crate::presets::TimingPreset;
use headwater_ssd::media::FlashGeometry;

/// The configuration of a simulated medium.
#[derive(Clone, Copy, Debug)]
pub struct SimMediaConfig {
    /// Timing, and presence of a volatile cache.
    pub preset: TimingPreset,
    /// Channels, dies, blocks.
    pub geometry: FlashGeometry,
    /// Number of pages before a torn program that may be damaged with it.
    pub guard_pages: u8,
    /// Maximum number of operations in flight.
    pub queue_max: usize,
    /// The way in which the CPU accesses pages.
    pub addressing: PageAddressing,
    /// The medium below the device.
    pub backing: MediaBacking,
}

/// The medium below the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaBacking {
    /// Simulated flash, with the timing of its preset.
    Flash,
    /// The real [`FileMedia`](headwater_ssd::media::file::FileMedia) over a simulated file, which has its own timing,
    /// guard pages and queue.
    File,
}

impl SimMediaConfig {
    /// Returns the configuration of a medium of `blocks` blocks with a preset's geometry, no guard pages and 256
    /// operations in flight.
    #[must_use]
    pub const fn new(preset: TimingPreset, blocks: u32) -> Self {
        Self {
            preset,
            geometry: preset.geometry(blocks),
            guard_pages: 0,
            queue_max: 256,
            addressing: PageAddressing::ByRead,
            backing: MediaBacking::Flash,
        }
    }

    /// Returns the kind of cache of flash.
    #[must_use]
    pub const fn cache(&self) -> CacheKind {
        match self.preset.cached {
            Some(_) => CacheKind::Volatile,
            None => CacheKind::WriteThrough,
        }
    }
}
