//! The spare of a page, with which the page proves itself (`docs/formats/medium-2.md`).
//!
//! Input: the fields of a page to be programmed. Output: 128 bytes after its data, and the fields again. Invariant: a
//! spare that [`PageSpare::decode`] accepts carries the checksum of its own fields and the address at which it was read;
//! a page that [`PageSpare::of_intact`] accepts also has the data that was programmed with it.

use super::prefix::{EPOCH_MAX, NUMBER_MAX, Prefix, Tick, is_up_to_epoch};
use crate::command::Sequence;
use crate::media::geometry::{BlockId, PAGE_DATA_BYTES, PAGE_SPARE_BYTES, PageAddress};
use crate::mutant::{Mutant, mutant};
use headwater_host::copy::{CrcLength, crc32c};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The value of `first` if no record starts in the page.
pub const NO_RECORD: u16 = u16::MAX;
/// The data of a page, behind other bytes whose checksum is known.
pub const PAGE_CRC: CrcLength = CrcLength::of(PAGE_DATA_BYTES);
/// Version of the page format.
pub const PAGE_VERSION: u8 = 2;

const MAGIC: [u8; 4] = *b"HWP2";
/// Offset of the checksum of the data.
const DATA_CRC: usize = 16;
/// Offset of the checksum of the spare, which covers everything in front of it.
const CRC_COVERS: usize = 124;

/// The purpose of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// Records.
    Log,
    /// Part of a checkpoint.
    Checkpoint,
    /// No content: it separates acknowledged pages from a torn program.
    Guard,
    /// A part of a value that lies outside of the log.
    Extent,
}

impl PageKind {
    /// Returns the byte that names it in a spare, of either version.
    pub(super) const fn byte(self) -> u8 {
        match self {
            Self::Log => 1,
            Self::Checkpoint => 2,
            Self::Guard => 3,
            Self::Extent => 4,
        }
    }

    /// Returns the purpose that a byte of a spare names; `None` if it names none.
    pub(super) const fn of_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Log),
            2 => Some(Self::Checkpoint),
            3 => Some(Self::Guard),
            4 => Some(Self::Extent),
            _ => None,
        }
    }
}

/// The spare in its flash format.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PageSpareLayout {
    magic: [u8; 4],
    version: u8,
    kind: u8,
    page: u8,
    class: u8,
    first: U16,
    used: U16,
    block: U32,
    data_crc: U32,
    namespaces_before: U32,
    order: U64,
    tick: U64,
    open_sequence: U64,
    durable_tick: U64,
    durable_sequence: U64,
    accepted_tick: U64,
    accepted_sequence: U64,
    continues: U64,
    sequence_before: U64,
    authentication: [u8; 16],
    zero: [u8; 12],
    crc: U32,
}

const _: () = assert!(size_of::<PageSpareLayout>() == PAGE_SPARE_BYTES);
const _: () = assert!(std::mem::offset_of!(PageSpareLayout, data_crc) == DATA_CRC);
const _: () = assert!(std::mem::offset_of!(PageSpareLayout, order) == 24);
const _: () = assert!(std::mem::offset_of!(PageSpareLayout, continues) == 80);
const _: () = assert!(std::mem::offset_of!(PageSpareLayout, crc) == CRC_COVERS);

/// The statement of a page about the pages in front of it, which counts if they are lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PagesBefore {
    /// The last sequence that was given out when the page in front was filled; 0 for the first page of an epoch.
    pub sequence: Sequence,
    /// Bit `n` is set if one of at least [`PAGES_NAMED`] pages in front holds a record of namespace `n`, or a part of one.
    pub namespaces: u32,
}

/// Pages in front of a page whose namespaces it names, at least, as far as the epoch has as many.
pub const PAGES_NAMED: u64 = 64;

/// The fields of a spare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageSpare {
    /// The purpose of the page.
    pub kind: PageKind,
    /// The page that it was programmed to.
    pub address: PageAddress,
    /// Offset of the first record that starts in the page, or [`NO_RECORD`].
    pub first: u16,
    /// Data bytes in use.
    pub used: u16,
    /// Order in which the block was opened: the life of the block.
    pub order: u64,
    /// The page's place in the log; [`Tick`] 0 for pages without records.
    pub tick: Tick,
    /// Lowest sequence not given out when the block was opened.
    pub open_sequence: Sequence,
    /// A prefix of the log that was durable when the page was programmed.
    pub durable: Prefix,
    /// The end of the epoch before this one.
    pub accepted: Prefix,
    /// Address plus 1 of the chained record that continues at the start of the block, else 0. Checkpoint pages: the
    /// checkpoint and the number of the page in it. Pages of extents: the order that the next block of the log gets.
    pub continues: u64,
    /// The pages in front of it.
    pub before: PagesBefore,
}

impl PageSpare {
    /// Encodes the spare after a page's data, with its checksums. `slot` is data and spare together; `seed` is the medium's.
    ///
    /// # Panics
    /// `slot` is shorter than a page with its spare.
    pub fn encode(&self, slot: &mut [u8], seed: u32) {
        let data_crc = crc32c(seed, &slot[..PAGE_DATA_BYTES]);
        self.encode_sealed(slot, data_crc, seed);
    }

    /// Encodes the spare after a page's data, without its checksums.
    ///
    /// # Panics
    /// `slot` is shorter than a page with its spare.
    pub fn encode_fields(&self, slot: &mut [u8]) {
        slot[PAGE_DATA_BYTES..PAGE_DATA_BYTES + PAGE_SPARE_BYTES].copy_from_slice(self.layout().as_bytes());
    }

    /// Encodes the spare after a page's data that has this checksum on the medium with this seed. It is put together elsewhere:
    /// a checksum over memory that was just written waits until the lines of that memory have come.
    ///
    /// # Panics
    /// `slot` is shorter than a page with its spare.
    pub fn encode_sealed(&self, slot: &mut [u8], data_crc: u32, seed: u32) {
        let mut layout = self.layout();
        layout.data_crc = U32::new(data_crc);
        layout.crc = U32::new(crc32c(seed, &layout.as_bytes()[..CRC_COVERS]));
        slot[PAGE_DATA_BYTES..PAGE_DATA_BYTES + PAGE_SPARE_BYTES].copy_from_slice(layout.as_bytes());
    }

    fn layout(&self) -> PageSpareLayout {
        PageSpareLayout {
            magic: MAGIC,
            version: PAGE_VERSION,
            kind: self.kind.byte(),
            page: self.address.page,
            class: 0,
            first: U16::new(self.first),
            used: U16::new(self.used),
            block: U32::new(self.address.block.0),
            data_crc: U32::ZERO,
            namespaces_before: U32::new(self.before.namespaces),
            order: U64::new(self.order),
            tick: U64::new(self.tick.0),
            open_sequence: U64::new(self.open_sequence.0),
            durable_tick: U64::new(self.durable.tick.0),
            durable_sequence: U64::new(self.durable.sequence.0),
            accepted_tick: U64::new(self.accepted.tick.0),
            accepted_sequence: U64::new(self.accepted.sequence.0),
            continues: U64::new(self.continues),
            sequence_before: U64::new(self.before.sequence.0),
            authentication: [0; 16],
            zero: [0; 12],
            crc: U32::ZERO,
        }
    }

    /// Sets the checksums of a page whose data and fields will not change any more.
    ///
    /// # Panics
    /// `slot` is shorter than a page with its spare.
    pub fn set_checksums(slot: &mut [u8], seed: u32) {
        let data_crc = crc32c(seed, &slot[..PAGE_DATA_BYTES]);
        Self::set_known_checksum(slot, data_crc, seed);
    }

    /// Sets the checksums of a page whose data has this checksum on the medium with this seed, and whose fields will not
    /// change any more.
    ///
    /// # Panics
    /// `slot` is shorter than a page with its spare.
    pub fn set_known_checksum(slot: &mut [u8], data_crc: u32, seed: u32) {
        let spare = &mut slot[PAGE_DATA_BYTES..PAGE_DATA_BYTES + PAGE_SPARE_BYTES];
        spare[DATA_CRC..DATA_CRC + 4].copy_from_slice(&data_crc.to_le_bytes());
        let crc = crc32c(seed, &spare[..CRC_COVERS]);
        spare[CRC_COVERS..].copy_from_slice(&crc.to_le_bytes());
    }

    /// Reads the spare of the page at `address`; `None` if it is not the spare of that page.
    #[must_use]
    pub fn decode(slot: &[u8], address: PageAddress, seed: u32) -> Option<Self> {
        Some(Self::decode_with_crc(slot, address, seed)?.0)
    }

    /// Reads the spare of the page at `address`; `None` if it is not the spare of that page, or the page holds other data
    /// than it was programmed with.
    #[must_use]
    pub fn of_intact(slot: &[u8], address: PageAddress, seed: u32) -> Option<Self> {
        let (spare, data_crc) = Self::decode_with_crc(slot, address, seed)?;
        let intact =
            crc32c(seed, &slot[..PAGE_DATA_BYTES]) == data_crc || mutant(Mutant::PageChecksumIgnored);
        intact.then_some(spare)
    }

    /// Returns true if a device may have written the spare: with numbers that are given out.
    fn is_possible(&self) -> bool {
        is_up_to_epoch(self.order, EPOCH_MAX)
            && is_up_to_epoch(self.tick.0, EPOCH_MAX)
            && self.durable.is_possible_in(EPOCH_MAX)
            && self.accepted.is_possible_in(EPOCH_MAX)
            && self.open_sequence.0 <= NUMBER_MAX
            && self.before.sequence.0 <= NUMBER_MAX
    }

    /// Reads the spare of the page at `address`, and the checksum that the page's data has on the medium with this seed if the
    /// page is intact; `None` if it is not the spare of that page.
    pub(super) fn decode_with_crc(slot: &[u8], address: PageAddress, seed: u32) -> Option<(Self, u32)> {
        let fields = slot.get(PAGE_DATA_BYTES..PAGE_DATA_BYTES + PAGE_SPARE_BYTES)?;
        let layout = PageSpareLayout::ref_from_bytes(fields).ok()?;
        let found = PageAddress::new(BlockId(layout.block.get()), layout.page);
        let elsewhere = found != address && !mutant(Mutant::OwnAddressIgnored);
        if layout.magic != MAGIC
            || layout.version != PAGE_VERSION
            || layout.crc.get() != crc32c(seed, &fields[..CRC_COVERS])
                && !mutant(Mutant::SpareChecksumIgnored)
            || elsewhere
            || usize::from(layout.used.get()) > PAGE_DATA_BYTES
        {
            return None;
        }
        let kind = PageKind::of_byte(layout.kind)?;
        let prefix =
            |tick: U64, sequence: U64| Prefix { tick: Tick(tick.get()), sequence: Sequence(sequence.get()) };
        let spare = Self {
            kind,
            address: found,
            first: layout.first.get(),
            used: layout.used.get(),
            order: layout.order.get(),
            tick: Tick(layout.tick.get()),
            open_sequence: Sequence(layout.open_sequence.get()),
            durable: prefix(layout.durable_tick, layout.durable_sequence),
            accepted: prefix(layout.accepted_tick, layout.accepted_sequence),
            continues: layout.continues.get(),
            before: PagesBefore {
                sequence: Sequence(layout.sequence_before.get()),
                namespaces: layout.namespaces_before.get(),
            },
        };
        spare.is_possible().then_some((spare, layout.data_crc.get()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: PageAddress = PageAddress::new(BlockId(3), 5);

    fn spare() -> PageSpare {
        PageSpare {
            kind: PageKind::Log,
            address: ADDRESS,
            first: 16,
            used: 4_000,
            order: 77,
            tick: Tick(6),
            open_sequence: Sequence(1),
            durable: Prefix { tick: Tick(5), sequence: Sequence(2) },
            accepted: Prefix { tick: Tick(4), sequence: Sequence(1) },
            continues: 3,
            before: PagesBefore { sequence: Sequence(9), namespaces: 6 },
        }
    }

    fn slot() -> Vec<u8> {
        let mut slot = vec![0xAA; PAGE_DATA_BYTES + PAGE_SPARE_BYTES];
        spare().encode(&mut slot, 8);
        slot
    }

    #[test]
    fn a_page_reads_back_as_written_at_its_own_address_of_its_own_medium() {
        let slot = slot();
        assert_eq!(PageSpare::decode(&slot, ADDRESS, 8), Some(spare()));
        assert_eq!(PageSpare::of_intact(&slot, ADDRESS, 8), Some(spare()));
        assert_eq!(PageSpare::decode(&slot, PageAddress::new(BlockId(3), 6), 8), None);
        assert_eq!(PageSpare::decode(&slot, PageAddress::new(BlockId(4), 5), 8), None);
        assert_eq!(PageSpare::decode(&slot, ADDRESS, 9), None, "a page of another medium");
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let mut slot = slot();
        for bit in PAGE_DATA_BYTES * 8..slot.len() * 8 {
            slot[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(PageSpare::decode(&slot, ADDRESS, 8), None, "bit {bit}");
            slot[bit / 8] ^= 1 << (bit % 8);
        }
        for bit in (0..PAGE_DATA_BYTES * 8).step_by(97) {
            slot[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(PageSpare::of_intact(&slot, ADDRESS, 8), None, "bit {bit}");
            slot[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
