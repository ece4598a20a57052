//! The header of a record on flash: it encodes to the bytes that it was decoded from, or is refused with a reason.

use headwater_ssd::limits::{SPACES, VALUE_BYTES_MAX};
use headwater_ssd::log::record::{HEADER_BYTES, RecordHeader, UNIT_BYTES};

/// Bytes that this version does not use: epoch, slot, the reserved field and the request id.
const UNUSED: std::ops::Range<usize> = 24..40;

/// Decodes a header.
///
/// # Panics
/// If a decoded header has fields outside of the limits or encodes to other bytes, or if a refusal is long.
pub fn body(bytes: &[u8]) {
    let mut header = [0; HEADER_BYTES];
    let length = bytes.len().min(HEADER_BYTES);
    header[..length].copy_from_slice(&bytes[..length]);
    match RecordHeader::decode(&header) {
        Ok(found) => {
            assert!(found.namespace.index() < SPACES && found.value_bytes as usize <= VALUE_BYTES_MAX);
            let units = found.units() as usize * UNIT_BYTES;
            assert!((found.payload_end()..found.payload_end() + UNIT_BYTES).contains(&units));
            header[UNUSED].fill(0);
            assert_eq!(found.encode(), header, "a header changed by encoding");
        }
        Err(error) => assert!(error.to_string().len() < 100, "a refusal is short"),
    }
}
