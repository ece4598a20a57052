//! Long values that the device receives from a host's socket itself.
//!
//! Input: a KV Store of a long value, then its data, in parts. Output: a store whose value lies in the device's blocks already.
//! Invariant: data of a part goes into the frames that are programmed, without a buffer of the command, and a part arrives only
//! for a command that has its [`CommandReceipt`].
//!
//! ```text
//!  Store of 1,000,000 bytes: 786,432 in parts, each requested by R2T when the device has room | 213,568 to a buffer
//!     socket --readv--> frames, or input --copy--> frames: what arrived with the header of a PDU, and all data of TLS
//! ```
//!
//! If the device has no room in the middle of a part, its connection is not read until there is some: the next bytes of the
//! stream belong to that part. A connection that ends gives back what its receipts hold, and so does a command that is answered.
//! Every value for which the device has no receipt is received into a buffer of its command.

use super::NvmeTcpFrontEnd;
use super::connection::{NvmeTcpConnection, NvmeTcpConnectionLife};
use super::connection_receipts::CommandReceipt;
use super::dispatch::NvmeTcpTurn;
use super::socket;
use bytes::Bytes;
use headwater_host::copy::crc32c;
use headwater_host::width::narrow;
use headwater_nvme::tcp::ExchangeSlot;
use headwater_nvme::tcp::target::{CommandData, TransferNeed};
use headwater_ssd::command::ReceiptStep;
use headwater_ssd::engine::SsdDevice;
use headwater_ssd::limits::EXTENT_BYTES;
use headwater_ssd::media::Media;
use headwater_ssd::nvme::decoder::{IoCommand, IoOperation};
use headwater_ssd::nvme::request::RequestData;
use std::io::{self, ErrorKind, IoSliceMut, Read as _};
use std::os::fd::AsFd as _;

/// The source of the next bytes of a part.
enum PartSource<'a, 'b> {
    /// The socket of the connection.
    Socket,
    /// Bytes that were received, and decrypted if the connection uses TLS.
    Input(&'a mut &'b [u8]),
}

impl NvmeTcpConnection {
    /// Returns true if the next bytes of the socket are data of a part.
    #[inline]
    pub(super) fn is_part_next(&self) -> bool {
        !self.receipts.is_empty()
            && self.secure.is_none()
            && self.accepts_commands()
            && self.target.arriving_part().is_some()
    }

    /// Drops the receipts of commands that the target has answered.
    pub(super) fn end_answered_receipts(&mut self) {
        let Self { receipts, target, .. } = self;
        receipts.end_answered(|slot| target.is_unanswered(slot));
    }

    /// Takes the data of a command that stores or writes: bytes, or what the device received of them and the rest.
    pub(super) fn take_request_data(&mut self, slot: ExchangeSlot) -> RequestData {
        let bytes = match self.target.take_data(slot) {
            CommandData::Heap(bytes) => bytes.into(),
            pooled @ CommandData::Pooled(_) => Bytes::from_owner(pooled),
        };
        match self.receipts.take_complete(slot) {
            Some(receipt) => RequestData::Received { receipt, rest: bytes },
            None => RequestData::Bytes(bytes),
        }
    }
}

impl<M: Media> NvmeTcpTurn<'_, M> {
    /// Begins a receipt if a command stores a long value for which the device has room. Returns the need of its data.
    pub(super) fn begin_receipt(
        &mut self,
        connection: &mut NvmeTcpConnection,
        slot: ExchangeSlot,
        io: &IoCommand,
        need: TransferNeed,
    ) -> TransferNeed {
        // The target may have answered the command that had the slot before, without memory for the rest of its value.
        connection.receipts.end(slot);
        let (IoOperation::Store { .. }, TransferNeed::FromHost(bytes)) = (io.operation, need) else {
            return need;
        };
        let is_long = bytes as usize >= EXTENT_BYTES;
        if !is_long || self.device.is_sanitizing() {
            return need;
        }
        let Some(receipt) = self.device.begin_receipt(io.namespace, bytes as usize) else {
            return need;
        };
        let direct = narrow(receipt.bytes());
        connection.receipts.begin(CommandReceipt { slot, receipt, done: 0, awaits_request: false });
        TransferNeed::InParts { bytes, direct }
    }

    /// Requests the next part of a command's value, or notes that it waits until the device has room.
    pub(super) fn request_part(&mut self, connection: &mut NvmeTcpConnection, slot: ExchangeSlot) {
        let Some(received) = connection.receipts.get_mut(slot) else {
            return;
        };
        // A source that has no bytes finds out if there is room for some, and lets the device make it.
        let step = self.device.receive(&received.receipt, &mut |_| Ok(0));
        received.awaits_request = !matches!(step, Ok(ReceiptStep::Received(_)));
        if !received.awaits_request {
            connection.target.request_next(slot);
        }
    }

    /// Copies data of the arriving part from the input. Returns false if the input is empty, or if the device has no room;
    /// then the connection keeps the input, and is not read.
    pub(super) fn copy_part(&mut self, connection: &mut NvmeTcpConnection, input: &mut &[u8]) -> bool {
        if input.is_empty() {
            return false;
        }
        let (step, _) = self.receive_part(connection, PartSource::Input(&mut *input));
        let has_room = matches!(step, Ok(ReceiptStep::Received(1..)));
        if !has_room {
            connection.receipts.stall(input);
        }
        has_room
    }

    /// Reads once from the socket into the destination of the arriving part. Returns the number of bytes read.
    pub(super) fn read_part(&mut self, connection: &mut NvmeTcpConnection) -> usize {
        let (step, room) = self.receive_part(connection, PartSource::Socket);
        match step {
            Ok(ReceiptStep::Received(bytes @ 1..)) => {
                // A short read means that the socket is empty; an event follows when it is not.
                connection.readable = bytes == room || connection.hung_up;
                self.process_bytes(connection, &[]);
                return bytes;
            }
            Ok(ReceiptStep::Received(_) | ReceiptStep::NoRoom) => connection.receipts.stall(&[]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => connection.readable = false,
            Err(_) => connection.life = NvmeTcpConnectionLife::Dead,
        }
        0
    }

    /// Lets the device receive bytes of the arriving part. Returns the result and the number of bytes that had room.
    fn receive_part(
        &mut self,
        connection: &mut NvmeTcpConnection,
        mut source: PartSource<'_, '_>,
    ) -> (io::Result<ReceiptStep>, usize) {
        let NvmeTcpConnection { target, receipts, socket, .. } = connection;
        let Some(part) = target.arriving_part() else {
            return (Ok(ReceiptStep::Received(0)), 0);
        };
        let Some(received) = receipts.get_mut(part.slot) else {
            unreachable!("a part of the command in slot {} arrives without a receipt", part.slot.0);
        };
        let (mut room, mut digest) = (0, part.digest);
        let step = self.device.receive(&received.receipt, &mut |slices| {
            let mut slices = first_bytes(slices, part.bytes as usize);
            room = slices.iter().map(|slice| slice.len()).sum();
            let bytes = match &mut source {
                PartSource::Socket => socket::receive_into(socket.as_fd(), &mut slices)?,
                PartSource::Input(input) => input.read_vectored(&mut slices)?,
            };
            digest = digest.map(|digest| continue_digest(digest, &slices, bytes));
            Ok(bytes)
        });
        if let Ok(ReceiptStep::Received(bytes)) = step {
            received.done += bytes;
            target.take_part(bytes, digest.unwrap_or(0));
        }
        (step, room)
    }

    /// Continues a connection that waits for room in the device.
    fn resume_parts(&mut self, connection: &mut NvmeTcpConnection) {
        for slot in connection.receipts.awaiting_requests() {
            self.request_part(connection, slot);
        }
        if let Some(input) = connection.receipts.end_stall() {
            self.process_bytes(connection, &input);
            self.process_records(connection);
        }
    }
}

impl NvmeTcpFrontEnd {
    /// Continues the connections that wait for room in the device, each turn another one first: the first one may take all of it.
    /// Returns true if one of them does not wait any more.
    pub(super) fn resume_receipts<M: Media>(&mut self, device: &mut SsdDevice<M>) -> bool {
        let mut moved = false;
        let mut waiting = std::mem::take(&mut self.awaiting_room);
        // Those that go on to wait are listed again in this order.
        let next = waiting.len().min(1);
        waiting.rotate_left(next);
        for id in waiting {
            let Some(mut connection) = self.connections.take_out(id) else {
                continue;
            };
            connection.receipts.is_listed = false;
            NvmeTcpTurn { device: &mut *device, shared: &mut self.shared }.resume_parts(&mut connection);
            moved |= !connection.receipts.awaits_room();
            self.read_connection(device, connection);
        }
        moved
    }
}

/// Returns slices of the first `bytes` bytes of longer ones.
fn first_bytes<'a>(slices: &'a mut [IoSliceMut<'_>], mut bytes: usize) -> Vec<IoSliceMut<'a>> {
    let mut first = Vec::with_capacity(slices.len());
    for slice in slices {
        if bytes == 0 {
            break;
        }
        let taken = slice.len().min(bytes);
        bytes -= taken;
        first.push(IoSliceMut::new(&mut slice[..taken]));
    }
    first
}

/// Continues a CRC-32C over the first `bytes` bytes of slices.
fn continue_digest(mut digest: u32, slices: &[IoSliceMut<'_>], mut bytes: usize) -> u32 {
    for slice in slices {
        let taken = slice.len().min(bytes);
        digest = crc32c(digest, &slice[..taken]);
        bytes -= taken;
    }
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_limited_and_digested_to_the_byte() {
        let whole: Vec<u8> = (0..200).collect();
        for limit in 0..=220 {
            let mut bytes = whole.clone();
            let mut slices: Vec<IoSliceMut<'_>> = bytes.chunks_mut(60).map(IoSliceMut::new).collect();
            slices.insert(1, IoSliceMut::new(&mut []));
            let first = first_bytes(&mut slices, limit);
            let length: usize = first.iter().map(|slice| slice.len()).sum();
            assert_eq!(length, limit.min(whole.len()));
            for end in [0, length / 3, length] {
                assert_eq!(continue_digest(7, &first, end), crc32c(7, &whole[..end]), "{end} of {limit}");
            }
        }
    }
}
