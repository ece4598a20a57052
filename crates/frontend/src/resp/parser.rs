//! The parser of RESP commands: multibulk and inline.
//!
//! Input: a connection's unparsed bytes, possibly ending inside a command. Output: commands as spans of those bytes in
//! a [`CommandBatch`]; the parser does not copy and, once the batch has grown, does not allocate. Invariant: the result does
//! not depend on how the stream was split into reads, and every byte sequence is a command, an error or incomplete.

use super::inline;
use super::limits::{
    ARGUMENTS_MAX, INLINE_BYTES_MAX, UNAUTHENTICATED_ARGUMENTS_MAX, UNAUTHENTICATED_BULK_BYTES_MAX,
};
use headwater_host::width::narrow;

/// The range of one argument in the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArgumentSpan {
    /// Offset of its first byte.
    pub start: u32,
    /// Offset behind its last byte.
    pub end: u32,
}

impl ArgumentSpan {
    /// Returns the range for slicing.
    #[must_use]
    #[inline]
    pub const fn range(self) -> std::ops::Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// Parsed commands that are not executed yet.
#[derive(Debug, Default)]
pub struct CommandBatch {
    spans: Vec<ArgumentSpan>,
    ends: Vec<u32>,
}

impl CommandBatch {
    /// Returns the number of commands.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns true if there are no commands.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the arguments of one command, its name first.
    #[must_use]
    #[inline]
    pub fn command(&self, index: usize) -> &[ArgumentSpan] {
        let first = index.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        &self.spans[first..self.ends[index] as usize]
    }

    /// Removes all commands and keeps the memory.
    pub fn clear(&mut self) {
        self.spans.clear();
        self.ends.clear();
    }
}

/// The authentication state of a client; lower limits apply until it has authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthState {
    /// The client has authenticated, or no password is required.
    Authenticated,
    /// The client has not authenticated.
    Unauthenticated,
}

/// The limits of a client's commands.
#[derive(Clone, Copy, Debug)]
pub struct ParserLimits {
    /// Longest argument, in bytes.
    pub bulk_bytes_max: usize,
    /// Maximum number of commands to parse in one call.
    pub commands_max: usize,
    /// Authentication state of the client.
    pub auth: AuthState,
}

/// A malformed stream. The texts are Redis's; the connection closes after the error reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// An inline command longer than the limit.
    #[error("Protocol error: too big inline request")]
    InlineTooBig,
    /// A quote that is not closed, or text directly behind a closing quote.
    #[error("Protocol error: unbalanced quotes in request")]
    UnbalancedQuotes,
    /// An argument count without a line end within the limit.
    #[error("Protocol error: too big mbulk count string")]
    CountTooBig,
    /// An argument count that is not a number or too high.
    #[error("Protocol error: invalid multibulk length")]
    InvalidCount,
    /// Too many arguments for a client that has not authenticated.
    #[error("Protocol error: unauthenticated multibulk length")]
    UnauthenticatedCount,
    /// An argument length without a line end within the limit.
    #[error("Protocol error: too big bulk count string")]
    LengthTooBig,
    /// A byte other than `$` at the start of an argument.
    #[error("Protocol error: expected '$', got '{}'", char::from(*.0))]
    ExpectedBulk(u8),
    /// An argument length that is not a number, negative or too high.
    #[error("Protocol error: invalid bulk length")]
    InvalidLength,
    /// A too long argument for a client that has not authenticated.
    #[error("Protocol error: unauthenticated bulk length")]
    UnauthenticatedLength,
}

/// The result of one call to [`RespParser::parse`].
#[derive(Debug, PartialEq, Eq)]
pub struct ParseResult {
    /// Bytes of complete commands; the caller removes them from the front of its input.
    pub consumed: usize,
    /// The error behind the commands of the batch; the stream cannot be parsed further.
    pub error: Option<ProtocolError>,
}

/// The argument of a command that is being received.
#[derive(Clone, Copy, Debug)]
pub struct IncompleteArgument<'a> {
    /// The arguments before it, the name of the command first.
    pub before: &'a [ArgumentSpan],
    /// Its length.
    pub bytes: usize,
    /// The number of the arguments behind it.
    pub behind: usize,
}

enum NumberLine {
    Incomplete,
    TooLong,
    Number(Option<i64>, usize),
}

enum ParseStep {
    Complete,
    Incomplete,
}

/// The parser of one connection, with the state of an incomplete command.
#[derive(Debug, Default)]
pub struct RespParser {
    /// Spans of the complete arguments, relative to the command's first byte.
    partial: Vec<ArgumentSpan>,
    /// Offset of the next byte to parse, relative to the command's first byte.
    position: usize,
    /// Arguments still missing; zero between commands.
    arguments_left: usize,
    /// Length of the argument whose header has been parsed.
    bulk: Option<usize>,
}

impl RespParser {
    /// Parses as many commands as `input` contains and the limits allow. `input` begins with the first byte that was
    /// not consumed yet; inline commands are unquoted in place. The batch must be empty.
    pub fn parse(&mut self, input: &mut [u8], rules: &ParserLimits, batch: &mut CommandBatch) -> ParseResult {
        std::mem::swap(&mut self.partial, &mut batch.spans);
        let mut consumed = 0;
        let mut first = 0;
        let mut error = None;
        while batch.ends.len() < rules.commands_max {
            match self.step(input, rules, &mut batch.spans) {
                Ok(ParseStep::Complete) => {
                    consumed = self.position;
                    if batch.spans.len() > first {
                        first = batch.spans.len();
                        batch.ends.push(to_offset(first));
                    }
                }
                Ok(ParseStep::Incomplete) => break,
                Err(problem) => {
                    error = Some(problem);
                    break;
                }
            }
        }
        self.keep_partial(&mut batch.spans, first, consumed);
        ParseResult { consumed, error }
    }

    /// Returns the input length at which the next argument is complete; 0 if unknown.
    #[must_use]
    pub fn bytes_needed(&self) -> usize {
        self.bulk.map_or(0, |length| self.position + length + 2)
    }

    /// Returns the argument that is being received, if its length is known.
    #[must_use]
    #[inline]
    pub fn incomplete_argument(&self) -> Option<IncompleteArgument<'_>> {
        let (bytes, behind) = (self.bulk?, self.arguments_left.checked_sub(1)?);
        Some(IncompleteArgument { before: &self.partial, bytes, behind })
    }

    /// Returns the offset in the input of the first byte of the argument that is being received.
    pub(crate) fn argument_position(&self) -> usize {
        self.position
    }

    /// Notes that the first `bytes` bytes of the argument that is being received do not come with the input.
    ///
    /// # Panics
    /// It is not as long.
    pub(crate) fn shorten_argument(&mut self, bytes: usize) {
        let length = self.bulk.and_then(|length| length.checked_sub(bytes));
        self.bulk = Some(length.expect("an argument is shortened by more than its length"));
    }

    fn keep_partial(&mut self, spans: &mut Vec<ArgumentSpan>, first: usize, consumed: usize) {
        self.position -= consumed;
        self.partial.clear();
        if first == 0 && consumed == 0 {
            std::mem::swap(&mut self.partial, spans);
            return;
        }
        let offset = to_offset(consumed);
        self.partial.extend(
            spans
                .drain(first..)
                .map(|span| ArgumentSpan { start: span.start - offset, end: span.end - offset }),
        );
    }

    fn step(
        &mut self,
        input: &mut [u8],
        rules: &ParserLimits,
        spans: &mut Vec<ArgumentSpan>,
    ) -> Result<ParseStep, ProtocolError> {
        if self.arguments_left == 0 {
            match input.get(self.position) {
                None => return Ok(ParseStep::Incomplete),
                Some(b'*') => match self.count(input, rules)? {
                    ParseStep::Complete if self.arguments_left > 0 => {}
                    other => return Ok(other),
                },
                Some(_) => return self.inline(input, spans),
            }
        }
        while self.arguments_left > 0 {
            let Some(length) = self.length(input, rules)? else {
                return Ok(ParseStep::Incomplete);
            };
            let end = self.position + length;
            if input.len() < end + 2 {
                return Ok(ParseStep::Incomplete);
            }
            spans.push(ArgumentSpan { start: to_offset(self.position), end: to_offset(end) });
            self.position = end + 2;
            self.bulk = None;
            self.arguments_left -= 1;
        }
        Ok(ParseStep::Complete)
    }

    fn count(&mut self, input: &[u8], rules: &ParserLimits) -> Result<ParseStep, ProtocolError> {
        let (number, next) = match line(input, self.position + 1) {
            NumberLine::Incomplete => return Ok(ParseStep::Incomplete),
            NumberLine::TooLong => return Err(ProtocolError::CountTooBig),
            NumberLine::Number(number, next) => (number, next),
        };
        let number = number.ok_or(ProtocolError::InvalidCount)?;
        let count = usize::try_from(number).unwrap_or(0);
        if count > ARGUMENTS_MAX {
            return Err(ProtocolError::InvalidCount);
        }
        if count > UNAUTHENTICATED_ARGUMENTS_MAX && rules.auth == AuthState::Unauthenticated {
            return Err(ProtocolError::UnauthenticatedCount);
        }
        self.arguments_left = count;
        self.position = next;
        Ok(ParseStep::Complete)
    }

    fn length(&mut self, input: &[u8], rules: &ParserLimits) -> Result<Option<usize>, ProtocolError> {
        if let Some(length) = self.bulk {
            return Ok(Some(length));
        }
        match input.get(self.position) {
            None => return Ok(None),
            Some(b'$') => {}
            Some(&other) => match line(input, self.position) {
                NumberLine::Incomplete => return Ok(None),
                NumberLine::TooLong => return Err(ProtocolError::LengthTooBig),
                NumberLine::Number(..) => return Err(ProtocolError::ExpectedBulk(other)),
            },
        }
        let (number, next) = match line(input, self.position + 1) {
            NumberLine::Incomplete => return Ok(None),
            NumberLine::TooLong => return Err(ProtocolError::LengthTooBig),
            NumberLine::Number(number, next) => (number, next),
        };
        let length = number
            .and_then(|number| usize::try_from(number).ok())
            .filter(|&length| length <= rules.bulk_bytes_max)
            .ok_or(ProtocolError::InvalidLength)?;
        if length > UNAUTHENTICATED_BULK_BYTES_MAX && rules.auth == AuthState::Unauthenticated {
            return Err(ProtocolError::UnauthenticatedLength);
        }
        self.position = next;
        self.bulk = Some(length);
        Ok(Some(length))
    }

    fn inline(
        &mut self,
        input: &mut [u8],
        spans: &mut Vec<ArgumentSpan>,
    ) -> Result<ParseStep, ProtocolError> {
        let start = self.position;
        let Some(newline) = input[start..].iter().position(|&byte| byte == b'\n') else {
            if input.len() - start > INLINE_BYTES_MAX {
                return Err(ProtocolError::InlineTooBig);
            }
            return Ok(ParseStep::Incomplete);
        };
        let end = start + newline;
        let text_end = if newline > 0 && input[end - 1] == b'\r' { end - 1 } else { end };
        inline::split(input, start, text_end, spans)?;
        self.position = end + 1;
        Ok(ParseStep::Complete)
    }
}

/// Converts an offset into the input. The input never exceeds the query buffer's limit plus one argument, far below
/// 4 GiB.
#[inline]
pub(crate) fn to_offset(offset: usize) -> u32 {
    narrow(offset)
}

/// Parses the number up to the next carriage return; the byte behind the carriage return must have arrived too.
#[inline]
fn line(input: &[u8], from: usize) -> NumberLine {
    let rest = input.get(from..).unwrap_or_default();
    let window = &rest[..rest.len().min(INLINE_BYTES_MAX)];
    let Some(length) = window.iter().position(|&byte| byte == b'\r') else {
        return if rest.len() >= INLINE_BYTES_MAX { NumberLine::TooLong } else { NumberLine::Incomplete };
    };
    if rest.len() < length + 2 {
        return NumberLine::Incomplete;
    }
    NumberLine::Number(integer(&rest[..length]), from + length + 2)
}

/// Parses a decimal integer in canonical form: no plus sign, no spaces, no leading zero.
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

    const RULES: ParserLimits =
        ParserLimits { bulk_bytes_max: 1 << 20, commands_max: 64, auth: AuthState::Authenticated };

    fn parse(text: &[u8]) -> (Vec<Vec<Vec<u8>>>, ParseResult) {
        let mut input = text.to_vec();
        let mut batch = CommandBatch::default();
        let parsed = RespParser::default().parse(&mut input, &RULES, &mut batch);
        let commands = (0..batch.len())
            .map(|at| batch.command(at).iter().map(|span| input[span.range()].to_vec()).collect())
            .collect();
        (commands, parsed)
    }

    #[test]
    fn pipelined_commands_are_parsed_in_order() {
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
    fn the_argument_that_is_being_received_is_known_with_those_around_it() {
        let mut parser = RespParser::default();
        assert!(parser.incomplete_argument().is_none());
        let mut input = b"*4\r\n$3\r\nSET\r\n$1\r\nk\r\n$500\r\nab".to_vec();
        let parsed = parser.parse(&mut input, &RULES, &mut CommandBatch::default());
        assert_eq!((parsed.consumed, parsed.error), (0, None));
        let found = parser.incomplete_argument().unwrap();
        assert_eq!((found.before.len(), found.bytes, found.behind), (2, 500, 1));
        parser.shorten_argument(400);
        assert_eq!(parser.incomplete_argument().unwrap().bytes, 100);
    }

    #[test]
    fn each_malformed_frame_has_its_error() {
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
    fn integers_are_parsed_only_in_canonical_form() {
        assert_eq!(integer(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(integer(b"9223372036854775807"), Some(i64::MAX));
        for text in [&b"9223372036854775808"[..], b"", b"-", b"-0", b"01", b"+1", b" 1", b"1 ", b"1a"] {
            assert_eq!(integer(text), None);
        }
    }
}
