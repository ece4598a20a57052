//! What a [`TargetConnection`](super::TargetConnection) says and is told.
//!
//! In and out: plain values. Invariant: nothing here has state.

use super::super::fault::Fault;
use super::super::limits::{ADMIN_IN_CAPSULE_BYTES, HOST_DATA_BYTES_MAX, R2T_BYTES_MAX, WRITE_BYTES_MAX};
use crate::spec::command::SubmissionEntry;
use crate::spec::status::Status;

/// What a controller offers on its connections.
#[derive(Clone, Copy, Debug)]
pub struct TargetParameters {
    /// Most in-capsule data; an admin queue takes 8,192 bytes in any case.
    pub in_capsule_max: u32,
    /// MAXH2CDATA.
    pub host_data_max: u32,
    /// Bytes that one R2T asks for.
    pub r2t_bytes: u32,
    /// Bytes of writes asked for and not yet answered.
    pub write_bytes_max: usize,
}

impl Default for TargetParameters {
    fn default() -> Self {
        Self {
            in_capsule_max: ADMIN_IN_CAPSULE_BYTES,
            host_data_max: HOST_DATA_BYTES_MAX,
            r2t_bytes: R2T_BYTES_MAX,
            write_bytes_max: WRITE_BYTES_MAX,
        }
    }
}

/// Names a command of a connection between its capsule and its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(pub u16);

/// What a connection came to.
#[derive(Debug)]
pub enum TargetStep {
    /// Nothing more without more bytes.
    Starved,
    /// A command. [`want`](super::TargetConnection::want) or [`respond`](super::TargetConnection::respond) must follow before anything else is taken.
    Command {
        /// Its name.
        slot: Slot,
        /// The command.
        entry: SubmissionEntry,
    },
    /// All the data that was wanted is here.
    Ready(Slot),
    /// Nothing is read any more; what is to be sent is sent, then the connection is closed.
    Closed(Ended),
}

/// Why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// This end found a fault and told the other.
    Fault(Fault),
    /// The other end said it found one: FES and FEI.
    Peer {
        /// FES.
        status: u16,
        /// FEI.
        information: u32,
    },
}

/// Data that a command needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// None.
    None,
    /// So many bytes from the host.
    FromHost(u32),
    /// Room for so many bytes at the host.
    ToHost(u32),
}

/// What became of a [`Need`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The command can be carried out now.
    Now,
    /// [`TargetStep::Ready`] follows.
    Later,
    /// Its data pointer has not what it needs: it was answered.
    Refused,
}

/// An answer.
#[derive(Debug)]
pub struct Response {
    /// Dwords 0 and 1 of the completion.
    pub result: u64,
    /// What became of the command.
    pub status: Status,
    /// Data for the host, if it succeeded; sent from where it lies.
    pub data: Vec<u8>,
}

impl Response {
    /// An answer that brings nothing but a status.
    #[must_use]
    pub const fn status(status: Status) -> Self {
        Self { result: 0, status, data: Vec::new() }
    }
}

/// Whether a submission queue tells its head (Connect attribute DISABLE_SQFLOW).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowControl {
    /// Completions carry SQHD.
    Heads,
    /// They do not, and a read's last data may stand for its response.
    Disabled,
}
