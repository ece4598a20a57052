//! A device, opened by its URL.
//!
//! Input: a URL. Output: a device that dereferences to [`headwater_io::Device`].

use crate::in_process;
use crate::url::{DeviceLocation, DeviceUrl};
use headwater_io::attach::{AttachBackend, AttachOptions};
use headwater_io::model::ModelDevice;
use headwater_io::nvme_tcp::key_file;
use headwater_io::passthrough::PassthroughDevice;
use headwater_io::uring::UringDevice;
use headwater_io::vfio::VfioDevice;
use headwater_io::{DeviceBackend, IoError, NvmeTcp, NvmeTcpTarget, PoolSettings};
use headwater_nvme::driver::DriverConfig;
use headwater_nvme::tcp::psk::HostKey;
use std::net::ToSocketAddrs as _;
use std::ops::{Deref, DerefMut};
use std::path::Path;

/// An open device with one of its namespaces. A device in this process stops when this and its last queue are dropped.
#[derive(Debug)]
pub struct Device {
    device: headwater_io::Device,
}

impl Device {
    /// Opens the device that a URL names; see the table of the crate.
    ///
    /// # Errors
    /// [`IoError`] when the URL names no device, or the device cannot be opened.
    pub fn open(url: &str) -> Result<Self, IoError> {
        Self::open_with(url, &PoolSettings::default())
    }

    /// Opens the device that a URL names, with these settings of its pool of memory. A setting that is not named here is
    /// taken from the URL, if that names it.
    ///
    /// # Errors
    /// As for [`open`](Self::open); or settings with which no pool can be opened.
    pub fn open_with(url: &str, settings: &PoolSettings) -> Result<Self, IoError> {
        let DeviceUrl { location: place, namespace, pool } = DeviceUrl::parse(url)?;
        let settings = &settings.or(pool);
        let mut backend: Box<dyn DeviceBackend> = match place {
            DeviceLocation::Memory(bytes) => Box::new(in_process::in_memory(bytes, settings)?),
            DeviceLocation::Directory(path, capacity) => {
                Box::new(in_process::in_directory(&path, capacity, settings)?)
            }
            DeviceLocation::Attach { path, direct } => {
                let options = AttachOptions { direct, ..AttachOptions::default() };
                Box::new(AttachBackend::connect_with(&path, options, settings)?)
            }
            DeviceLocation::Uring(path, options) => {
                let mut device = UringDevice::open_with(&path, options, settings)?;
                for note in device.notes()? {
                    tracing::warn!("{note}");
                }
                Box::new(device)
            }
            DeviceLocation::Vfio { address, weights } => {
                let config = DriverConfig { weights, ..DriverConfig::default() };
                let device = VfioDevice::open_with(&address, config, settings)?;
                device.check(namespace)?;
                Box::new(device)
            }
            DeviceLocation::Passthrough(path, options) => {
                let device = PassthroughDevice::open_with(&path, options, settings)?;
                for note in device.notes() {
                    tracing::warn!("{note}");
                }
                Box::new(device)
            }
            DeviceLocation::Model(model) => Box::new(ModelDevice::new(model)?.with_pool(settings)?),
            DeviceLocation::NvmeTcp { address, subsystem, psk, host } => {
                let resolved = address.to_socket_addrs().ok().and_then(|mut found| found.next());
                let reason = format!("{address}: no such host, or no port; write nvme-tcp://HOST:PORT/NQN");
                let address = resolved.ok_or(IoError::Device { reason })?;
                let mut target = NvmeTcpTarget::new(address, &subsystem);
                if let Some(file) = psk {
                    target = target.secured(load_host_key(&file, host.as_deref())?);
                } else if let Some(host) = host {
                    target.host_name = host;
                }
                Box::new(NvmeTcp::open_with(target, settings)?)
            }
        };
        let namespace = match namespace {
            0 => backend.namespaces()?.first().map_or(0, |only| only.id),
            named => named,
        };
        headwater_io::Device::over(backend, namespace).map(Self::from)
    }
}

/// Loads the key of a host from a file; without a host, the only key.
fn load_host_key(file: &Path, host: Option<&str>) -> Result<HostKey, IoError> {
    let refused = |reason: String| IoError::Device { reason };
    let mut keys = key_file::load(file).map_err(|error| refused(error.to_string()))?;
    keys.retain(|key| host.is_none_or(|host| key.host == host));
    let count = keys.len();
    match keys.pop() {
        Some(key) if count == 1 => Ok(key),
        _ => Err(refused(format!("{}: {count} keys match; choose one with host=NQN", file.display()))),
    }
}

impl From<headwater_io::Device> for Device {
    fn from(device: headwater_io::Device) -> Self {
        Self { device }
    }
}

impl Deref for Device {
    type Target = headwater_io::Device;

    fn deref(&self) -> &headwater_io::Device {
        &self.device
    }
}

impl DerefMut for Device {
    fn deref_mut(&mut self) -> &mut headwater_io::Device {
        &mut self.device
    }
}
