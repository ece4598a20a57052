//! The data that a controller requests from a host: R2Ts, and data that arrives in parts.
//!
//! Input: the needs of commands, and calls of the caller that has room for the next part. Output: R2Ts, and
//! [`TargetStep::Part`] for bytes that the caller takes from the stream itself.
//! Invariant: data in a buffer stays under the limit of requested writes; a part is requested only when the caller says
//! so, and no byte of it passes through a buffer of the connection.
//!
//! ```text
//!   InParts{direct} --> request_next --R2T--> Part, take_part, ... --end of R2T--> NextPart --> request_next --> ...
//!                                                                  --all parts---> the rest as other data, or Ready
//!                                                                  --bad digest--> Failed
//! ```

use super::exchange::{DataIntegrity, ExchangeStage};
use super::interface::{ArrivingPart, ExchangeSlot, TargetResponse, TargetStep};
use super::{DataDestination, TargetConnection, short_common};
use crate::spec::status::Status;
use crate::spec::tcp::{DataPdu, PduKind};
use headwater_host::width::narrow;
use std::collections::TryReserveError;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32};

impl TargetConnection {
    /// Requests the next data of a command whose need is in parts, as many R2Ts as the host accepts. The caller has room for
    /// what it takes. Does nothing if all parts are requested.
    ///
    /// # Panics
    /// If the slot does not exist on this connection.
    pub fn request_next(&mut self, slot: ExchangeSlot) {
        if self.exchange(slot).is_in_parts() {
            self.send_r2ts(slot);
        }
    }

    /// Returns the part of which the next bytes of the stream are. The caller takes them from the front of the input, or
    /// receives them into their destination, and then calls [`take_part`](Self::take_part).
    #[must_use]
    #[inline]
    pub fn arriving_part(&self) -> Option<ArrivingPart> {
        let DataDestination::Command(slot) = self.destination else {
            return None;
        };
        let bytes = self.decoder.data_left();
        let is_part = bytes > 0 && self.exchanges[usize::from(slot.0)].is_in_parts();
        is_part.then(|| ArrivingPart { slot, bytes, digest: self.decoder.digest_so_far() })
    }

    /// Accounts for `bytes` bytes of the [arriving part](Self::arriving_part), which the caller took from the stream.
    /// `digest` is its [digest](ArrivingPart::digest) continued over them; it counts only if there is one.
    ///
    /// # Panics
    /// If no part arrives, or if it has fewer bytes left: a bug of the caller, not a fault of the host.
    pub fn take_part(&mut self, bytes: usize, digest: u32) {
        let Some(part) = self.arriving_part() else {
            panic!("{bytes} bytes of a part are taken while none arrives");
        };
        self.decoder.note_direct_data(bytes, |_| digest);
        self.exchange(part.slot).received += narrow::<usize, u32>(bytes);
    }

    /// Consumes the padding in front of the data of a part. Returns its command if its data is next.
    #[inline]
    pub(super) fn part_in_front(&mut self, input: &mut &[u8]) -> Option<ExchangeSlot> {
        if let DataDestination::Command(slot) = self.destination
            && self.exchange(slot).is_in_parts()
        {
            self.decoder.skip_padding(input);
        }
        self.arriving_part().map(|part| part.slot)
    }

    /// Ends a PDU with data of a part.
    pub(super) fn finish_part(&mut self, slot: ExchangeSlot) -> Option<TargetStep> {
        let (r2t_bytes, r2ts_max) = (self.parameters.r2t_bytes, self.r2ts_max);
        let exchange = self.exchange(slot);
        if exchange.integrity == DataIntegrity::Corrupt {
            // What was requested is received first: a host sends no data for a command that is answered.
            return if exchange.has_requested_data() { self.fail_corrupt(slot) } else { None };
        }
        if exchange.received < exchange.direct {
            return exchange.may_request(r2t_bytes, r2ts_max).then_some(TargetStep::NextPart(slot));
        }
        if exchange.is_complete() {
            exchange.stage = ExchangeStage::Running;
            return Some(TargetStep::Ready(slot));
        }
        exchange.stage = ExchangeStage::Waiting;
        self.waiting.push_back(slot);
        self.request_waiting_data();
        None
    }

    /// Answers a command whose data is corrupt. Returns the step that reports it to a caller that has parts of the data.
    pub(super) fn fail_corrupt(&mut self, slot: ExchangeSlot) -> Option<TargetStep> {
        let has_parts = self.exchange(slot).direct > 0;
        self.respond(slot, TargetResponse::status(Status::TRANSIENT_TRANSPORT_ERROR));
        has_parts.then_some(TargetStep::Failed(slot))
    }

    /// Reserves memory for the data that a command needs.
    pub(super) fn reserve_data(&mut self, slot: ExchangeSlot) -> Result<(), TryReserveError> {
        let exchange = &mut self.exchanges[usize::from(slot.0)];
        exchange.data.reserve(exchange.buffered_bytes(), self.pool.as_ref())
    }

    /// Sends R2Ts for the data of waiting commands in order, up to the limit of requested write bytes.
    pub(super) fn request_waiting_data(&mut self) {
        while let Some(&slot) = self.waiting.front() {
            let bytes = self.exchange(slot).buffered_bytes();
            if self.requested_write_bytes > 0
                && self.requested_write_bytes.saturating_add(bytes) > self.parameters.write_bytes_max
            {
                return;
            }
            self.waiting.pop_front();
            self.requested_write_bytes += bytes;
            let exchange = self.exchange(slot);
            exchange.stage = ExchangeStage::Receiving { requested: exchange.direct };
            match self.reserve_data(slot) {
                Ok(()) => self.send_r2ts(slot),
                // The host may retry the command.
                Err(_) => self.respond(slot, TargetResponse::status(Status::INTERNAL_ERROR)),
            }
        }
    }

    /// Sends as many R2Ts for the data of a command as the host accepts.
    pub(super) fn send_r2ts(&mut self, slot: ExchangeSlot) {
        let (r2t_bytes, r2ts_max) = (self.parameters.r2t_bytes, self.r2ts_max);
        while let Some(range) = self.exchange(slot).next_r2t(r2t_bytes, r2ts_max) {
            let pdu = DataPdu {
                common: short_common(PduKind::ReadyToTransfer, 0),
                command_id: self.exchange(slot).entry.command_id,
                transfer_tag: U16::new(slot.0),
                offset: U32::new(range.start),
                bytes: U32::new(range.end - range.start),
                reserved: U32::new(0),
            };
            self.outgoing.header(pdu.common, &pdu.as_bytes()[8..], self.frame.digests.header);
        }
    }
}
