//! What the face knows of a command that the device has.
//!
//! In: an accepted command. Out: whom its completion is for, and what becomes of it.

use headwater_nvme::fabrics::{ConnectionId, ControllerId};
use headwater_nvme::tcp::Slot;
use headwater_ssd::nvme::request::Answer;

/// What a completion of the device is for.
#[derive(Debug)]
pub(super) enum Flight {
    /// A command of an I/O queue.
    Io {
        /// Who is answered.
        connection: ConnectionId,
        /// Which command.
        slot: Slot,
        /// How.
        answer: Answer,
        /// Bytes for which room was made.
        owed: usize,
    },
    /// An admin command that changes namespaces.
    Namespace {
        /// Who is answered.
        connection: ConnectionId,
        /// Which command.
        slot: Slot,
    },
    /// The flush of a controller's shutdown.
    Shutdown(ControllerId),
}
