//! Opens a device by its URL.
//!
//! In: a URL. Out: a device behind [`headwater_io::Device`], to which this one leads in every other respect.

use crate::in_process;
use crate::url::{Place, Url};
use headwater_io::attach::{AttachBackend, AttachOptions};
use headwater_io::{Backend, IoError, NvmeTcp, NvmeTcpTarget};
use std::net::ToSocketAddrs as _;
use std::ops::{Deref, DerefMut};

/// An open device, seen through one of its namespaces. A device in this process ends with the last of this and its queues.
#[derive(Debug)]
pub struct Device {
    device: headwater_io::Device,
}

impl Device {
    /// Opens the device that a URL names; see the table of the crate.
    ///
    /// # Errors
    /// [`IoError`] when the URL names none, or the device cannot be opened.
    pub fn open(url: &str) -> Result<Self, IoError> {
        let Url { place, namespace } = Url::parse(url)?;
        let backend: Box<dyn Backend> = match place {
            Place::Memory(bytes) => Box::new(in_process::in_memory(bytes)?),
            Place::Directory(path, capacity) => Box::new(in_process::in_directory(&path, capacity)?),
            Place::Attach(path) => Box::new(AttachBackend::connect(&path, AttachOptions::default())?),
            Place::NvmeTcp { address, subsystem } => {
                let resolved = address.to_socket_addrs().ok().and_then(|mut found| found.next());
                let reason = format!("{address}: no such host, or no port; write nvme-tcp://HOST:PORT/NQN");
                let address = resolved.ok_or(IoError::Device { reason })?;
                Box::new(NvmeTcp::open(NvmeTcpTarget::new(address, &subsystem))?)
            }
        };
        headwater_io::Device::over(backend, namespace).map(Self::from)
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
