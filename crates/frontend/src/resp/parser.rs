//! Bytes to commands: RESP multibulk and inline.
//!
//! In: a connection's unread bytes, of which any prefix may have arrived. Out: commands as spans of those bytes in a
//! [`Batch`]; nothing is copied and, once the batch has grown, nothing is allocated. Invariant: how the stream was cut
//! into reads never changes what it says, and every byte sequence is a command, an error or not yet complete.

use super::inline;
use super::limits::{ARGUMENTS_MAX, INLINE_BYTES_MAX, UNKNOWN_ARGUMENTS_MAX, UNKNOWN_BULK_BYTES_MAX};

/// Where one argument lies in the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Offset of its first byte.
    pub start: u32,
    /// Offset behind its last byte.
    pub end: u32,
}

impl Span {
    /// The offsets for slicing.
    #[must_use]
    #[inline]
    pub const fn range(self) -> std::ops::Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// Commands that were parsed and wait to be carried out.
#[derive(Debug, Default)]
pub struct Batch {
    spans: Vec<Span>,
    ends: Vec<u32>,
}

impl Batch {
    /// How many commands there are.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The arguments of one command, its name first.
    #[must_use]
    #[inline]
    pub fn command(&self, index: usize) -> &[Span] {
        let first = index.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        &self.spans[first..self.ends[index] as usize]
    }

    /// Forgets all commands and keeps the memory.
    pub fn clear(&mut self) {
        self.spans.clear();
        self.ends.clear();
    }
}

/// Whether the client has proved who it is; the others are held to shorter commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It has, or nobody asks.
    Authenticated,
    /// It has not.
    Unknown,
}

/// What the parser holds a client to.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Longest argument, in bytes.
    pub bulk_bytes_max: usize,
    /// Most commands to parse in one go.
    pub commands_max: usize,
    /// Who is speaking.
    pub standing: Standing,
}

/// Why a stream cannot be understood any further. The texts are Redis's; the connection closes behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// An inline command without an end.
    #[error("Protocol error: too big inline request")]
    InlineTooBig,
    /// A quote that is never closed, or text behind a closing quote.
    #[error("Protocol error: unbalanced quotes in request")]
    UnbalancedQuotes,
    /// An argument count without an end.
    #[error("Protocol error: too big mbulk count string")]
    CountTooBig,
    /// An argument count that is no number or too high.
    #[error("Protocol error: invalid multibulk length")]
    InvalidCount,
    /// Too many arguments for a client that has not authenticated.
    #[error("Protocol error: unauthenticated multibulk length")]
    UnknownCount,
    /// An argument length without an end.
    #[error("Protocol error: too big bulk count string")]
    LengthTooBig,
    /// Something else where an argument should begin.
    #[error("Protocol error: expected '$', got '{}'", char::from(*.0))]
    ExpectedBulk(u8),
    /// An argument length that is no number, negative or too high.
    #[error("Protocol error: invalid bulk length")]
    InvalidLength,
    /// Too long an argument for a client that has not authenticated.
    #[error("Protocol error: unauthenticated bulk length")]
    UnknownLength,
}

/// What one call to [`Parser::parse`] found.
#[derive(Debug, PartialEq, Eq)]
pub struct Parsed {
    /// Bytes that belong to complete commands; the caller takes them off the front of its input.
    pub consumed: usize,
    /// What made the parser stop for ever, behind the commands of the batch.
    pub error: Option<ProtocolError>,
}

enum Line {
    Incomplete,
    TooLong,
    Number(Option<i64>, usize),
}

enum Step {
    Complete,
    Incomplete,
}

/// How far the command that is not yet complete has been understood.
#[derive(Debug, Default)]
pub struct Parser {
    /// Spans of the arguments that are there, relative to the command's first byte.
    partial: Vec<Span>,
    /// Where to go on, relative to the command's first byte.
    position: usize,
    /// Arguments still to come; zero between commands.
    arguments_left: usize,
    /// Length of the argument whose header has been read.
    bulk: Option<usize>,
}

impl Parser {
    /// Understands as many commands as `input` holds and the rules allow. `input` begins with the first byte that was
    /// not consumed yet; inline commands are unquoted where they lie. The batch must be empty.
    pub fn parse(&mut self, input: &mut [u8], rules: &Rules, batch: &mut Batch) -> Parsed {
        std::mem::swap(&mut self.partial, &mut batch.spans);
        let mut consumed = 0;
        let mut first = 0;
        let mut error = None;
        while batch.ends.len() < rules.commands_max {
            match self.step(input, rules, &mut batch.spans) {
                Ok(Step::Complete) => {
                    consumed = self.position;
                    if batch.spans.len() > first {
                        first = batch.spans.len();
                        batch.ends.push(index(first));
                    }
                }
                Ok(Step::Incomplete) => break,
                Err(problem) => {
                    error = Some(problem);
                    break;
                }
            }
        }
        self.keep_partial(&mut batch.spans, first, consumed);
        Parsed { consumed, error }
    }

    /// Bytes from the front of the unread input that the next argument needs at least; 0 when unknown.
    #[must_use]
    pub fn wanted(&self) -> usize {
        self.bulk.map_or(0, |length| self.position + length + 2)
    }

    fn keep_partial(&mut self, spans: &mut Vec<Span>, first: usize, consumed: usize) {
        self.position -= consumed;
        self.partial.clear();
        if first == 0 && consumed == 0 {
            std::mem::swap(&mut self.partial, spans);
            return;
        }
        let offset = index(consumed);
        self.partial.extend(
            spans.drain(first..).map(|span| Span { start: span.start - offset, end: span.end - offset }),
        );
    }

    fn step(
        &mut self,
        input: &mut [u8],
        rules: &Rules,
        spans: &mut Vec<Span>,
    ) -> Result<Step, ProtocolError> {
        if self.arguments_left == 0 {
            match input.get(self.position) {
                None => return Ok(Step::Incomplete),
                Some(b'*') => match self.count(input, rules)? {
                    Step::Complete if self.arguments_left > 0 => {}
                    other => return Ok(other),
                },
                Some(_) => return self.inline(input, spans),
            }
        }
        while self.arguments_left > 0 {
            let Some(length) = self.length(input, rules)? else {
                return Ok(Step::Incomplete);
            };
            let end = self.position + length;
            if input.len() < end + 2 {
                return Ok(Step::Incomplete);
            }
            spans.push(Span { start: index(self.position), end: index(end) });
            self.position = end + 2;
            self.bulk = None;
            self.arguments_left -= 1;
        }
        Ok(Step::Complete)
    }

    fn count(&mut self, input: &[u8], rules: &Rules) -> Result<Step, ProtocolError> {
        let (number, next) = match line(input, self.position + 1) {
            Line::Incomplete => return Ok(Step::Incomplete),
            Line::TooLong => return Err(ProtocolError::CountTooBig),
            Line::Number(number, next) => (number, next),
        };
        let number = number.ok_or(ProtocolError::InvalidCount)?;
        let count = usize::try_from(number).unwrap_or(0);
        if count > ARGUMENTS_MAX {
            return Err(ProtocolError::InvalidCount);
        }
        if count > UNKNOWN_ARGUMENTS_MAX && rules.standing == Standing::Unknown {
            return Err(ProtocolError::UnknownCount);
        }
        self.arguments_left = count;
        self.position = next;
        Ok(Step::Complete)
    }

    fn length(&mut self, input: &[u8], rules: &Rules) -> Result<Option<usize>, ProtocolError> {
        if let Some(length) = self.bulk {
            return Ok(Some(length));
        }
        match input.get(self.position) {
            None => return Ok(None),
            Some(b'$') => {}
            Some(&other) => match line(input, self.position) {
                Line::Incomplete => return Ok(None),
                Line::TooLong => return Err(ProtocolError::LengthTooBig),
                Line::Number(..) => return Err(ProtocolError::ExpectedBulk(other)),
            },
        }
        let (number, next) = match line(input, self.position + 1) {
            Line::Incomplete => return Ok(None),
            Line::TooLong => return Err(ProtocolError::LengthTooBig),
            Line::Number(number, next) => (number, next),
        };
        let length = number
            .and_then(|number| usize::try_from(number).ok())
            .filter(|&length| length <= rules.bulk_bytes_max)
            .ok_or(ProtocolError::InvalidLength)?;
        if length > UNKNOWN_BULK_BYTES_MAX && rules.standing == Standing::Unknown {
            return Err(ProtocolError::UnknownLength);
        }
        self.position = next;
        self.bulk = Some(length);
        Ok(Some(length))
    }

    fn inline(&mut self, input: &mut [u8], spans: &mut Vec<Span>) -> Result<Step, ProtocolError> {
        let start = self.position;
        let Some(newline) = input[start..].iter().position(|&byte| byte == b'\n') else {
            if input.len() - start > INLINE_BYTES_MAX {
                return Err(ProtocolError::InlineTooBig);
            }
            return Ok(Step::Incomplete);
        };
        let end = start + newline;
        let text_end = if newline > 0 && input[end - 1] == b'\r' { end - 1 } else { end };
        inline::split(input, start, text_end, spans)?;
        self.position = end + 1;
        Ok(Step::Complete)
    }
}

/// An offset into the input. Input never grows past the query buffer's limit plus one argument, far below 4 GiB.
#[inline]
pub(crate) fn index(offset: usize) -> u32 {
    u32::try_from(offset).unwrap_or(u32::MAX)
}

/// Reads the number up to the next carriage return; the byte behind it must have arrived too.
#[inline]
fn line(input: &[u8], from: usize) -> Line {
    let rest = input.get(from..).unwrap_or_default();
    let window = &rest[..rest.len().min(INLINE_BYTES_MAX)];
    let Some(length) = window.iter().position(|&byte| byte == b'\r') else {
        return if rest.len() >= INLINE_BYTES_MAX { Line::TooLong } else { Line::Incomplete };
    };
    if rest.len() < length + 2 {
        return Line::Incomplete;
    }
    Line::Number(integer(&rest[..length]), from + length + 2)
}

/// A decimal number in the one form in which it would be printed: no plus, no spaces, no leading zero.
#[must_use]
#[inline]
pub fn integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    let mut value: u64 = 0;
    for &digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
    }
    if negative { 0_i64.checked_sub_unsigned(value) } else { i64::try_from(value).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules =
        Rules { bulk_bytes_max: 1 << 20, commands_max: 64, standing: Standing::Authenticated };

    fn parse(text: &[u8]) -> (Vec<Vec<Vec<u8>>>, Parsed) {
        let mut input = text.to_vec();
        let mut batch = Batch::default();
        let parsed = Parser::default().parse(&mut input, &RULES, &mut batch);
        let commands = (0..batch.len())
            .map(|at| batch.command(at).iter().map(|span| input[span.range()].to_vec()).collect())
            .collect();
        (commands, parsed)
    }

    #[test]
    fn pipelined_commands_come_out_in_order() {
        let (commands, parsed) =
            parse(b"*2\r\n$3\r\nGET\r\n$1\r\na\r\nPING\r\n*0\r\n*1\r\n$4\r\nQUIT\r\n*1\r\n$");
        assert_eq!(
            commands,
            [vec![b"GET".to_vec(), b"a".to_vec()], vec![b"PING".to_vec()], vec![b"QUIT".to_vec()]]
        );
        assert_eq!(parsed.error, None);
        assert_eq!(parsed.consumed, 20 + 6 + 4 + 14);
    }

    #[test]
    fn broken_frames_are_named() {
        for (text, error) in [
            (&b"*x\r\n"[..], ProtocolError::InvalidCount),
            (b"*1048577\r\n", ProtocolError::InvalidCount),
            (b"*1\r\n:1\r\n", ProtocolError::ExpectedBulk(b':')),
            (b"*1\r\n$-1\r\n", ProtocolError::InvalidLength),
            (b"*1\r\n$9999999999\r\n", ProtocolError::InvalidLength),
            (b"get \"a\r\n", ProtocolError::UnbalancedQuotes),
            (b"get \"a\"b\r\n", ProtocolError::UnbalancedQuotes),
        ] {
            assert_eq!(parse(text).1.error, Some(error));
        }
        assert_eq!(parse(&vec![b'a'; INLINE_BYTES_MAX + 1]).1.error, Some(ProtocolError::InlineTooBig));
        let mut count = vec![b'1'; INLINE_BYTES_MAX + 1];
        count[0] = b'*';
        assert_eq!(parse(&count).1.error, Some(ProtocolError::CountTooBig));
    }

    #[test]
    fn integers_are_read_only_in_their_printed_form() {
        assert_eq!(integer(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(integer(b"9223372036854775807"), Some(i64::MAX));
        for text in [&b"9223372036854775808"[..], b"", b"-", b"-0", b"01", b"+1", b" 1", b"1 ", b"1a"] {
            assert_eq!(integer(text), None);
        }
    }
}
