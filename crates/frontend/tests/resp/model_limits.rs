//! The limits by which the model of the device refuses commands at submission, as the device does.
//!
//! Input: a command. Output: nothing, or the status of the limit that it exceeds. Invariant: a refused command has no effect.

use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{BatchClear, BatchWrite, SsdCommand};
use headwater_ssd::limits::{KEY_BYTES_MAX, LOG_VALUE_BYTES_MAX};

/// Checks the lengths of keys, and of the values of a batch.
pub(crate) fn check_limits(command: &SsdCommand) -> Result<(), Status> {
    if keys_of(command).iter().flatten().any(|key| key.is_empty() || key.len() > KEY_BYTES_MAX) {
        return Err(Status::INVALID_KEY_SIZE);
    }
    let is_too_long = |write: &BatchWrite| match write {
        BatchWrite::Store { value, .. } => value.len() > LOG_VALUE_BYTES_MAX,
        BatchWrite::Delete { .. } | BatchWrite::Check { .. } => false,
    };
    match command {
        SsdCommand::Batch { writes } | SsdCommand::BatchAcross { writes, .. }
            if writes.iter().any(is_too_long) =>
        {
            Err(Status::INVALID_VALUE_SIZE)
        }
        _ => Ok(()),
    }
}

/// Returns the keys that a command names; `None` if it works on a namespace.
pub(crate) fn keys_of(command: &SsdCommand) -> Option<Vec<&[u8]>> {
    match command {
        SsdCommand::Store { key, .. }
        | SsdCommand::Retrieve { key, .. }
        | SsdCommand::OpenValue { key, .. }
        | SsdCommand::Exist { key, .. }
        | SsdCommand::Delete { key, .. } => Some(vec![key]),
        SsdCommand::BatchAcross { runs, .. } if runs.iter().any(|run| run.clear != BatchClear::No) => None,
        SsdCommand::Batch { writes } | SsdCommand::BatchAcross { writes, .. } => {
            Some(writes.iter().map(|write| &write.key()[..]).collect())
        }
        _ => None,
    }
}
