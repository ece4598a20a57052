//! What all connections of the face share.
//!
//! In and out: state that more than one file of the face works on.

use super::abort::Abort;
use super::flight::Flight;
use super::secure::Security;
use crate::in_flight::Flights;
use headwater_host::clock::Nanos;
use headwater_nvme::fabrics::{Associations, ConnectionId, ControllerId};
use headwater_ssd::command::FaceId;
use headwater_ssd::nvme::request::Keys;
use std::collections::VecDeque;
use std::net::SocketAddr;

/// What the face counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    pub(super) connections: u64,
    pub(super) refused: u64,
    pub(super) commands: u64,
    pub(super) answered: u64,
    pub(super) failed: u64,
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) face: FaceId,
    /// Where hosts reach the face.
    pub(super) address: SocketAddr,
    pub(super) security: Security,
    /// Where TLS puts opened bytes; taken out while it is worked on.
    pub(super) opened: Vec<u8>,
    pub(super) associations: Associations,
    pub(super) flights: Flights<Flight>,
    pub(super) keys: Keys,
    pub(super) counters: Counters,
    /// Connections to be closed at the end of the turn.
    pub(super) doomed: Vec<ConnectionId>,
    /// Controllers that the device must forget.
    pub(super) gone: Vec<ControllerId>,
    /// Commands of which the device must be asked more, and had no room.
    pub(super) again: VecDeque<u64>,
    /// Aborts that are not carried out yet: what they are about may be another connection's.
    pub(super) aborts: VecDeque<Abort>,
    /// Controllers whose shutdown has not begun yet.
    pub(super) shutdowns: Vec<ControllerId>,
    pub(super) now: Nanos,
}
