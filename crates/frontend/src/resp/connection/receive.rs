//! The bytes that a connection receives, and the room for them.
//!
//! Input: the socket; the length of a long argument that has begun. Output: the input, longer by what arrived. Invariant: a
//! long argument is received where its value stays, and a connection keeps its buffer no longer than its command.

use super::{ConnectionLife, RespConnection};
use crate::resp::limits::{DIRECT_BYTES_MIN, DIRECT_READ_BYTES, HEADER_READ_BYTES, READ_BYTES};
use crate::resp::receive_buffers::ReceiveBuffers;
use bytes::BytesMut;
use headwater_host::receive::receive_into;
use rustix::net::{RecvFlags, recv};
use std::os::fd::AsFd;

impl RespConnection {
    /// Reads once from the socket. Returns the number of bytes, or `None` if none can be read now.
    pub(crate) fn read(&mut self, scratch: &mut [u8], buffers: &mut ReceiveBuffers) -> Option<usize> {
        self.make_room(buffers);
        let socket = self.socket.as_ref()?;
        let missing = self.missing_bytes();
        let is_direct = missing >= DIRECT_BYTES_MIN || (missing > 0 && self.ready.after_long);
        // Behind a long argument comes probably the header of the next one: the less of that one arrives with it, the
        // less is copied.
        let asked = match (is_direct, self.ready.after_long) {
            (true, _) => {
                let room = self.input.capacity() - self.input.len();
                (missing + HEADER_READ_BYTES).min(DIRECT_READ_BYTES).min(room)
            }
            (false, true) => HEADER_READ_BYTES,
            (false, false) => scratch.len(),
        };
        let received = if is_direct {
            receive_into(socket.as_fd(), &mut self.input, asked)
        } else {
            recv(socket.as_fd(), &mut scratch[..asked], RecvFlags::empty()).map(|(_, count)| count)
        };
        match received {
            Ok(0) => {
                // After end of file, pending replies are still sent.
                self.life = ConnectionLife::Closing;
                self.ready.readable = false;
                None
            }
            Ok(count) => {
                self.ready.readable = count == asked || self.ready.hung_up;
                self.ready.after_long = is_direct;
                if !is_direct {
                    if self.input.capacity() - self.input.len() < count {
                        self.input.reserve(count.max(READ_BYTES / 4));
                    }
                    self.input.extend_from_slice(&scratch[..count]);
                }
                Some(count)
            }
            Err(rustix::io::Errno::AGAIN) => {
                self.ready.readable = false;
                None
            }
            Err(rustix::io::Errno::INTR) => None,
            Err(_) => {
                self.life = ConnectionLife::Dead;
                self.ready.readable = false;
                None
            }
        }
    }

    /// Returns the bytes that the rest of a long argument needs beyond what the input has room for.
    pub(crate) fn missing_room(&self) -> usize {
        self.parser.bytes_needed().saturating_sub(self.input.capacity())
    }

    /// Returns the bytes of the present argument that have not arrived; 0 if its length is unknown.
    fn missing_bytes(&self) -> usize {
        self.parser.bytes_needed().saturating_sub(self.input.len())
    }

    /// Makes room for the whole present argument, once, and for a read of what follows: the bytes are received where the
    /// value stays. Behind a longer input the room doubles at the least, so that the arguments of one command are not
    /// copied for each of them.
    fn make_room(&mut self, buffers: &mut ReceiveBuffers) {
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
