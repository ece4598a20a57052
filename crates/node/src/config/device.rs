//! A device that a node owns instead of flash of its own: an NVMe controller that is bound to vfio-pci.
//!
//! In: `vfio:` and the address of a PCI function. Out: the address. Invariant: it is written as sysfs writes it.

use serde::Deserialize;
use std::fmt;
use std::str::FromStr;

/// What comes before the address.
const SCHEME: &str = "vfio:";
/// How many hexadecimal digits domain, bus, device and function have.
const DIGITS: [usize; 4] = [4, 2, 2, 1];

/// The controller.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct OwnedDevice {
    address: String,
}

impl OwnedDevice {
    /// The address of the PCI function, as `0000:00:04.0`.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }
}

/// No device that a node can own.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no device to own; give the PCI address of an NVMe controller as vfio:0000:00:04.0")]
pub struct NoDevice {
    text: String,
}

impl FromStr for OwnedDevice {
    type Err = NoDevice;

    fn from_str(text: &str) -> Result<Self, NoDevice> {
        let refused = || NoDevice { text: text.to_owned() };
        let address = text.strip_prefix(SCHEME).ok_or_else(refused)?.to_ascii_lowercase();
        let (rest, function) = address.rsplit_once('.').ok_or_else(refused)?;
        let parts: Vec<&str> = rest.split(':').chain([function]).collect();
        let is_hexadecimal = |part: &&str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
        let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
        if lengths != DIGITS || !parts.iter().all(is_hexadecimal) {
            return Err(refused());
        }
        Ok(Self { address })
    }
}

impl TryFrom<String> for OwnedDevice {
    type Error = NoDevice;

    fn try_from(text: String) -> Result<Self, NoDevice> {
        text.parse()
    }
}

impl fmt::Display for OwnedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_written_as_sysfs_does() {
        let device: OwnedDevice = "vfio:0000:0A:1f.7".parse().unwrap();
        assert_eq!((device.address(), device.to_string().as_str()), ("0000:0a:1f.7", "vfio:0000:0a:1f.7"));
        for text in [
            "",
            "0000:00:04.0",
            "vfio:",
            "vfio:00:04.0",
            "vfio:0000:00:04",
            "vfio:0000:00:04.0?ns=1",
            "vfio:0000:00:0g.0",
            "vfio:../../x.0",
        ] {
            assert!(text.parse::<OwnedDevice>().is_err(), "{text}");
        }
    }
}
