//! The encoding of replies in RESP2 or RESP3.
//!
//! Input: a [`RespReply`], or calls on an [`ReplyEncoder`] for structured replies. Output: bytes appended to the queued ones.
//! Invariant: a [`RespReply`] is always written completely; error texts never contain a line end.

use super::errors::ErrorReply;

/// The protocol version of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RespVersion {
    /// RESP2, the default without HELLO.
    Resp2,
    /// RESP3, after `HELLO 3`.
    Resp3,
}

/// The reply to one command.
#[derive(Debug)]
pub(crate) enum RespReply {
    /// `+OK`.
    Ok,
    /// The null reply.
    Null,
    /// An integer.
    Integer(i64),
    /// A bulk string.
    Bulk(Vec<u8>),
    /// A simple string.
    Simple(&'static str),
    /// An error.
    Error(ErrorReply),
    /// Bytes that are already encoded.
    Encoded(Vec<u8>),
}

impl From<ErrorReply> for RespReply {
    fn from(failure: ErrorReply) -> Self {
        Self::Error(failure)
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
        self.out
            .extend(failure.0.bytes().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte }));
        self.line_end();
    }

    #[inline]
    pub(crate) fn integer(&mut self, value: i64) {
        self.header_signed(b':', value);
    }

    /// Writes an unsigned count as an integer, saturating at `i64::MAX`.
    pub(crate) fn count(&mut self, value: u64) {
        self.integer(i64::try_from(value).unwrap_or(i64::MAX));
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
        // A remainder of ten always fits.
        digits[at] = b'0' + u8::try_from(value % 10).unwrap_or(0);
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

#[cfg(test)]
mod tests {
    use super::*;

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
