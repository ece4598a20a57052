//! The metadata of a command in flight at the device.
//!
//! Input: an accepted command. Output: the recipient of its completion.

use headwater_nvme::fabrics::{ConnectionId, ControllerId};
use headwater_nvme::tcp::ExchangeSlot;
use headwater_ssd::nvme::request::CompletionBuilder;

/// A command in flight, by its purpose.
#[derive(Debug)]
pub(super) enum NvmeTcpCommand {
    /// A command of an I/O queue.
    Io {
        /// The connection that receives the response.
        connection: ConnectionId,
        /// The slot of the command.
        slot: ExchangeSlot,
        /// The conversion of the completion to a response.
        answer: CompletionBuilder,
        /// Bytes reserved for the response.
        reserved: usize,
    },
    /// An admin command that changes namespaces.
    Namespace {
        /// The connection that receives the response.
        connection: ConnectionId,
        /// The slot of the command.
        slot: ExchangeSlot,
    },
    /// The flush of a controller's shutdown.
    Shutdown(ControllerId),
}
