//! The state of one command between its capsule and its response.
//!
//! Input: a validated capsule, then data. Output: the complete data, and the ranges of the next R2Ts.
//! Invariant: no more data is accepted than the command needs, and none that no R2T requested.
//!
//! ```text
//!          capsule           needs no data, or reads
//!   Free ----------> Asked ------------------------------------------------------> Running --+
//!    ^                 | needs in-capsule data      end of the capsule                ^      |
//!    |                 +--------------> InCapsule ------------------------------------+      |
//!    |                 | needs transport data     below limit  last byte              |      |
//!    |                 +--------------> Waiting ------> Receiving --------------------+      |
//!    |                 | needs data in parts      all parts, and no rest              |      |
//!    |                 +--------------> InParts --------------------------------------+      |
//!    |                                     | all parts, and a rest --> Waiting               |
//!    +---- response (refused, corrupt data, or done) <---------------------------------------+
//! ```

use super::super::capsule_data::CapsuleData;
use super::super::fault::{TcpFault, TcpFaultKind};
use super::super::header::{DataPart, LastPdu, field_offset};
use super::command_data::CommandData;
use crate::spec::command::SubmissionEntry;
use headwater_host::width::narrow;
use std::ops::Range;

/// The stage of an exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ExchangeStage {
    /// The slot is free.
    #[default]
    Free,
    /// The caller has the command and has not declared its data need.
    AwaitingNeed,
    /// In-capsule data is being received.
    InCapsule {
        /// Bytes of the capsule's data to skip before the command's data.
        skip: u32,
    },
    /// The command waits until its data may be requested.
    Waiting,
    /// Data up to `requested` was requested and is being received.
    Receiving {
        /// End offset of the data requested by R2Ts.
        requested: u32,
    },
    /// The caller takes data up to `requested`, which was requested.
    InParts {
        /// End offset of the data requested by R2Ts.
        requested: u32,
    },
    /// The data is complete and the caller executes the command.
    Running,
    /// The command waits without a time limit: its host may give it up.
    Held,
}

/// The result of the data digest checks of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum DataIntegrity {
    #[default]
    Intact,
    /// A data digest was wrong.
    Corrupt,
}

/// One command.
#[derive(Debug, Default)]
pub(super) struct CommandExchange {
    pub(super) stage: ExchangeStage,
    pub(super) entry: SubmissionEntry,
    pub(super) data_pointer: Option<CapsuleData>,
    pub(super) data: CommandData,
    pub(super) needed: u32,
    /// The first bytes of the data, which the caller takes in parts.
    pub(super) direct: u32,
    pub(super) received: u32,
    pub(super) integrity: DataIntegrity,
}

impl CommandExchange {
    pub(super) fn begin(&mut self, entry: SubmissionEntry, place: CapsuleData) {
        let data = std::mem::take(&mut self.data);
        *self = Self {
            stage: ExchangeStage::AwaitingNeed,
            entry,
            data_pointer: Some(place),
            data,
            ..Self::default()
        };
        self.data.clear();
    }

    pub(super) fn data_limit(&self) -> u32 {
        self.data_pointer.map_or(0, CapsuleData::bytes)
    }

    /// Accepts data of the current PDU, at most as much as the command needs.
    pub(super) fn accept(&mut self, mut bytes: &[u8]) {
        if let ExchangeStage::InCapsule { skip } = &mut self.stage {
            let skipped = bytes.len().min(*skip as usize);
            *skip -= narrow::<usize, u32>(skipped);
            bytes = &bytes[skipped..];
        }
        let left = (self.needed - self.received) as usize;
        let taken = &bytes[..bytes.len().min(left)];
        self.data.put((self.received - self.direct) as usize, taken);
        self.received += narrow::<usize, u32>(taken.len());
    }

    pub(super) fn is_complete(&self) -> bool {
        self.received == self.needed
    }

    /// Begins to request the data of a command whose first `direct` bytes its caller takes in parts.
    pub(super) fn begin_parts(&mut self, direct: u32) {
        assert!(direct <= self.needed, "{direct} bytes in parts of {} bytes", self.needed);
        self.direct = direct;
        self.stage = ExchangeStage::InParts { requested: 0 };
    }

    #[inline]
    pub(super) fn is_in_parts(&self) -> bool {
        matches!(self.stage, ExchangeStage::InParts { .. })
    }

    /// Returns the bytes for which the connection needs a buffer.
    pub(super) fn buffered_bytes(&self) -> usize {
        (self.needed - self.direct) as usize
    }

    /// Returns the buffered bytes that were requested by R2T.
    pub(super) fn granted_bytes(&self) -> usize {
        let by_r2t = matches!(self.data_pointer, Some(CapsuleData::Transport { .. }));
        let is_requested = !matches!(self.stage, ExchangeStage::Waiting | ExchangeStage::InParts { .. });
        if by_r2t && is_requested { self.buffered_bytes() } else { 0 }
    }

    /// Returns the end of the data requested by R2Ts, and the range of which they request.
    fn requested_range(&self) -> Option<(u32, Range<u32>)> {
        match self.stage {
            ExchangeStage::InParts { requested } => Some((requested, 0..self.direct)),
            ExchangeStage::Receiving { requested } => Some((requested, self.direct..self.needed)),
            _ => None,
        }
    }

    /// Returns true if everything that R2Ts requested was received.
    pub(super) fn has_requested_data(&self) -> bool {
        self.requested_range().is_none_or(|(requested, _)| self.received == requested)
    }

    /// Returns true if data is left to request and fewer than `r2ts_max` R2Ts are outstanding.
    pub(super) fn may_request(&self, r2t_bytes: u32, r2ts_max: u32) -> bool {
        let Some((requested, whole)) = self.requested_range() else {
            return false;
        };
        let asked = (requested - whole.start).div_ceil(r2t_bytes);
        let outstanding = asked - (self.received - whole.start) / r2t_bytes;
        requested < whole.end && outstanding < r2ts_max
    }

    /// Returns the range of the next R2T of at most `r2t_bytes`. Returns `None` if the exchange is not receiving, all
    /// data is requested, or `r2ts_max` R2Ts are outstanding.
    pub(super) fn next_r2t(&mut self, r2t_bytes: u32, r2ts_max: u32) -> Option<Range<u32>> {
        let (from, whole) = self.requested_range().filter(|_| self.may_request(r2t_bytes, r2ts_max))?;
        let to = from.saturating_add(r2t_bytes).min(whole.end);
        if let ExchangeStage::InParts { requested } | ExchangeStage::Receiving { requested } = &mut self.stage
        {
            *requested = to;
        }
        Some(from..to)
    }

    /// Validates an H2CData for this exchange: in order, inside its R2T, and LAST_PDU exactly at the end of the R2T.
    pub(super) fn validate_data(&self, part: &DataPart, r2t_bytes: u32) -> Result<(), TcpFault> {
        let Some((requested, whole)) = self.requested_range() else {
            return Err(TcpFault::invalid_field(field_offset::TRANSFER_TAG));
        };
        if self.entry.command_id.get() != part.command_id {
            return Err(TcpFault::invalid_field(field_offset::COMMAND_ID));
        }
        let end = part.offset.checked_add(part.bytes).filter(|&end| end <= requested);
        let end = end.ok_or(TcpFault::of(TcpFaultKind::OutOfRange))?;
        if part.offset != self.received {
            return Err(TcpFault::of(TcpFaultKind::Sequence));
        }
        let r2ts_before = (part.offset - whole.start) / r2t_bytes;
        let asked_end = r2ts_before.saturating_add(1).saturating_mul(r2t_bytes);
        let asked_end = asked_end.saturating_add(whole.start).min(requested);
        if end > asked_end {
            return Err(TcpFault::of(TcpFaultKind::OutOfRange));
        }
        if (end == asked_end) != (part.last == LastPdu::Yes) {
            return Err(TcpFault::invalid_field(field_offset::FLAGS));
        }
        Ok(())
    }
}
