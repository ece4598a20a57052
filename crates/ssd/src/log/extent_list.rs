//! The list of a value's extents: whole blocks outside of the log that hold its first bytes (`docs/formats/medium-2.md`).
//!
//! Input: the extents of a value, or the bytes behind the key of its record. Output: the bytes, or the extents. Invariant: a
//! list that [`decode`] accepts names orders that only extents have. What it names may be gone: each page of an extent proves
//! itself by its order.

use super::blocks::is_extent_order;
use super::record::EXTENT_ENTRY_BYTES;
use crate::media::geometry::BlockId;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A block that holds 262,144 bytes of one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The block.
    pub block: BlockId,
    /// The life of the block in which it holds them.
    pub order: u64,
}

/// An extent in a record.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ExtentEntryLayout {
    block: U32,
    zero: U32,
    order: U64,
}

const _: () = assert!(size_of::<ExtentEntryLayout>() == EXTENT_ENTRY_BYTES);
const _: () = assert!(std::mem::offset_of!(ExtentEntryLayout, order) == 8);

/// Returns the bytes of a list.
#[must_use]
pub fn encode(extents: &[Extent]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(extents.len() * EXTENT_ENTRY_BYTES);
    for extent in extents {
        let (block, order) = (U32::new(extent.block.0), U64::new(extent.order));
        bytes.extend_from_slice(ExtentEntryLayout { block, zero: U32::ZERO, order }.as_bytes());
    }
    bytes
}

/// Reads a list; `None` if an entry is not that of an extent.
#[must_use]
pub fn decode(bytes: &[u8]) -> Option<Vec<Extent>> {
    let entries = <[ExtentEntryLayout]>::ref_from_bytes(bytes).ok()?;
    let extent = |entry: &ExtentEntryLayout| {
        let extent = Extent { block: BlockId(entry.block.get()), order: entry.order.get() };
        (entry.zero.get() == 0 && is_extent_order(extent.order)).then_some(extent)
    };
    entries.iter().map(extent).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_reads_back_as_written_and_its_bytes_match_the_format_page() {
        let list = [
            Extent { block: BlockId(7), order: 3 << 40 | 1 << 38 | 5 },
            Extent { block: BlockId(0), order: 1 << 40 | 1 << 38 | 1 },
        ];
        let bytes = encode(&list);
        assert_eq!(bytes[..8], [7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[8..16], [5, 0, 0, 0, 0x40, 3, 0, 0]);
        assert_eq!(decode(&bytes).as_deref(), Some(&list[..]));
    }

    #[test]
    fn orders_of_other_blocks_are_refused() {
        for order in [0, 1, 1 << 40 | 9, 1 << 40 | 1 << 39 | 1] {
            assert_eq!(decode(&encode(&[Extent { block: BlockId(1), order }])), None, "order {order:#x}");
        }
        assert_eq!(decode(&[0; 15]), None);
        let mut bytes = encode(&[Extent { block: BlockId(1), order: 1 << 38 | 1 }]);
        bytes[4] = 1;
        assert_eq!(decode(&bytes), None);
    }
}
