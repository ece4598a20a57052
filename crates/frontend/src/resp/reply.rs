//! Replies to bytes, in RESP2 or RESP3.
//!
//! In: a [`Reply`], or calls on an [`Encoder`] for answers with structure. Out: bytes behind those already queued.
//! Invariant: what is written is always a complete reply; error texts never contain a line end.

use super::errors::Failure;

/// Which dialect a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// What a client speaks that never said HELLO.
    Resp2,
    /// After `HELLO 3`.
    Resp3,
}

/// The answer to one command.
#[derive(Debug)]
pub(crate) enum Reply {
    /// `+OK`.
    Ok,
    /// Nothing there.
    Null,
    /// A number.
    Integer(i64),
    /// A value.
    Bulk(Vec<u8>),
    /// A word.
    Simple(&'static str),
    /// A failure.
    Error(Failure),
    /// Bytes that are already a reply.
    Encoded(Vec<u8>),
}

impl From<Failure> for Reply {
    fn from(failure: Failure) -> Self {
        Self::Error(failure)
    }
}

/// Writes replies in one dialect.
#[derive(Debug)]
pub(crate) struct Encoder<'a> {
    out: &'a mut Vec<u8>,
    protocol: Protocol,
}

impl<'a> Encoder<'a> {
    pub(crate) fn new(out: &'a mut Vec<u8>, protocol: Protocol) -> Self {
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

    pub(crate) fn error(&mut self, failure: &Failure) {
        self.out.push(b'-');
        self.out
            .extend(failure.0.bytes().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte }));
        self.line_end();
    }

    #[inline]
    pub(crate) fn integer(&mut self, value: i64) {
        self.header_signed(b':', value);
    }

    /// A count as a number; one that does not fit says the highest.
    pub(crate) fn count(&mut self, value: u64) {
        self.integer(i64::try_from(value).unwrap_or(i64::MAX));
    }

    #[inline]
    pub(crate) fn null(&mut self) {
        self.out.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"$-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    pub(crate) fn null_array(&mut self) {
        self.out.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"*-1\r\n",
            Protocol::Resp3 => b"_\r\n",
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

    /// Text for people: a verbatim string where the dialect has one.
    pub(crate) fn verbatim(&mut self, text: &str) {
        match self.protocol {
            Protocol::Resp2 => self.text(text),
            Protocol::Resp3 => {
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
        self.header(if self.protocol == Protocol::Resp3 { b'~' } else { b'*' }, length);
    }

    /// Begins a map; `pairs` keys and values follow, in turns.
    pub(crate) fn map(&mut self, pairs: usize) {
        match self.protocol {
            Protocol::Resp2 => self.header(b'*', pairs * 2),
            Protocol::Resp3 => self.header(b'%', pairs),
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

/// Writes a number in decimal, without the formatting machinery.
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

/// A number in decimal.
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
    fn numbers_are_written_as_they_are() {
        for value in [0, 9, 10, -1, i64::MIN, i64::MAX] {
            assert_eq!(decimal_signed(value), value.to_string().into_bytes());
        }
    }

    #[test]
    fn an_error_text_cannot_forge_a_second_reply() {
        let mut out = Vec::new();
        Encoder::new(&mut out, Protocol::Resp2).error(&Failure::told("ERR a\r\n+OK".to_owned()));
        assert_eq!(out, b"-ERR a  +OK\r\n");
    }
}
