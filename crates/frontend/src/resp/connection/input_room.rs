//! The room for the bytes that a connection receives.
//!
//! Input: the length of a long argument that has begun. Output: an input with room for it. Invariant: a long argument is
//! received where its value stays, and a connection keeps its buffer no longer than its command.

use super::RespConnection;
use crate::resp::limits::{DIRECT_BYTES_MIN, HEADER_READ_BYTES, READ_BYTES};
use crate::resp::receive_buffers::ReceiveBuffers;
use bytes::BytesMut;

impl RespConnection {
    /// Returns the bytes that the rest of a long argument needs beyond what the input has room for.
    pub(crate) fn missing_room(&self) -> usize {
        self.parser.bytes_needed().saturating_sub(self.input.capacity())
    }

    /// Returns true if the input lies in a buffer that was made for a long argument.
    pub(crate) fn has_long_input(&self) -> bool {
        self.long_input > 0
    }

    /// Returns the bytes of the present argument that have not arrived; 0 if its length is unknown.
    pub(crate) fn missing_bytes(&self) -> usize {
        self.parser.bytes_needed().saturating_sub(self.input.len())
    }

    /// Makes room for the whole present argument, once, and for a read of what follows: the bytes are received where the
    /// value stays. Behind a longer input the room doubles at the least, so that the arguments of one command are not
    /// copied for each of them.
    pub(super) fn make_room(&mut self, buffers: &mut ReceiveBuffers) {
        let needed = self.parser.bytes_needed();
        if needed <= self.input.capacity() {
            return;
        }
        let held = self.input.len();
        if needed < DIRECT_BYTES_MIN && self.long_input == 0 {
            self.input.reserve(needed - held);
            return;
        }
        let doubled = if held > needed / 2 { 2 * held } else { 0 };
        let mut room = buffers.take(doubled.max(needed + HEADER_READ_BYTES));
        room.extend_from_slice(&self.input);
        let before = std::mem::replace(&mut self.input, room);
        if self.long_input > 0 {
            buffers.put_back(before, self.long_input);
        }
        self.long_input = self.input.capacity();
    }

    /// Moves what follows a parsed command out of the buffer of its long argument: only the command keeps that buffer, and
    /// a client that then sends nothing holds none.
    pub(crate) fn leave_long_input(&mut self, buffers: &mut ReceiveBuffers) {
        if self.long_input > 0 && self.input.len() <= READ_BYTES {
            let rest = BytesMut::from(&self.input[..]);
            buffers.put_back(std::mem::replace(&mut self.input, rest), std::mem::take(&mut self.long_input));
        }
    }
}
