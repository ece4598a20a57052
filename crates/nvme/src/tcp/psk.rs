//! Pre-shared keys of NVMe/TCP: derivation of TLS 1.3 PSKs from configured keys.
//!
//! Input: a [`ConfiguredKey`] and the names of host and subsystem.
//! Output: a [`TlsPsk`], the same on both ends: the identity, which is sent in clear, and the secret, which is never
//! sent.
//! Invariant: Debug output and errors contain no key; keys are zeroized on drop.
//! Clauses are those of the NVMe TCP Transport Specification 1.1, section 3.6.1.3 (TLS PSK and PSK Identity
//! Derivation); the derivations are RFC 5869's HKDF and RFC 8446's HKDF-Expand-Label.
//!
//! ```text
//!  configured key --host's name--> retained key --both names--> identity, TLS PSK
//! ```

mod host_key;
mod interchange;

pub use host_key::{HOST_KEYS_MAX, HostKey, HostKeyError};
pub use interchange::{ConfiguredKey, KeyTransform};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hkdf::Hkdf;
use hmac::{Hmac, Mac};
use sha2::{Sha256, Sha384};
use zeroize::Zeroizing;

/// Maximum bytes of a host or subsystem name (Base 2.0 section 4.5).
const NAME_BYTES_MAX: usize = 223;

/// The hash of a key, which is also the hash of its cipher suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PskHash {
    /// SHA-256, for `TLS_AES_128_GCM_SHA256`: keys of 32 bytes.
    Sha256,
    /// SHA-384, for `TLS_AES_256_GCM_SHA384`: keys of 48 bytes.
    Sha384,
}

impl PskHash {
    /// Returns the number of the hash in key texts and identities.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Sha256 => 1,
            Self::Sha384 => 2,
        }
    }

    /// Returns the bytes of the hash's output, and of its keys.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
        }
    }

    /// Returns the hash for keys of this many bytes.
    #[must_use]
    pub const fn of_length(bytes: usize) -> Option<Self> {
        match bytes {
            32 => Some(Self::Sha256),
            48 => Some(Self::Sha384),
            _ => None,
        }
    }
}

/// The version of a PSK identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PskVersion {
    /// `NVMe0Rhh HOSTNQN SUBNQN`: the first edition, used by older hosts.
    Zero,
    /// `NVMe1Rhh HOSTNQN SUBNQN DIGEST`: includes a digest of the key, which distinguishes two keys of one host.
    One,
}

impl PskVersion {
    /// All versions, the preferred one first.
    pub const ALL: [Self; 2] = [Self::One, Self::Zero];

    const fn number(self) -> u8 {
        match self {
            Self::Zero => 0,
            Self::One => 1,
        }
    }
}

/// An error in a key or an identity. It quotes nothing of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PskError {
    /// The text is not of the form `NVMeTLSkey-1:HH:BASE64:`.
    #[error("not a key in interchange form; write NVMeTLSkey-1:HH:BASE64: as `nvme gen-tls-key` prints it")]
    Format,
    /// HH is no known hash.
    #[error("the key has unknown hash {number:02}; use 00 (none), 01 (SHA-256) or 02 (SHA-384)")]
    Hash {
        /// The value of HH.
        number: u8,
    },
    /// The key's length does not match its hash.
    #[error("the key has {bytes} bytes; use 32 for SHA-256 or 48 for SHA-384")]
    Length {
        /// Length of the key.
        bytes: usize,
    },
    /// The checksum does not match.
    #[error("the key's checksum does not match: a character was lost or changed; copy the key again")]
    Checksum,
    /// An invalid name.
    #[error("invalid name of {bytes} bytes; use an NQN of 1 to 223 bytes without blanks")]
    Name {
        /// Length of the name.
        bytes: usize,
    },
    /// The names are too long for an identity of version 0.
    #[error("the names yield an identity of {bytes} bytes, version 0 allows 255; use shorter names")]
    Identity {
        /// Length of the identity.
        bytes: usize,
    },
}

/// A retained key (or one that an authentication generated), from which TLS keys are derived.
#[derive(Clone)]
pub struct InputKey {
    hash: PskHash,
    bytes: Zeroizing<Vec<u8>>,
}

impl std::fmt::Debug for InputKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InputKey").field("bytes", &self.bytes.len()).finish()
    }
}

impl InputKey {
    /// Creates a key from its bytes.
    ///
    /// # Errors
    /// [`PskError::Length`] for a key of neither 32 nor 48 bytes.
    pub fn new(bytes: &[u8]) -> Result<Self, PskError> {
        let hash = PskHash::of_length(bytes.len()).ok_or(PskError::Length { bytes: bytes.len() })?;
        Ok(Self { hash, bytes: Zeroizing::new(bytes.to_vec()) })
    }

    /// Derives the TLS PSK between a host and a subsystem, both by name.
    ///
    /// # Errors
    /// [`PskError::Name`] or [`PskError::Identity`] for names that cannot form an identity.
    pub fn tls_psk(&self, version: PskVersion, host: &str, subsystem: &str) -> Result<TlsPsk, PskError> {
        check_name(host)?;
        check_name(subsystem)?;
        let hash = self.hash;
        let prefix = format!("NVMe{}R{:02} {host} {subsystem}", version.number(), hash.number());
        let (identity, context) = match version {
            PskVersion::Zero => (prefix.clone(), prefix),
            PskVersion::One => {
                let digest = self.digest(host, subsystem);
                (format!("{prefix} {digest}"), format!("{:02} {digest}", hash.number()))
            }
        };
        let secret = expand_label(hash, &self.bytes, "nvme-tls-psk", context.as_bytes())?;
        Ok(TlsPsk { identity, hash, secret, host: host.to_owned(), subsystem: subsystem.to_owned() })
    }

    /// Returns the digest that identifies the key in an identity of version 1: base64 of an HMAC over both names.
    fn digest(&self, host: &str, subsystem: &str) -> String {
        let text = format!("{host} {subsystem} NVMe-over-Fabrics");
        match self.hash {
            PskHash::Sha256 => STANDARD.encode(mac::<Hmac<Sha256>>(&self.bytes, text.as_bytes())),
            PskHash::Sha384 => STANDARD.encode(mac::<Hmac<Sha384>>(&self.bytes, text.as_bytes())),
        }
    }
}

/// The TLS PSK of one host and one subsystem, the same on both ends.
#[derive(Clone)]
pub struct TlsPsk {
    /// PSK identity, sent in clear.
    pub identity: String,
    /// Hash of the cipher suite.
    pub hash: PskHash,
    /// The secret key.
    pub secret: Zeroizing<Vec<u8>>,
    /// HOSTNQN for which the key is valid.
    pub host: String,
    /// SUBNQN for which the key is valid.
    pub subsystem: String,
}

impl std::fmt::Debug for TlsPsk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsPsk")
            .field("host", &self.host)
            .field("subsystem", &self.subsystem)
            .field("hash", &self.hash)
            .finish_non_exhaustive()
    }
}

/// Checks that a text is valid as a name in an identity, whose parts are separated by blanks.
pub(super) fn check_name(name: &str) -> Result<(), PskError> {
    let fits = (1..=NAME_BYTES_MAX).contains(&name.len());
    if fits && name.bytes().all(|byte| byte > b' ' && byte != 0x7F) {
        return Ok(());
    }
    Err(PskError::Name { bytes: name.len() })
}

/// Applies HKDF-Extract without salt, then HKDF-Expand-Label with the length of the hash's output.
pub(super) fn expand_label(
    hash: PskHash,
    key: &[u8],
    label: &str,
    context: &[u8],
) -> Result<Zeroizing<Vec<u8>>, PskError> {
    /// The prefix of every label in RFC 8446.
    const PREFIX: &str = "tls13 ";
    // An HkdfLabel (RFC 8446 section 7.1): the length of the output in network order, then label and context, each
    // preceded by a length byte.
    let count = |bytes: usize| u8::try_from(bytes).map_err(|_| PskError::Identity { bytes });
    let counts = [count(hash.bytes())?, count(PREFIX.len() + label.len())?, count(context.len())?];
    let parts: [&[u8]; 6] =
        [&[0, counts[0]], &[counts[1]], PREFIX.as_bytes(), label.as_bytes(), &[counts[2]], context];
    let info = parts.concat();
    let mut out = Zeroizing::new(vec![0; hash.bytes()]);
    let done = match hash {
        PskHash::Sha256 => Hkdf::<Sha256>::new(None, key).expand(&info, &mut out),
        PskHash::Sha384 => Hkdf::<Sha384>::new(None, key).expand(&info, &mut out),
    };
    assert!(done.is_ok(), "HKDF-Expand failed for one block of output");
    Ok(out)
}

fn mac<M: Mac + hmac::digest::KeyInit>(key: &[u8], text: &[u8]) -> Vec<u8> {
    match <M as Mac>::new_from_slice(key) {
        Ok(mac) => mac.chain_update(text).finalize().into_bytes().to_vec(),
        Err(_) => unreachable!("HMAC accepts keys of any length"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOST: &str = "nqn.psk-test-host";
    const SUBSYSTEM: &str = "nqn.psk-test-subsys";

    /// The retained key of Linux's `auth_kunit.c`, generated there by DH-HMAC-CHAP.
    const LINUX_SHA256: &str = "1733c59fa7f48fcf37f5f26fc4ff0268ad4f78e030f4f3b0bfd1d47e7bb1447a";
    const LINUX_SHA384: &str =
        "f14b2dd3234c459694d3bc63f8968bd6b37c2c6de849e22e118749001ce4bbe8640b9e3a748cb11ce4b1d71d359cce39";

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    #[test]
    fn digest_and_tls_psk_match_linux() {
        // drivers/nvme/common/tests/auth_kunit.c: test_nvme_auth_derive_tls_psk_hmac_sha256 and _sha384.
        let cases = [
            (
                LINUX_SHA256,
                "NVMe1R01 hostnqn subsysnqn OldoKuTfKddMuyCznAZojkWD7P4D9/AtzDzLimtOxqI=",
                "3c17da628474a04d2247c4cab47968c915388193f7c071bd9489cc3666cd7cc8",
            ),
            (
                LINUX_SHA384,
                "NVMe1R02 hostnqn subsysnqn cffMWk8TSS7HOQebjgYEIkrPrjWPV4JE5cdPB8WhEvY4JBW5YynKyv66XscN4A9n",
                "2774753233537b3fa50eb7d16a8e43457d85f4906c005b2236616c5d80939d0898fff15bb8b77119d2be0aac423e7590",
            ),
        ];
        for (key, identity, secret) in cases {
            let key = InputKey::new(&bytes(key)).unwrap();
            let psk = key.tls_psk(PskVersion::One, "hostnqn", "subsysnqn").unwrap();
            assert_eq!(psk.identity, identity);
            assert_eq!(*psk.secret, bytes(secret));
        }
    }

    #[test]
    fn identity_of_configured_key_matches_libnvme() {
        // libnvme's test/psk.c: test_data_identity.
        let cases = [
            (
                "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:",
                "NVMe1R01 nqn.psk-test-host nqn.psk-test-subsys iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU=",
            ),
            (
                "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:",
                "NVMe1R02 nqn.psk-test-host nqn.psk-test-subsys \
                 QhW2+Rp6RzHlNtCslyRxMnwJ11tKKhz8JCAQpQ+XUD8f9td1VeH5h53yz2wKJG1a",
            ),
        ];
        for (text, identity) in cases {
            let key = ConfiguredKey::parse(text).unwrap().retained(HOST).unwrap();
            assert_eq!(key.tls_psk(PskVersion::One, HOST, SUBSYSTEM).unwrap().identity, identity);
        }
    }

    #[test]
    fn version_0_identity_refuses_two_long_names() {
        let key = InputKey::new(&[7; 32]).unwrap();
        let zero = key.tls_psk(PskVersion::Zero, HOST, SUBSYSTEM).unwrap();
        assert_eq!(zero.identity, format!("NVMe0R01 {HOST} {SUBSYSTEM}"));
        let one = key.tls_psk(PskVersion::One, HOST, SUBSYSTEM).unwrap();
        assert_ne!(zero.secret, one.secret);
        let long = "n".repeat(NAME_BYTES_MAX);
        let refused = key.tls_psk(PskVersion::Zero, &long, &long).unwrap_err();
        assert_eq!(refused, PskError::Identity { bytes: 9 + 2 * NAME_BYTES_MAX + 1 });
        assert!(key.tls_psk(PskVersion::One, &long, &long).is_ok());
    }

    #[test]
    fn names_that_make_identity_ambiguous_are_refused() {
        let key = InputKey::new(&[7; 48]).unwrap();
        for name in ["", "a b", "a\n", "a\0", &"n".repeat(NAME_BYTES_MAX + 1)] {
            let refused = Err(PskError::Name { bytes: name.len() });
            assert_eq!(key.tls_psk(PskVersion::One, name, "s").map(drop), refused, "{name:?}");
            assert_eq!(key.tls_psk(PskVersion::One, "h", name).map(drop), refused, "{name:?}");
        }
        assert_eq!(InputKey::new(&[7; 33]).map(drop), Err(PskError::Length { bytes: 33 }));
    }

    #[test]
    fn debug_never_shows_the_key() {
        let key = InputKey::new(&[0x41; 32]).unwrap();
        let psk = key.tls_psk(PskVersion::One, "h", "s").unwrap();
        let text = format!("{key:?} {psk:?}");
        assert!(!text.contains("65") && !text.contains("AAAA"), "{text}");
        assert!(!text.contains(&format!("{:?}", &psk.secret[..4])), "{text}");
    }

    proptest! {
        #[test]
        fn different_key_or_name_gives_different_secret(
            key in proptest::array::uniform32(any::<u8>()),
            bit in 0_usize..256,
            host in "[a-z0-9.:-]{1,60}",
            other in "[a-z0-9.:-]{1,60}",
        ) {
            prop_assume!(host != other);
            let mut flipped = key;
            flipped[bit / 8] ^= 1 << (bit % 8);
            for version in PskVersion::ALL {
                let psk = |key: &[u8], host: &str| InputKey::new(key).unwrap().tls_psk(version, host, "s").unwrap();
                let right = psk(&key, &host);
                prop_assert_eq!(&right.secret, &psk(&key, &host).secret);
                prop_assert_ne!(&right.secret, &psk(&flipped, &host).secret);
                prop_assert_ne!(&right.secret, &psk(&key, &other).secret);
                prop_assert_ne!(&right.identity, &psk(&key, &other).identity);
            }
        }
    }
}
