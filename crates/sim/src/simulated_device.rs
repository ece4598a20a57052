//! The device that the simulator drives, through one front end, over simulated flash.
//!
//! Input: commands and time. Output: completions.
//! The trait holds only what the world needs, so that a test can substitute a deliberately broken device and verify
//! that the checker reports it.

mod moving;
mod ssd;

pub use moving::MovingDevice;

use crate::media::SimMedia;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_ssd::command::{
    NamespaceId, ReceiptStep, SsdCommand, SsdCompletion, SubmitError, ValueReceipt,
};
use headwater_ssd::engine::DeviceConfig;
use headwater_ssd::namespace::Namespace;
use std::io::{self, IoSliceMut};

/// The time at which a device is opened.
#[derive(Clone, Copy, Debug)]
pub struct BootTime {
    /// Monotonic time.
    pub now: Nanos,
    /// Wall time.
    pub wall: UnixMillis,
}

/// The work of a device beside its commands: a swarm whose worlds reach less of it finds less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceActivity {
    /// Blocks that were emptied so that they can be used again.
    pub collected: u64,
    /// Checkpoints completed.
    pub checkpoints: u64,
    /// Keys that expired.
    pub expired: u64,
    /// Openings that found pages lost.
    pub lossy_openings: u64,
    /// Jobs of the mover that operations waited for.
    pub moves_waited: u64,
}

impl DeviceActivity {
    /// Adds the work of another boot or world.
    pub fn add(&mut self, other: Self) {
        self.collected += other.collected;
        self.checkpoints += other.checkpoints;
        self.expired += other.expired;
        self.lossy_openings += other.lossy_openings;
        self.moves_waited += other.moves_waited;
    }
}

/// A device that the world can drive.
pub trait SimulatedDevice: Sized {
    /// Opens the device over a medium and recovers it; `wait` on the medium advances virtual time.
    ///
    /// # Errors
    /// A description of the failure. The medium is dropped, so that its crash image can be booted again.
    fn open(media: SimMedia, config: &DeviceConfig, at: BootTime) -> Result<Self, String>;

    /// Inspects a medium on which no device runs, as an operator would. Does nothing by default.
    ///
    /// # Errors
    /// A description of what is wrong with the medium.
    fn inspect(media: SimMedia, config: &DeviceConfig, at: BootTime) -> Result<(), String> {
        let _ = (media, config, at);
        Ok(())
    }

    /// Submits a command. After `Ok` exactly one completion follows; after `Err` none does.
    ///
    /// # Errors
    /// The reason why the device did not accept the command.
    fn submit(&mut self, namespace: NamespaceId, token: u64, command: SsdCommand) -> Result<(), SubmitError>;

    /// Begins to receive a value of this length; `None` by default: the device takes values with their commands alone.
    fn begin_receipt(&mut self, namespace: NamespaceId, value_bytes: usize) -> Option<ValueReceipt> {
        let _ = (namespace, value_bytes);
        None
    }

    /// Receives the next bytes of a value from a source.
    ///
    /// # Errors
    /// Those of the source.
    fn receive(
        &mut self,
        receipt: &ValueReceipt,
        source: &mut dyn FnMut(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
    ) -> io::Result<ReceiptStep> {
        let _ = (receipt, source);
        Ok(ReceiptStep::NoRoom)
    }

    /// Does all work that is possible at this time. Returns true if anything progressed.
    fn poll(&mut self, now: Nanos, wall: UnixMillis) -> bool;

    /// Takes the next completion.
    fn next_completion(&mut self) -> Option<SsdCompletion>;

    /// Returns the device's description of a namespace. A device without a namespace table has only key spaces.
    fn namespace(&self, namespace: NamespaceId) -> Option<Namespace> {
        let _ = namespace;
        None
    }

    /// Returns true if the device reports the namespace attached to the controller. Without a namespace table, every
    /// controller has every namespace.
    fn is_attached(&self, namespace: NamespaceId, controller: u16) -> bool {
        let _ = (namespace, controller);
        true
    }

    /// Returns the work since the device was opened; none by default.
    fn activity(&self) -> DeviceActivity {
        DeviceActivity::default()
    }

    /// Starts work that only an operator requests, such as a checkpoint. Does nothing by default.
    fn request_maintenance(&mut self) {}

    /// Makes everything durable and writes what speeds up the next boot, in virtual time. Returns the time at the end,
    /// or `None` if the device cannot or the power was cut first.
    fn shut_down(&mut self, at: BootTime) -> Option<Nanos> {
        let _ = at;
        None
    }

    /// Returns the time at which the device next has work; `None` if only a command gives it work.
    fn next_deadline(&self) -> Option<Nanos>;
}
