//! Names of devices.
//!
//! In: a URL, or a bare path. Out: where the device is and which namespace is meant. Strict: an unknown scheme, an unknown
//! key and a size that is none are refused with what is known.

use headwater_io::IoError;
use std::path::PathBuf;

/// Where a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In this process, in so many bytes of memory.
    Memory(u64),
    /// In this process, in a data directory; with so many bytes if it is made.
    Directory(PathBuf, Option<u64>),
    /// In the daemon that listens here.
    Attach(PathBuf),
    /// On a network.
    NvmeTcp {
        /// `HOST:PORT`.
        address: String,
        /// The subsystem's name.
        subsystem: String,
        /// File of keys, for TLS.
        psk: Option<PathBuf>,
        /// HOSTNQN: whose key of the file, if there are several.
        host: Option<String>,
    },
}

/// A device and one of its namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Where.
    pub place: Place,
    /// Which namespace.
    pub namespace: u32,
}

impl Url {
    /// Reads a URL.
    ///
    /// # Errors
    /// [`IoError::Device`] says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, IoError> {
        let (body, query) = text.split_once('?').unwrap_or((text, ""));
        let (mut namespace, mut capacity, mut psk, mut host) = (1, None, None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("ns", number)) => {
                    namespace = number.parse().map_err(|_| wrong(text, "ns= takes a number"))?;
                }
                Some(("capacity", size)) => {
                    let size =
                        parse_size(size).ok_or_else(|| wrong(text, "capacity= takes a size, as 1GiB"))?;
                    capacity = Some(size);
                }
                Some(("psk", path)) if !path.is_empty() => psk = Some(PathBuf::from(path)),
                Some(("host", name)) if !name.is_empty() => host = Some(name.to_owned()),
                _ => return Err(wrong(text, "only ns=, capacity=, psk= and host= are known behind the ?")),
            }
        }
        let mut place = parse_place(text, body, capacity)?;
        if capacity.is_some() && !matches!(place, Place::Directory(..)) {
            return Err(wrong(text, "capacity= is for file: only"));
        }
        match &mut place {
            Place::NvmeTcp { psk: file, host: name, .. } => (*file, *name) = (psk, host),
            _ if psk.is_some() || host.is_some() => {
                return Err(wrong(text, "psk= and host= are for nvme-tcp: only"));
            }
            _ => {}
        }
        Ok(Self { place, namespace })
    }
}

fn parse_place(text: &str, body: &str, capacity: Option<u64>) -> Result<Place, IoError> {
    let path = |path: &str| match path {
        "" => Err(wrong(text, "a path is missing")),
        path => Ok(PathBuf::from(path)),
    };
    match body.split_once(':') {
        Some(("mem", size)) => {
            let bytes = parse_size(size).ok_or_else(|| wrong(text, "mem: takes a size, as mem:64MiB"))?;
            Ok(Place::Memory(bytes))
        }
        Some(("file", rest)) => Ok(Place::Directory(path(rest)?, capacity)),
        Some(("attach", rest)) => Ok(Place::Attach(path(rest)?)),
        Some(("nvme-tcp", rest)) => {
            let whole = rest.strip_prefix("//").and_then(|rest| rest.split_once('/'));
            match whole {
                Some((address, subsystem)) if !address.is_empty() && !subsystem.is_empty() => {
                    let (address, subsystem) = (address.to_owned(), subsystem.to_owned());
                    Ok(Place::NvmeTcp { address, subsystem, psk: None, host: None })
                }
                _ => Err(wrong(text, "write nvme-tcp://HOST:PORT/NQN")),
            }
        }
        // A colon far behind is part of a path.
        Some((scheme, _)) if !scheme.contains(['/', '.']) => {
            Err(wrong(text, "known are mem:, file:, attach: and nvme-tcp:, or a path"))
        }
        _ => Ok(Place::Directory(path(body)?, capacity)),
    }
}

fn wrong(url: &str, reason: &str) -> IoError {
    IoError::Device { reason: format!("`{url}` names no device: {reason}") }
}

/// A whole number of bytes with K, M, G or T, powers of 1,024, with or without `iB` or `B` behind them.
fn parse_size(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.strip_suffix("iB").or_else(|| unit.strip_suffix('B')).unwrap_or(unit);
    let shift = match unit {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (Place, u32) {
        let url = Url::parse(text).unwrap();
        (url.place, url.namespace)
    }

    #[test]
    fn every_row_of_the_table_is_read() {
        assert_eq!(parsed("mem:64MiB"), (Place::Memory(64 << 20), 1));
        assert_eq!(parsed("mem:4096?ns=3"), (Place::Memory(4_096), 3));
        assert_eq!(parsed("file:/srv/kv"), (Place::Directory("/srv/kv".into(), None), 1));
        assert_eq!(parsed("./data?capacity=1G&ns=2"), (Place::Directory("./data".into(), Some(1 << 30)), 2));
        assert_eq!(parsed("data"), (Place::Directory("data".into(), None), 1));
        assert_eq!(parsed("/a:b/c"), (Place::Directory("/a:b/c".into(), None), 1));
        assert_eq!(parsed("attach:data/attach.sock?ns=16"), (Place::Attach("data/attach.sock".into()), 16));
        let tcp = |psk: Option<&str>, host: Option<&str>| Place::NvmeTcp {
            address: "127.0.0.1:4420".into(),
            subsystem: "nqn.2014-08.org:x".into(),
            psk: psk.map(PathBuf::from),
            host: host.map(str::to_owned),
        };
        assert_eq!(parsed("nvme-tcp://127.0.0.1:4420/nqn.2014-08.org:x?ns=2"), (tcp(None, None), 2));
        let secured = "nvme-tcp://127.0.0.1:4420/nqn.2014-08.org:x?psk=/etc/keys&host=nqn.h";
        assert_eq!(parsed(secured), (tcp(Some("/etc/keys"), Some("nqn.h")), 1));
    }

    #[test]
    fn what_names_no_device_is_refused_with_the_reason() {
        for text in [
            "",
            "file:",
            "mem:",
            "mem:12XB",
            "mem:1GiB?capacity=1",
            "ftp:x",
            "data?ns=one",
            "data?size=4",
            "data?psk=keys",
            "mem:1M?host=nqn.h",
            "nvme-tcp://h:1/nqn?psk=",
            "nvme-tcp://host",
            "nvme-tcp:host/nqn",
            "mem:99999999T",
        ] {
            assert!(Url::parse(text).is_err(), "{text}");
        }
    }
}
