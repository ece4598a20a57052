//! One step of an operation: the state that the step may use, and its result.
//!
//! Input: the device, the shared state and the counts of one connection. Output: submitted device commands, and a
//! [`DriveResult`]. Every operation is driven by this interface; it knows none of them. Invariant: each submitted command
//! is counted in the connection and in the front end.

use super::limits::{ARGUMENTS_MAX, IN_FLIGHT_MAX};
use super::reply::{RespReply, RespVersion};
use super::state::RespState;
use crate::core_device::CoreDevice;
use headwater_host::clock::Nanos;
use headwater_ssd::command::{NamespaceId, SsdCommand, SubmitError};

/// The largest number of a part: what a token has room for beside the connection and the slot.
const PART_MAX: u32 = 0xFF_FFFF;
const _: () = assert!(ARGUMENTS_MAX <= PART_MAX as usize, "a command of many keys has a part for each");

/// The result of driving an operation.
#[derive(Debug)]
pub(crate) enum DriveResult {
    /// A completion is outstanding.
    Waiting,
    /// The device has no room; drive again later.
    Busy,
    /// There is no work before this time.
    Until(Nanos),
    /// The operation is finished.
    Done(RespReply),
}

/// The state that an operation may use while it is driven.
pub(crate) struct OperationContext<'a, S> {
    pub(crate) device: &'a mut S,
    pub(crate) shared: &'a mut RespState,
    pub(crate) in_flight: &'a mut u32,
    pub(crate) locks: &'a mut u32,
    pub(crate) token: u64,
    pub(crate) protocol: RespVersion,
}

impl<S: CoreDevice> OperationContext<'_, S> {
    /// Submits one part of the operation; the token of its completion contains the part's number.
    pub(crate) fn submit(
        &mut self,
        part: u32,
        namespace: NamespaceId,
        command: SsdCommand,
    ) -> Result<(), SubmitError> {
        if self.shared.in_flight >= IN_FLIGHT_MAX {
            return Err(SubmitError::Busy(IN_FLIGHT_MAX));
        }
        assert!(part <= PART_MAX, "part {part} of an operation does not fit in the token of its command");
        self.device.submit(self.shared.front_end, namespace, self.token | u64::from(part), command)?;
        self.shared.in_flight += 1;
        *self.in_flight += 1;
        Ok(())
    }

    /// Unlocks a key that was locked for this operation.
    pub(crate) fn unlock(&mut self, namespace: NamespaceId, key: &[u8]) {
        assert!(*self.locks > 0, "a connection unlocks a key, and it has locked none");
        *self.locks -= 1;
        self.shared.unlock(namespace, key);
    }
}
