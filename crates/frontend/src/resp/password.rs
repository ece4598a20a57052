//! The password of the clients, as the front end holds it: never in plain.
//!
//! Input: a password or its salted hash. Output: whether a client's password is right, at once or after a slow check.
//! A keyed hash decides in a microsecond; its key is random and lives as long as the process. Where only the salted
//! hash is known (it was kept over a restart, or the password file holds one), the keyed hash is made when the first
//! client has proved the password.

use super::password_hash::{SALT_BYTES, SaltedHash};

/// The random secrets of the process that passwords are hashed with.
pub(crate) struct PasswordSecrets {
    key: [u8; 32],
    /// Salts made so far.
    salts: u64,
}

impl PasswordSecrets {
    /// Draws the secrets from the kernel.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn draw() -> std::io::Result<Self> {
        Ok(Self { key: random_bytes()?, salts: 0 })
    }

    /// Returns the keyed hash of a password.
    fn tag(&self, password: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(b"password").update(password);
        hasher.finalize()
    }

    /// Returns a salt that was never returned before.
    pub(crate) fn next_salt(&mut self) -> [u8; SALT_BYTES] {
        self.salts += 1;
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(b"salt").update(&self.salts.to_le_bytes());
        let mut salt = [0; SALT_BYTES];
        hasher.finalize_xof().fill(&mut salt);
        salt
    }
}

impl std::fmt::Debug for PasswordSecrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PasswordSecrets").finish_non_exhaustive()
    }
}

/// Returns random bytes of the kernel.
///
/// # Errors
/// The kernel's.
pub fn random_bytes<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes)
}

/// The verdict on a client's password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PasswordVerdict {
    /// It is the password.
    Right,
    /// It is not.
    Wrong,
    /// Only the salted hash is known, whose check is slow.
    Unknown,
}

/// The password that clients must send.
#[derive(Clone, Debug)]
pub(crate) struct RespPassword {
    /// Keyed hash; `None` until a client has proved the password.
    tag: Option<blake3::Hash>,
    /// Salted hash; `None` while it is being made.
    salted: Option<SaltedHash>,
}

impl RespPassword {
    /// Creates the password from its plain text.
    pub(crate) fn from_plain(password: &[u8], secrets: &PasswordSecrets) -> Self {
        Self { tag: Some(secrets.tag(password)), salted: None }
    }

    /// Creates the password from its salted hash.
    pub(crate) fn from_salted(salted: SaltedHash) -> Self {
        Self { tag: None, salted: Some(salted) }
    }

    /// Returns the salted hash; `None` while it is being made.
    pub(crate) fn salted(&self) -> Option<&SaltedHash> {
        self.salted.as_ref()
    }

    /// Stores the salted hash when it has been made.
    pub(crate) fn set_salted(&mut self, salted: SaltedHash) {
        self.salted = Some(salted);
    }

    /// Stores that a slow check found this password right; later checks are fast.
    pub(crate) fn prove(&mut self, password: &[u8], secrets: &PasswordSecrets) {
        self.tag = Some(secrets.tag(password));
    }

    /// Compares a client's password, in a time that does not depend on where it differs.
    pub(crate) fn verdict(&self, password: &[u8], secrets: &PasswordSecrets) -> PasswordVerdict {
        match self.tag {
            // The comparison of two hashes takes the same time for all of them.
            Some(tag) if tag == secrets.tag(password) => PasswordVerdict::Right,
            Some(_) => PasswordVerdict::Wrong,
            None => PasswordVerdict::Unknown,
        }
    }
}
