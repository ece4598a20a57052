//! The spare of a page, of either version: with matching checksums it encodes to the bytes that it was decoded from, or it
//! is none.

use headwater_host::copy::crc32c;
use headwater_ssd::log::page::PageSpare;
use headwater_ssd::log::page_version1::{self, SPARE_FIELDS_BYTES};
use headwater_ssd::media::{BlockId, PAGE_DATA_BYTES, PAGE_SPARE_BYTES, PageAddress};
use std::ops::Range;

const SLOT_BYTES: usize = PAGE_DATA_BYTES + PAGE_SPARE_BYTES;
/// The start of the checksums.
const SEED: u32 = 7;

/// A structure of one version behind the data of a page.
struct SpareFormat {
    /// Bytes that the version does not use.
    unused: &'static [Range<usize>],
    /// Place of the checksum.
    crc: usize,
    seed: u32,
}

const VERSION_1: SpareFormat = SpareFormat {
    unused: &[12..16, 64..68, SPARE_FIELDS_BYTES..PAGE_SPARE_BYTES],
    crc: SPARE_FIELDS_BYTES - 4,
    seed: 0,
};
const VERSION_2: SpareFormat =
    SpareFormat { unused: &[7..8, 96..124], crc: PAGE_SPARE_BYTES - 4, seed: SEED };

/// Decodes the spare of a page, with matching checksums, by the rules of both versions.
///
/// # Panics
/// If a decoded spare encodes to other bytes, or counts for another page.
pub fn body(bytes: &[u8]) {
    let mut slot = [0; SLOT_BYTES];
    let length = bytes.len().min(PAGE_SPARE_BYTES);
    slot[PAGE_DATA_BYTES..PAGE_DATA_BYTES + length].copy_from_slice(&bytes[..length]);
    // What lies behind the spare in the input fills the page.
    slot[..PAGE_DATA_BYTES].fill(bytes.last().copied().unwrap_or(0));
    check_version_1(slot);
    check_version_2(slot);
}

fn check_version_1(mut slot: [u8; SLOT_BYTES]) {
    VERSION_1.set_checksum(&mut slot);
    let page = slot[PAGE_DATA_BYTES + 6];
    let Some(spare) = page_version1::PageSpare::decode(&slot, page) else { return };
    assert_eq!(page_version1::PageSpare::decode(&slot, page ^ 1), None, "a spare of another page counts");
    let mut encoded = slot;
    spare.encode(&mut encoded);
    assert!(encoded == VERSION_1.without_unused(slot), "a spare changed by encoding: {spare:?}");
}

fn check_version_2(mut slot: [u8; SLOT_BYTES]) {
    PageSpare::set_checksums(&mut slot, SEED);
    let fields = &slot[PAGE_DATA_BYTES..];
    let block = u32::from_le_bytes(*fields[12..].first_chunk().expect("a spare is longer"));
    let address = PageAddress::new(BlockId(block), fields[6]);
    let Some(spare) = PageSpare::decode(&slot, address, SEED) else { return };
    assert_eq!(PageSpare::of_intact(&slot, address, SEED), Some(spare), "the data has the checksum");
    let other = PageAddress::new(BlockId(block ^ 1), fields[6]);
    assert_eq!(PageSpare::decode(&slot, other, SEED), None, "a spare of another page counts");
    assert_eq!(PageSpare::decode(&slot, address, SEED ^ 1), None, "a spare of another medium counts");
    let mut encoded = slot;
    spare.encode(&mut encoded, SEED);
    assert!(encoded == VERSION_2.without_unused(slot), "a spare changed by encoding: {spare:?}");
    slot[0] ^= 1;
    assert_eq!(PageSpare::of_intact(&slot, address, SEED), None, "a page with other data is intact");
}

impl SpareFormat {
    fn set_checksum(&self, slot: &mut [u8; SLOT_BYTES]) {
        let crc_at = PAGE_DATA_BYTES + self.crc;
        let crc = crc32c(self.seed, &slot[PAGE_DATA_BYTES..crc_at]);
        slot[crc_at..crc_at + 4].copy_from_slice(&crc.to_le_bytes());
    }

    /// Returns a page whose unused bytes are zero.
    fn without_unused(&self, mut slot: [u8; SLOT_BYTES]) -> [u8; SLOT_BYTES] {
        for unused in self.unused {
            slot[PAGE_DATA_BYTES + unused.start..PAGE_DATA_BYTES + unused.end].fill(0);
        }
        self.set_checksum(&mut slot);
        slot
    }
}
