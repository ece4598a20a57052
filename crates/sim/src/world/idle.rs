//! Boots that end when the device was idle: it then says on the medium that its last commit is durable.
//!
//! Input: a device without commands in flight. Output: whether the medium had time for that record and kept it.
//! Invariant: on a medium with a volatile cache nothing is expected, because no flush follows the record.

use super::{FailureCause, SimPower, SimWorld, WorldStep};
use crate::flash::CacheKind;
use crate::media::{CrashImage, MediaBacking};
use crate::simulated_device::SimulatedDevice;
use headwater_host::clock::Nanos;

/// Time for which a device is idle, beyond what its medium may need for all that is queued.
const IDLE: Nanos = Nanos::from_millis(300);
/// Time without an operation on the medium after which the record of an idle device is written.
const RECORD_WRITTEN: Nanos = Nanos::from_millis(150);

impl<E: SimulatedDevice> SimWorld<'_, E> {
    /// Lets the device be idle for a while.
    pub(super) fn be_idle(&mut self, engine: &mut E, image: &CrashImage) -> Result<SimPower, FailureCause> {
        let until = self.now.after(IDLE).after(self.media_slack(self.slow_die));
        while self.now < until {
            match self.step(engine, image)? {
                WorldStep::Progressed => {}
                WorldStep::Idle => self.now = until,
                WorldStep::PowerLost => return Ok(SimPower::PowerLost),
            }
        }
        let kept = self.config.media.cache() == CacheKind::WriteThrough
            && self.config.media.backing == MediaBacking::Flash;
        self.said_durable = kept && image.now().after(RECORD_WRITTEN) <= self.now;
        Ok(SimPower::On)
    }
}
