//! Long values that the device receives from a client's socket itself.
//!
//! Input: the header of a long argument that is the value of a SET, SETNX, GETSET, SETEX or PSETEX. Output: a store whose value
//! lies in the device's blocks already. Invariant: bytes that the device received are no longer in the input, and the argument
//! in the input is the rest of the value; the command is the next one of its connection.
//!
//! ```text
//!  *5 $3 SET $1 k $1000000 <first bytes, to the device> <rest> $2 EX $2 10     the rest is shorter than an extent
//!                          ^ position of the parser            ^ not known yet
//! ```
//!
//! The options of SET lie behind its value. They are read when the whole command has arrived, as those of a command that lies
//! in the input, and decide what becomes of the receipt: a store with their condition and expiry takes it, with GET a
//! read-modify-write does, and a command that fails drops it.
//!
//! A command whose value may be needed as bytes (in a transaction, any other command) is received into the input, and so is
//! every value for which the device has no receipt.

use super::change::KeyChange;
use super::command_table::{RespCommand, lookup};
use super::connection::{ConnectionLife, RespConnection};
use super::dispatch::TurnContext;
use super::plan::CommandPlan;
use super::received_bytes::ReceivedBytes;
use crate::core_device::CoreDevice;
use headwater_ssd::command::{ReceiptStep, SsdCommand, ValueSource};
use headwater_ssd::limits::EXTENT_BYTES;
use rustix::io::{Errno, readv};
use std::io::{self, Read};
use std::os::fd::AsFd;

impl CommandPlan {
    /// Makes the bytes that the device received the first ones of the value that is stored.
    pub(crate) fn put_received(&mut self, received: &ReceivedBytes) {
        let (Self::Single { command: SsdCommand::Store { value, .. }, .. }
        | Self::Edit(_, KeyChange::Swap { value, .. })) = self
        else {
            return;
        };
        if let ValueSource::Bytes(rest) = value {
            let rest = std::mem::take(rest);
            *value = ValueSource::Received { receipt: received.receipt.clone(), rest };
        }
    }
}

impl RespConnection {
    /// Returns true if the device waits for bytes of the present argument.
    #[inline]
    pub(crate) fn is_receiving(&self) -> bool {
        self.received.as_ref().is_some_and(ReceivedBytes::is_incomplete)
    }

    /// Returns the length of the present argument, if it is the value of a command that only stores it, and not of one that
    /// stores nothing as long as its key `is_present`.
    fn stored_value(&self, is_present: impl Fn(&[u8]) -> bool) -> Option<usize> {
        let present = self.parser.incomplete_argument()?;
        let (name, value_at) = (present.before.first()?, present.before.len());
        let is_last = present.behind == 0;
        let is_stored = match lookup(&self.input[name.range()])? {
            // Its options follow.
            RespCommand::Set => value_at == 2,
            RespCommand::GetSet => value_at == 2 && is_last,
            RespCommand::SetNx => {
                value_at == 2 && is_last && !is_present(&self.input[present.before[1].range()])
            }
            RespCommand::SetEx | RespCommand::PSetEx => value_at == 3 && is_last,
            _ => false,
        };
        is_stored.then_some(present.bytes)
    }
}

impl<S: CoreDevice> TurnContext<'_, S> {
    /// Lets the device receive the present argument, if that is a long value that the device takes.
    #[inline]
    pub(crate) fn begin_receipt(&mut self, connection: &mut RespConnection) {
        let present = connection.parser.incomplete_argument();
        if connection.received.is_none() && present.is_some_and(|present| present.bytes >= EXTENT_BYTES) {
            self.try_receipt(connection);
        }
    }

    /// Reads once from the socket, or lets the device receive the next bytes of a long value. Returns the number of bytes that
    /// came from the socket, or `None` if none can be read now.
    #[inline]
    pub(crate) fn receive_or_read(
        &mut self,
        connection: &mut RespConnection,
        scratch: &mut [u8],
    ) -> Option<usize> {
        if connection.is_receiving() {
            self.receive(connection)
        } else {
            connection.read(scratch, &mut self.shared.receive_buffers)
        }
    }

    #[cold]
    fn try_receipt(&mut self, connection: &mut RespConnection) {
        let is_known = connection.authenticated || self.shared.settings.password.is_none();
        // Once a buffer is made for the whole value, that buffer receives it.
        let has_buffer = connection.has_long_input();
        // A connection that is held is not read: its receipt would make no progress.
        let waits = !connection.pending.is_done() || connection.is_held();
        if !is_known || has_buffer || waits || connection.transaction.is_open() {
            return;
        }
        let namespace = connection.namespace();
        let is_present = |key: &[u8]| self.device.value_bytes(namespace, key) > 0;
        let Some(bytes) = connection.stored_value(is_present) else { return };
        // A value that has arrived as a whole is parsed.
        if connection.missing_bytes() == 0 {
            return;
        }
        if let Some(receipt) = self.device.begin_receipt(connection.namespace(), bytes) {
            connection.parser.shorten_argument(receipt.bytes());
            connection.received = Some(ReceivedBytes { receipt, done: 0, is_queued: false });
        }
    }

    /// Lets the device receive the next bytes, first those that have arrived with the header.
    fn receive(&mut self, connection: &mut RespConnection) -> Option<usize> {
        let position = connection.parser.argument_position();
        let RespConnection { received, input, socket, .. } = connection;
        let (received, socket) = (received.as_mut()?, socket.as_ref()?);
        let mut room = 0;
        let step = if input.len() > position {
            let arrived = &input[position..];
            let left = received.receipt.bytes() - received.done;
            let mut arrived = &arrived[..arrived.len().min(left)];
            self.device.receive(&received.receipt, &mut |slices| arrived.read_vectored(slices))
        } else {
            self.device.receive(&received.receipt, &mut |slices| {
                room = slices.iter().map(|slice| slice.len()).sum();
                loop {
                    match readv(socket.as_fd(), slices) {
                        Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                        Err(Errno::INTR) => {}
                        read => return Ok(read?),
                    }
                }
            })
        };
        match step {
            Ok(ReceiptStep::Received(bytes)) => {
                received.done += bytes;
                self.shared.has_received |= bytes > 0;
                if input.len() > position {
                    remove(input, position, bytes);
                    return Some(0);
                }
                connection.ready.readable = bytes == room || connection.ready.hung_up;
                connection.ready.after_long = true;
                Some(bytes)
            }
            Ok(ReceiptStep::NoRoom) => {
                if !std::mem::replace(&mut received.is_queued, true) {
                    self.shared.awaiting_receipt.push(connection.index);
                }
                None
            }
            Err(error) => {
                end_reading(connection, &error);
                None
            }
        }
    }
}

/// Notes that nothing can be read from a socket now, or ever.
fn end_reading(connection: &mut RespConnection, error: &io::Error) {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::AGAIN) => connection.ready.readable = false,
        Some(_) => {
            connection.life = ConnectionLife::Dead;
            connection.ready.readable = false;
        }
        // After end of file, pending replies are still sent.
        None => {
            connection.life = ConnectionLife::Closing;
            connection.ready.readable = false;
        }
    }
}

/// Removes bytes behind the header of an argument, which moves up to what follows.
fn remove(input: &mut bytes::BytesMut, header: usize, bytes: usize) {
    input.copy_within(..header, bytes);
    bytes::Buf::advance(input, bytes);
}

const _: () = assert!(EXTENT_BYTES > super::limits::READ_BYTES);

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BytesMut;

    #[test]
    fn bytes_behind_a_header_leave_the_input() {
        for (header, bytes) in [(0, 0), (3, 0), (3, 1), (3, 5), (5, 3), (0, 8), (8, 0)] {
            let mut input = BytesMut::from(&b"abcdefgh"[..]);
            remove(&mut input, header, bytes);
            let expected = [&b"abcdefgh"[..header], &b"abcdefgh"[header + bytes..]].concat();
            assert_eq!(input[..], expected, "{bytes} bytes behind {header}");
        }
    }
}
