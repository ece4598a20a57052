//! The metadata of a guest's command in flight at the device.
//!
//! Input: an accepted command. Output: the recipient of its completion.

use headwater_nvme::controller::CommandToken;
use headwater_ssd::nvme::request::CompletionBuilder;

/// A command in flight, by its purpose.
#[derive(Debug)]
pub(super) enum GuestCommand {
    /// A command of an I/O queue.
    Io(CommandToken, CompletionBuilder),
    /// An admin command that changes namespaces.
    Admin(CommandToken),
    /// The flush of a shutdown.
    Shutdown,
}

impl GuestCommand {
    /// Returns true for a command of an I/O queue whose token matches. After a reset, `is_it` must check that the token
    /// is current.
    pub(super) fn is_io(&self, is_it: impl Fn(&CommandToken) -> bool) -> bool {
        matches!(self, Self::Io(token, _) if is_it(token))
    }

    /// Abandons the token: no completion is posted.
    pub(super) fn abandon(self) {
        match self {
            Self::Io(token, _) | Self::Admin(token) => token.abandon(),
            Self::Shutdown => {}
        }
    }
}
