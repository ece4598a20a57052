//! NVMe over TCP for host and controller as state machines without a socket.
//!
//! Input: bytes that the peer sent, in pieces of any size.
//! Output: for a controller, commands whose data is complete ([`TargetConnection`]); for a host, completions with their
//! data ([`InitiatorConnection`]); for both, bytes to send ([`SendQueue`]).
//! Invariant: after a [`TcpFault`] no more input is read, and the last PDU sent is the termination request that reports
//! it.
//! Clauses are those of the NVMe TCP Transport Specification 1.0.
//!
//! # Not done here
//! No socket and no clock. Of a command only the data pointer is decoded; Connect and later commands belong to the
//! fabrics layer.

pub mod capsule_data;
pub mod decoder;
pub mod fault;
pub mod header;
pub mod initiator;
pub mod limits;
pub mod psk;
pub mod secure;
pub mod send_queue;
pub mod target;

pub use fault::{TcpFault, TcpFaultKind};
pub use initiator::{CommandId, CommandTransfer, InitiatorConnection, InitiatorParameters, InitiatorStep};
pub use send_queue::{LentBytes, SendQueue};
pub use target::{ExchangeSlot, TargetConnection, TargetParameters, TargetStep};

/// The digests negotiated for a connection (sections 3.3.1.1 and 3.3.1.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DigestSettings {
    /// CRC-32C of each header.
    pub header: DigestMode,
    /// CRC-32C of each PDU's data.
    pub data: DigestMode,
}

/// The presence of a digest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DigestMode {
    /// No digest.
    #[default]
    Off,
    /// A CRC-32C digest.
    On,
}

impl DigestMode {
    /// Returns the bytes that the digest adds after the bytes it covers.
    #[must_use]
    #[inline]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Off => 0,
            Self::On => DIGEST_BYTES,
        }
    }
}

/// Bytes of a header or data digest.
pub const DIGEST_BYTES: usize = 4;
