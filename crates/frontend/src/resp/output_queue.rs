//! The output queue of a connection, and the encoding of replies in RESP2 or RESP3.
//!
//! Input: replies in order. Output: bytes to the socket, normally one system call a turn. Short replies are
//! concatenated in one buffer; long values are sent from the buffer that the device filled, which then returns to the
//! [`ValueBuffers`]. Invariant: bytes are sent in the order they were queued, each once; a reply is always written
//! completely; error texts never contain a line end.

use super::errors::ErrorReply;
use super::limits::{
    PART_BUFFERS_MAX, SEGMENT_BYTES_MIN, STREAM_PART_BYTES, VALUE_BUFFER_BYTES_MAX, VALUE_BUFFERS_MAX,
};
use super::reply::{RespReply, RespVersion};
use headwater_host::width::narrow;
use rustix::net::{SendAncillaryBuffer, SendFlags, send, sendmsg};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;

/// The maximum number of pieces in one system call.
const PIECES_MAX: usize = 64;
/// The number of sent bytes at the front of the text above which the rest is moved to the front.
const COMPACT_BYTES: usize = 1 << 20;

/// The free lists of value buffers, and of those for parts of values that are sent while they are read. Memory that the allocator
/// returned to the kernel costs a page fault for each 4 KiB of the next part.
#[derive(Debug, Default)]
pub(crate) struct ValueBuffers {
    short: Vec<Vec<u8>>,
    parts: Vec<Vec<u8>>,
}

impl ValueBuffers {
    /// Returns an empty buffer, a recycled one if there is any.
    #[inline]
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.short.pop().unwrap_or_default()
    }

    /// Returns an empty buffer for a part of so many bytes of a value that is sent while it is read. A short part gets no long
    /// buffer: a client is charged for the bytes of its replies, not for the room behind them.
    pub(crate) fn take_part(&mut self, bytes: usize) -> Vec<u8> {
        if bytes <= VALUE_BUFFER_BYTES_MAX {
            return self.take();
        }
        self.parts.pop().unwrap_or_else(|| Vec::with_capacity(STREAM_PART_BYTES))
    }

    /// Keeps a buffer for reuse, if its capacity and the free list are within their limits.
    #[inline]
    pub(crate) fn put_back(&mut self, mut sink: Vec<u8>) {
        let (list, buffers_max) = match sink.capacity() {
            1..=VALUE_BUFFER_BYTES_MAX => (&mut self.short, VALUE_BUFFERS_MAX),
            STREAM_PART_BYTES => (&mut self.parts, PART_BUFFERS_MAX),
            _ => return,
        };
        if list.len() < buffers_max {
            sink.clear();
            list.push(sink);
        }
    }
}

/// The result of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlushResult {
    /// Every byte was sent.
    All,
    /// The socket would block.
    Blocked,
    /// As many bytes were sent as were allowed.
    Paused,
}

/// A long value that is sent after the text up to `at`.
#[derive(Debug)]
struct OutputSegment {
    at: usize,
    bytes: Vec<u8>,
}

/// A queue of encoded replies.
#[derive(Debug, Default)]
pub(crate) struct OutputQueue {
    text: Vec<u8>,
    text_sent: usize,
    segments: VecDeque<OutputSegment>,
    segment_sent: usize,
    segment_bytes: usize,
}

impl OutputQueue {
    /// Returns the number of bytes that are not sent yet.
    #[inline]
    pub(crate) fn pending(&self) -> usize {
        self.text.len() - self.text_sent + self.segment_bytes - self.segment_sent
    }

    /// Encodes and queues a reply.
    #[inline]
    pub(crate) fn push_reply(&mut self, reply: RespReply, protocol: RespVersion, sinks: &mut ValueBuffers) {
        match reply {
            RespReply::Parts(parts) => {
                parts.into_iter().for_each(|part| self.push_reply(part, protocol, sinks));
            }
            RespReply::Bulk(bytes) if bytes.len() >= SEGMENT_BYTES_MIN => {
                ReplyEncoder::new(&mut self.text, protocol).bulk_header(bytes.len());
                self.push_segment(bytes);
                self.text.extend_from_slice(b"\r\n");
            }
            RespReply::Encoded(bytes) if bytes.len() >= SEGMENT_BYTES_MIN => self.push_segment(bytes),
            reply => append_reply(reply, &mut self.text, protocol, sinks),
        }
    }

    /// Sends until the queue is empty, the socket would block, or `bytes_max` bytes were sent.
    ///
    /// # Errors
    /// When sending fails; the connection is lost.
    pub(crate) fn flush(
        &mut self,
        socket: BorrowedFd<'_>,
        mut bytes_max: usize,
        sinks: &mut ValueBuffers,
    ) -> rustix::io::Result<FlushResult> {
        while self.pending() > 0 {
            if bytes_max == 0 {
                self.compact();
                return Ok(FlushResult::Paused);
            }
            let sent = if self.segments.is_empty() {
                let end = self.text.len().min(self.text_sent.saturating_add(bytes_max));
                send(socket, &self.text[self.text_sent..end], SendFlags::NOSIGNAL)
            } else {
                self.send_pieces(socket, bytes_max)
            };
            match sent {
                Ok(count) => {
                    self.advance(count, sinks);
                    bytes_max -= count;
                }
                Err(rustix::io::Errno::AGAIN) => {
                    self.compact();
                    return Ok(FlushResult::Blocked);
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
        Ok(FlushResult::All)
    }

    fn push_segment(&mut self, bytes: Vec<u8>) {
        self.segment_bytes += bytes.len();
        self.segments.push_back(OutputSegment { at: self.text.len(), bytes });
    }

    fn send_pieces(&self, socket: BorrowedFd<'_>, mut room: usize) -> rustix::io::Result<usize> {
        let mut pieces = [IoSlice::new(&[]); PIECES_MAX];
        let mut count = 0;
        let mut at = self.text_sent;
        let mut skip = self.segment_sent;
        let mut add = |bytes| {
            let bytes: &[u8] = bytes;
            let fits = &bytes[..bytes.len().min(room)];
            room -= fits.len();
            if !fits.is_empty() {
                pieces[count] = IoSlice::new(fits);
                count += 1;
            }
        };
        for segment in self.segments.iter().take(PIECES_MAX / 2 - 1) {
            add(&self.text[at..segment.at]);
            add(&segment.bytes[skip..]);
            at = segment.at;
            skip = 0;
        }
        let end = self.segments.get(PIECES_MAX / 2 - 1).map_or(self.text.len(), |next| next.at);
        add(&self.text[at..end]);
        sendmsg(socket, &pieces[..count], &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)
    }

    fn advance(&mut self, mut count: usize, sinks: &mut ValueBuffers) {
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
        assert!(self.text_sent <= self.text.len(), "more bytes were sent than were queued");
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

/// An encoder of replies in one protocol version.
#[derive(Debug)]
pub(crate) struct ReplyEncoder<'a> {
    out: &'a mut Vec<u8>,
    protocol: RespVersion,
}

impl<'a> ReplyEncoder<'a> {
    pub(crate) fn new(out: &'a mut Vec<u8>, protocol: RespVersion) -> Self {
        Self { out, protocol }
    }

    pub(crate) fn simple(&mut self, text: &str) {
        self.out.push(b'+');
        self.out.extend_from_slice(text.as_bytes());
        self.line_end();
    }

    pub(crate) fn ok(&mut self) {
        self.out.extend_from_slice(b"+OK\r\n");
    }

    pub(crate) fn error(&mut self, failure: &ErrorReply) {
        self.out.push(b'-');
        self.out.extend(
            failure.text().iter().map(|&byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte }),
        );
        self.line_end();
    }

    #[inline]
    pub(crate) fn integer(&mut self, value: i64) {
        self.header_signed(b':', value);
    }

    /// Writes an unsigned count as an integer, saturating at `i64::MAX`.
    pub(crate) fn count(&mut self, value: u64) {
        self.integer(value.min(i64::MAX.unsigned_abs()).cast_signed());
    }

    #[inline]
    pub(crate) fn null(&mut self) {
        self.out.extend_from_slice(match self.protocol {
            RespVersion::Resp2 => b"$-1\r\n",
            RespVersion::Resp3 => b"_\r\n",
        });
    }

    pub(crate) fn null_array(&mut self) {
        self.out.extend_from_slice(match self.protocol {
            RespVersion::Resp2 => b"*-1\r\n",
            RespVersion::Resp3 => b"_\r\n",
        });
    }

    #[inline]
    pub(crate) fn bulk(&mut self, bytes: &[u8]) {
        self.bulk_header(bytes.len());
        self.out.extend_from_slice(bytes);
        self.line_end();
    }

    #[inline]
    pub(crate) fn bulk_header(&mut self, length: usize) {
        self.header(b'$', length);
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.bulk(text.as_bytes());
    }

    /// Writes human-readable text: a verbatim string in RESP3, a bulk string in RESP2.
    pub(crate) fn verbatim(&mut self, text: &str) {
        match self.protocol {
            RespVersion::Resp2 => self.text(text),
            RespVersion::Resp3 => {
                self.header(b'=', text.len() + 4);
                self.out.extend_from_slice(b"txt:");
                self.out.extend_from_slice(text.as_bytes());
                self.line_end();
            }
        }
    }

    pub(crate) fn array(&mut self, length: usize) {
        self.header(b'*', length);
    }

    /// Writes an array of integers and nulls.
    pub(crate) fn numbers(&mut self, numbers: &[Option<i64>]) {
        self.array(numbers.len());
        for number in numbers {
            match number {
                Some(number) => self.integer(*number),
                None => self.null(),
            }
        }
    }

    pub(crate) fn set(&mut self, length: usize) {
        self.header(if self.protocol == RespVersion::Resp3 { b'~' } else { b'*' }, length);
    }

    /// Writes the header of a map; `pairs` keys and values follow, alternating.
    pub(crate) fn map(&mut self, pairs: usize) {
        match self.protocol {
            RespVersion::Resp2 => self.header(b'*', pairs * 2),
            RespVersion::Resp3 => self.header(b'%', pairs),
        }
    }

    #[inline]
    pub(crate) fn line_end(&mut self) {
        self.out.extend_from_slice(b"\r\n");
    }

    #[inline]
    fn header(&mut self, kind: u8, length: usize) {
        self.out.push(kind);
        if let Ok(digit @ 0..=9) = u8::try_from(length) {
            self.out.push(b'0' + digit);
        } else {
            decimal(self.out, length as u64);
        }
        self.line_end();
    }

    fn header_signed(&mut self, kind: u8, value: i64) {
        self.out.push(kind);
        if value < 0 {
            self.out.push(b'-');
        }
        decimal(self.out, value.unsigned_abs());
        self.line_end();
    }
}

/// Appends a number in decimal, without `core::fmt`.
#[inline]
pub(crate) fn decimal(out: &mut Vec<u8>, mut value: u64) {
    let mut digits = [0_u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + narrow::<u64, u8>(value % 10);
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Returns a number in decimal.
pub(crate) fn decimal_signed(value: i64) -> Vec<u8> {
    let mut out = Vec::with_capacity(20);
    if value < 0 {
        out.push(b'-');
    }
    decimal(&mut out, value.unsigned_abs());
    out
}

/// Appends a reply in the protocol of the connection.
#[inline]
pub(crate) fn append_reply(
    reply: RespReply,
    out: &mut Vec<u8>,
    protocol: RespVersion,
    buffers: &mut ValueBuffers,
) {
    let mut encoder = ReplyEncoder::new(out, protocol);
    match reply {
        RespReply::Ok => encoder.ok(),
        RespReply::Null => encoder.null(),
        RespReply::NullArray => encoder.null_array(),
        RespReply::Integer(value) => encoder.integer(value),
        RespReply::Numbers(numbers) => encoder.numbers(&numbers),
        RespReply::Simple(text) => encoder.simple(text),
        RespReply::Error(failure) => encoder.error(&failure),
        RespReply::Bulk(bytes) => {
            encoder.bulk(&bytes);
            buffers.put_back(bytes);
        }
        RespReply::Encoded(bytes) => out.extend_from_slice(&bytes),
        RespReply::Parts(parts) => {
            parts.into_iter().for_each(|part| append_reply(part, out, protocol, buffers));
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
    fn buffers_of_parts_are_kept_apart_from_short_ones() {
        let mut buffers = ValueBuffers::default();
        let (part, short) = (buffers.take_part(STREAM_PART_BYTES), vec![1; 100]);
        assert_eq!(part.capacity(), STREAM_PART_BYTES);
        let starts = (part.as_ptr(), short.as_ptr());
        buffers.put_back(part);
        buffers.put_back(short);
        buffers.put_back(vec![1; VALUE_BUFFER_BYTES_MAX + 1]);
        let (part, short) = (buffers.take_part(VALUE_BUFFER_BYTES_MAX + 1), buffers.take_part(100));
        assert_eq!((part.as_ptr(), short.as_ptr()), starts);
        assert!(part.is_empty() && short.is_empty());
        assert_eq!(buffers.take().capacity(), 0, "a buffer of neither length was kept");
        for _ in 0..PART_BUFFERS_MAX + 10 {
            buffers.put_back(Vec::with_capacity(STREAM_PART_BYTES));
        }
        assert_eq!(buffers.parts.len(), PART_BUFFERS_MAX);
    }

    #[test]
    fn long_and_short_replies_are_sent_in_order_when_the_socket_blocks() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut output = OutputQueue::default();
        let mut sinks = ValueBuffers::default();
        let mut expected = Vec::new();
        for round in 0..200_usize {
            let length = if round % 3 == 0 { SEGMENT_BYTES_MIN + round } else { round };
            let value = vec![u8::try_from(round % 251).unwrap(); length];
            expected.extend_from_slice(format!("${length}\r\n").as_bytes());
            expected.extend_from_slice(&value);
            expected.extend_from_slice(b"\r\n");
            output.push_reply(RespReply::Bulk(value), RespVersion::Resp2, &mut sinks);
        }
        let mut received = Vec::new();
        let mut pauses = 0;
        loop {
            let pending = output.pending();
            let flushed = output.flush(ours.as_fd(), 70_001, &mut sinks).unwrap();
            assert!(pending - output.pending() <= 70_001, "more bytes were sent than were allowed");
            if flushed == FlushResult::All {
                break;
            }
            if flushed == FlushResult::Paused {
                pauses += 1;
                continue;
            }
            let mut buffer = vec![0; 50_000];
            let count = theirs.read(&mut buffer).unwrap();
            received.extend_from_slice(&buffer[..count]);
        }
        drop(ours);
        theirs.read_to_end(&mut received).unwrap();
        assert!(received == expected, "the stream was reordered or cut");
        assert!(pauses > 0);
        assert_eq!(output.pending(), 0);
    }

    #[test]
    fn signed_numbers_are_written_in_decimal() {
        for value in [0, 9, 10, -1, i64::MIN, i64::MAX] {
            assert_eq!(decimal_signed(value), value.to_string().into_bytes());
        }
    }

    #[test]
    fn an_error_text_cannot_forge_a_second_reply() {
        let mut out = Vec::new();
        ReplyEncoder::new(&mut out, RespVersion::Resp2)
            .error(&ErrorReply::formatted("ERR a\r\n+OK".to_owned()));
        assert_eq!(out, b"-ERR a  +OK\r\n");
    }
}
