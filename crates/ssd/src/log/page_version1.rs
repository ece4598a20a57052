//! The spare of a page of a medium of version 1, which is only read (`docs/formats/record.md`).
//!
//! Input: the 128 bytes behind a page's data. Output: the fields.
//! Invariant: a spare that [`PageSpare::decode`] accepts carries the checksum of its own fields.

use super::page::PageKind;
use crate::command::Sequence;
use crate::media::geometry::{PAGE_DATA_BYTES, PAGE_SPARE_BYTES};
use crate::mutant::{Mutant, mutant};
use headwater_host::copy::crc32c;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the spare in use.
pub const SPARE_FIELDS_BYTES: usize = 72;
/// Version of the page format.
pub const PAGE_VERSION: u8 = 1;

const MAGIC: [u8; 4] = *b"HWP1";
const CRC_COVERS: usize = 68;

/// The spare in its flash format.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PageSpareLayout {
    magic: [u8; 4],
    version: u8,
    kind: u8,
    page: U16,
    first: U16,
    used: U16,
    reserved: U32,
    order: U64,
    open_sequence: U64,
    durable_sequence: U64,
    durable_order: U64,
    continues: U64,
    context: U64,
    reserved2: U32,
    crc: U32,
}

const _: () = assert!(size_of::<PageSpareLayout>() == SPARE_FIELDS_BYTES);
const _: () = assert!(std::mem::offset_of!(PageSpareLayout, order) == 16);
const _: () = assert!(std::mem::offset_of!(PageSpareLayout, crc) == CRC_COVERS);
const _: () = assert!(SPARE_FIELDS_BYTES <= PAGE_SPARE_BYTES);

/// The fields of a spare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageSpare {
    /// The purpose of the page.
    pub kind: PageKind,
    /// Number of the page in its block.
    pub page: u8,
    /// Offset of the first record that starts in the page, or [`NO_RECORD`](super::page::NO_RECORD).
    pub first: u16,
    /// Data bytes in use.
    pub used: u16,
    /// Order in which the block was opened.
    pub order: u64,
    /// Lowest sequence not given out when the block was opened.
    pub open_sequence: Sequence,
    /// Every sequence up to this one was durable when the page was programmed.
    pub durable_sequence: Sequence,
    /// The first pages of all blocks up to this order were durable too.
    pub durable_order: u64,
    /// Address plus 1 of the chained record that continues at the start of the block, else 0.
    pub continues: u64,
    /// Checkpoint pages: the checkpoint and the number of the page in it. Log and guard pages: the highest block order
    /// that recovery accepted when the epoch of this page's block began.
    pub context: u64,
}

impl PageSpare {
    /// Encodes the spare after a page's data. `slot` is data and spare together.
    ///
    /// # Panics
    /// `slot` is shorter than a page with its spare.
    pub fn encode(&self, slot: &mut [u8]) {
        let mut layout = PageSpareLayout {
            magic: MAGIC,
            version: PAGE_VERSION,
            kind: self.kind.byte(),
            page: U16::new(u16::from(self.page)),
            first: U16::new(self.first),
            used: U16::new(self.used),
            reserved: U32::ZERO,
            order: U64::new(self.order),
            open_sequence: U64::new(self.open_sequence.0),
            durable_sequence: U64::new(self.durable_sequence.0),
            durable_order: U64::new(self.durable_order),
            continues: U64::new(self.continues),
            context: U64::new(self.context),
            reserved2: U32::ZERO,
            crc: U32::ZERO,
        };
        layout.crc = U32::new(crc32c(0, &layout.as_bytes()[..CRC_COVERS]));
        let spare = &mut slot[PAGE_DATA_BYTES..PAGE_DATA_BYTES + PAGE_SPARE_BYTES];
        spare[..SPARE_FIELDS_BYTES].copy_from_slice(layout.as_bytes());
        spare[SPARE_FIELDS_BYTES..].fill(0);
    }

    /// Decodes the spare of a page (data and spare together); `None` if it is damaged or has another format.
    #[must_use]
    pub fn decode(slot: &[u8], page: u8) -> Option<Self> {
        let fields = slot.get(PAGE_DATA_BYTES..PAGE_DATA_BYTES + SPARE_FIELDS_BYTES)?;
        let layout = PageSpareLayout::read_from_bytes(fields).ok()?;
        if layout.magic != MAGIC
            || layout.version != PAGE_VERSION
            || layout.crc.get() != crc32c(0, &fields[..CRC_COVERS]) && !mutant(Mutant::SpareChecksumIgnored)
            || layout.page.get() != u16::from(page)
            || usize::from(layout.used.get()) > PAGE_DATA_BYTES
        {
            return None;
        }
        let kind = PageKind::of_byte(layout.kind)?;
        Some(Self {
            kind,
            page,
            first: layout.first.get(),
            used: layout.used.get(),
            order: layout.order.get(),
            open_sequence: Sequence(layout.open_sequence.get()),
            durable_sequence: Sequence(layout.durable_sequence.get()),
            durable_order: layout.durable_order.get(),
            continues: layout.continues.get(),
            context: layout.context.get(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spare() -> PageSpare {
        PageSpare {
            kind: PageKind::Log,
            page: 5,
            first: 16,
            used: 4_000,
            order: 77,
            open_sequence: Sequence(1),
            durable_sequence: Sequence(2),
            durable_order: 6,
            continues: 3,
            context: 4,
        }
    }

    #[test]
    fn a_spare_reads_back_as_written() {
        let mut slot = vec![0xAA; PAGE_DATA_BYTES + PAGE_SPARE_BYTES];
        spare().encode(&mut slot);
        assert_eq!(PageSpare::decode(&slot, 5), Some(spare()));
        assert_eq!(PageSpare::decode(&slot, 6), None, "a spare of another page number is invalid");
    }

    #[test]
    fn every_flipped_bit_of_a_spare_is_detected() {
        let mut slot = vec![0; PAGE_DATA_BYTES + PAGE_SPARE_BYTES];
        spare().encode(&mut slot);
        for bit in 0..SPARE_FIELDS_BYTES * 8 {
            slot[PAGE_DATA_BYTES + bit / 8] ^= 1 << (bit % 8);
            assert_eq!(PageSpare::decode(&slot, 5), None, "bit {bit}");
            slot[PAGE_DATA_BYTES + bit / 8] ^= 1 << (bit % 8);
        }
    }
}
