//! Pre-shared keys of NVMe/TCP: from the key that an administrator copies to what a TLS 1.3 handshake is given.
//!
//! In: a [`ConfiguredKey`] and the names of host and subsystem. Out: a [`TlsPsk`], the same on both ends: the identity that
//! crosses the wire and the secret that never does. Invariant: nothing here prints a key; keys are wiped when they are dropped.
//! Clauses are those of the NVMe TCP Transport Specification 1.1, section 3.6.1.3 (TLS PSK and PSK Identity Derivation);
//! the derivations are RFC 5869's HKDF and RFC 8446's HKDF-Expand-Label.
//!
//! ```text
//!  configured key --host's name--> retained key --both names--> identity, TLS PSK
//! ```

mod host_key;
mod interchange;

pub use host_key::{HOST_KEYS_MAX, HostKey, HostKeyError};
pub use interchange::{ConfiguredKey, Transform};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hkdf::Hkdf;
use hmac::{Hmac, Mac};
use sha2::{Sha256, Sha384};
use zeroize::Zeroizing;

/// Longest name of a host or a subsystem, in bytes (Base 2.0 section 4.5).
const NAME_BYTES_MAX: usize = 223;

/// A hash that keys are made for: it is that of the cipher suite as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PskHash {
    /// SHA-256, for `TLS_AES_128_GCM_SHA256`: keys of 32 bytes.
    Sha256,
    /// SHA-384, for `TLS_AES_256_GCM_SHA384`: keys of 48 bytes.
    Sha384,
}

impl PskHash {
    /// Its number in texts and identities.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Sha256 => 1,
            Self::Sha384 => 2,
        }
    }

    /// Bytes of its output, and of the keys made for it.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
        }
    }

    /// The hash that keys of so many bytes are made for.
    #[must_use]
    pub const fn of_length(bytes: usize) -> Option<Self> {
        match bytes {
            32 => Some(Self::Sha256),
            48 => Some(Self::Sha384),
            _ => None,
        }
    }
}

/// Which form an identity has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PskVersion {
    /// `NVMe0Rhh HOSTNQN SUBNQN`: of the first edition, and what older hosts say.
    Zero,
    /// `NVMe1Rhh HOSTNQN SUBNQN DIGEST`: names the key too, so that two keys of one host are told apart.
    One,
}

impl PskVersion {
    /// Both, the better first.
    pub const ALL: [Self; 2] = [Self::One, Self::Zero];

    const fn number(self) -> u8 {
        match self {
            Self::Zero => 0,
            Self::One => 1,
        }
    }
}

/// Why a key or an identity cannot be made. Quotes nothing of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PskError {
    /// It does not look like `NVMeTLSkey-1:HH:BASE64:`.
    #[error("not a key in interchange form; write NVMeTLSkey-1:HH:BASE64: as `nvme gen-tls-key` prints it")]
    Form,
    /// HH is no hash.
    #[error("the key names hash {number:02}; known are 00 (none), 01 (SHA-256) and 02 (SHA-384)")]
    Hash {
        /// Which.
        number: u8,
    },
    /// The key is not as long as its hash wants it.
    #[error("a key of {bytes} bytes; SHA-256 takes 32 and SHA-384 takes 48")]
    Length {
        /// How long it is.
        bytes: usize,
    },
    /// The checksum is another one.
    #[error("the key's checksum does not match: a character was lost or changed; copy it again")]
    Checksum,
    /// A name that is none.
    #[error("a name of {bytes} bytes; NQNs have 1 to 223 and no blanks")]
    Name {
        /// How long it is.
        bytes: usize,
    },
    /// Names that together do not fit into an identity of version 0.
    #[error("the names make an identity of {bytes} bytes; version 0 carries 255")]
    Identity {
        /// How long it would be.
        bytes: usize,
    },
}

/// A retained key (or one that an authentication generated): what TLS keys are derived from.
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
    /// A key by its bytes.
    ///
    /// # Errors
    /// [`PskError::Length`] for one that is neither 32 nor 48 bytes long.
    pub fn new(bytes: &[u8]) -> Result<Self, PskError> {
        let hash = PskHash::of_length(bytes.len()).ok_or(PskError::Length { bytes: bytes.len() })?;
        Ok(Self { hash, bytes: Zeroizing::new(bytes.to_vec()) })
    }

    /// The TLS PSK between a host and a subsystem, both by name.
    ///
    /// # Errors
    /// [`PskError::Name`] or [`PskError::Identity`] for names that make no identity.
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

    /// The digest by which an identity of version 1 names the key: base64 of an HMAC over both names.
    fn digest(&self, host: &str, subsystem: &str) -> String {
        let text = format!("{host} {subsystem} NVMe-over-Fabrics");
        match self.hash {
            PskHash::Sha256 => STANDARD.encode(mac::<Hmac<Sha256>>(&self.bytes, text.as_bytes())),
            PskHash::Sha384 => STANDARD.encode(mac::<Hmac<Sha384>>(&self.bytes, text.as_bytes())),
        }
    }
}

/// What both ends of a handshake are given.
#[derive(Clone)]
pub struct TlsPsk {
    /// PSK identity: crosses the wire in clear.
    pub identity: String,
    /// Hash of the cipher suite.
    pub hash: PskHash,
    /// The key.
    pub secret: Zeroizing<Vec<u8>>,
    /// HOSTNQN that it is good for.
    pub host: String,
    /// SUBNQN that it is good for.
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

/// Whether a text can be a name inside an identity, whose parts are divided by blanks.
pub(super) fn check_name(name: &str) -> Result<(), PskError> {
    let fits = (1..=NAME_BYTES_MAX).contains(&name.len());
    if fits && name.bytes().all(|byte| byte > b' ' && byte != 0x7F) {
        return Ok(());
    }
    Err(PskError::Name { bytes: name.len() })
}

/// HKDF-Extract without salt and HKDF-Expand-Label, as long as the hash's output.
pub(super) fn expand_label(
    hash: PskHash,
    key: &[u8],
    label: &str,
    context: &[u8],
) -> Result<Zeroizing<Vec<u8>>, PskError> {
    /// What RFC 8446 puts before every label.
    const PREFIX: &str = "tls13 ";
    // An HkdfLabel (RFC 8446 section 7.1): the length of the output in network order, then label and context, each behind a
    // byte that counts it.
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
    assert!(done.is_ok(), "one block of output is never too much");
    Ok(out)
}

fn mac<M: Mac + hmac::digest::KeyInit>(key: &[u8], text: &[u8]) -> Vec<u8> {
    match <M as Mac>::new_from_slice(key) {
        Ok(mac) => mac.chain_update(text).finalize().into_bytes().to_vec(),
        Err(_) => unreachable!("HMAC takes keys of any length"),
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
    fn linux_derives_the_same_digest_and_the_same_tls_psk() {
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
    fn libnvme_makes_the_same_identity_of_a_configured_key() {
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
    fn version_0_has_its_identity_as_context_and_no_room_for_two_long_names() {
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
    fn names_that_would_blur_an_identity_are_refused() {
        let key = InputKey::new(&[7; 48]).unwrap();
        for name in ["", "a b", "a\n", "a\0", &"n".repeat(NAME_BYTES_MAX + 1)] {
            let refused = Err(PskError::Name { bytes: name.len() });
            assert_eq!(key.tls_psk(PskVersion::One, name, "s").map(drop), refused, "{name:?}");
            assert_eq!(key.tls_psk(PskVersion::One, "h", name).map(drop), refused, "{name:?}");
        }
        assert_eq!(InputKey::new(&[7; 33]).map(drop), Err(PskError::Length { bytes: 33 }));
    }

    #[test]
    fn a_key_is_never_printed() {
        let key = InputKey::new(&[0x41; 32]).unwrap();
        let psk = key.tls_psk(PskVersion::One, "h", "s").unwrap();
        let text = format!("{key:?} {psk:?}");
        assert!(!text.contains("65") && !text.contains("AAAA"), "{text}");
        assert!(!text.contains(&format!("{:?}", &psk.secret[..4])), "{text}");
    }

    proptest! {
        #[test]
        fn another_key_or_another_name_is_another_secret(
            key in proptest::array::uniform32(any::<u8>()),
            bit in 0_usize..256,
            host in "[a-z0-9.:-]{1,60}",
            other in "[a-z0-9.:-]{1,60}",
        ) {
            prop_assume!(host != other);
            let mut turned = key;
            turned[bit / 8] ^= 1 << (bit % 8);
            for version in PskVersion::ALL {
                let psk = |key: &[u8], host: &str| InputKey::new(key).unwrap().tls_psk(version, host, "s").unwrap();
                let right = psk(&key, &host);
                prop_assert_eq!(&right.secret, &psk(&key, &host).secret);
                prop_assert_ne!(&right.secret, &psk(&turned, &host).secret);
                prop_assert_ne!(&right.secret, &psk(&key, &other).secret);
                prop_assert_ne!(&right.identity, &psk(&key, &other).identity);
            }
        }
    }
}
