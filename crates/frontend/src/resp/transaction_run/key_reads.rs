//! The reads of a transaction: the keys that its commands need, before they are run again.
//!
//! Input: keys, and whether their values are needed. Output: records in the view of the transaction.

use super::{MemoryRefusal, RunStage, TransactionRun};
use crate::core_device::CoreDevice;
use crate::resp::errors::{self, ErrorReply};
use crate::resp::limits::{GATHER_IN_FLIGHT_MAX, TRANSACTION_READ_BYTES_MAX};
use crate::resp::operation_step::{DriveResult, OperationContext};
use crate::resp::transaction_databases::WantedKey;
use crate::resp::transaction_errors::{self, exec_abort};
use crate::resp::transaction_view::{KeyDetail, ViewRecord};
use headwater_host::width::narrow;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{ReadRelease, SsdCommand, SsdCompletion, SubmitError};

/// Keys to be read.
#[derive(Debug)]
pub(super) struct KeyReads {
    keys: Vec<WantedKey>,
    submitted: usize,
    outstanding: usize,
    /// True if there is memory for the next value.
    admitted: bool,
    failed: Option<ErrorReply>,
}

impl KeyReads {
    pub(super) fn new(keys: Vec<WantedKey>) -> Self {
        Self { keys, submitted: 0, outstanding: 0, admitted: false, failed: None }
    }
}

impl TransactionRun {
    /// Submits reads of keys; returns the next stage, or the result of the drive.
    pub(super) fn read<S: CoreDevice>(
        &mut self,
        mut reads: KeyReads,
        context: &mut OperationContext<'_, S>,
    ) -> Result<RunStage, DriveResult> {
        while reads.submitted < reads.keys.len()
            && reads.outstanding < GATHER_IN_FLIGHT_MAX
            && reads.failed.is_none()
        {
            let WantedKey { namespace, key, detail } = reads.keys[reads.submitted].clone();
            if detail == KeyDetail::Value && !reads.admitted {
                let bytes = context.shared.large_writes.value_bytes(&*context.device, namespace, &key);
                if self.held + bytes > TRANSACTION_READ_BYTES_MAX {
                    reads.failed = Some(transaction_errors::TOO_MUCH_READ);
                    break;
                }
                match self.take_memory(bytes, context) {
                    Ok(()) => reads.admitted = true,
                    Err(MemoryRefusal::Abort) => {
                        reads.failed = Some(transaction_errors::NO_MEMORY);
                        break;
                    }
                    Err(MemoryRefusal::Wait) => {
                        self.stage = RunStage::Read(reads);
                        return Err(DriveResult::NoRoom);
                    }
                }
            }
            let release = ReadRelease::Speculative;
            let command = match detail {
                KeyDetail::Metadata => SsdCommand::Exist { key, release },
                KeyDetail::Value => SsdCommand::retrieve_whole(key, Vec::new().into(), release),
            };
            match context.submit(narrow(reads.submitted), namespace, command) {
                Ok(()) => {
                    reads.submitted += 1;
                    reads.outstanding += 1;
                    reads.admitted = false;
                }
                Err(SubmitError::Busy(_)) => {
                    let idle = reads.outstanding == 0;
                    self.stage = RunStage::Read(reads);
                    return Err(if idle { DriveResult::Busy } else { DriveResult::Waiting });
                }
                Err(SubmitError::Refused(status)) => reads.failed = Some(errors::from_status(status)),
            }
        }
        if reads.outstanding > 0 {
            self.stage = RunStage::Read(reads);
            return Err(DriveResult::Waiting);
        }
        Ok(match reads.failed {
            Some(failure) => RunStage::Done(exec_abort(&failure).into()),
            None => RunStage::Begin,
        })
    }

    pub(super) fn accept_read(
        &mut self,
        part: u32,
        mut reads: KeyReads,
        completion: SsdCompletion,
    ) -> RunStage {
        reads.outstanding -= 1;
        let WantedKey { namespace, key, detail } = reads.keys[part as usize].clone();
        match completion.status {
            Status::SUCCESS => {
                let (value_bytes, sequence) = (completion.value_bytes, completion.sequence);
                let expiry_ms = completion.expiry_ms;
                let value = (detail == KeyDetail::Value).then(|| completion.sink.into());
                self.databases.learn(
                    namespace,
                    key,
                    Some(ViewRecord { value, value_bytes, sequence, expiry_ms }),
                );
            }
            Status::KEY_DOES_NOT_EXIST => self.databases.learn(namespace, key, None),
            other => reads.failed = Some(errors::from_status(other)),
        }
        RunStage::Read(reads)
    }
}
