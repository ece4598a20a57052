//! The location of the RESP front end: an address, or none.
//!
//! Input: a flag or a key of the configuration file. Output: an address, or nothing for `off`.

use serde::Deserialize;
use std::net::{AddrParseError, SocketAddr};
use std::str::FromStr;

/// The location where the RESP front end listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum RespLocation {
    /// At this address.
    At(SocketAddr),
    /// At no address.
    Off,
}

impl FromStr for RespLocation {
    type Err = AddrParseError;

    fn from_str(text: &str) -> Result<Self, AddrParseError> {
        if text == "off" { Ok(Self::Off) } else { text.parse().map(Self::At) }
    }
}

impl TryFrom<String> for RespLocation {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
            .map_err(|error| format!("`{text}` is no address, such as 127.0.0.1:7379, and not off: {error}"))
    }
}

impl RespLocation {
    /// Returns the address, if there is one.
    #[must_use]
    pub const fn address(self) -> Option<SocketAddr> {
        match self {
            Self::At(address) => Some(address),
            Self::Off => None,
        }
    }
}
