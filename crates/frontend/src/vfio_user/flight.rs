//! What the controller of a guest knows of a command that the device has.
//!
//! In: an accepted command. Out: what becomes of its completion.

use headwater_nvme::controller::CommandToken;
use headwater_ssd::nvme::request::Answer;

/// What a completion of the device is for.
#[derive(Debug)]
pub(super) enum Flight {
    /// A command of an I/O queue.
    Io(CommandToken, Answer),
    /// An admin command that changes namespaces.
    Admin(CommandToken),
    /// The flush of a shutdown.
    Shutdown,
}

impl Flight {
    /// Whether it is the command of an I/O queue whose token is wanted. After a reset, ask whose token is current.
    pub(super) fn is_io(&self, is_it: impl Fn(&CommandToken) -> bool) -> bool {
        matches!(self, Self::Io(token, _) if is_it(token))
    }

    /// Ends the duty without an answer.
    pub(super) fn abandon(self) {
        match self {
            Self::Io(token, _) | Self::Admin(token) => token.abandon(),
            Self::Shutdown => {}
        }
    }
}
