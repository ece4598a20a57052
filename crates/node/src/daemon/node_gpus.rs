//! The GPUs of a node: their driver, the memory that is registered with it, and channels of the mover.
//!
//! Input: the number of GPUs that are wanted. Output: a pinner for the node's pool, and a channel for each GPU. Invariant: a
//! node that was told to use GPUs starts only if it has them all.

use headwater_dma::mover::policy::CHANNELS_MAX;
use headwater_dma::mover::{GpuChannel, GpuConfig, MoveChannel};
use headwater_dma::pool::{GpuPinner, PoolConfig};
use headwater_host::gpu::{GpuDriver, HostRegistrations, NOT_RUN_ON_GPU, library_path};
use std::sync::Arc;

/// GPUs, and the memory that they can reach.
#[derive(Debug)]
pub(crate) struct NodeGpus {
    driver: Arc<GpuDriver>,
    registrations: HostRegistrations,
    count: usize,
}

impl NodeGpus {
    /// Opens the driver for the first `count` GPUs; `None` for no GPUs.
    ///
    /// # Errors
    /// The driver has fewer, or does not work; the text says what to do.
    pub(crate) fn open(count: u8) -> Result<Option<Self>, String> {
        if count == 0 {
            return Ok(None);
        }
        Self::open_first(Some(count.into())).map(Some).map_err(|error| format!("mover-gpu: {error}"))
    }

    /// Opens the driver for all GPUs.
    ///
    /// # Errors
    /// There is no GPU, or its driver does not work; the text says what to do.
    pub(crate) fn open_all() -> Result<Self, String> {
        Self::open_first(None)
    }

    fn open_first(count: Option<usize>) -> Result<Self, String> {
        let driver = GpuDriver::open(&library_path()).map_err(|error| error.to_string())?;
        let count = count.unwrap_or(driver.gpus().len());
        driver.gpu(count - 1).map_err(|error| error.to_string())?;
        let registrations = HostRegistrations::open(&driver).map_err(|error| error.to_string())?;
        Ok(Self { driver, registrations, count })
    }

    /// Returns the configuration of a pool whose memory the GPUs can reach.
    pub(crate) fn pool_config(&self, config: PoolConfig) -> PoolConfig {
        PoolConfig { pinner: Arc::new(GpuPinner::new(self.registrations.clone())), ..config }
    }

    /// Opens a channel to each GPU. Returns their names, in the order of their channels.
    ///
    /// # Errors
    /// A GPU cannot be used, or the mover has too many channels; the text says which and why.
    pub(crate) fn open_channels(
        &self,
        channels: &mut Vec<Box<dyn MoveChannel>>,
    ) -> Result<Vec<String>, String> {
        if channels.len() + self.count > CHANNELS_MAX {
            return Err(format!(
                "mover-gpu: {} GPUs beside {} other channels: a mover has at most {CHANNELS_MAX}; name fewer",
                self.count,
                channels.len()
            ));
        }
        for gpu in self.driver.gpus().iter().take(self.count) {
            let channel =
                GpuChannel::open(&self.driver, gpu.number, self.registrations.clone(), GpuConfig::default())
                    .map_err(|error| format!("mover-gpu: GPU {} ({}): {error}", gpu.number, gpu.name))?;
            tracing::info!(gpu = gpu.number, name = %gpu.name, "copy engines of a GPU are open; {NOT_RUN_ON_GPU}");
            channels.push(Box::new(channel));
        }
        Ok((0..self.count).map(|number| format!("gpu {number}")).collect())
    }
}
