//! The replies that commands make, before they are encoded.
//!
//! Input: results of commands. Output: a [`RespReply`], which the output queue encodes.

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
    /// The null reply in place of an array.
    NullArray,
    /// An integer.
    Integer(i64),
    /// An array of integers and nulls.
    Numbers(Vec<Option<i64>>),
    /// A bulk string.
    Bulk(Vec<u8>),
    /// A simple string.
    Simple(&'static str),
    /// An error.
    Error(ErrorReply),
    /// Bytes that are already encoded.
    Encoded(Vec<u8>),
    /// Parts that follow each other: together one reply, or a part of one.
    Parts(Vec<RespReply>),
}

impl RespReply {
    /// Returns the bytes of its value.
    pub(crate) fn value_bytes(&self) -> usize {
        match self {
            Self::Bulk(bytes) | Self::Encoded(bytes) => bytes.len(),
            Self::Numbers(numbers) => size_of_val(&numbers[..]),
            Self::Parts(parts) => parts.iter().map(Self::value_bytes).sum(),
            Self::Ok | Self::Null | Self::NullArray | Self::Integer(_) | Self::Simple(_) | Self::Error(_) => {
                0
            }
        }
    }

    /// Returns a count as an integer. RESP has signed integers: what is above `i64::MAX` is reported as that.
    pub(crate) fn count(count: u64) -> Self {
        Self::Integer(i64::try_from(count).unwrap_or(i64::MAX))
    }
}

impl From<ErrorReply> for RespReply {
    fn from(failure: ErrorReply) -> Self {
        Self::Error(failure)
    }
}
