//! The interchange format of a key, the text that an administrator copies from one end to the other.
//!
//! Input: `NVMeTLSkey-1:HH:BASE64:`, where HH is the hash that turns the key into a retained key, and BASE64 is the key
//! followed by its CRC-32.
//! Output: the key.
//! Invariant: one key has one text; a text that parses is printed again byte for byte.
//! Clause: NVMe TCP Transport Specification 1.1, section 3.6.1 (PSK interchange format).

use super::{InputKey, PskError, PskHash, check_name, expand_label};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

/// The prefix of the text: format version 1.
const PREFIX: &str = "NVMeTLSkey-1:";
/// Bytes of the CRC-32 after the key.
const CHECKSUM_BYTES: usize = 4;

/// The transformation of a configured key to a retained key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyTransform {
    /// No transformation: the key is a retained key (HH 00).
    None,
    /// Derivation from the host's name by the hash of the key's length (HH 01 or 02).
    FromHostName,
}

/// A configured key.
#[derive(Clone, PartialEq, Eq)]
pub struct ConfiguredKey {
    transform: KeyTransform,
    hash: PskHash,
    bytes: Zeroizing<Vec<u8>>,
}

impl std::fmt::Debug for ConfiguredKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { transform, hash, bytes } = self;
        f.debug_struct("ConfiguredKey")
            .field("transform", transform)
            .field("hash", hash)
            .field("bytes", &bytes.len())
            .finish()
    }
}

impl ConfiguredKey {
    /// Creates a key from its bytes.
    ///
    /// # Errors
    /// [`PskError::Length`] for a key of neither 32 nor 48 bytes.
    pub fn new(transform: KeyTransform, bytes: &[u8]) -> Result<Self, PskError> {
        let hash = PskHash::of_length(bytes.len()).ok_or(PskError::Length { bytes: bytes.len() })?;
        Ok(Self { transform, hash, bytes: Zeroizing::new(bytes.to_vec()) })
    }

    /// Parses a text in interchange format.
    ///
    /// # Errors
    /// [`PskError`] describes the error and quotes nothing of the text.
    pub fn parse(text: &str) -> Result<Self, PskError> {
        let body = text.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(':'));
        let (hash, encoded) = body.and_then(|body| body.split_once(':')).ok_or(PskError::Format)?;
        let number = match hash.as_bytes() {
            [a @ b'0'..=b'9', b @ b'0'..=b'9'] => (a - b'0') * 10 + (b - b'0'),
            _ => return Err(PskError::Format),
        };
        let named = match number {
            0 => None,
            1 => Some(PskHash::Sha256),
            2 => Some(PskHash::Sha384),
            _ => return Err(PskError::Hash { number }),
        };
        let whole = Zeroizing::new(STANDARD.decode(encoded).map_err(|_| PskError::Format)?);
        let (key, checksum) = whole.split_last_chunk::<CHECKSUM_BYTES>().ok_or(PskError::Format)?;
        let transform = if named.is_none() { KeyTransform::None } else { KeyTransform::FromHostName };
        let found = Self::new(transform, key)?;
        if named.is_some_and(|named| named != found.hash) {
            return Err(PskError::Length { bytes: key.len() });
        }
        if crc32(key).to_le_bytes() != *checksum {
            return Err(PskError::Checksum);
        }
        Ok(found)
    }

    /// Returns the key in interchange format. The text contains the secret: never log it.
    #[must_use]
    pub fn to_text(&self) -> Zeroizing<String> {
        let number = match self.transform {
            KeyTransform::None => 0,
            KeyTransform::FromHostName => self.hash.number(),
        };
        let whole = Zeroizing::new([&self.bytes[..], &crc32(&self.bytes).to_le_bytes()].concat());
        Zeroizing::new(format!("{PREFIX}{number:02}:{}:", *Zeroizing::new(STANDARD.encode(&*whole))))
    }

    /// Returns the hash that the key's length selects.
    #[must_use]
    pub const fn hash(&self) -> PskHash {
        self.hash
    }

    /// Returns the retained key, from which the host of this name and its subsystems derive TLS keys.
    ///
    /// # Errors
    /// [`PskError::Name`] for an invalid name.
    pub fn retained(&self, host: &str) -> Result<InputKey, PskError> {
        check_name(host)?;
        match self.transform {
            KeyTransform::None => InputKey::new(&self.bytes),
            KeyTransform::FromHostName => {
                InputKey::new(&expand_label(self.hash, &self.bytes, "HostNQN", host.as_bytes())?)
            }
        }
    }
}

/// Computes the CRC-32 of ISO 3309 bit by bit: keys are short.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0xEDB8_8320 } else { 0 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SHA256: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
    const SHA384: &str =
        "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:";

    #[test]
    fn libnvme_key_texts_round_trip() {
        // libnvme's test/psk.c: test_data_psk.
        let none = SHA256.replace(":01:", ":00:");
        for (text, transform, bytes) in [
            (none.as_str(), KeyTransform::None, 32),
            (SHA256, KeyTransform::FromHostName, 32),
            (SHA384, KeyTransform::FromHostName, 48),
        ] {
            let key = ConfiguredKey::parse(text).unwrap();
            assert_eq!((key.transform, key.bytes.len()), (transform, bytes));
            assert_eq!(key.bytes[..4], [0x55, 0x12, 0xDB, 0xB6]);
            assert_eq!(*key.to_text(), text);
            assert_eq!(ConfiguredKey::new(transform, &key.bytes).unwrap(), key);
        }
    }

    #[test]
    fn invalid_key_text_is_refused_with_matching_error() {
        let changed = SHA256.replace("VRL", "VRM");
        for (text, error) in [
            ("", PskError::Format),
            ("NVMeTLSkey-1:", PskError::Format),
            ("NVMeTLSkey-1:01:", PskError::Format),
            ("NVMeTLSkey-1:01::", PskError::Format),
            ("NVMeTLSkey-1:01:!!!!:", PskError::Format),
            ("DHHC-1:00:abcd:", PskError::Format),
            (&SHA256[..SHA256.len() - 1], PskError::Format),
            (&format!("{SHA256}:"), PskError::Format),
            (&format!("{SHA256}\n"), PskError::Format),
            (&SHA256.replace(":01:", ":1:"), PskError::Format),
            (&SHA256.replace(":01:", ":+1:"), PskError::Format),
            (&SHA384.replace("==:", "=:"), PskError::Format),
            (&SHA256.replace(":01:", ":03:"), PskError::Hash { number: 3 }),
            (&SHA256.replace(":01:", ":02:"), PskError::Length { bytes: 32 }),
            (&SHA384.replace(":02:", ":01:"), PskError::Length { bytes: 48 }),
            ("NVMeTLSkey-1:01:AAAAAAAA:", PskError::Length { bytes: 2 }),
            (&changed, PskError::Checksum),
        ] {
            assert_eq!(ConfiguredKey::parse(text), Err(error), "{text}");
        }
    }

    #[test]
    fn key_without_hash_gives_same_retained_key_for_every_host() {
        use crate::tcp::psk::PskVersion;
        let secret = |key: &ConfiguredKey, host: &str| {
            // The same names in the identity, so that only the retained key differs.
            key.retained(host).unwrap().tls_psk(PskVersion::Zero, "h", "s").unwrap().secret
        };
        let none = ConfiguredKey::parse(&SHA256.replace(":01:", ":00:")).unwrap();
        assert_eq!(secret(&none, "a"), secret(&none, "b"));
        let hashed = ConfiguredKey::parse(SHA256).unwrap();
        assert_ne!(secret(&hashed, "a"), secret(&hashed, "b"));
        assert_ne!(secret(&hashed, "a"), secret(&none, "a"));
        assert_eq!(hashed.retained("a b").map(drop), Err(PskError::Name { bytes: 3 }));
    }

    proptest! {
        #[test]
        fn keys_round_trip_and_one_wrong_character_is_refused(
            seed in proptest::collection::vec(any::<u8>(), 48),
            long in any::<bool>(),
            plain in any::<bool>(),
            at in any::<proptest::sample::Index>(),
            to in "[A-Za-z0-9+/]",
        ) {
            let transform = if plain { KeyTransform::None } else { KeyTransform::FromHostName };
            let key = ConfiguredKey::new(transform, &seed[..if long { 48 } else { 32 }]).unwrap();
            let text = key.to_text();
            prop_assert_eq!(ConfiguredKey::parse(&text), Ok(key.clone()));
            let start = "NVMeTLSkey-1:00:".len();
            let at = start + at.index(text.len() - start);
            let wrong = format!("{}{to}{}", &text[..at], &text[at + 1..]);
            if wrong != *text {
                prop_assert!(ConfiguredKey::parse(&wrong).is_err());
            }
        }
    }
}
