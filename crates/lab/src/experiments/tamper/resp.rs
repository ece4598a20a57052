//! A Redis client for the judge: commands in a row, and their replies.
//!
//! Input: commands as words. Output: one reply for each, in order. Invariant: a reply that never comes is an error after
//! [`REPLY_MAX`], so that a node that hangs cannot stop the run.

use headwater_host::clock::Nanos;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

/// Time after which a missing reply means that the node hangs.
const REPLY_MAX: Nanos = Nanos::from_millis(20_000);

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RespReply {
    /// A text, or the bytes of a value.
    Value(Vec<u8>),
    /// There is no value.
    Absent,
    /// A number.
    Number(i64),
    /// An error.
    Failed(String),
    /// Replies in a row.
    Array(Vec<Self>),
}

/// A connection to a node.
pub(super) struct RespClient {
    replies: BufReader<TcpStream>,
}

impl RespClient {
    /// Connects to a node.
    pub(super) fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let limit = Some(std::time::Duration::from_nanos(REPLY_MAX.0));
        stream.set_read_timeout(limit)?;
        stream.set_write_timeout(limit)?;
        Ok(Self { replies: BufReader::new(stream) })
    }

    /// Sends a command.
    pub(super) fn send(&mut self, words: &[&[u8]]) -> io::Result<()> {
        let mut command = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            command.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            command.extend_from_slice(word);
            command.extend_from_slice(b"\r\n");
        }
        self.replies.get_mut().write_all(&command)
    }

    /// Sends a command and returns its reply.
    pub(super) fn call(&mut self, words: &[&[u8]]) -> io::Result<RespReply> {
        self.send(words)?;
        self.reply()
    }

    /// Returns the next reply.
    pub(super) fn reply(&mut self) -> io::Result<RespReply> {
        let mut line = String::new();
        if self.replies.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end();
        let (kind, rest) = line.split_at_checked(1).ok_or(io::ErrorKind::InvalidData)?;
        let number = || rest.parse::<i64>().map_err(|_| io::Error::from(io::ErrorKind::InvalidData));
        Ok(match kind {
            "+" => RespReply::Value(rest.as_bytes().to_vec()),
            "-" => RespReply::Failed(rest.to_owned()),
            ":" => RespReply::Number(number()?),
            "$" => match usize::try_from(number()?) {
                Ok(bytes) => {
                    let mut value = vec![0; bytes + 2];
                    self.replies.read_exact(&mut value)?;
                    value.truncate(bytes);
                    RespReply::Value(value)
                }
                Err(_) => RespReply::Absent,
            },
            "*" => match usize::try_from(number()?) {
                Ok(count) => RespReply::Array((0..count).map(|_| self.reply()).collect::<io::Result<_>>()?),
                Err(_) => RespReply::Absent,
            },
            _ => return Err(io::ErrorKind::InvalidData.into()),
        })
    }
}
