//! The values of features that the controller stores itself.
//!
//! Input: dwords and data of Set Features. Output: dwords and data of Get Features. Invariant: a read returns the value
//! written, without its reserved bits.

use super::AdminCompletion;
use crate::controller::admin::ControllerConfig;
use crate::controller::interrupts::{InterruptCoalescing, VectorCoalescing};
use crate::controller::schedule::ArbitrationSettings;
use crate::spec::feature::FeatureId;
use crate::spec::status::Status;
use headwater_host::clock::Nanos;
use headwater_host::width::narrow;
use std::collections::BTreeSet;

/// The composite temperature above which a warning is due, kelvin: 85 degrees Celsius.
pub(in crate::controller::admin) const WARNING_TEMPERATURE: u16 = 358;
/// The number of defined bytes of the Host Behavior Support data: ACRE, ETDAS, LBAFEE.
const HOST_BEHAVIOR_BYTES: usize = 3;
/// The mask of a timestamp: 48 bits of milliseconds.
const TIMESTAMP_BITS: u64 = (1 << 48) - 1;

/// A timestamp and the time at which it was set.
#[derive(Clone, Copy, Debug)]
struct TimestampSetting {
    millis: u64,
    set_at: Nanos,
    /// Timestamp Origin: true if a host set it.
    was_set: bool,
}

/// The stored feature values.
#[derive(Clone, Debug)]
pub(in crate::controller::admin) struct FeatureValues {
    arbitration: u32,
    over_temperature: u16,
    under_temperature: u16,
    error_recovery: u32,
    io_queues: u16,
    interrupt_vectors: u16,
    coalescing: u32,
    uncoalesced: BTreeSet<u16>,
    write_atomicity: u32,
    async_events: u32,
    timestamp: TimestampSetting,
    host_behavior: [u8; HOST_BEHAVIOR_BYTES],
    host_identifier: [u8; 16],
}

impl FeatureValues {
    /// Returns the defaults, with the timestamp 0 at `now`.
    pub(in crate::controller::admin) fn new(config: &ControllerConfig, now: Nanos) -> Self {
        Self {
            // A burst of 8, all weights 1.
            arbitration: 3,
            over_temperature: WARNING_TEMPERATURE,
            under_temperature: 0,
            error_recovery: 0,
            io_queues: config.io_queues_max,
            interrupt_vectors: config.interrupt_vectors,
            coalescing: 0,
            uncoalesced: BTreeSet::new(),
            write_atomicity: 0,
            async_events: 0,
            timestamp: TimestampSetting { millis: 0, set_at: now, was_set: false },
            host_behavior: [0; HOST_BEHAVIOR_BYTES],
            host_identifier: [0; 16],
        }
    }

    pub(in crate::controller::admin) fn arbitration(&self) -> ArbitrationSettings {
        ArbitrationSettings::from_dword(self.arbitration)
    }

    pub(in crate::controller::admin) fn coalescing(&self) -> InterruptCoalescing {
        InterruptCoalescing::from_dword(self.coalescing)
    }

    pub(in crate::controller::admin) fn vector_coalescing(&self, vector: u16) -> VectorCoalescing {
        if self.uncoalesced.contains(&vector) {
            VectorCoalescing::Disabled
        } else {
            VectorCoalescing::Enabled
        }
    }

    pub(in crate::controller::admin) fn io_queues(&self) -> u16 {
        self.io_queues
    }

    pub(in crate::controller::admin) fn grant_io_queues(&mut self, queues: u16) {
        self.io_queues = queues;
    }

    /// Returns NSQA and NCQA, 0's based.
    pub(in crate::controller::admin) fn number_of_queues(&self) -> u32 {
        let less_one = u32::from(self.io_queues.saturating_sub(1));
        less_one << 16 | less_one
    }

    pub(in crate::controller::admin) fn async_events(&self) -> u32 {
        self.async_events
    }

    pub(in crate::controller::admin) fn host_identifier(&self) -> [u8; 16] {
        self.host_identifier
    }

    pub(in crate::controller::admin) fn set_host_identifier(&mut self, identifier: [u8; 16]) {
        self.host_identifier = identifier;
    }

    /// Returns the current value. `dword` is CDW11, which selects among several values of some features.
    pub(super) fn get(&self, feature: FeatureId, dword: u32, now: Nanos) -> Result<AdminCompletion, Status> {
        let result = match feature {
            FeatureId::Arbitration => self.arbitration,
            FeatureId::TemperatureThreshold => self.temperature(dword)?,
            FeatureId::ErrorRecovery => self.error_recovery,
            FeatureId::NumberOfQueues => self.number_of_queues(),
            FeatureId::InterruptCoalescing => self.coalescing,
            FeatureId::InterruptVector => {
                let vector = self.vector_of(dword)?;
                u32::from(vector) | u32::from(self.uncoalesced.contains(&vector)) << 16
            }
            FeatureId::WriteAtomicity => self.write_atomicity,
            FeatureId::AsyncEvents => self.async_events,
            FeatureId::Timestamp => return Ok(AdminCompletion::with_data(self.timestamp_data(now))),
            FeatureId::HostBehavior => {
                let mut data = self.host_behavior.to_vec();
                data.resize(512, 0);
                return Ok(AdminCompletion::with_data(data));
            }
            FeatureId::HostIdentifier => {
                let bytes = if dword & 1 == 1 { 16 } else { 8 };
                return Ok(AdminCompletion::with_data(self.host_identifier[..bytes].to_vec()));
            }
            // One power state, one profile; the other values are stored elsewhere.
            FeatureId::PowerManagement
            | FeatureId::CommandSetProfile
            | FeatureId::WriteCache
            | FeatureId::KeepAliveTimer
            | FeatureId::KeyValueConfiguration => 0,
        };
        Ok(AdminCompletion::with_result(result))
    }

    /// Sets a value. `data` has the feature's length.
    pub(super) fn set(
        &mut self,
        feature: FeatureId,
        dword: u32,
        data: &[u8],
        now: Nanos,
    ) -> Result<(), Status> {
        match feature {
            FeatureId::Arbitration => self.arbitration = dword & 0xFFFF_FF07,
            FeatureId::PowerManagement if dword & 0x1F != 0 => return Err(Status::INVALID_FIELD),
            FeatureId::TemperatureThreshold => self.set_temperature(dword)?,
            // DULBE is refused: deallocated blocks read as zeroes here (NSFEAT bit 2 is 0).
            FeatureId::ErrorRecovery if dword & 1 << 16 != 0 => return Err(Status::INVALID_FIELD),
            FeatureId::ErrorRecovery => self.error_recovery = dword & 0xFFFF,
            FeatureId::InterruptCoalescing => self.coalescing = dword & 0xFFFF,
            FeatureId::InterruptVector => {
                let vector = self.vector_of(dword)?;
                if dword & 1 << 16 == 0 {
                    self.uncoalesced.remove(&vector);
                } else {
                    self.uncoalesced.insert(vector);
                }
            }
            FeatureId::WriteAtomicity => self.write_atomicity = dword & 1,
            FeatureId::AsyncEvents => self.async_events = dword,
            FeatureId::Timestamp => {
                let mut millis = [0; 8];
                for (byte, value) in millis.iter_mut().zip(data.iter().take(6)) {
                    *byte = *value;
                }
                self.timestamp =
                    TimestampSetting { millis: u64::from_le_bytes(millis), set_at: now, was_set: true };
            }
            FeatureId::HostBehavior => {
                for (stored, &value) in self.host_behavior.iter_mut().zip(data) {
                    *stored = value & 1;
                }
            }
            FeatureId::HostIdentifier => {
                let bytes = if dword & 1 == 1 { 16 } else { 8 };
                self.host_identifier = [0; 16];
                for (stored, &value) in self.host_identifier.iter_mut().zip(data.iter().take(bytes)) {
                    *stored = value;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns IV of an Interrupt Vector Configuration, in range.
    fn vector_of(&self, dword: u32) -> Result<u16, Status> {
        u16::try_from(dword & 0xFFFF)
            .ok()
            .filter(|&vector| vector < self.interrupt_vectors)
            .ok_or(Status::INVALID_FIELD)
    }

    /// Reads a threshold. TMPSEL 0 is the composite temperature, the only sensor. THSEL 0 is over, 1 under.
    fn temperature(&self, dword: u32) -> Result<u32, Status> {
        match (dword >> 16 & 0xF, dword >> 20 & 0b11) {
            (0, 0) => Ok(u32::from(self.over_temperature)),
            (0, 1) => Ok(u32::from(self.under_temperature)),
            _ => Err(Status::INVALID_FIELD),
        }
    }

    fn set_temperature(&mut self, dword: u32) -> Result<(), Status> {
        let threshold = narrow(dword & 0xFFFF);
        match (dword >> 16 & 0xF, dword >> 20 & 0b11) {
            // TMPSEL Fh selects all sensors.
            (0 | 0xF, 0) => self.over_temperature = threshold,
            (0 | 0xF, 1) => self.under_temperature = threshold,
            _ => return Err(Status::INVALID_FIELD),
        }
        Ok(())
    }

    /// Encodes figure 332: 48 bits of milliseconds, then Synch and Timestamp Origin.
    fn timestamp_data(&self, now: Nanos) -> Vec<u8> {
        let TimestampSetting { millis, set_at: at, was_set } = self.timestamp;
        let now_millis = millis.wrapping_add(now.since(at).0 / 1_000_000) & TIMESTAMP_BITS;
        let origin = if was_set { 0b001 << 1 } else { 0 };
        let mut data = now_millis.to_le_bytes();
        data[6] = origin;
        data.to_vec()
    }
}
