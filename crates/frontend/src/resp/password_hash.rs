//! Salted hashes of passwords (scrypt), in the text form of the PHC.
//!
//! Input: a password and a salt, or the text of a hash. Output: [`SaltedHash`]: its text, and whether a password has it.
//! Invariant: a hash that was accepted takes at most [`MEMORY_MAX`] bytes and [`WORK_MAX`] steps to check.
//!
//! ```text
//!   $scrypt$ln=14,r=8,p=5$<salt in base64>$<32 bytes of hash in base64>
//! ```

use scrypt::password_hash::{PasswordHasher as _, PasswordVerifier as _};
use scrypt::{Params, Scrypt, password_hash};
use std::fmt;

/// The start of every hash; no plain password starts so.
const PREFIX: &str = "$scrypt$";
/// Cost of a new hash: 16 MiB of memory in 5 passes, about a fifth of a second.
const LOG_N: u8 = 14;
const R: u32 = 8;
const P: u32 = 5;
/// Bytes of a salt.
pub const SALT_BYTES: usize = 16;
/// Maximum bytes of memory that a check may take.
const MEMORY_MAX: u64 = 64 << 20;
/// Maximum steps of a check, in bytes that it writes: about a second.
const WORK_MAX: u64 = 512 << 20;
/// Longest text of a hash.
const TEXT_BYTES_MAX: usize = 256;

/// A salted hash of a password.
#[derive(Clone, PartialEq, Eq)]
pub struct SaltedHash {
    text: String,
}

/// The error of a text that is no hash of a password. Quotes nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SaltedHashError {
    /// It has another form.
    #[error(
        "the hash of the password is not of the form $scrypt$ln=14,r=8,p=5$SALT$HASH; make one with `headwater \
         password-hash`"
    )]
    Malformed,
    /// It takes too much memory or time to check.
    #[error(
        "a check of this hash of the password takes more than 64 MiB or about a second; choose smaller ln, r, p"
    )]
    TooCostly,
}

impl SaltedHash {
    /// Returns the hash of a password; takes about a fifth of a second and 16 MiB.
    ///
    /// # Panics
    /// Never: the parameters and the length of the salt are valid.
    #[must_use]
    pub fn of(password: &[u8], salt: &[u8; SALT_BYTES]) -> Self {
        let made = password_hash::SaltString::encode_b64(salt).and_then(|salt| {
            let costs = Params::new(LOG_N, R, P, Params::RECOMMENDED_LEN);
            let costs = costs.map_err(|_| password_hash::Error::Password)?;
            let hash = Scrypt.hash_password_customized(password, None, None, costs, &salt)?;
            Ok(hash.to_string())
        });
        match made {
            Ok(text) => Self { text },
            Err(error) => unreachable!("scrypt refused constant parameters: {error}"),
        }
    }

    /// Returns true if a text stands for a hash, well formed or not, and is no plain password.
    #[must_use]
    pub fn is_hash(text: &[u8]) -> bool {
        text.starts_with(PREFIX.as_bytes())
    }

    /// Reads the text of a hash.
    ///
    /// # Errors
    /// [`SaltedHashError`] for another text, and for a hash whose check would take too much.
    pub fn parse(text: &str) -> Result<Self, SaltedHashError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(SaltedHashError::Malformed);
        }
        let malformed = |_| SaltedHashError::Malformed;
        let hash = password_hash::PasswordHash::new(text).map_err(malformed)?;
        if hash.algorithm != scrypt::ALG_ID || hash.salt.is_none() || hash.hash.is_none() {
            return Err(SaltedHashError::Malformed);
        }
        let costs = Params::try_from(&hash).map_err(malformed)?;
        let memory = 1_u64.checked_shl(u32::from(costs.log_n())).unwrap_or(u64::MAX);
        let memory = memory.saturating_mul(128).saturating_mul(u64::from(costs.r()));
        if memory > MEMORY_MAX || memory.saturating_mul(u64::from(costs.p())) > WORK_MAX {
            return Err(SaltedHashError::TooCostly);
        }
        Ok(Self { text: text.to_owned() })
    }

    /// Returns true if a password has this hash; takes as long as making it.
    #[must_use]
    pub fn is_of(&self, password: &[u8]) -> bool {
        let hash = password_hash::PasswordHash::new(&self.text);
        hash.is_ok_and(|hash| Scrypt.verify_password(password, &hash).is_ok())
    }
}

/// Writes the text of the hash.
impl fmt::Display for SaltedHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for SaltedHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SaltedHash").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_password_has_a_hash_and_salts_differ() {
        let hash = SaltedHash::of(b"open sesame", &[7; SALT_BYTES]);
        assert!(hash.to_string().starts_with("$scrypt$ln=14,r=8,p=5$"), "{hash}");
        assert_eq!(SaltedHash::parse(&hash.to_string()), Ok(hash.clone()));
        assert!(hash.is_of(b"open sesame") && !hash.is_of(b"open sesamE") && !hash.is_of(b""));
        assert_ne!(hash, SaltedHash::of(b"open sesame", &[8; SALT_BYTES]));
        assert!(!format!("{hash:?}").contains("ln="));
    }

    /// Checks a hash that Python's `hashlib.scrypt` made.
    #[test]
    fn hash_of_another_program_is_accepted() {
        let text = "$scrypt$ln=10,r=8,p=1$c2FsdHNhbHRzYWx0c2FsdA$A9lBa6RTbfBovWqamVIqXKovIl4Vk6OZyVojLJmYmSI";
        assert!(SaltedHash::parse(text).unwrap().is_of(b"correct horse"));
    }

    #[test]
    fn malformed_and_costly_hashes_are_refused() {
        let good = SaltedHash::of(b"x", &[1; SALT_BYTES]).to_string();
        let wrong = |text: &str| SaltedHash::parse(text).unwrap_err();
        for text in [
            "",
            "$scrypt$",
            "$scrypt$ln=14,r=8,p=5$c2FsdHNhbHRzYWx0c2FsdA",
            "$argon2id$v=19$m=16,t=2,p=1$c2FsdHNhbHRzYWx0c2FsdA$WrWEpPhlz0z1ZyvxTxjZ0w",
            "$scrypt$ln=x,r=8,p=5$c2FsdHNhbHRzYWx0c2FsdA$WrWEpPhlz0z1ZyvxTxjZ0w",
            &good.repeat(3),
            &format!("{good}\n"),
        ] {
            assert_eq!(wrong(text), SaltedHashError::Malformed, "{text}");
        }
        for costs in ["ln=17,r=8,p=1", "ln=14,r=8,p=33", "ln=31,r=8,p=1", "ln=63,r=8,p=1"] {
            let text = good.replace("ln=14,r=8,p=5", costs);
            let error = wrong(&text);
            assert!(error == SaltedHashError::TooCostly || costs.contains("63"), "{costs}: {error}");
        }
    }
}
