//! The parser of inline commands: words between blanks, with quotes.
//!
//! Input: one line of input. Output: its words as spans of the same bytes. Unquoting never lengthens a word, so it is
//! done in place, without allocation.

use super::parser::{ArgumentSpan, ProtocolError, to_offset};

/// Splits an inline command at blanks and unquotes its words in place.
pub(crate) fn split(
    input: &mut [u8],
    start: usize,
    end: usize,
    spans: &mut Vec<ArgumentSpan>,
) -> Result<(), ProtocolError> {
    let mut read = start;
    let mut write = start;
    loop {
        while read < end && input[read].is_ascii_whitespace() {
            read += 1;
        }
        if read >= end || input[read] == 0 {
            return Ok(());
        }
        let first = write;
        while read < end && !matches!(input[read], b' ' | b'\n' | b'\r' | b'\t' | 0) {
            match input[read] {
                quote @ (b'"' | b'\'') => {
                    (read, write) = unquote(input, read + 1, write, end, quote)?;
                }
                byte => {
                    input[write] = byte;
                    write += 1;
                    read += 1;
                }
            }
        }
        spans.push(ArgumentSpan { start: to_offset(first), end: to_offset(write) });
    }
}

fn unquote(
    input: &mut [u8],
    mut read: usize,
    mut write: usize,
    end: usize,
    quote: u8,
) -> Result<(usize, usize), ProtocolError> {
    loop {
        let rest = &input[read.min(end)..end];
        let (byte, taken) = match (quote, rest) {
            (_, []) => return Err(ProtocolError::UnbalancedQuotes),
            (b'"', [b'\\', b'x', high, low, ..]) if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                (hex(*high) << 4 | hex(*low), 4)
            }
            (b'"', [b'\\', escaped, ..]) => (unescape(*escaped), 2),
            (b'\'', [b'\\', b'\'', ..]) => (b'\'', 2),
            (_, [byte, after @ ..]) if *byte == quote => {
                if after.first().is_some_and(|next| !next.is_ascii_whitespace() && *next != 0) {
                    return Err(ProtocolError::UnbalancedQuotes);
                }
                return Ok((read + 1, write));
            }
            (_, [byte, ..]) => (*byte, 1),
        };
        input[write] = byte;
        write += 1;
        read += taken;
    }
}

fn unescape(byte: u8) -> u8 {
    match byte {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 8,
        b'a' => 7,
        other => other,
    }
}

fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => digit - b'A' + 10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &[u8]) -> Result<Vec<Vec<u8>>, ProtocolError> {
        let mut input = line.to_vec();
        let mut spans = Vec::new();
        split(&mut input, 0, line.len(), &mut spans)?;
        Ok(spans.iter().map(|span| input[span.range()].to_vec()).collect())
    }

    #[test]
    fn quoted_words_are_unquoted_in_place() {
        let found = words(b"set \"a\\x41\\n b\" 'c\\'d' e").unwrap();
        assert_eq!(found, [b"set".to_vec(), b"aA\n b".to_vec(), b"c'd".to_vec(), b"e".to_vec()]);
        assert_eq!(words(b"  a\t\tb  ").unwrap(), [b"a".to_vec(), b"b".to_vec()]);
        assert_eq!(words(b"\"\" ''").unwrap(), [b"".to_vec(), b"".to_vec()]);
    }

    #[test]
    fn unbalanced_quotes_are_refused() {
        for line in [&b"a \"b"[..], b"'", b"\"a\"b", b"'a'b", b"\"a\\"] {
            assert_eq!(words(line), Err(ProtocolError::UnbalancedQuotes));
        }
    }
}
