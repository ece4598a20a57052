//! NVMe over TCP, both ends, without a socket: bytes in, commands or completions out, bytes to send.
//!
//! In: whatever the other side sent, cut anywhere. Out: for a controller, commands whose data is complete
//! ([`TargetConnection`]); for a host, completions with their data ([`InitiatorConnection`]); for both, bytes to send
//! ([`Outgoing`]). Invariant: after a [`Fault`] nothing is read any more and the last thing sent is the termination request
//! that names it. Clauses are those of the NVMe TCP Transport Specification 1.0.
//!
//! # What this does not do
//! It has no socket and no clock, and understands no command but its data pointer; Connect and what follows it are
//! the fabrics layer.

pub mod capsule_data;
pub mod decoder;
pub mod fault;
pub mod header;
pub mod initiator;
pub mod limits;
pub mod outgoing;
pub mod psk;
pub mod secure;
pub mod target;

pub use fault::{Fault, FaultKind};
pub use initiator::{CommandId, HostStep, InitiatorConnection, InitiatorParameters, Transfer};
pub use outgoing::{Lent, Outgoing};
pub use target::{Slot, TargetConnection, TargetParameters, TargetStep};

/// Which PDUs carry digests, as both ends agreed (sections 3.3.1.1 and 3.3.1.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// CRC-32C of each header.
    pub header: Digest,
    /// CRC-32C of each PDU's data.
    pub data: Digest,
}

/// Whether a digest is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Digest {
    /// It is not.
    #[default]
    Off,
    /// It is.
    On,
}

impl Digest {
    /// Bytes it takes behind what it covers.
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
