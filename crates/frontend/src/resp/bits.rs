//! The bit operations of SETBIT and GETBIT.
//!
//! Input: the old value, a bit's offset and its new state. Output: the new value and the bit's old state. Bit 0 is the
//! highest bit of the first byte.

use super::errors::{self, ErrorReply};
use super::request::RespRequest;
use headwater_ssd::limits::LOG_VALUE_BYTES_MAX;

/// Offset behind the last bit that a command may name: the bits of 512 MiB, Redis's longest value.
const OFFSET_END: u64 = 8 * (512 << 20);

/// Returns true if a command may name the bit at this offset.
pub(crate) fn is_offset(offset: u64) -> bool {
    offset < OFFSET_END
}

/// Parses a bit's offset.
pub(crate) fn offset(request: &RespRequest<'_>, at: usize) -> Result<u64, ErrorReply> {
    request
        .integer(at)
        .ok()
        .and_then(|offset| u64::try_from(offset).ok())
        .filter(|&offset| is_offset(offset))
        .ok_or(errors::BIT_OFFSET)
}

/// Sets a bit; returns the new value and the bit's old state.
pub(crate) fn set(mut bytes: Vec<u8>, offset: u64, bit: bool) -> Result<(Vec<u8>, bool), ErrorReply> {
    let at = usize::try_from(offset / 8).map_err(|_| errors::BIT_OFFSET)?;
    if at >= LOG_VALUE_BYTES_MAX {
        return Err(errors::TOO_LONG);
    }
    if bytes.len() <= at {
        bytes.resize(at + 1, 0);
    }
    let mask = 0x80_u8 >> (offset % 8);
    let before = bytes[at] & mask != 0;
    if bit {
        bytes[at] |= mask;
    } else {
        bytes[at] &= !mask;
    }
    Ok((bytes, before))
}
