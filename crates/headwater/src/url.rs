//! URLs of devices.
//!
//! Input: a URL, or a bare path. Output: the location of the device, and its namespace. Invariant: an unknown scheme,
//! an unknown key and an invalid value are refused, with a message that says what is valid.

use headwater_dma::pool::TierSetting;
use headwater_host::clock::Nanos;
use headwater_host::uring::UringChoice;
use headwater_io::model::{ModelContents, ModelSettings, ServiceTimes};
use headwater_io::passthrough::PassthroughOptions;
use headwater_io::uring::UringOptions;
use headwater_io::{IoError, PoolSettings};
use headwater_nvme::driver::ArbitrationWeights;
use std::path::PathBuf;

/// Arbitration Burst 111b, no limit: only its weight bounds a queue's turn (NVMe Base 2.0 figure 312).
const NO_BURST_LIMIT: u8 = 7;

/// The location of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceLocation {
    /// In this process, in this many bytes of memory.
    Memory(u64),
    /// In this process, in a data directory; with this many bytes if it is created.
    Directory(PathBuf, Option<u64>),
    /// In a daemon, by rings that the daemon serves or by hardware queues.
    Attach {
        /// The daemon's attach socket.
        path: PathBuf,
        /// True for hardware queues, which this process drives.
        direct: bool,
    },
    /// A file or a block device, by io_uring.
    Uring(PathBuf, UringOptions),
    /// An NVMe controller on this machine's PCI bus, driven by this process.
    Vfio {
        /// The function's address.
        address: String,
        /// The weights of weighted round robin; `None` for round robin.
        weights: Option<ArbitrationWeights>,
    },
    /// An NVMe namespace that the kernel drives, by its generic device.
    Passthrough(PathBuf, PassthroughOptions),
    /// In this process: the null device, or a model of latency.
    Model(ModelSettings),
    /// On a network.
    NvmeTcp {
        /// `HOST:PORT`.
        address: String,
        /// The subsystem's name.
        subsystem: String,
        /// File of keys, for TLS.
        psk: Option<PathBuf>,
        /// HOSTNQN: chooses its key of the file, if there are several.
        host: Option<String>,
    },
}

/// A device and one of its namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceUrl {
    /// The location of the device.
    pub location: DeviceLocation,
    /// The namespace; 0 for the only one of a device that has one, with any number.
    pub namespace: u32,
    /// The settings of the device's pool of memory.
    pub pool: PoolSettings,
}

impl DeviceUrl {
    /// Parses a URL.
    ///
    /// # Errors
    /// [`IoError::Device`] says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, IoError> {
        let (body, query) = text.split_once('?').unwrap_or((text, ""));
        let mut query = UrlParameters::read(text, query)?;
        let namespace = query.number("ns")?;
        let pool = parse_pool(&mut query)?;
        let place = parse_location(text, body, &mut query)?;
        query.refuse_unknown()?;
        let first = if matches!(place, DeviceLocation::Passthrough(..)) { 0 } else { 1 };
        let namespace = namespace.unwrap_or(first);
        Ok(Self { location: place, namespace, pool })
    }
}

/// The parameters after the `?` that were not taken yet.
struct UrlParameters<'a> {
    text: &'a str,
    pairs: Vec<(&'a str, &'a str)>,
}

impl<'a> UrlParameters<'a> {
    fn read(text: &'a str, query: &'a str) -> Result<Self, IoError> {
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let pairs = pairs
            .map(|pair| pair.split_once('=').ok_or_else(|| invalid_url(text, "write KEY=VALUE after the ?")));
        Ok(Self { text, pairs: pairs.collect::<Result<_, _>>()? })
    }

    /// Takes the value of a key, which must be `what`. The last one counts.
    fn take<T>(
        &mut self,
        key: &str,
        what: &str,
        parse: impl Fn(&'a str) -> Option<T>,
    ) -> Result<Option<T>, IoError> {
        let mut found = None;
        for (_, value) in self.pairs.extract_if(.., |(name, _)| *name == key) {
            found =
                Some(parse(value).ok_or_else(|| invalid_url(self.text, &format!("{key}= takes {what}")))?);
        }
        Ok(found)
    }

    fn number(&mut self, key: &str) -> Result<Option<u32>, IoError> {
        self.take(key, "a number", |number| number.parse().ok())
    }

    fn size(&mut self, key: &str) -> Result<Option<u64>, IoError> {
        self.take(key, "a size, as 1GiB", parse_size)
    }

    fn named(&mut self, key: &str) -> Result<Option<&'a str>, IoError> {
        self.take(key, "a name", |name| (!name.is_empty()).then_some(name))
    }

    fn switch(&mut self, key: &str) -> Result<bool, IoError> {
        let known = |value| match value {
            "1" => Some(true),
            "0" => Some(false),
            _ => None,
        };
        Ok(self.take(key, "1 or 0", known)?.unwrap_or(false))
    }

    fn uring(&mut self) -> Result<UringChoice, IoError> {
        Ok(if self.switch("plain")? { UringChoice::Never } else { UringChoice::Auto })
    }

    /// Refuses parameters that were not taken.
    fn refuse_unknown(self) -> Result<(), IoError> {
        match self.pairs.first() {
            None => Ok(()),
            Some((key, _)) => {
                Err(invalid_url(self.text, &format!("`{key}=` is no parameter of such a device")))
            }
        }
    }
}

fn parse_location(text: &str, body: &str, query: &mut UrlParameters<'_>) -> Result<DeviceLocation, IoError> {
    let path = |path: &str| match path {
        "" => Err(invalid_url(text, "a path is missing")),
        path => Ok(PathBuf::from(path)),
    };
    match body.split_once(':') {
        Some(("mem", size)) => {
            let bytes =
                parse_size(size).ok_or_else(|| invalid_url(text, "mem: takes a size, as mem:64MiB"))?;
            Ok(DeviceLocation::Memory(bytes))
        }
        Some(("file", rest)) => Ok(DeviceLocation::Directory(path(rest)?, query.size("capacity")?)),
        Some((scheme @ ("null" | "model"), size)) => {
            let bytes = parse_size(size)
                .ok_or_else(|| invalid_url(text, &format!("{scheme}: takes a size, as {scheme}:1GiB")))?;
            let service = if scheme == "null" { None } else { Some(parse_service(query)?) };
            Ok(DeviceLocation::Model(parse_model(bytes, service, query)?))
        }
        Some(("attach", rest)) => {
            Ok(DeviceLocation::Attach { path: path(rest)?, direct: query.switch("direct")? })
        }
        Some(("io-uring", rest)) => {
            let (poll, uring) = (query.switch("poll")?, query.uring()?);
            Ok(DeviceLocation::Uring(
                path(rest)?,
                UringOptions { poll, create: query.size("create")?, uring },
            ))
        }
        Some(("nvme-ng", rest)) => {
            let (poll, uring) = (query.switch("poll")?, query.uring()?);
            let partition = query.number("partition")?;
            Ok(DeviceLocation::Passthrough(path(rest)?, PassthroughOptions { partition, poll, uring }))
        }
        Some(("vfio", rest)) => match rest.split(':').count() {
            3 => {
                let weights = query.take("weights", "three numbers of 1 to 256, as 8:4:1", parse_weights)?;
                Ok(DeviceLocation::Vfio { address: rest.to_owned(), weights })
            }
            _ => Err(invalid_url(text, "write vfio:0000:00:04.0, as `lspci -D` names the device")),
        },
        Some(("nvme-tcp", rest)) => {
            let whole = rest.strip_prefix("//").and_then(|rest| rest.split_once('/'));
            match whole {
                Some((address, subsystem)) if !address.is_empty() && !subsystem.is_empty() => {
                    Ok(DeviceLocation::NvmeTcp {
                        address: address.to_owned(),
                        subsystem: subsystem.to_owned(),
                        psk: query.named("psk")?.map(PathBuf::from),
                        host: query.named("host")?.map(str::to_owned),
                    })
                }
                _ => Err(invalid_url(text, "write nvme-tcp://HOST:PORT/NQN")),
            }
        }
        // A colon after a slash or a dot is part of a path.
        Some((scheme, _)) if !scheme.contains(['/', '.']) => Err(invalid_url(
            text,
            "write mem:, file:, io-uring:, nvme-ng:, vfio:, attach:, nvme-tcp:, null: or model:, or a path",
        )),
        _ => Ok(DeviceLocation::Directory(path(body)?, query.size("capacity")?)),
    }
}

/// Parses the settings of the pool, which every device has.
fn parse_pool(query: &mut UrlParameters<'_>) -> Result<PoolSettings, IoError> {
    let size = |text: &str| parse_size(text).and_then(|bytes| usize::try_from(bytes).ok());
    let tiers = |text: &str| TierSetting::parse(text).ok();
    Ok(PoolSettings {
        chunk_bytes: query.take("pool-chunk", "a size, as 4MiB", size)?,
        cap_bytes: query.take("pool-cap", "a size, as 1GiB", size)?,
        idle: query.take("pool-idle", "a time, as 10s", parse_time)?,
        tiers: query.take("pool-tiers", "calibrated, paper-4.1, paper-5.2 or SMALL:LARGE in bytes", tiers)?,
        static_bytes: query.take("pool-static", "a size, as 3MiB", size)?,
        node: query.number("pool-node")?,
    })
}

/// Parses the weights of the classes high, medium and low.
fn parse_weights(text: &str) -> Option<ArbitrationWeights> {
    let weight = |text: &str| text.parse().ok().filter(|weight| (1..=256).contains(weight));
    let weights: Option<Vec<u16>> = text.split(':').map(weight).collect();
    let [high, medium, low] = weights?[..] else { return None };
    Some(ArbitrationWeights { high, medium, low, burst_log2: NO_BURST_LIMIT })
}

fn parse_service(query: &mut UrlParameters<'_>) -> Result<ServiceTimes, IoError> {
    let usual = ServiceTimes::default();
    let number = |text: &str| text.parse().ok();
    Ok(ServiceTimes {
        fixed: query.take("fixed", "a time, as 10us", parse_time)?.unwrap_or(usual.fixed),
        per_kib: query.take("per-kib", "a time, as 500ns", parse_time)?.unwrap_or(usual.per_kib),
        jitter_percent: query.take("jitter", "a percentage, as 10", |text| text.parse().ok())?.unwrap_or(0),
        units: query.take("units", "a number", number)?.unwrap_or(usual.units),
    })
}

fn parse_model(
    bytes: u64,
    service: Option<ServiceTimes>,
    query: &mut UrlParameters<'_>,
) -> Result<ModelSettings, IoError> {
    let block_bytes = query.take("block", "512 or 4096", |text| match text {
        "512" => Some(512),
        "4096" => Some(4_096),
        _ => None,
    })?;
    let contents = match service {
        Some(_) if query.switch("keep")? => ModelContents::Memory,
        _ => ModelContents::Nothing,
    };
    let null = ModelSettings::null_device(bytes);
    Ok(ModelSettings { block_bytes: block_bytes.unwrap_or(null.block_bytes), contents, service, ..null })
}

/// Parses a whole number of nanoseconds, microseconds, milliseconds or seconds.
fn parse_time(text: &str) -> Option<Nanos> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let nanos = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(nanos).map(Nanos)
}

fn invalid_url(url: &str, reason: &str) -> IoError {
    IoError::Device { reason: format!("`{url}` names no device: {reason}") }
}

/// Parses a whole number of bytes with K, M, G or T, powers of 1,024, optionally followed by `iB` or `B`.
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
    use headwater_dma::pool::TierThresholds;

    fn parsed(text: &str) -> (DeviceLocation, u32) {
        let url = DeviceUrl::parse(text).unwrap();
        (url.location, url.namespace)
    }

    #[test]
    fn every_kind_of_url_is_parsed() {
        assert_eq!(parsed("mem:64MiB"), (DeviceLocation::Memory(64 << 20), 1));
        assert_eq!(parsed("mem:4096?ns=3"), (DeviceLocation::Memory(4_096), 3));
        assert_eq!(parsed("file:/srv/kv"), (DeviceLocation::Directory("/srv/kv".into(), None), 1));
        assert_eq!(
            parsed("./data?capacity=1G&ns=2"),
            (DeviceLocation::Directory("./data".into(), Some(1 << 30)), 2)
        );
        assert_eq!(parsed("data"), (DeviceLocation::Directory("data".into(), None), 1));
        assert_eq!(parsed("/a:b/c"), (DeviceLocation::Directory("/a:b/c".into(), None), 1));
        let attach = |direct| DeviceLocation::Attach { path: "data/attach.sock".into(), direct };
        assert_eq!(parsed("attach:data/attach.sock?ns=16"), (attach(false), 16));
        assert_eq!(parsed("attach:data/attach.sock?direct=1"), (attach(true), 1));
        let null = ModelSettings::null_device(1 << 30);
        assert_eq!(parsed("null:1GiB"), (DeviceLocation::Model(null.clone()), 1));
        let large = ModelSettings { block_bytes: 4_096, ..null.clone() };
        assert_eq!(parsed("null:1GiB?block=4096"), (DeviceLocation::Model(large), 1));
        let service = ServiceTimes { fixed: Nanos(10_000), per_kib: Nanos(500), jitter_percent: 5, units: 8 };
        let model = ModelSettings { contents: ModelContents::Memory, service: Some(service), ..null.clone() };
        let text = "model:1GiB?fixed=10us&per-kib=500ns&units=8&jitter=5&keep=1";
        assert_eq!(parsed(text), (DeviceLocation::Model(model), 1));
        let usual = ModelSettings::latency_model(1 << 30, ServiceTimes::default());
        assert_eq!(parsed("model:1GiB"), (DeviceLocation::Model(usual), 1));
        let uring = |poll, create, uring| {
            DeviceLocation::Uring("/dev/sda2".into(), UringOptions { poll, create, uring })
        };
        assert_eq!(parsed("io-uring:/dev/sda2"), (uring(false, None, UringChoice::Auto), 1));
        assert_eq!(parsed("io-uring:/dev/sda2?poll=1"), (uring(true, None, UringChoice::Auto), 1));
        let plain = uring(false, Some(4 << 20), UringChoice::Never);
        assert_eq!(parsed("io-uring:/dev/sda2?create=4MiB&plain=1&poll=0"), (plain, 1));
        let vfio = |weights| DeviceLocation::Vfio { address: "0000:00:04.0".into(), weights };
        assert_eq!(parsed("vfio:0000:00:04.0"), (vfio(None), 1));
        assert_eq!(parsed("vfio:0000:00:04.0?ns=2"), (vfio(None), 2));
        let weights = ArbitrationWeights { high: 256, medium: 4, low: 1, burst_log2: 7 };
        assert_eq!(parsed("vfio:0000:00:04.0?weights=256:4:1"), (vfio(Some(weights)), 1));
        for wrong in ["1:2", "0:1:1", "257:1:1", "1:2:3:4", "a:b:c", ""] {
            assert!(DeviceUrl::parse(&format!("vfio:0000:00:04.0?weights={wrong}")).is_err(), "{wrong}");
        }
        let passed = |partition, poll, uring| {
            DeviceLocation::Passthrough("/dev/ng0n1".into(), PassthroughOptions { partition, poll, uring })
        };
        assert_eq!(parsed("nvme-ng:/dev/ng0n1"), (passed(None, false, UringChoice::Auto), 0));
        let whole = "nvme-ng:/dev/ng0n1?partition=2&poll=1&plain=1&ns=1";
        assert_eq!(parsed(whole), (passed(Some(2), true, UringChoice::Never), 1));
        let tcp = |psk: Option<&str>, host: Option<&str>| DeviceLocation::NvmeTcp {
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
    fn pool_settings_are_parsed_for_every_device() {
        let text = "mem:64MiB?pool-chunk=1MiB&pool-cap=32MiB&pool-idle=10s&pool-tiers=paper-5.2&pool-static=1MiB\
                    &pool-node=0&ns=2";
        let url = DeviceUrl::parse(text).unwrap();
        let named = PoolSettings {
            chunk_bytes: Some(1 << 20),
            cap_bytes: Some(32 << 20),
            idle: Some(Nanos(10_000_000_000)),
            tiers: Some(TierThresholds::PAPER_5_2.into()),
            static_bytes: Some(1 << 20),
            node: Some(0),
        };
        assert_eq!((url.location, url.namespace, url.pool), (DeviceLocation::Memory(64 << 20), 2, named));
        let url = DeviceUrl::parse("null:1GiB?pool-tiers=calibrated").unwrap();
        assert_eq!(
            url.pool,
            PoolSettings { tiers: Some(TierSetting::Calibrated), ..PoolSettings::default() }
        );
        for (key, says) in [("pool-tiers=big", "paper-5.2"), ("pool-chunk=x", "4MiB"), ("pool-idle=3", "10s")]
        {
            let refused = DeviceUrl::parse(&format!("attach:x?{key}")).unwrap_err().to_string();
            assert!(refused.contains(says), "{refused}");
        }
    }

    #[test]
    fn invalid_urls_are_refused() {
        for text in [
            "",
            "file:",
            "mem:",
            "mem:12XB",
            "mem:1GiB?capacity=1",
            "null:",
            "null:1GiB?block=600",
            "null:1GiB?fixed=1us",
            "null:1GiB?keep=1",
            "model:1GiB?fixed=10",
            "model:1GiB?units=many",
            "ftp:x",
            "data?ns=one",
            "data?size=4",
            "data?psk=keys",
            "mem:1M?host=nqn.h",
            "nvme-tcp://h:1/nqn?psk=",
            "nvme-tcp://host",
            "nvme-tcp:host/nqn",
            "mem:99999999T",
            "io-uring:",
            "vfio:",
            "vfio:00:04.0",
            "vfio:0000:00:04.0?poll=1",
            "io-uring:x?poll=yes",
            "io-uring:x?create=",
            "io-uring:x?capacity=1M",
            "io-uring:x?partition=1",
            "nvme-ng:",
            "nvme-ng:x?partition=two",
            "nvme-ng:x?create=1M",
            "attach:x?poll=1",
            "data?ns",
        ] {
            assert!(DeviceUrl::parse(text).is_err(), "{text}");
        }
    }
}
