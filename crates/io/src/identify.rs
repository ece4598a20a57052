//! Decodes Identify pages of a namespace (NVMe Base 2.0 section 5.17, NVM Command Set 1.0 section 4.1.5).
//!
//! Input: pages of 4,096 bytes from any admin queue. Output: [`ClientNamespace`]. Bytes beyond a short page read as
//! zeroes.

use crate::client_namespace::ClientNamespace;
use crate::error::IoError;
use headwater_nvme::spec::kv::has_retrieve_options;

/// The bytes of an Identify page.
pub(crate) const IDENTIFY_BYTES: usize = 4_096;
/// Offset of the vendor specific bytes.
const VENDOR_AT: usize = 3_840;
/// Command Set Identifier of NVMe Key Value.
pub(crate) const KEY_VALUE_COMMAND_SET: u8 = 0x01;
/// CNS of a namespace, for the NVM command set.
pub(crate) const CNS_NAMESPACE: u8 = 0x00;
/// CNS of the identification descriptors of a namespace.
pub(crate) const CNS_DESCRIPTORS: u8 = 0x03;
/// CNS of a namespace, for a given command set.
pub(crate) const CNS_NAMESPACE_OF_SET: u8 = 0x05;

/// Returns the 64-bit word at an offset.
pub(crate) fn word_at(page: &[u8], at: usize) -> u64 {
    page.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// Returns the command set in a list of namespace identification descriptors (type 4, length 1), or NVM without one.
pub(crate) fn command_set(descriptors: &[u8]) -> u8 {
    let mut rest = descriptors;
    while let [kind, bytes, _, _, after @ ..] = rest {
        match (kind, after.first()) {
            (0, _) => break,
            (4, Some(&set)) => return set,
            _ => rest = after.get(usize::from(*bytes)..).unwrap_or(&[]),
        }
    }
    0
}

/// Decodes a key space.
pub(crate) fn key_space(id: u32, page: &[u8]) -> ClientNamespace {
    let vendor = page.get(VENDOR_AT..).unwrap_or_default();
    ClientNamespace {
        size: word_at(page, 0),
        retrieve_options: has_retrieve_options(vendor),
        ..ClientNamespace::key_space(id)
    }
}

/// Decodes a namespace of blocks, and returns its metadata bytes per block.
pub(crate) fn block_namespace(id: u32, page: &[u8]) -> Result<(ClientNamespace, u16), IoError> {
    let byte = |at: usize| page.get(at).copied().unwrap_or(0);
    // FLBAS 3:0 is the format's index; a format has two bytes of metadata size, then LBADS, a power of two.
    let format = 128 + 4 * usize::from(byte(26) & 0xF);
    let shift = u32::from(byte(format + 2));
    let block_bytes = 1_u32.checked_shl(shift).filter(|&bytes| bytes >= 512);
    let block_bytes = block_bytes
        .ok_or(IoError::Protocol { reason: format!("Identify reports blocks of 2^{shift} bytes") })?;
    let facts = ClientNamespace {
        id,
        block_bytes,
        size: word_at(page, 0),
        writable: true,
        blocks: None,
        retrieve_options: false,
    };
    Ok((facts, u16::from_le_bytes([byte(format), byte(format + 1)])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_set_is_found_behind_other_descriptors_or_defaults_to_nvm() {
        let mut list = vec![2, 16, 0, 0];
        list.extend([9; 16]);
        list.extend([4, 1, 0, 0, 1, 0, 0, 0]);
        assert_eq!(command_set(&list), 1);
        assert_eq!(command_set(&list[..20]), 0);
        assert_eq!(command_set(&[]), 0);
        assert_eq!(command_set(&[3, 255, 0, 0, 1]), 0, "a descriptor beyond the end was read");
    }

    #[test]
    fn options_of_a_get_are_those_that_the_page_announces() {
        let mut page = vec![0; IDENTIFY_BYTES];
        assert!(!key_space(1, &page).retrieve_options);
        page[VENDOR_AT..VENDOR_AT + 5].copy_from_slice(b"\x01HWKV");
        assert!(key_space(1, &page).retrieve_options);
        assert!(!key_space(1, &page[..VENDOR_AT + 4]).retrieve_options, "a short page reads as zeroes");
    }

    #[test]
    fn block_size_comes_from_the_format_in_use() {
        let mut page = vec![0; IDENTIFY_BYTES];
        page[..8].copy_from_slice(&1_000_u64.to_le_bytes());
        page[26] = 2;
        page[128 + 8..128 + 11].copy_from_slice(&[8, 0, 12]);
        let (facts, metadata) = block_namespace(3, &page).unwrap();
        assert_eq!((facts.id, facts.block_bytes, facts.size, metadata), (3, 4_096, 1_000, 8));
        page[26] = 1;
        assert!(block_namespace(3, &page).is_err(), "blocks of one byte were accepted");
        page[128 + 6] = 200;
        assert!(block_namespace(3, &page).is_err());
        assert!(block_namespace(3, &[]).is_err());
    }
}
