//! The settings of a front end at its start: the defaults, the configuration, and what CONFIG REWRITE kept.
//!
//! Input: the configuration, and the file of kept settings that it names. Output: the settings. A password of the
//! command line takes precedence over the kept one, and that over one of the configuration file; the log names the
//! choice.

use super::config::{GivenPassword, PasswordPrecedence, RespConfig, RespError};
use super::kept_settings::{self, KeptSettingsError, KeptValues};
use super::password::{PasswordSecrets, RespPassword};
use super::password_hash::SaltedHash;
use super::settings::{self, RespSettings};
use super::slowlog::SlowLog;
use zeroize::Zeroizing;

/// The settings of a front end at its start.
#[derive(Debug)]
pub(crate) struct StartupSettings {
    pub(crate) settings: RespSettings,
    pub(crate) slowlog: SlowLog,
    /// The password, if it is known in plain and is to be hashed.
    pub(crate) plain: Option<Zeroizing<Vec<u8>>>,
}

impl StartupSettings {
    /// Returns the settings of a configuration.
    ///
    /// # Errors
    /// The kept settings cannot be read, or the given password looks like a hash and is none.
    pub(crate) fn of(config: &RespConfig) -> Result<Self, RespError> {
        let secrets = PasswordSecrets::draw().map_err(|source| RespError::Random { source })?;
        let mut settings = RespSettings::new(config, secrets);
        let mut slowlog = SlowLog::default();
        let kept = config.kept_settings.as_deref().map(kept_settings::read).transpose()?;
        let kept = kept.unwrap_or_default();
        if let Some(path) = &config.kept_settings {
            settings::restore(&kept, &mut settings, &mut slowlog)
                .map_err(|reason| KeptSettingsError::Damaged { path: path.clone(), reason })?;
        }
        let mut plain = None;
        if let Some(given) = config.password.as_ref().filter(|given| applies(given, &kept)) {
            if SaltedHash::is_hash(given.text.as_bytes()) {
                settings.password = Some(RespPassword::from_salted(SaltedHash::parse(&given.text)?));
            } else {
                settings.password = Some(RespPassword::from_plain(given.text.as_bytes(), &settings.secrets));
                plain = Some(Zeroizing::new(given.text.as_bytes().to_vec()));
            }
        }
        Ok(Self { settings, slowlog, plain })
    }
}

/// Returns true if a given password applies, and logs the choice between it and a kept one.
fn applies(given: &GivenPassword, kept: &KeptValues) -> bool {
    if !kept.contains_key("requirepass") {
        return true;
    }
    match given.precedence {
        PasswordPrecedence::Given => {
            tracing::warn!(
                "the password of --resp-password applies, not the one that CONFIG REWRITE kept; CONFIG REWRITE replaces it"
            );
            true
        }
        PasswordPrecedence::Kept => {
            tracing::warn!(
                "the password that CONFIG REWRITE kept applies, not the one of resp-password in the configuration file; \
                 --resp-password on the command line takes precedence over both"
            );
            false
        }
    }
}
