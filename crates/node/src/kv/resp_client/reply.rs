//! The decoder of RESP2 replies.
//!
//! Input: bytes. Output: a [`DecodedReply`] and its length, or a request for more bytes. Invariant: for any input the decoder
//! does not panic, and allocates memory only for bytes that have arrived.

/// Maximum length of a line of a reply.
const LINE_BYTES_MAX: usize = 64 * 1024;
/// Maximum length of a bulk string of a reply: the limit of Redis.
const BULK_BYTES_MAX: usize = 512 << 20;
/// Maximum nesting of arrays.
const DEPTH_MAX: u8 = 8;

/// A reply of a server.
#[derive(Clone, PartialEq, Eq)]
pub enum DecodedReply {
    /// `+OK`
    Simple(String),
    /// `-ERR ...`
    Error(String),
    /// `:7`
    Integer(i64),
    /// `$3 abc`
    Bulk(Vec<u8>),
    /// `$-1` or `*-1`
    Nil,
    /// `*2 ...`
    Array(Vec<DecodedReply>),
}

impl std::fmt::Debug for DecodedReply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Simple(text) => write!(f, "Simple({text:?})"),
            Self::Error(text) => write!(f, "Error({text:?})"),
            Self::Integer(number) => write!(f, "Integer({number})"),
            // User data never prints.
            Self::Bulk(bytes) => write!(f, "Bulk({} bytes)", bytes.len()),
            Self::Nil => f.write_str("Nil"),
            Self::Array(items) => f.debug_tuple("Array").field(items).finish(),
        }
    }
}

/// The error of bytes that are not a RESP2 reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer does not speak RESP2 ({0}): is this the address of a Headwater or Redis server?")]
pub struct ReplyFormatError(&'static str);

/// Decodes the first reply of `bytes`. Returns the reply and its length, or `None` while it is incomplete.
///
/// # Errors
/// [`ReplyFormatError`] when the bytes cannot become a reply.
pub fn decode(bytes: &[u8]) -> Result<Option<(DecodedReply, usize)>, ReplyFormatError> {
    decode_at(bytes, DEPTH_MAX)
}

fn decode_at(bytes: &[u8], depth: u8) -> Result<Option<(DecodedReply, usize)>, ReplyFormatError> {
    let Some((line, mut used)) = line(bytes)? else {
        return Ok(None);
    };
    let Some((&kind, rest)) = line.split_first() else {
        return Err(ReplyFormatError("an empty line"));
    };
    let reply = match kind {
        b'+' => DecodedReply::Simple(String::from_utf8_lossy(rest).into_owned()),
        b'-' => DecodedReply::Error(String::from_utf8_lossy(rest).into_owned()),
        b':' => DecodedReply::Integer(number(rest)?),
        b'$' => {
            let length = number(rest)?;
            if length == -1 {
                return Ok(Some((DecodedReply::Nil, used)));
            }
            let length =
                usize::try_from(length).map_err(|_negative| ReplyFormatError("a negative length"))?;
            if length > BULK_BYTES_MAX {
                return Err(ReplyFormatError("a string above 512 MiB"));
            }
            let Some(body) = bytes.get(used..used + length + 2) else {
                return Ok(None);
            };
            let (body, end) = body.split_at(length);
            if end != b"\r\n" {
                return Err(ReplyFormatError("a string without its end"));
            }
            used += length + 2;
            DecodedReply::Bulk(body.to_vec())
        }
        b'*' => return array(bytes, rest, used, depth),
        _ => return Err(ReplyFormatError("an unknown first byte")),
    };
    Ok(Some((reply, used)))
}

fn array(
    bytes: &[u8],
    rest: &[u8],
    mut used: usize,
    depth: u8,
) -> Result<Option<(DecodedReply, usize)>, ReplyFormatError> {
    let count = number(rest)?;
    if count == -1 {
        return Ok(Some((DecodedReply::Nil, used)));
    }
    if count < 0 {
        return Err(ReplyFormatError("a negative count"));
    }
    let deeper = depth.checked_sub(1).ok_or(ReplyFormatError("arrays nested too deep"))?;
    // The count is untrusted; memory grows only with bytes that have arrived.
    let mut items = Vec::new();
    for _ in 0..count {
        let Some((item, length)) = decode_at(bytes.get(used..).unwrap_or_default(), deeper)? else {
            return Ok(None);
        };
        used += length;
        items.push(item);
    }
    Ok(Some((DecodedReply::Array(items), used)))
}

fn line(bytes: &[u8]) -> Result<Option<(&[u8], usize)>, ReplyFormatError> {
    match bytes.iter().take(LINE_BYTES_MAX).position(|&byte| byte == b'\n') {
        Some(end) => match bytes.get(..end).and_then(|line| line.strip_suffix(b"\r")) {
            Some(line) => Ok(Some((line, end + 1))),
            None => Err(ReplyFormatError("a line without its carriage return")),
        },
        None if bytes.len() >= LINE_BYTES_MAX => Err(ReplyFormatError("a line above 64 KiB")),
        None => match bytes.first() {
            None | Some(b'+' | b'-' | b':' | b'$' | b'*') => Ok(None),
            Some(_) => Err(ReplyFormatError("an unknown first byte")),
        },
    }
}

fn number(text: &[u8]) -> Result<i64, ReplyFormatError> {
    std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or(ReplyFormatError("an invalid number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_of_reply_is_decoded_byte_by_byte() {
        let bytes = b"*6\r\n+OK\r\n-ERR no\r\n:-7\r\n$3\r\na\r\n\r\n$-1\r\n*0\r\n";
        for end in 0..bytes.len() {
            assert_eq!(decode(&bytes[..end]), Ok(None), "cut at {end}");
        }
        let expected = DecodedReply::Array(vec![
            DecodedReply::Simple("OK".into()),
            DecodedReply::Error("ERR no".into()),
            DecodedReply::Integer(-7),
            DecodedReply::Bulk(b"a\r\n".to_vec()),
            DecodedReply::Nil,
            DecodedReply::Array(vec![]),
        ]);
        assert_eq!(decode(bytes), Ok(Some((expected, bytes.len()))));
    }

    #[test]
    fn bytes_that_are_not_resp2_are_refused() {
        for bytes in [
            &b"HTTP/1.1 400 Bad Request\r\n"[..],
            b"HTT",
            b"\r\n",
            b"$x\r\n",
            b"$-2\r\n",
            b"*-2\r\n",
            b"$999999999999\r\n",
            b"$1\r\nabc",
            b"+OK\n",
            b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
        ] {
            assert!(decode(bytes).is_err(), "{}", String::from_utf8_lossy(bytes));
        }
        assert_eq!(decode(b"*9223372036854775807\r\n"), Ok(None), "a large count allocates no memory");
    }
}
