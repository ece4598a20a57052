//! Resolved ranges of client memory: pieces of regions, which stay mapped while they are held.
//!
//! Input: pieces in data order. Output: copies of bytes, or the device's addresses of them. Invariant: the regions of a
//! range stay mapped, here and for a device, as long as the range is held.

use super::{ClientRegion, Iova, IovaRange, RegionAccess};
use headwater_host::copy::crc32c;
use headwater_host::shared_memory::{OutOfRegion, SharedMemory};
use std::sync::Arc;

/// An error for memory that the device has no mapping of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device has no mapping of this memory; register the region with a device mapping")]
pub struct NotDeviceMapped;

/// A piece of a resolved range that lies in one region and keeps it mapped.
#[derive(Clone, Debug)]
pub struct ClientSegment {
    /// `None` for discarded bytes: reads give zeroes, writes are dropped.
    region: Option<Arc<ClientRegion>>,
    offset: usize,
    bytes: usize,
    /// Bytes of the pieces before this one.
    data_offset: usize,
}

impl ClientSegment {
    fn region_piece(&self) -> Option<RegionPiece<'_>> {
        let region = &self.region.as_ref()?.memory;
        Some(RegionPiece { at: self.data_offset, region, offset: self.offset, bytes: self.bytes })
    }
}

/// A piece of a resolved range in its region.
#[derive(Clone, Copy, Debug)]
pub struct RegionPiece<'a> {
    /// The offset of its first byte in the range.
    pub at: usize,
    /// The region.
    pub region: &'a SharedMemory,
    /// The offset of its first byte in the region.
    pub offset: usize,
    /// Its length in bytes.
    pub bytes: usize,
}

/// Resolved ranges: pieces in data order. Empty for an empty range.
#[derive(Clone, Debug, Default)]
pub struct ClientSegments {
    /// Almost every range lies in one region; only ranges over several regions cost an allocation.
    first: Option<ClientSegment>,
    rest: Vec<ClientSegment>,
    bytes: usize,
    /// True if the device may only read a piece.
    is_read_only: bool,
    /// True if the client can take a piece away.
    can_lose_pages: bool,
}

impl ClientSegments {
    /// Returns the length of the range in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of pieces.
    #[must_use]
    pub fn pieces(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.len()
    }

    /// Returns true if the device may write every piece.
    #[must_use]
    #[inline]
    pub fn is_writable(&self) -> bool {
        !self.is_read_only
    }

    /// Returns true if the client can take pages of the range away, also during a copy.
    #[must_use]
    pub fn can_lose_pages(&self) -> bool {
        self.can_lose_pages
    }

    /// Returns true if a page of the client's memory was gone when it was accessed: bytes that were copied from the range
    /// may be zeroes that the client never wrote, and bytes that were copied to it may have been lost.
    #[must_use]
    pub fn has_lost_pages(&self) -> bool {
        let mut regions = self.first.iter().chain(&self.rest).filter_map(|piece| piece.region.as_deref());
        self.can_lose_pages && regions.any(|region| region.memory.has_lost_pages())
    }

    /// Copies bytes of the range, from offset `skip` on, to `into`, as many as both have. Returns how many: 0 if the client
    /// [lost pages](Self::has_lost_pages) of these regions. Discarded bytes read as zeroes.
    pub fn copy_in(&self, skip: usize, into: &mut [u8]) -> usize {
        self.for_each_piece(skip, into.len(), |region, offset, done, bytes| {
            let into = &mut into[done..done + bytes];
            match region {
                Some(region) => region.memory.copy_in(offset, into),
                None => {
                    into.fill(0);
                    Ok(())
                }
            }
        })
    }

    /// Copies bytes of the range as [`copy_in`](Self::copy_in), and in the same pass continues the CRC-32C `crc` over what
    /// was copied: over the bytes that `into` then has, whatever the client writes during the copy. Returns how many
    /// bytes, as `copy_in`, and the checksum.
    #[inline]
    pub fn copy_in_crc32c(&self, skip: usize, into: &mut [u8], mut crc: u32) -> (usize, u32) {
        let copied = self.for_each_piece(skip, into.len(), |region, offset, done, bytes| {
            let into = &mut into[done..done + bytes];
            crc = match region {
                Some(region) => region.memory.copy_in_crc32c(offset, into, crc)?,
                None => {
                    into.fill(0);
                    crc32c(crc, into)
                }
            };
            Ok(())
        });
        (copied, crc)
    }

    /// Copies `from` into the range at offset `skip`, as many bytes as both have. Returns how many: 0 if the client
    /// [lost pages](Self::has_lost_pages) of these regions.
    ///
    /// # Panics
    /// If there are bytes and the range is not [writable](Self::is_writable): a command is refused before it writes there.
    pub fn copy_out(&self, skip: usize, from: &[u8]) -> usize {
        let is_allowed = from.is_empty() || !self.is_read_only;
        assert!(is_allowed, "a command writes to memory that the device may only read");
        self.for_each_piece(skip, from.len(), |region, offset, done, bytes| match region {
            Some(region) => region.memory.copy_out(offset, &from[done..done + bytes]),
            None => Ok(()),
        })
    }

    /// Copies `from` as [`copy_out`](Self::copy_out), and in the same pass continues the CRC-32C `crc` over it. Returns the
    /// checksum, which does not tell if the client lost pages.
    ///
    /// # Panics
    /// As `copy_out`, and if `from` is longer than the rest of the range.
    #[inline]
    pub fn copy_out_crc32c(&self, skip: usize, from: &[u8], mut crc: u32) -> u32 {
        let is_allowed = from.is_empty() || !self.is_read_only;
        assert!(is_allowed, "a command writes to memory that the device may only read");
        assert!(from.len() <= self.bytes.saturating_sub(skip), "a copy is longer than its range");
        self.for_each_piece(skip, from.len(), |region, offset, done, bytes| {
            let from = &from[done..done + bytes];
            crc = match region {
                Some(region) => region.memory.copy_out_crc32c(offset, from, crc)?,
                None => crc32c(crc, from),
            };
            Ok(())
        });
        crc
    }

    /// Returns `bytes` bytes of the range from offset `skip` on, as far as it extends, as a range of their own.
    #[must_use]
    pub fn part(&self, skip: usize, bytes: usize) -> Self {
        let mut part = Self::default();
        let behind = self.pieces_before(skip);
        for piece in self.first.iter().chain(&self.rest[behind..]) {
            if part.bytes == bytes {
                break;
            }
            let jump = skip.saturating_sub(piece.data_offset).min(piece.bytes);
            let here = (piece.bytes - jump).min(bytes - part.bytes);
            if here > 0 {
                part.push(piece.region.clone(), piece.offset + jump, here);
            }
        }
        part
    }

    /// Returns the pieces that lie in regions, in data order. Discarded bytes are left out.
    pub fn region_pieces(&self) -> impl Iterator<Item = RegionPiece<'_>> {
        self.first.iter().chain(&self.rest).filter_map(ClientSegment::region_piece)
    }

    /// Returns the piece that has the byte at offset `skip`; `None` behind the end, and for discarded bytes.
    #[must_use]
    pub fn region_piece_at(&self, skip: usize) -> Option<RegionPiece<'_>> {
        let behind = self.pieces_before(skip);
        let mut pieces = self.first.iter().chain(self.rest.get(behind..)?);
        let piece =
            pieces.find(|piece| (piece.data_offset..piece.data_offset + piece.bytes).contains(&skip))?;
        piece.region_piece()
    }

    /// Appends the device addresses of the range to `into`, in data order. They exist for regions registered [with a
    /// device mapping](super::ClientMemory::register_mapped), and are valid as long as `self` is held.
    ///
    /// # Errors
    /// [`NotDeviceMapped`] if a piece has no device mapping; then `into` must not be used.
    #[inline]
    pub fn device_ranges(&self, into: &mut Vec<IovaRange>) -> Result<(), NotDeviceMapped> {
        for piece in self.first.iter().chain(&self.rest) {
            let reach = piece
                .region
                .as_ref()
                .and_then(|region| region.device_mapping.as_ref())
                .ok_or(NotDeviceMapped)?;
            let start = Iova(reach.address() + piece.offset as u64);
            into.push(IovaRange { start, bytes: u32::try_from(piece.bytes).map_err(|_| NotDeviceMapped)? });
        }
        Ok(())
    }

    /// Appends a piece that drops the bytes written to it.
    pub fn discard(&mut self, bytes: usize) {
        if bytes > 0 {
            self.push(None, 0, bytes);
        }
    }

    /// Visits `wanted` bytes of the range piece by piece: the region, the offset in it, the number of bytes before, the
    /// number of bytes here. Returns the bytes visited, or 0 if the client lost pages.
    #[inline]
    fn for_each_piece(
        &self,
        skip: usize,
        wanted: usize,
        mut each: impl FnMut(Option<&ClientRegion>, usize, usize, usize) -> Result<(), OutOfRegion>,
    ) -> usize {
        let (mut done, mut lost) = (0, false);
        let behind = self.pieces_before(skip);
        for segment in self.first.iter().chain(&self.rest[behind..]) {
            if done == wanted {
                break;
            }
            // Below the piece's length, except for the first piece if `skip` leads past it.
            let jump = (skip + done).saturating_sub(segment.data_offset).min(segment.bytes);
            let bytes = (segment.bytes - jump).min(wanted - done);
            let copied = each(segment.region.as_deref(), segment.offset + jump, done, bytes);
            assert!(copied.is_ok(), "a resolved segment lies in its region");
            lost |= segment.region.as_ref().is_some_and(|region| region.memory.has_lost_pages());
            done += bytes;
        }
        if lost { 0 } else { done }
    }

    /// Returns the number of pieces behind the first one that end before an offset: a value is copied in many calls, and may
    /// lie in thousands of pieces.
    #[inline]
    fn pieces_before(&self, skip: usize) -> usize {
        match &self.first {
            Some(first) if skip >= first.bytes => {
                self.rest.partition_point(|piece| piece.data_offset + piece.bytes <= skip)
            }
            _ => 0,
        }
    }

    #[inline]
    pub(super) fn push(&mut self, region: Option<Arc<ClientRegion>>, offset: usize, bytes: usize) {
        self.is_read_only |= region.as_ref().is_some_and(|region| region.access == RegionAccess::ReadOnly);
        self.can_lose_pages |= region.as_ref().is_some_and(|region| region.memory.can_lose_pages());
        let segment = ClientSegment { region, offset, bytes, data_offset: self.bytes };
        self.bytes += bytes;
        match self.first {
            None => self.first = Some(segment),
            Some(_) => self.rest.push(segment),
        }
    }
}
