//! What a node is told: built-in defaults, under the configuration file, under the command line.
//!
//! In: [`Overrides`] from the command line and the text of a file. Out: one [`Config`] without an optional left in it
//! that the node would have to guess. Invariant: whatever is in a [`Config`] has been checked.

pub mod attach;
pub mod device;
pub mod durability;
pub mod file;
pub mod size;

pub use attach::AttachPlace;
pub use device::OwnedDevice;
pub use durability::DurabilityMode;
pub use size::Bytes;

use headwater_io::attach::admin::Grant;
use headwater_ssd::engine::Durability;
use headwater_ssd::limits::NAMESPACES;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// Flash of a node that was told no capacity, unless half of the free space is less.
pub const CAPACITY_DEFAULT: Bytes = Bytes(8 << 30);
/// Least flash a node accepts: 64 blocks of 64 page slots.
pub const CAPACITY_MIN: Bytes = Bytes(64 * 64 * 4_608);
/// Bytes of one frame of device DRAM: a page slot.
pub const FRAME_BYTES: u64 = 4_608;
/// Device DRAM of a node that was told no size: the least in which a value of 16 MiB finds room.
pub const MEMORY_DEFAULT: Bytes = Bytes(16_384 * FRAME_BYTES);
/// Least device DRAM a node accepts.
pub const MEMORY_MIN: Bytes = Bytes(4 << 20);
/// RESP port of a node that was told none: not Redis's own, so that both can run.
pub const RESP_PORT_DEFAULT: u16 = 7_379;
/// Metrics port of a node that was told none.
pub const METRICS_PORT_DEFAULT: u16 = 7_380;

/// What the command line says; `None` leaves it to the file or the default.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// Data directory.
    pub data: Option<PathBuf>,
    /// A controller to own.
    pub device: Option<OwnedDevice>,
    /// Address of the RESP face.
    pub resp: Option<SocketAddr>,
    /// Address of metrics and health.
    pub metrics: Option<SocketAddr>,
    /// Path of a Unix socket for the RESP face.
    pub unix: Option<PathBuf>,
    /// Where other processes attach.
    pub attach: Option<AttachPlace>,
    /// Path of the socket for a vfio-user client.
    pub vfio_user: Option<PathBuf>,
    /// Address of the NVMe/TCP face.
    pub nvme_tcp: Option<SocketAddr>,
    /// File of keys of NVMe/TCP hosts.
    pub nvme_tcp_psk: Option<PathBuf>,
    /// Bytes of flash.
    pub capacity: Option<Bytes>,
    /// Bytes of device DRAM for pages.
    pub memory: Option<Bytes>,
    /// Durability of every namespace that has no table of its own in the file.
    pub durability: Option<DurabilityMode>,
    /// Where the ready file goes.
    pub ready_file: Option<PathBuf>,
}

/// Everything a node needs to know to start.
#[derive(Clone, Debug)]
pub struct Config {
    /// Data directory.
    pub data: PathBuf,
    /// The controller that the node owns and shares, instead of flash of its own.
    pub device: Option<OwnedDevice>,
    /// Address of the RESP face; port 0 picks one.
    pub resp: SocketAddr,
    /// Address of metrics and health; port 0 picks one.
    pub metrics: SocketAddr,
    /// Path of a Unix socket for the RESP face.
    pub unix: Option<PathBuf>,
    /// Path of the socket where other processes attach.
    pub attach: Option<PathBuf>,
    /// Who may attach, beside the node's own user and root.
    pub grants: Vec<Grant>,
    /// Path of the socket for a vfio-user client.
    pub vfio_user: Option<PathBuf>,
    /// Address of the NVMe/TCP face, of the loopback unless there are keys; port 0 picks one. `None` for no such face.
    pub nvme_tcp: Option<SocketAddr>,
    /// File of keys of NVMe/TCP hosts, which then connect inside TLS.
    pub nvme_tcp_psk: Option<PathBuf>,
    /// Bytes of flash; `None` takes what the data directory has, or the default when it is new.
    pub capacity: Option<Bytes>,
    /// Bytes of device DRAM for pages.
    pub memory: Bytes,
    /// Durability of each namespace.
    pub durability: [Durability; NAMESPACES],
    /// Where the ready file goes.
    pub ready_file: Option<PathBuf>,
}

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("{}: cannot read the configuration: {source}; check the path given with --config", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The file was refused.
    #[error(transparent)]
    File(#[from] file::FileConfigError),
    /// A namespace that does not exist.
    #[error("{}: [namespace.{name}]: namespaces are numbered 1 to {NAMESPACES}", path.display())]
    Namespace {
        /// The file.
        path: PathBuf,
        /// What it says.
        name: String,
    },
    /// A grant that cannot be given.
    #[error("{}: [[grant]] {number}: {reason}", path.display())]
    Grant {
        /// The file.
        path: PathBuf,
        /// Which one, from 1.
        number: usize,
        /// What is impossible.
        reason: String,
    },
    /// A setting that a node with a controller of its own has no use for.
    #[error(
        "{setting} with device {device}: a controller is shared by its attach socket alone; leave {setting} out"
    )]
    NotWithDevice {
        /// Which setting.
        setting: &'static str,
        /// The controller.
        device: OwnedDevice,
    },
    /// Keys for a face that is not there.
    #[error("nvme-tcp-psk {}: keys, and no address to use them on; give --nvme-tcp ADDR too", path.display())]
    KeysWithoutAddress {
        /// The file of keys.
        path: PathBuf,
    },
    /// A size below the least that works.
    #[error("{setting} {found} is too small: give at least {least}")]
    TooSmall {
        /// Which setting.
        setting: &'static str,
        /// What was asked for.
        found: Bytes,
        /// The least that works.
        least: Bytes,
    },
}

impl Config {
    /// Puts defaults, the file (if one is named) and the command line on top of each other.
    ///
    /// # Errors
    /// [`ConfigError`] names what was refused and where it stands.
    pub fn assemble(path: Option<&Path>, over: Overrides) -> Result<Self, ConfigError> {
        let mut from_file = file::FileConfig::default();
        if let Some(path) = path {
            let text = std::fs::read_to_string(path)
                .map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
            from_file = file::parse(&text, path)?;
        }
        let everywhere = over.durability.or(from_file.durability);
        let mut durability = [everywhere.map_or(Durability::Always, |mode| mode.0); NAMESPACES];
        for (name, namespace) in &from_file.namespace {
            let place = match name.parse::<usize>() {
                Ok(number) if number.to_string() == *name => number.checked_sub(1),
                _ => None,
            };
            let slot = place.and_then(|place| durability.get_mut(place));
            *slot.ok_or_else(|| ConfigError::Namespace {
                path: path.map(Path::to_owned).unwrap_or_default(),
                name: name.clone(),
            })? = namespace.durability.0;
        }
        let grants = (1..).zip(&from_file.grant).map(|(number, grant)| {
            let path = || path.map(Path::to_owned).unwrap_or_default();
            grant.grant().map_err(|reason| ConfigError::Grant { path: path(), number, reason })
        });
        let grants = grants.collect::<Result<_, _>>()?;
        let device = over.device.clone().or(from_file.device.clone());
        if let Some(device) = device.clone()
            && let Some(setting) = without_use(&over, &from_file)
        {
            return Err(ConfigError::NotWithDevice { setting, device });
        }
        let data = over.data.or(from_file.data).unwrap_or_else(|| PathBuf::from("data"));
        let config = Self {
            attach: over.attach.or(from_file.attach).unwrap_or_default().path(&data),
            grants,
            data,
            device,
            resp: over.resp.or(from_file.resp).unwrap_or(loopback(RESP_PORT_DEFAULT)),
            metrics: over.metrics.or(from_file.metrics).unwrap_or(loopback(METRICS_PORT_DEFAULT)),
            unix: over.unix.or(from_file.unix),
            vfio_user: over.vfio_user.or(from_file.vfio_user),
            nvme_tcp: over.nvme_tcp.or(from_file.nvme_tcp),
            nvme_tcp_psk: over.nvme_tcp_psk.or(from_file.nvme_tcp_psk),
            capacity: over.capacity.or(from_file.capacity),
            memory: over.memory.or(from_file.memory).unwrap_or(MEMORY_DEFAULT),
            durability,
            ready_file: over.ready_file.or(from_file.ready_file),
        };
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), ConfigError> {
        if let (None, Some(path)) = (self.nvme_tcp, &self.nvme_tcp_psk) {
            return Err(ConfigError::KeysWithoutAddress { path: path.clone() });
        }
        at_least("capacity", self.capacity.unwrap_or(CAPACITY_MIN), CAPACITY_MIN)?;
        at_least("memory", self.memory, MEMORY_MIN)
    }
}

/// The first setting that is given and means nothing to a node with a controller of its own.
fn without_use(over: &Overrides, file: &file::FileConfig) -> Option<&'static str> {
    let off = |place: Option<&AttachPlace>| place == Some(&AttachPlace::Off);
    let given = [
        ("attach off", off(over.attach.as_ref().or(file.attach.as_ref()))),
        ("resp", over.resp.or(file.resp).is_some()),
        ("unix", over.unix.is_some() || file.unix.is_some()),
        ("vfio-user", over.vfio_user.is_some() || file.vfio_user.is_some()),
        ("nvme-tcp", over.nvme_tcp.or(file.nvme_tcp).is_some()),
        ("capacity", over.capacity.or(file.capacity).is_some()),
        ("memory", over.memory.or(file.memory).is_some()),
        ("durability", over.durability.is_some() || file.durability.is_some() || !file.namespace.is_empty()),
    ];
    given.into_iter().find_map(|(setting, is_given)| is_given.then_some(setting))
}

fn at_least(setting: &'static str, found: Bytes, least: Bytes) -> Result<(), ConfigError> {
    if found < least {
        return Err(ConfigError::TooSmall { setting, found, least });
    }
    Ok(())
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// The flash of a new node: [`CAPACITY_DEFAULT`], or half of the free space if that is less.
#[must_use]
pub fn capacity_for(free: Bytes) -> Bytes {
    CAPACITY_DEFAULT.min(Bytes(free.0 / 2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let file = file(
            "version = 1\ndata = \"from-file\"\ncapacity = \"1G\"\n[namespace.2]\ndurability = \"on-flush\"\n",
        );
        let over = Overrides {
            capacity: Some(Bytes(2 << 30)),
            durability: Some(DurabilityMode(Durability::Interval(
                headwater_host::clock::Nanos::from_millis(5),
            ))),
            ..Overrides::default()
        };
        let config = Config::assemble(Some(file.path()), over).unwrap();
        assert_eq!(config.data, Path::new("from-file"));
        assert_eq!(config.capacity, Some(Bytes(2 << 30)));
        assert_eq!(config.resp.port(), RESP_PORT_DEFAULT);
        assert_eq!(DurabilityMode(config.durability[0]).to_string(), "interval=5");
        assert_eq!(
            config.durability[1],
            Durability::OnFlush,
            "a namespace's own table is more precise than a flag"
        );
    }

    #[test]
    fn namespaces_that_do_not_exist_are_named() {
        for name in ["0", "17", "one", "01"] {
            let file = file(&format!("version = 1\n[namespace.{name}]\ndurability = \"always\"\n"));
            let error = Config::assemble(Some(file.path()), Overrides::default()).unwrap_err();
            assert!(error.to_string().contains(&format!("[namespace.{name}]")), "{error}");
        }
    }

    #[test]
    fn too_small_says_what_is_enough() {
        let over = Overrides { capacity: Some(Bytes(4096)), ..Overrides::default() };
        let error = Config::assemble(None, over).unwrap_err().to_string();
        assert!(error.starts_with("capacity 4 KiB is too small: give at least"), "{error}");
    }

    #[test]
    fn keys_without_an_address_are_refused_rather_than_forgotten() {
        let over = Overrides { nvme_tcp_psk: Some("keys".into()), ..Overrides::default() };
        let error = Config::assemble(None, over).unwrap_err().to_string();
        assert!(error.contains("--nvme-tcp ADDR"), "{error}");
    }

    #[test]
    fn what_means_nothing_beside_a_device_is_refused_by_name() {
        let device: OwnedDevice = "vfio:0000:00:04.0".parse().unwrap();
        let with =
            |over: Overrides| Config::assemble(None, Overrides { device: Some(device.clone()), ..over });
        assert_eq!(with(Overrides::default()).unwrap().device, Some(device.clone()));
        let resp = Some(loopback(1));
        let error = with(Overrides { resp, ..Overrides::default() }).unwrap_err().to_string();
        assert!(error.starts_with("resp with device vfio:0000:00:04.0"), "{error}");
        let attach = Some(AttachPlace::Off);
        let error = with(Overrides { attach, ..Overrides::default() }).unwrap_err().to_string();
        assert!(error.contains("leave attach off out"), "{error}");
        let file = file("version = 1\ndevice = \"vfio:0000:00:04.0\"\ncapacity = \"1G\"\n");
        let error = Config::assemble(Some(file.path()), Overrides::default()).unwrap_err().to_string();
        assert!(error.starts_with("capacity with device"), "{error}");
    }

    #[test]
    fn a_small_disk_is_half_used() {
        assert_eq!(capacity_for(Bytes(1 << 40)), CAPACITY_DEFAULT);
        assert_eq!(capacity_for(Bytes(4 << 30)), Bytes(2 << 30));
    }
}
