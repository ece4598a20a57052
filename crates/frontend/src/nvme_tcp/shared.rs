//! The state that all connections of the front end share.

use super::abort::PendingAbort;
use super::in_flight_command::NvmeTcpCommand;
use super::secure::ConnectionSecurity;
use crate::in_flight::InFlightTable;
use headwater_host::clock::Nanos;
use headwater_nvme::fabrics::{AssociationTable, ConnectionId, ControllerId};
use headwater_ssd::command::FrontEndId;
use headwater_ssd::nvme::request::KeyBuffer;
use std::collections::VecDeque;
use std::net::SocketAddr;

/// The counters of the front end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NvmeTcpCounters {
    pub(super) connections: u64,
    pub(super) refused: u64,
    pub(super) commands: u64,
    pub(super) answered: u64,
    pub(super) failed: u64,
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
}

#[derive(Debug)]
pub(super) struct NvmeTcpState {
    pub(super) front_end_id: FrontEndId,
    /// The address on which the front end listens.
    pub(super) address: SocketAddr,
    pub(super) security: ConnectionSecurity,
    /// The buffer for decrypted bytes; taken out while it is in use.
    pub(super) plaintext: Vec<u8>,
    pub(super) associations: AssociationTable,
    pub(super) in_flight: InFlightTable<NvmeTcpCommand>,
    pub(super) keys: KeyBuffer,
    pub(super) counters: NvmeTcpCounters,
    /// Connections to close at the end of the turn.
    pub(super) to_close: Vec<ConnectionId>,
    /// Controllers to remove from the device.
    pub(super) removed_controllers: Vec<ControllerId>,
    /// Commands whose next device command waits for room in the device.
    pub(super) waiting_commands: VecDeque<u64>,
    /// Aborts not executed yet: their target may belong to another connection.
    pub(super) aborts: VecDeque<PendingAbort>,
    /// Controllers whose shutdown has not begun yet.
    pub(super) shutdowns: Vec<ControllerId>,
    pub(super) now: Nanos,
}
