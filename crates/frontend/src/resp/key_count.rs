//! The command DBSIZE: the number of keys, without those that have expired.
//!
//! Input: a namespace. Output: its number of keys. The device removes expired keys soon, so the command waits for that; if
//! it takes too long, as on a device that is full, the keys that are left are counted.

use super::operation_step::{DriveResult, OperationContext};
use super::reply::RespReply;
use crate::core_device::CoreDevice;
use headwater_host::clock::Nanos;
use headwater_ssd::command::NamespaceId;

/// The time between two looks at the device.
const INTERVAL: Nanos = Nanos::from_micros(100);
/// The longest wait for the removal of expired keys.
const WAIT_MAX: Nanos = Nanos::from_millis(100);

/// A count of keys.
#[derive(Debug)]
pub(crate) struct KeyCount {
    namespace: NamespaceId,
    deadline: Nanos,
}

impl KeyCount {
    /// Creates a count that begins now.
    pub(crate) fn new(namespace: NamespaceId, now: Nanos) -> Self {
        Self { namespace, deadline: now.after(WAIT_MAX) }
    }

    /// Returns the reply, or the time of the next look at the device.
    pub(crate) fn drive<S: CoreDevice>(&self, context: &OperationContext<'_, S>) -> DriveResult {
        let (now, wall) = (context.shared.now, context.shared.wall);
        if now < self.deadline && context.device.is_expiring(wall) {
            return DriveResult::Until(now.after(INTERVAL));
        }
        DriveResult::Done(RespReply::count(context.device.stats().keys[self.namespace.index()]))
    }
}
