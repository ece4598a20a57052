//! Ranges of client memory that were found: pieces of regions, which they keep.
//!
//! In: pieces in the order of the data. Out: copies of bytes, or the addresses by which a device finds them. Invariant: the
//! regions of a range stay mapped, here and for a device, as long as the range is kept.

use super::{Iova, IovaRange, Region, addresses};
use headwater_host::foreign::OutOfRegion;
use std::sync::Arc;

/// No run of a device's addresses leads to the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device does not reach this memory; register it with a way to it")]
pub struct OutOfReach;

/// A piece of a resolved range, all in one region, which it keeps alive.
#[derive(Clone, Debug)]
pub struct Segment {
    /// `None` where bytes come from nowhere and go nowhere.
    region: Option<Arc<Region>>,
    offset: usize,
    bytes: usize,
    /// How many bytes the pieces before it have.
    before: usize,
}

/// Resolved ranges: pieces in the order of the data. Empty for an empty range.
#[derive(Clone, Debug, Default)]
pub struct Segments {
    /// Almost every range lies in one region; only others cost an allocation.
    first: Option<Segment>,
    rest: Vec<Segment>,
    bytes: usize,
}

impl Segments {
    /// Length of the range in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many pieces there are.
    #[must_use]
    pub fn pieces(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.len()
    }

    /// Copies to our memory, from `skip` bytes into the range on: as many bytes as both have. Returns how many. What is
    /// discarded reads as zeroes.
    pub fn copy_in(&self, skip: usize, into: &mut [u8]) -> usize {
        self.walk(skip, into.len(), |region, offset, done, bytes| {
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

    /// Copies our bytes to the range, from `skip` bytes into it on: as many as both have. Returns how many.
    pub fn copy_out(&self, skip: usize, from: &[u8]) -> usize {
        self.walk(skip, from.len(), |region, offset, done, bytes| match region {
            Some(region) => region.memory.copy_out(offset, &from[done..done + bytes]),
            None => Ok(()),
        })
    }

    /// The runs by which a device reaches the range, in the order of the data: those of regions that were registered
    /// [with a way](super::ClientMemory::register_with). They are the device's as long as this is there.
    ///
    /// # Errors
    /// [`OutOfReach`] if some of it has none; then `into` is of no use.
    #[inline]
    pub fn runs(&self, into: &mut Vec<IovaRange>) -> Result<(), OutOfReach> {
        for piece in self.first.iter().chain(&self.rest) {
            let reach = piece.region.as_ref().and_then(|region| region.reach.as_ref()).ok_or(OutOfReach)?;
            let start = Iova(reach.address() + addresses(piece.offset));
            into.push(IovaRange { start, bytes: u32::try_from(piece.bytes).map_err(|_| OutOfReach)? });
        }
        Ok(())
    }

    /// Adds a piece that takes bytes and keeps none.
    pub fn discard(&mut self, bytes: usize) {
        if bytes > 0 {
            self.push(None, 0, bytes);
        }
    }

    /// Visits `wanted` bytes of the range piece by piece: the region, the offset in it, how many bytes came before, how
    /// many lie here.
    #[inline]
    fn walk(
        &self,
        skip: usize,
        wanted: usize,
        mut each: impl FnMut(Option<&Region>, usize, usize, usize) -> Result<(), OutOfRegion>,
    ) -> usize {
        let mut done = 0;
        // A value is copied in many calls, and may lie in thousands of pieces.
        let behind = match &self.first {
            Some(first) if skip >= first.bytes => {
                self.rest.partition_point(|piece| piece.before + piece.bytes <= skip)
            }
            _ => 0,
        };
        for segment in self.first.iter().chain(&self.rest[behind..]) {
            if done == wanted {
                break;
            }
            // Below the piece's length for all but the first piece of a skip that leads behind it.
            let jump = (skip + done).saturating_sub(segment.before).min(segment.bytes);
            let bytes = (segment.bytes - jump).min(wanted - done);
            let copied = each(segment.region.as_deref(), segment.offset + jump, done, bytes);
            debug_assert!(copied.is_ok(), "a resolved segment lies in its region");
            done += bytes;
        }
        done
    }

    #[inline]
    pub(super) fn push(&mut self, region: Option<Arc<Region>>, offset: usize, bytes: usize) {
        let segment = Segment { region, offset, bytes, before: self.bytes };
        self.bytes += bytes;
        match self.first {
            None => self.first = Some(segment),
            Some(_) => self.rest.push(segment),
        }
    }
}
