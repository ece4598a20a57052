//! What a connection still has to send.
//!
//! In: replies in order. Out: bytes to the socket, one system call a turn. Short replies lie behind one another in one
//! buffer; long values stay where the device put them and are sent from there, then go back to the sinks.
//! Invariant: bytes leave in the order they came in, each once.

use super::limits::{SEGMENT_BYTES_MIN, SINK_BYTES_MAX, SINKS_MAX};
use super::reply::{Encoder, Protocol, Reply};
use rustix::net::{SendAncillaryBuffer, SendFlags, send, sendmsg};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;

/// Most pieces in one system call.
const PIECES_MAX: usize = 64;
/// Sent bytes at the front of the text that are worth moving the rest for.
const COMPACT_BYTES: usize = 1 << 20;

/// Buffers for values, used again.
#[derive(Debug, Default)]
pub(crate) struct Sinks(Vec<Vec<u8>>);

impl Sinks {
    /// An empty buffer, with memory if one was kept.
    #[inline]
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.0.pop().unwrap_or_default()
    }

    /// Keeps a buffer for later.
    #[inline]
    pub(crate) fn put_back(&mut self, mut sink: Vec<u8>) {
        if sink.capacity() > 0 && sink.capacity() <= SINK_BYTES_MAX && self.0.len() < SINKS_MAX {
            sink.clear();
            self.0.push(sink);
        }
    }
}

/// Whether everything could be handed to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flushed {
    /// Yes.
    All,
    /// The socket takes no more now.
    Blocked,
}

/// A long value, sent when the text up to `at` is sent.
#[derive(Debug)]
struct Segment {
    at: usize,
    bytes: Vec<u8>,
}

/// Replies on their way out.
#[derive(Debug, Default)]
pub(crate) struct Output {
    text: Vec<u8>,
    text_sent: usize,
    segments: VecDeque<Segment>,
    segment_sent: usize,
    segment_bytes: usize,
}

impl Output {
    /// Bytes not sent yet.
    #[inline]
    pub(crate) fn pending(&self) -> usize {
        self.text.len() - self.text_sent + self.segment_bytes - self.segment_sent
    }

    /// Queues a reply.
    #[inline]
    pub(crate) fn reply(&mut self, reply: Reply, protocol: Protocol, sinks: &mut Sinks) {
        let mut encoder = Encoder::new(&mut self.text, protocol);
        match reply {
            Reply::Ok => encoder.ok(),
            Reply::Null => encoder.null(),
            Reply::Integer(value) => encoder.integer(value),
            Reply::Simple(text) => encoder.simple(text),
            Reply::Error(failure) => encoder.error(&failure),
            Reply::Bulk(bytes) if bytes.len() < SEGMENT_BYTES_MIN => {
                encoder.bulk(&bytes);
                sinks.put_back(bytes);
            }
            Reply::Bulk(bytes) => {
                encoder.bulk_header(bytes.len());
                self.segment(bytes);
                self.text.extend_from_slice(b"\r\n");
            }
            Reply::Encoded(bytes) if bytes.len() < SEGMENT_BYTES_MIN => self.text.extend_from_slice(&bytes),
            Reply::Encoded(bytes) => self.segment(bytes),
        }
    }

    /// Hands as much as possible to the kernel.
    ///
    /// # Errors
    /// When the connection is gone.
    pub(crate) fn flush(&mut self, socket: BorrowedFd<'_>, sinks: &mut Sinks) -> rustix::io::Result<Flushed> {
        while self.pending() > 0 {
            let sent = if self.segments.is_empty() {
                send(socket, &self.text[self.text_sent..], SendFlags::NOSIGNAL)
            } else {
                self.send_pieces(socket)
            };
            match sent {
                Ok(count) => self.advance(count, sinks),
                Err(rustix::io::Errno::AGAIN) => {
                    self.compact();
                    return Ok(Flushed::Blocked);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        self.text.clear();
        self.text_sent = 0;
        if self.text.capacity() > COMPACT_BYTES {
            self.text = Vec::new();
        }
        Ok(Flushed::All)
    }

    fn segment(&mut self, bytes: Vec<u8>) {
        self.segment_bytes += bytes.len();
        self.segments.push_back(Segment { at: self.text.len(), bytes });
    }

    fn send_pieces(&self, socket: BorrowedFd<'_>) -> rustix::io::Result<usize> {
        let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
        let mut count = 0;
        let mut at = self.text_sent;
        let mut skip = self.segment_sent;
        for segment in self.segments.iter().take(PIECES_MAX / 2 - 1) {
            if segment.at > at {
                pieces[count] = IoSlice::new(&self.text[at..segment.at]);
                count += 1;
                at = segment.at;
            }
            pieces[count] = IoSlice::new(&segment.bytes[skip..]);
            count += 1;
            skip = 0;
        }
        let end = self.segments.get(PIECES_MAX / 2 - 1).map_or(self.text.len(), |next| next.at);
        if end > at {
            pieces[count] = IoSlice::new(&self.text[at..end]);
            count += 1;
        }
        sendmsg(socket, &pieces[..count], &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)
    }

    fn advance(&mut self, mut count: usize, sinks: &mut Sinks) {
        while let Some(front) = self.segments.front() {
            let text = count.min(front.at - self.text_sent);
            self.text_sent += text;
            count -= text;
            if self.text_sent < front.at {
                return;
            }
            let left = front.bytes.len() - self.segment_sent;
            if count < left {
                self.segment_sent += count;
                return;
            }
            count -= left;
            self.segment_bytes -= front.bytes.len();
            self.segment_sent = 0;
            if let Some(segment) = self.segments.pop_front() {
                sinks.put_back(segment.bytes);
            }
        }
        self.text_sent += count;
    }

    fn compact(&mut self) {
        if self.text_sent > COMPACT_BYTES {
            self.text.drain(..self.text_sent);
            for segment in &mut self.segments {
                segment.at -= self.text_sent;
            }
            self.text_sent = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn long_and_short_replies_leave_in_order_through_a_narrow_socket() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut output = Output::default();
        let mut sinks = Sinks::default();
        let mut expected = Vec::new();
        for round in 0..200_usize {
            let length = if round % 3 == 0 { SEGMENT_BYTES_MIN + round } else { round };
            let value = vec![u8::try_from(round % 251).unwrap(); length];
            expected.extend_from_slice(format!("${length}\r\n").as_bytes());
            expected.extend_from_slice(&value);
            expected.extend_from_slice(b"\r\n");
            output.reply(Reply::Bulk(value), Protocol::Resp2, &mut sinks);
        }
        let mut received = Vec::new();
        loop {
            let flushed = output.flush(ours.as_fd(), &mut sinks).unwrap();
            if flushed == Flushed::All {
                break;
            }
            let mut buffer = vec![0; 50_000];
            let count = theirs.read(&mut buffer).unwrap();
            received.extend_from_slice(&buffer[..count]);
        }
        drop(ours);
        theirs.read_to_end(&mut received).unwrap();
        assert!(received == expected, "the stream was reordered or cut");
        assert_eq!(output.pending(), 0);
    }
}
