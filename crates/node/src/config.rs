//! The configuration of a node: the command line overrides the configuration file, which overrides the defaults.
//!
//! Input: [`ConfigOverrides`] from the command line and the text of a file. Output: one [`NodeConfig`] with the defaults filled
//! in.
//! Invariant: every value in a [`NodeConfig`] has been checked.

pub mod attach;
pub mod durability;
pub mod file;
pub mod owned_device;
pub mod resp_location;
pub mod resp_password;
pub mod size;

pub use attach::AttachLocation;
pub use durability::DurabilityMode;
pub use owned_device::OwnedDevice;
pub use resp_location::RespLocation;
pub use resp_password::{PasswordFile, read_client_password, read_password};
pub use size::ByteSize;

use headwater_dma::mover::policy::CHANNELS_MAX;
use headwater_io::attach::admin::AccessGrant;
use headwater_ssd::engine::{Durability, LossDigest};
use headwater_ssd::limits::NAMESPACES;
use headwater_ssd::media::PAGES_PER_BLOCK;
use headwater_ssd::media::geometry::BLOCKS_MAX;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// Default capacity of the flash, unless half of the free space is less.
pub const CAPACITY_DEFAULT: ByteSize = ByteSize(8 << 30);
/// Minimum capacity of the flash: 64 blocks of 64 page slots.
pub const CAPACITY_MIN: ByteSize = ByteSize(64 * 64 * 4_608);
/// Maximum capacity of the flash: as many blocks as record addresses can name.
pub const CAPACITY_MAX: ByteSize = ByteSize(BLOCKS_MAX as u64 * PAGES_PER_BLOCK as u64 * FRAME_BYTES);
/// Bytes of one frame of device DRAM: a page slot.
pub const FRAME_BYTES: u64 = 4_608;
/// Default size of device DRAM: the minimum that has room for a value of 16 MiB.
pub const MEMORY_DEFAULT: ByteSize = ByteSize(16_384 * FRAME_BYTES);
/// Minimum size of device DRAM.
pub const MEMORY_MIN: ByteSize = ByteSize(4 << 20);
/// Default RESP port: not the port of Redis, so that both can run.
pub const RESP_PORT_DEFAULT: u16 = 7_379;
/// Default metrics port.
pub const METRICS_PORT_DEFAULT: u16 = 7_380;

/// The settings of the command line; `None` selects the setting of the file or the default.
#[derive(Clone, Debug, Default)]
pub struct ConfigOverrides {
    /// Data directory.
    pub data: Option<PathBuf>,
    /// NVMe controller that the node owns and shares.
    pub device: Option<OwnedDevice>,
    /// Location of the RESP front end.
    pub resp: Option<RespLocation>,
    /// File with the password of RESP clients.
    pub resp_password: Option<PathBuf>,
    /// Address of metrics and health.
    pub metrics: Option<SocketAddr>,
    /// File with the token of clients of metrics and health.
    pub metrics_token: Option<PathBuf>,
    /// Path of a Unix socket for the RESP front end.
    pub unix: Option<PathBuf>,
    /// Location of the attach socket.
    pub attach: Option<AttachLocation>,
    /// Path of the socket for a vfio-user client.
    pub vfio_user: Option<PathBuf>,
    /// Address of the NVMe/TCP front end.
    pub nvme_tcp: Option<SocketAddr>,
    /// File of keys of NVMe/TCP hosts.
    pub nvme_tcp_psk: Option<PathBuf>,
    /// Bytes of flash.
    pub capacity: Option<ByteSize>,
    /// Bytes of device DRAM for pages.
    pub memory: Option<ByteSize>,
    /// Threads that move the bytes of large values beside the core.
    pub mover_threads: Option<u8>,
    /// True to let work queues of DSA devices move bytes too.
    pub mover_dsa: Option<bool>,
    /// GPUs whose copy engines move bytes too.
    pub mover_gpu: Option<u8>,
    /// Durability of every namespace that has no table of its own in the file.
    pub durability: Option<DurabilityMode>,
    /// Path of the ready file.
    pub ready_file: Option<PathBuf>,
    /// The loss that this start may accept.
    pub accept_loss: Option<LossDigest>,
}

/// The complete configuration of a node.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Data directory.
    pub data: PathBuf,
    /// NVMe controller that the node owns and shares, instead of a flash file.
    pub device: Option<OwnedDevice>,
    /// Address of the RESP front end, if it has one; port 0 picks one.
    pub resp: Option<SocketAddr>,
    /// File with the password of RESP clients, which an address beyond loopback needs unless one was kept.
    pub resp_password: Option<PasswordFile>,
    /// Address of metrics and health; port 0 picks one.
    pub metrics: SocketAddr,
    /// File with the token of clients of metrics and health, which an address beyond loopback needs.
    pub metrics_token: Option<PathBuf>,
    /// Path of a Unix socket for the RESP front end.
    pub unix: Option<PathBuf>,
    /// Path of the socket where other processes attach.
    pub attach: Option<PathBuf>,
    /// Grants of users and groups other than the node's own user and root.
    pub grants: Vec<AccessGrant>,
    /// Path of the socket for a vfio-user client.
    pub vfio_user: Option<PathBuf>,
    /// Address of the NVMe/TCP front end, a loopback address unless there are keys; port 0 picks one. `None` for no
    /// front end.
    pub nvme_tcp: Option<SocketAddr>,
    /// File of keys of NVMe/TCP hosts, which then connect over TLS.
    pub nvme_tcp_psk: Option<PathBuf>,
    /// Bytes of flash; `None` for the capacity of the data directory, or the default when it is new.
    pub capacity: Option<ByteSize>,
    /// Bytes of device DRAM for pages.
    pub memory: ByteSize,
    /// Threads that move the bytes of large values beside the core, at most [`CHANNELS_MAX`].
    pub mover_threads: u8,
    /// True to let work queues of DSA devices move bytes too. Not yet run on silicon.
    pub mover_dsa: bool,
    /// GPUs whose copy engines move bytes too, the first ones: at most [`CHANNELS_MAX`]. Not yet run on a GPU.
    pub mover_gpu: u8,
    /// Durability of each namespace.
    pub durability: [Durability; NAMESPACES],
    /// Path of the ready file.
    pub ready_file: Option<PathBuf>,
    /// The loss of unreadable pages that this start may accept. No file sets it: it is a decision about one loss.
    pub accept_loss: Option<LossDigest>,
}

/// The error of a configuration that was refused.
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
        /// The name of the namespace in the file.
        name: String,
    },
    /// Too many threads of the mover.
    #[error(
        "mover-threads = {found}: a mover has at most {CHANNELS_MAX} threads; give fewer, and leave a core to each"
    )]
    TooManyMovers {
        /// The threads asked for.
        found: u8,
    },
    /// Too many GPUs of the mover.
    #[error("mover-gpu = {found}: a mover has at most {CHANNELS_MAX} channels; name fewer GPUs")]
    TooManyGpus {
        /// The GPUs asked for.
        found: u8,
    },
    /// An invalid grant.
    #[error("{}: [[grant]] {number}: {reason}", path.display())]
    Grant {
        /// The file.
        path: PathBuf,
        /// Number of the grant, from 1.
        number: usize,
        /// The reason.
        reason: String,
    },
    /// A setting that has no effect on a node with an NVMe controller.
    #[error(
        "{setting} with device {device}: a controller is shared only through its attach socket; leave {setting} out"
    )]
    NotWithDevice {
        /// The setting.
        setting: &'static str,
        /// The controller.
        device: OwnedDevice,
    },
    /// Keys for an NVMe/TCP front end that is not configured.
    #[error("nvme-tcp-psk {}: keys without an address to listen on; give --nvme-tcp ADDR too", path.display())]
    KeysWithoutAddress {
        /// The file of keys.
        path: PathBuf,
    },
    /// A size above the maximum.
    #[error("{setting} {found} is too large: give at most {max}")]
    TooLarge {
        /// The setting.
        setting: &'static str,
        /// The given size.
        found: ByteSize,
        /// The maximum.
        max: ByteSize,
    },
    /// A size below the minimum.
    #[error("{setting} {found} is too small: give at least {min}")]
    TooSmall {
        /// The setting.
        setting: &'static str,
        /// The given size.
        found: ByteSize,
        /// The minimum.
        min: ByteSize,
    },
}

impl NodeConfig {
    /// Returns the configuration of the command line, the file (if one is named) and the defaults, in this order of
    /// precedence.
    ///
    /// # Errors
    /// [`ConfigError`] names the setting and the file.
    pub fn assemble(path: Option<&Path>, over: ConfigOverrides) -> Result<Self, ConfigError> {
        let mut from_file = file::FileConfig::default();
        if let Some(path) = path {
            let text = std::fs::read_to_string(path)
                .map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
            from_file = file::parse(&text, path)?;
        }
        let everywhere = over.durability.or(from_file.durability);
        let mut durability = [everywhere.map_or(Durability::Always, |mode| mode.0); NAMESPACES];
        for (name, namespace) in &from_file.namespace {
            let index = match name.parse::<usize>() {
                Ok(number) if number.to_string() == *name => number.checked_sub(1),
                _ => None,
            };
            let mode = index.and_then(|index| durability.get_mut(index));
            *mode.ok_or_else(|| ConfigError::Namespace {
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
            && let Some(setting) = setting_without_effect(&over, &from_file)
        {
            return Err(ConfigError::NotWithDevice { setting, device });
        }
        let data = over.data.or(from_file.data).unwrap_or_else(|| PathBuf::from("data"));
        let config = Self {
            attach: over.attach.or(from_file.attach).unwrap_or_default().path(&data),
            grants,
            data,
            device,
            resp: (over.resp.or(from_file.resp))
                .unwrap_or(RespLocation::At(loopback(RESP_PORT_DEFAULT)))
                .address(),
            resp_password: PasswordFile::of(over.resp_password, from_file.resp_password),
            metrics: over.metrics.or(from_file.metrics).unwrap_or(loopback(METRICS_PORT_DEFAULT)),
            metrics_token: over.metrics_token.or(from_file.metrics_token),
            unix: over.unix.or(from_file.unix),
            vfio_user: over.vfio_user.or(from_file.vfio_user),
            nvme_tcp: over.nvme_tcp.or(from_file.nvme_tcp),
            nvme_tcp_psk: over.nvme_tcp_psk.or(from_file.nvme_tcp_psk),
            capacity: over.capacity.or(from_file.capacity),
            memory: over.memory.or(from_file.memory).unwrap_or(MEMORY_DEFAULT),
            mover_threads: over.mover_threads.or(from_file.mover_threads).unwrap_or(0),
            mover_dsa: over.mover_dsa.or(from_file.mover_dsa).unwrap_or(false),
            mover_gpu: over.mover_gpu.or(from_file.mover_gpu).unwrap_or(0),
            durability,
            ready_file: over.ready_file.or(from_file.ready_file),
            accept_loss: over.accept_loss,
        };
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), ConfigError> {
        if let (None, Some(path)) = (self.nvme_tcp, &self.nvme_tcp_psk) {
            return Err(ConfigError::KeysWithoutAddress { path: path.clone() });
        }
        let capacity = self.capacity.unwrap_or(CAPACITY_MIN);
        at_least("capacity", capacity, CAPACITY_MIN)?;
        if capacity > CAPACITY_MAX {
            return Err(ConfigError::TooLarge { setting: "capacity", found: capacity, max: CAPACITY_MAX });
        }
        if usize::from(self.mover_threads) > CHANNELS_MAX {
            return Err(ConfigError::TooManyMovers { found: self.mover_threads });
        }
        if usize::from(self.mover_gpu) > CHANNELS_MAX {
            return Err(ConfigError::TooManyGpus { found: self.mover_gpu });
        }
        at_least("memory", self.memory, MEMORY_MIN)
    }
}

/// Returns the first given setting that has no effect on a node with an NVMe controller.
fn setting_without_effect(over: &ConfigOverrides, file: &file::FileConfig) -> Option<&'static str> {
    let off = |place: Option<&AttachLocation>| place == Some(&AttachLocation::Off);
    let given = [
        ("attach off", off(over.attach.as_ref().or(file.attach.as_ref()))),
        ("resp", over.resp.or(file.resp).is_some()),
        ("resp-password", over.resp_password.is_some() || file.resp_password.is_some()),
        ("unix", over.unix.is_some() || file.unix.is_some()),
        ("vfio-user", over.vfio_user.is_some() || file.vfio_user.is_some()),
        ("nvme-tcp", over.nvme_tcp.or(file.nvme_tcp).is_some()),
        ("capacity", over.capacity.or(file.capacity).is_some()),
        ("accept-loss", over.accept_loss.is_some()),
        ("memory", over.memory.or(file.memory).is_some()),
        ("mover-threads", over.mover_threads.or(file.mover_threads).is_some()),
        ("mover-dsa", over.mover_dsa.or(file.mover_dsa).is_some()),
        ("mover-gpu", over.mover_gpu.or(file.mover_gpu).is_some()),
        ("durability", over.durability.is_some() || file.durability.is_some() || !file.namespace.is_empty()),
    ];
    given.into_iter().find_map(|(setting, is_given)| is_given.then_some(setting))
}

fn at_least(setting: &'static str, found: ByteSize, least: ByteSize) -> Result<(), ConfigError> {
    if found < least {
        return Err(ConfigError::TooSmall { setting, found, min: least });
    }
    Ok(())
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// Returns the capacity of a new node: [`CAPACITY_DEFAULT`], or half of the free space if that is less.
#[must_use]
pub fn default_capacity(free: ByteSize) -> ByteSize {
    CAPACITY_DEFAULT.min(ByteSize(free.0 / 2))
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
    fn flags_override_the_file_and_the_file_overrides_defaults() {
        let file = file(
            "version = 1\ndata = \"from-file\"\ncapacity = \"1G\"\n[namespace.2]\ndurability = \"on-flush\"\n",
        );
        let over = ConfigOverrides {
            capacity: Some(ByteSize(2 << 30)),
            durability: Some(DurabilityMode(Durability::Interval(
                headwater_host::clock::Nanos::from_millis(5),
            ))),
            ..ConfigOverrides::default()
        };
        let config = NodeConfig::assemble(Some(file.path()), over).unwrap();
        assert_eq!(config.data, Path::new("from-file"));
        assert_eq!(config.capacity, Some(ByteSize(2 << 30)));
        assert_eq!(config.resp, Some(loopback(RESP_PORT_DEFAULT)));
        assert_eq!(DurabilityMode(config.durability[0]).to_string(), "interval=5");
        assert_eq!(config.durability[1], Durability::OnFlush, "the table of a namespace overrides a flag");
    }

    #[test]
    fn error_names_a_namespace_that_does_not_exist() {
        for name in ["0", "17", "one", "01"] {
            let file = file(&format!("version = 1\n[namespace.{name}]\ndurability = \"always\"\n"));
            let error = NodeConfig::assemble(Some(file.path()), ConfigOverrides::default()).unwrap_err();
            assert!(error.to_string().contains(&format!("[namespace.{name}]")), "{error}");
        }
    }

    #[test]
    fn error_of_a_small_size_names_the_minimum() {
        let over = ConfigOverrides { capacity: Some(ByteSize(4096)), ..ConfigOverrides::default() };
        let error = NodeConfig::assemble(None, over).unwrap_err().to_string();
        assert!(error.starts_with("capacity 4 KiB is too small: give at least"), "{error}");
    }

    /// Checks for a former defect: its blocks saturated at 32 bits, and the error was that of a file system that has no
    /// such file.
    #[test]
    fn error_of_a_large_capacity_names_the_maximum() {
        let with = |capacity| ConfigOverrides { capacity: Some(capacity), ..ConfigOverrides::default() };
        assert!(NodeConfig::assemble(None, with(CAPACITY_MAX)).is_ok());
        for bytes in [CAPACITY_MAX.0 + 1, u64::MAX] {
            let error = NodeConfig::assemble(None, with(ByteSize(bytes))).unwrap_err().to_string();
            assert!(
                error.starts_with("capacity ") && error.contains("is too large: give at most 18 TiB"),
                "{error}"
            );
        }
    }

    #[test]
    fn keys_without_an_address_are_refused() {
        let over = ConfigOverrides { nvme_tcp_psk: Some("keys".into()), ..ConfigOverrides::default() };
        let error = NodeConfig::assemble(None, over).unwrap_err().to_string();
        assert!(error.contains("--nvme-tcp ADDR"), "{error}");
    }

    #[test]
    fn settings_without_effect_beside_a_device_are_refused_by_name() {
        let device: OwnedDevice = "vfio:0000:00:04.0".parse().unwrap();
        let with = |over: ConfigOverrides| {
            NodeConfig::assemble(None, ConfigOverrides { device: Some(device.clone()), ..over })
        };
        assert_eq!(with(ConfigOverrides::default()).unwrap().device, Some(device.clone()));
        let resp = Some(RespLocation::At(loopback(1)));
        let error = with(ConfigOverrides { resp, ..ConfigOverrides::default() }).unwrap_err().to_string();
        assert!(error.starts_with("resp with device vfio:0000:00:04.0"), "{error}");
        let attach = Some(AttachLocation::Off);
        let error = with(ConfigOverrides { attach, ..ConfigOverrides::default() }).unwrap_err().to_string();
        assert!(error.contains("leave attach off out"), "{error}");
        let file = file("version = 1\ndevice = \"vfio:0000:00:04.0\"\ncapacity = \"1G\"\n");
        let error =
            NodeConfig::assemble(Some(file.path()), ConfigOverrides::default()).unwrap_err().to_string();
        assert!(error.starts_with("capacity with device"), "{error}");
    }

    #[test]
    fn capacity_is_at_most_half_of_the_free_space() {
        assert_eq!(default_capacity(ByteSize(1 << 40)), CAPACITY_DEFAULT);
        assert_eq!(default_capacity(ByteSize(4 << 30)), ByteSize(2 << 30));
    }
}
