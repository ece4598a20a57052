//! Clients of each front end, with the same three operations on keys.
//!
//! Invariant: no client repeats a command by itself. The library resubmits commands after a reconnect if it may, and a
//! put that takes effect twice is not linearizable; here it may not reconnect.
#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

use super::recorder::{KeyAnswer, KeyOperation};
use crate::running::RunningNode;
use headwater_host::clock::Nanos;
use headwater_io::attach::{AttachBackend, AttachOptions};
use headwater_io::{Device, NvmeTcp, NvmeTcpTarget};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;

/// The namespace of keys, which RESP uses.
const NAMESPACE: u32 = 1;
/// The most bytes of a value: several pages.
const VALUE_BYTES_MAX: u64 = 9_000;

/// A client of one front end.
pub(crate) trait KeyClient: Send {
    /// Carries out an operation. After an error the operation may or may not have taken effect, and the client is
    /// useless.
    fn call(&mut self, key: &str, operation: KeyOperation) -> Result<KeyAnswer, String>;
}

/// A front end with clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrontEndKind {
    Resp,
    Attach,
    NvmeTcp,
}

impl FrontEndKind {
    pub(crate) const ALL: [Self; 3] = [Self::Resp, Self::Attach, Self::NvmeTcp];

    /// Connects a client to a node.
    pub(crate) fn connect(self, node: &RunningNode) -> Box<dyn KeyClient> {
        match self {
            Self::Resp => Box::new(RespKeyClient(BufReader::new(node.connect()))),
            Self::Attach => {
                let socket = Path::new(&node.data()).join("attach.sock");
                let options = AttachOptions { retry_for: Nanos::ZERO, direct: false };
                let backend = AttachBackend::connect(&socket, options).unwrap();
                Box::new(Device::over(Box::new(backend), NAMESPACE).unwrap())
            }
            Self::NvmeTcp => {
                let ready = std::fs::read_to_string(node.ready_path()).unwrap();
                let ready: serde_json::Value = serde_json::from_str(&ready).unwrap();
                let address = ready["nvme-tcp"].as_str().unwrap().parse().unwrap();
                let name = &NvmeTcp::discover(address).unwrap()[0];
                let target = NvmeTcpTarget { retry_for: Nanos::ZERO, ..NvmeTcpTarget::new(address, name) };
                Box::new(Device::over(Box::new(NvmeTcp::open(target).unwrap()), NAMESPACE).unwrap())
            }
        }
    }
}

/// Returns the value for a number: of different lengths, and every page differs from that of another number.
fn value_of(number: u64) -> Vec<u8> {
    let bytes = 8 + number.wrapping_mul(2_654_435_761) % VALUE_BYTES_MAX;
    number.to_le_bytes().into_iter().cycle().take(usize::try_from(bytes).unwrap()).collect()
}

/// Returns the number of a value.
fn number_of(value: &[u8]) -> u64 {
    let number = u64::from_le_bytes(value[..8].try_into().unwrap());
    assert!(value == value_of(number), "a value of {} bytes is mixed from several", value.len());
    number
}

/// An attached client, or an NVMe/TCP host.
impl KeyClient for Device {
    fn call(&mut self, key: &str, operation: KeyOperation) -> Result<KeyAnswer, String> {
        let key = key.as_bytes();
        match operation {
            KeyOperation::Put(number) => self.put(key, &value_of(number)).map(|()| KeyAnswer::Stored),
            KeyOperation::Get => self.get(key).map(|value| KeyAnswer::Value(value.as_deref().map(number_of))),
            KeyOperation::Delete => self.delete(key).map(|()| KeyAnswer::Deleted { existed: None }),
        }
        .map_err(|error| error.to_string())
    }
}

/// A Redis client.
struct RespKeyClient(BufReader<TcpStream>);

impl RespKeyClient {
    /// Sends a command and receives the first line of its reply.
    fn send(&mut self, arguments: &[&[u8]]) -> std::io::Result<String> {
        let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
        for argument in arguments {
            bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
            bytes.extend_from_slice(argument);
            bytes.extend_from_slice(b"\r\n");
        }
        self.0.get_mut().write_all(&bytes)?;
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        // A connection that ends inside a line leaves a part of a number.
        if line.ends_with("\r\n") { Ok(line) } else { Err(std::io::ErrorKind::UnexpectedEof.into()) }
    }

    fn run(&mut self, key: &[u8], operation: KeyOperation) -> std::io::Result<Result<KeyAnswer, String>> {
        let line = match operation {
            KeyOperation::Put(number) => self.send(&[b"SET", key, &value_of(number)])?,
            KeyOperation::Get => self.send(&[b"GET", key])?,
            KeyOperation::Delete => self.send(&[b"DEL", key])?,
        };
        let length = line.strip_prefix('$').and_then(|bytes| bytes.trim_end().parse::<usize>().ok());
        Ok(match (operation, line.trim_end(), length) {
            (KeyOperation::Put(_), "+OK", _) => Ok(KeyAnswer::Stored),
            (KeyOperation::Get, "_" | "$-1", _) => Ok(KeyAnswer::Value(None)),
            (KeyOperation::Get, _, Some(bytes)) => {
                let mut value = vec![0; bytes + 2];
                self.0.read_exact(&mut value)?;
                Ok(KeyAnswer::Value(Some(number_of(&value[..bytes]))))
            }
            (KeyOperation::Delete, ":0", _) => Ok(KeyAnswer::Deleted { existed: Some(false) }),
            (KeyOperation::Delete, ":1", _) => Ok(KeyAnswer::Deleted { existed: Some(true) }),
            (_, complaint, _) => Err(complaint.to_owned()),
        })
    }
}

impl KeyClient for RespKeyClient {
    fn call(&mut self, key: &str, operation: KeyOperation) -> Result<KeyAnswer, String> {
        self.run(key.as_bytes(), operation).map_err(|error| error.to_string())?
    }
}
