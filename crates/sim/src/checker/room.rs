//! The promise that a device with room takes a write.
//!
//! Input: a write that was refused because the medium is full. Output: the [`PromiseViolation`] if little of the medium
//! can be in use. Invariant: every write that may have happened counts, so that no full device is called empty.

use super::keys::{ObservationSpan, RecordLifetime, WriteEffect};
use super::{DeviceChecker, KeyRequest, PromiseViolation};
use bytes::Bytes;
use headwater_ssd::command::NamespaceId;

/// Bytes of a record beside its key and value, at most.
const RECORD_BYTES: u64 = 64;
/// Wall time after the end of its life in milliseconds by which a record takes no room any more.
const EXPIRY_MS: u64 = 100;

impl DeviceChecker {
    /// Sets the bytes of records that the device has room for, whatever happened before.
    pub fn expect_room(&mut self, bytes: u64) {
        self.room = bytes;
    }

    pub(super) fn check_full(
        &self,
        namespace: NamespaceId,
        keys: &[KeyRequest],
        when: ObservationSpan,
    ) -> Result<(), PromiseViolation> {
        let bytes_of =
            |one: &KeyRequest| one.effect.map_or(0, |effect| record_bytes(&one.key, &effect, when));
        let wanted = keys.iter().map(bytes_of).sum::<u64>();
        let in_use = self.spaces.iter().flat_map(|space| &space.keys).map(|(key, history)| {
            history.writes.iter().map(|write| record_bytes(key, &write.effect, when)).max().unwrap_or(0)
        });
        let in_use = in_use.sum::<u64>();
        if in_use + wanted > self.room {
            return Ok(());
        }
        Err(PromiseViolation::RefusedWithRoom { namespace, wanted, in_use, room: self.room })
    }
}

fn record_bytes(key: &Bytes, effect: &WriteEffect, when: ObservationSpan) -> u64 {
    let value = match effect {
        WriteEffect::Delete => 0,
        WriteEffect::Store(_, RecordLifetime::Until(end))
            if *end > 0 && end + EXPIRY_MS < when.wall_asked.0 =>
        {
            0
        }
        WriteEffect::Store(value, _) => u64::from(value.bytes),
    };
    RECORD_BYTES + key.len() as u64 + value
}
