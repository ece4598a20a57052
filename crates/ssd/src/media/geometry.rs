//! The shape of flash: channels, dies, blocks of 64 pages, pages of 4,096 bytes of data and 128 of spare.
//!
//! Input: counts. Output: typed addresses. Invariant: a [`PageAddress`] made by a [`FlashGeometry`] lies inside it.
//! (UIO paper section 1.1.1.)

use std::fmt;

/// Data bytes of a page.
pub const PAGE_DATA_BYTES: usize = 4_096;
/// Spare bytes of a page.
pub const PAGE_SPARE_BYTES: usize = 128;
/// Pages of a block.
pub const PAGES_PER_BLOCK: usize = 64;
/// Data bytes of a block.
pub const BLOCK_DATA_BYTES: usize = PAGE_DATA_BYTES * PAGES_PER_BLOCK;

/// Most blocks a medium may have: record addresses count 16-byte units in 40 bits.
pub const BLOCKS_MAX: u32 = 1 << 26;

/// One erase block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

impl BlockId {
    /// Returns the block's number as an index.
    #[must_use]
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {}", self.0)
    }
}

/// One page of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageAddress {
    /// Its block.
    pub block: BlockId,
    /// Its number within the block, below [`PAGES_PER_BLOCK`].
    pub page: u8,
}

impl PageAddress {
    /// Makes the address of a page.
    #[must_use]
    #[inline]
    pub const fn new(block: BlockId, page: u8) -> Self {
        Self { block, page }
    }

    /// Returns the page's number on the whole medium.
    #[must_use]
    #[inline]
    pub const fn index(self) -> usize {
        self.block.index() * PAGES_PER_BLOCK + self.page as usize
    }
}

impl fmt::Display for PageAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} page {}", self.block, self.page)
    }
}

/// The shape of a medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlashGeometry {
    /// Channels that transfer independently.
    pub channels: u16,
    /// Dies behind each channel that work independently.
    pub dies_per_channel: u16,
    /// Blocks of the whole medium, striped over the dies: block `b` is on die `b mod dies`.
    pub blocks: u32,
}

impl FlashGeometry {
    /// Makes a geometry of `blocks` blocks on 8 channels of 4 dies.
    #[must_use]
    pub const fn with_blocks(blocks: u32) -> Self {
        Self { channels: 8, dies_per_channel: 4, blocks }
    }

    /// Returns the number of dies of the whole medium.
    #[must_use]
    pub const fn dies(self) -> u32 {
        self.channels as u32 * self.dies_per_channel as u32
    }

    /// Returns the die of a block.
    #[must_use]
    pub const fn die_of(self, block: BlockId) -> u32 {
        block.0 % self.dies()
    }

    /// Returns the channel of a block's die.
    #[must_use]
    pub const fn channel_of(self, block: BlockId) -> u32 {
        self.die_of(block) % self.channels as u32
    }

    /// Returns the data bytes of the whole medium.
    #[must_use]
    pub const fn data_bytes(self) -> u64 {
        self.blocks as u64 * BLOCK_DATA_BYTES as u64
    }

    /// Returns true if the page exists.
    #[must_use]
    #[inline]
    pub const fn contains(self, page: PageAddress) -> bool {
        page.block.0 < self.blocks && (page.page as usize) < PAGES_PER_BLOCK
    }
}
