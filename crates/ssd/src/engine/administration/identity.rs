//! The identity of the subsystem and the identifiers of its namespaces, derived from the medium's UUID.
//!
//! Input: a UUID. Output: names that are the same at each opening of the medium, and differ from any other medium's.

use headwater_nvme::controller::admin::SubsystemIdentity;
use std::fmt::Write as _;
use xxhash_rust::xxh3::xxh3_128;

const MODEL: &str = "Headwater";
const FIRMWARE: &str = env!("CARGO_PKG_VERSION");
/// Prefix of a subsystem name made from a UUID (NVMe Base 2.0 section 4.5).
const NAME_PREFIX: &str = "nqn.2014-08.org.nvmexpress:uuid:";

/// Returns the identity of a medium with this UUID.
#[must_use]
pub fn identity(uuid: [u8; 16]) -> SubsystemIdentity {
    let uuid = mark_random(uuid);
    let mut serial = String::from("HW");
    for byte in uuid.iter().take(9) {
        let _ = write!(serial, "{byte:02X}");
    }
    SubsystemIdentity {
        serial: padded(&serial),
        model: padded(MODEL),
        firmware: padded(FIRMWARE),
        subsystem_name: format!("{NAME_PREFIX}{}", hyphenated(uuid)),
        uuid,
    }
}

/// Returns the identifier of a namespace, from the subsystem's UUID, its number, and a number that is never reused: 0
/// for a key space that no command created.
#[must_use]
pub fn namespace_uuid(subsystem: [u8; 16], nsid: u32, unique: u64) -> [u8; 16] {
    let mut seed = subsystem.to_vec();
    seed.extend(nsid.to_le_bytes());
    seed.extend(unique.to_le_bytes());
    mark_random(xxh3_128(&seed).to_le_bytes())
}

/// Sets version 4 and the variant of RFC 4122, so that hosts accept it as a random UUID.
fn mark_random(mut uuid: [u8; 16]) -> [u8; 16] {
    uuid[6] = uuid[6] & 0x0F | 0x40;
    uuid[8] = uuid[8] & 0x3F | 0x80;
    uuid
}

fn hyphenated(uuid: [u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (index, byte) in uuid.iter().enumerate() {
        if [4, 6, 8, 10].contains(&index) {
            text.push('-');
        }
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Returns the text as ASCII, cut or padded with spaces to the field's length.
fn padded<const BYTES: usize>(text: &str) -> [u8; BYTES] {
    let mut field = [b' '; BYTES];
    for (byte, given) in field.iter_mut().zip(text.bytes()) {
        *byte = given;
    }
    field
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_is_stable_for_one_medium_and_differs_between_media() {
        let (one, other) = (identity([1; 16]), identity([2; 16]));
        assert_eq!(one, identity([1; 16]));
        assert_ne!(one.serial, other.serial);
        assert_ne!(one.subsystem_name, other.subsystem_name);
        assert_eq!(one.subsystem_name.len(), NAME_PREFIX.len() + 36);
        assert!(one.serial.iter().all(u8::is_ascii_graphic), "the serial number does not fill its field");
    }

    #[test]
    fn namespace_uuids_are_never_reused() {
        let of = |nsid, once| namespace_uuid([7; 16], nsid, once);
        assert_ne!(of(1, 0), of(2, 0));
        assert_ne!(of(1, 0), of(1, 9));
        assert_eq!(of(3, 9), of(3, 9));
    }
}
