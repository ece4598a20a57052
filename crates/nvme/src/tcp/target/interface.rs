//! The parameters, events and responses of a [`TargetConnection`](super::TargetConnection): plain values without state.

use super::super::fault::TcpFault;
use super::super::limits::{ADMIN_IN_CAPSULE_BYTES, HOST_DATA_BYTES_MAX, R2T_BYTES_MAX, WRITE_BYTES_MAX};
use crate::spec::command::SubmissionEntry;
use crate::spec::status::Status;

/// The parameters of a controller's connections.
#[derive(Clone, Copy, Debug)]
pub struct TargetParameters {
    /// Maximum in-capsule data; an admin queue always accepts 8,192 bytes.
    pub in_capsule_max: u32,
    /// MAXH2CDATA.
    pub host_data_max: u32,
    /// Maximum bytes that one R2T requests.
    pub r2t_bytes: u32,
    /// Maximum bytes of unanswered writes requested by R2T.
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

/// The slot of a command between its capsule and its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangeSlot(pub u16);

/// The next event of a connection.
#[derive(Debug)]
pub enum TargetStep {
    /// The connection needs more bytes.
    NeedInput,
    /// A command. The caller must call [`declare_need`](super::TargetConnection::declare_need) or
    /// [`respond`](super::TargetConnection::respond) before it advances the connection again.
    Command {
        /// Its slot.
        slot: ExchangeSlot,
        /// The submission queue entry.
        entry: SubmissionEntry,
    },
    /// The next bytes of the stream are data of a command whose need is in parts. The caller takes some of them from the
    /// front of the input, or receives them into their destination, and reports them to
    /// [`take_part`](super::TargetConnection::take_part). Returned again while such bytes are next, without input too.
    Part(ExchangeSlot),
    /// A command whose requested parts were received, or so much of them that the host accepts another R2T. The caller
    /// calls [`request_next`](super::TargetConnection::request_next), now or when it has room.
    NextPart(ExchangeSlot),
    /// Parts of this command's data were corrupt, and it is answered. The caller drops what it has of them.
    Failed(ExchangeSlot),
    /// All data that the command needs was received.
    Ready(ExchangeSlot),
    /// No more input is read. The caller sends the queued bytes, then closes the connection.
    Closed(CloseReason),
}

/// The reason for which a connection closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// This end detected a fault and sent a termination request.
    Fault(TcpFault),
    /// The peer sent a termination request: FES and FEI.
    Peer {
        /// FES.
        status: u16,
        /// FEI.
        information: u32,
    },
}

/// The data that a command needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferNeed {
    /// No data.
    None,
    /// This many bytes from the host.
    FromHost(u32),
    /// Bytes from the host, of which the caller takes the first ones itself. It calls
    /// [`request_next`](super::TargetConnection::request_next) when it has room for them. Data in the capsule comes as a
    /// whole, as for [`FromHost`](Self::FromHost).
    InParts {
        /// All bytes.
        bytes: u32,
        /// The first bytes, which the caller takes in parts. The rest is gathered.
        direct: u32,
    },
    /// Space for this many bytes at the host.
    ToHost(u32),
}

/// Bytes of a command's part that are next in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrivingPart {
    /// The slot of the command.
    pub slot: ExchangeSlot,
    /// Bytes left in the current PDU.
    pub bytes: u32,
    /// CRC-32C of the data before them in this PDU, to be continued over them; `None` without data digests.
    pub digest: Option<u32>,
}

/// The outcome of a [`TransferNeed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeedOutcome {
    /// The command can be executed now.
    Now,
    /// [`TargetStep::Ready`] follows, of a need in parts unless [`TargetStep::Failed`] does.
    Later,
    /// The data pointer is too short for the need; an error response was sent.
    Refused,
}

/// The response to a command.
#[derive(Debug)]
pub struct TargetResponse {
    /// Dwords 0 and 1 of the completion.
    pub result: u64,
    /// Status of the command.
    pub status: Status,
    /// Data for the host if the command succeeded; sent without a copy if long.
    pub data: Vec<u8>,
}

impl TargetResponse {
    /// Creates a response that carries only a status.
    #[must_use]
    pub const fn status(status: Status) -> Self {
        Self { result: 0, status, data: Vec::new() }
    }
}

/// The SQ flow control of a queue (Connect attribute DISABLE_SQFLOW).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowControl {
    /// Completions carry SQHD.
    Enabled,
    /// Completions carry no SQHD, and the last data PDU of a read may imply its response.
    Disabled,
}
