//! `headwater device check`: every record of a stopped node, read and summed again.
//!
//! In: an open device; opening it has read the log and rebuilt the index. Out: a [`CheckReport`]. Every key that the index
//! names is retrieved, which compares its checksum and its full key; the keys found are counted against the index's own
//! count.

use crate::core_device::CoreDevice;
use crate::pipeline::{PipelineError, carry_out};
use headwater_converged::command::{Command, ListPosition, NamespaceId, Release};
use headwater_converged::limits::{NAMESPACES, VALUE_BYTES_MAX};
use headwater_host::clock::Clock;
use headwater_nvme::spec::status::Status;
use serde::Serialize;
use std::fmt;

const KEYS_A_TURN: u32 = 256;

/// What was found in one namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NamespaceCheck {
    /// Its number, from 1.
    pub namespace: u8,
    /// Keys the index counts.
    pub counted: u64,
    /// Keys whose record is whole.
    pub whole: u64,
    /// Bytes of their values.
    pub bytes: u64,
    /// Keys whose record is damaged.
    pub damaged: u64,
    /// Keys that ceased to exist while they were looked at.
    pub expired: u64,
}

/// What was found on a device.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CheckReport {
    /// Each namespace that has keys.
    pub namespaces: Vec<NamespaceCheck>,
    /// Records whose checksum did not match, whether a key still needs them or not.
    pub damaged_records: u64,
    /// Blocks set aside because a live record in them cannot be read.
    pub quarantined_blocks: u64,
    /// Bytes of live records.
    pub live_bytes: u64,
    /// Blocks free.
    pub free_blocks: u32,
}

impl CheckReport {
    /// Whether every key the index names has a whole record.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.quarantined_blocks == 0
            && self
                .namespaces
                .iter()
                .all(|found| found.damaged == 0 && found.counted == found.whole + found.expired)
    }
}

/// Reads everything; `progress` hears keys and bytes.
///
/// # Errors
/// When the device cannot go on.
pub fn check<D: CoreDevice>(
    device: &mut D,
    clock: &Clock,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<CheckReport, PipelineError> {
    let mut report = CheckReport::default();
    let mut done = (0, 0);
    for number in (1u8..).take(NAMESPACES) {
        let mut found = NamespaceCheck { namespace: number, ..NamespaceCheck::default() };
        let counts = device.stats().keys;
        found.counted = counts.get(NamespaceId(number).index()).copied().unwrap_or(0);
        check_namespace(device, clock, &mut found, &mut |keys, bytes| {
            done.0 += keys;
            done.1 += bytes;
            progress(done.0, done.1);
        })?;
        if found.counted > 0 || found.whole > 0 || found.damaged > 0 {
            report.namespaces.push(found);
        }
    }
    let stats = device.stats();
    report.damaged_records = stats.damaged;
    report.quarantined_blocks = stats.quarantined;
    report.live_bytes = stats.live_bytes;
    report.free_blocks = stats.free_blocks;
    Ok(report)
}

fn check_namespace<D: CoreDevice>(
    device: &mut D,
    clock: &Clock,
    found: &mut NamespaceCheck,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), PipelineError> {
    let namespace = NamespaceId(found.namespace);
    let mut next = Some(ListPosition::START);
    while let Some(from) = next {
        let list = Command::List { from, keys_max: KEYS_A_TURN };
        let Some(listed) = carry_out(device, clock, namespace, std::iter::once(list))?.pop() else {
            break;
        };
        if !listed.status.is_success() {
            return Err(PipelineError::Refused(listed.status));
        }
        next = listed.next;
        let keys = u64::try_from(listed.keys.len()).unwrap_or(0);
        let retrieves = listed.keys.into_iter().map(|listed| Command::Retrieve {
            key: listed.key,
            sink: Vec::new().into(),
            bytes_max: u32::try_from(VALUE_BYTES_MAX).unwrap_or(u32::MAX),
            release: Release::WhenDurable,
        });
        let before = found.bytes;
        for completion in carry_out(device, clock, namespace, retrieves)? {
            match completion.status {
                status if status.is_success() => {
                    found.whole += 1;
                    found.bytes += u64::from(completion.value_bytes);
                }
                Status::KEY_DOES_NOT_EXIST => found.expired += 1,
                _ => found.damaged += 1,
            }
        }
        progress(keys, found.bytes - before);
    }
    Ok(())
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:>9} {:>12} {:>12} {:>10} {:>10} {:>16}",
            "namespace", "counted", "whole", "damaged", "expired", "value bytes"
        )?;
        for found in &self.namespaces {
            writeln!(
                f,
                "{:>9} {:>12} {:>12} {:>10} {:>10} {:>16}",
                found.namespace, found.counted, found.whole, found.damaged, found.expired, found.bytes
            )?;
        }
        write!(
            f,
            "{} damaged records, {} blocks set aside, {} bytes live, {} blocks free: {}",
            self.damaged_records,
            self.quarantined_blocks,
            self.live_bytes,
            self.free_blocks,
            if self.is_whole() { "whole" } else { "NOT WHOLE" }
        )
    }
}
