//! The address of an NVMe controller that a node owns and shares instead of a flash file; it is bound to vfio-pci.
//!
//! Input: `vfio:` and the address of a PCI function. Output: the address. Invariant: the address has the form that
//! sysfs uses.

use serde::Deserialize;
use std::fmt;
use std::str::FromStr;

/// Prefix of the address.
const SCHEME: &str = "vfio:";
/// Numbers of hexadecimal digits of domain, bus, device and function.
const DIGITS: [usize; 4] = [4, 2, 2, 1];

/// The address of a controller that a node owns.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct OwnedDevice {
    address: String,
}

impl OwnedDevice {
    /// Returns the address of the PCI function, as `0000:00:04.0`.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }
}

/// The error of a text that is not the address of a controller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a device to share; give the PCI address of an NVMe controller as vfio:0000:00:04.0")]
pub struct OwnedDeviceError {
    text: String,
}

impl FromStr for OwnedDevice {
    type Err = OwnedDeviceError;

    fn from_str(text: &str) -> Result<Self, OwnedDeviceError> {
        let refused = || OwnedDeviceError { text: text.to_owned() };
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
    type Error = OwnedDeviceError;

    fn try_from(text: String) -> Result<Self, OwnedDeviceError> {
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
    fn addresses_are_normalized_to_the_form_of_sysfs() {
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
