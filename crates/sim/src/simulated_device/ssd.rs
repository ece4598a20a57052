//! The real device behind the interface that the world drives.

use super::{BootTime, DeviceActivity, SimulatedDevice};
use crate::media::SimMedia;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_ssd::command::{
    FrontEndId, NamespaceId, ReceiptStep, SsdCommand, SsdCompletion, SubmitError, ValueReceipt,
};
use headwater_ssd::engine::inspection::inspect;
use headwater_ssd::engine::{DeviceConfig, SsdDevice, StartTime};
use headwater_ssd::namespace::Namespace;
use std::io::{self, IoSliceMut};

/// The only front end of a simulated device.
const FRONT_END: FrontEndId = FrontEndId(1);

impl SimulatedDevice for SsdDevice<SimMedia> {
    fn open(mut media: SimMedia, config: &DeviceConfig, at: BootTime) -> Result<Self, String> {
        media.start()?;
        let start = StartTime { now: at.now, wall: at.wall };
        SsdDevice::open(media, config.clone(), start, &mut |_| {}).map_err(|error| error.to_string())
    }

    /// Inspects the medium. A power cut may leave torn records and incomplete batches and checkpoints. It never leaves
    /// an index entry without its record, or an index that depends on where recovery starts.
    fn inspect(mut media: SimMedia, config: &DeviceConfig, at: BootTime) -> Result<(), String> {
        media.start()?;
        let start = StartTime { now: at.now, wall: at.wall };
        let (found, _) = inspect(media, config, start, &mut |_| {})
            .map_err(|error| format!("cannot be inspected: {error}"))?;
        if found.faults.count == 0 && found.differences.count == 0 {
            return Ok(());
        }
        Err(format!("faults {:?}, differences {:?}", found.faults, found.differences))
    }

    fn submit(&mut self, namespace: NamespaceId, token: u64, command: SsdCommand) -> Result<(), SubmitError> {
        SsdDevice::submit(self, FRONT_END, namespace, token, command)
    }

    fn begin_receipt(&mut self, namespace: NamespaceId, value_bytes: usize) -> Option<ValueReceipt> {
        SsdDevice::begin_receipt(self, namespace, value_bytes)
    }

    fn receive(
        &mut self,
        receipt: &ValueReceipt,
        source: &mut dyn FnMut(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
    ) -> io::Result<ReceiptStep> {
        SsdDevice::receive(self, receipt, source)
    }

    fn poll(&mut self, now: Nanos, wall: UnixMillis) -> bool {
        SsdDevice::poll(self, now, wall)
    }

    fn next_completion(&mut self) -> Option<SsdCompletion> {
        SsdDevice::next_completion(self, FRONT_END)
    }

    fn namespace(&self, namespace: NamespaceId) -> Option<Namespace> {
        SsdDevice::namespace(self, namespace)
    }

    fn is_attached(&self, namespace: NamespaceId, controller: u16) -> bool {
        SsdDevice::is_attached(self, namespace, controller)
    }

    fn activity(&self) -> DeviceActivity {
        let stats = self.stats();
        DeviceActivity {
            collected: stats.collected,
            checkpoints: stats.checkpoints,
            expired: stats.expired,
            lossy_openings: u64::from(stats.lost_pages > 0),
            moves_waited: stats.moves_waited,
        }
    }

    fn request_maintenance(&mut self) {
        self.request_checkpoint();
    }

    fn shut_down(&mut self, at: BootTime) -> Option<Nanos> {
        self.shutdown(at.now, at.wall).ok()
    }

    fn next_deadline(&self) -> Option<Nanos> {
        SsdDevice::next_deadline(self)
    }
}
