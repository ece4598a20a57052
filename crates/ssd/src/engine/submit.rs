//! The checks of commands that are submitted, and the submission of checked batches.
//!
//! Input: commands of front ends. Output: operations in the queue of new ones, or in that of a namespace with limits.
//! Invariant: an accepted command is inside the limits, and a refused one leaves no trace.

use super::SsdDevice;
use super::batch_keys::BatchKeys;
use super::keyed_batch::KeyedBatch;
use super::operation::OperationWork;
use crate::command::{FrontEndId, NamespaceId, SsdCommand, SubmitError, ValueSource};
use crate::limits::OPERATIONS_MAX;
use crate::media::Media;
use headwater_nvme::spec::status::Status;

impl<M: Media> SsdDevice<M> {
    /// Submits a batch whose keys the front end had hashed with [`hash_keys`](Self::hash_keys). `Ok` means that exactly one
    /// completion follows; `Err` means that none does.
    ///
    /// # Errors
    /// Those of [`submit`](Self::submit).
    pub fn submit_batch(
        &mut self,
        front_end: FrontEndId,
        token: u64,
        batch: KeyedBatch,
    ) -> Result<(), SubmitError> {
        let namespace = batch.namespace();
        let parts = batch.into_parts(self.ftl.hasher(), self.batch_limits());
        let (writes, keys) = parts.map_err(SubmitError::Refused)?;
        self.submit_keyed(front_end, namespace, token, (SsdCommand::Batch { writes }, keys))
    }

    /// Hashes the keys of the writes that were appended to a batch since the last call.
    pub fn hash_keys(&self, batch: &mut KeyedBatch) {
        batch.hash_keys(self.ftl.hasher());
    }

    /// Submits a command, perhaps a batch whose keys are checked.
    #[inline]
    pub(super) fn submit_keyed(
        &mut self,
        front_end: FrontEndId,
        namespace: NamespaceId,
        token: u64,
        (command, keys): (SsdCommand, Option<Box<BatchKeys>>),
    ) -> Result<(), SubmitError> {
        self.check_limits(namespace, &command).map_err(SubmitError::Refused)?;
        if self.operations.is_full() {
            return Err(SubmitError::Busy(OPERATIONS_MAX));
        }
        let has_limits = |namespace| self.ftl.namespace_table().limits(namespace).is_some();
        let mut throttled = self.throttle.waiting > 0 || has_limits(namespace);
        if let SsdCommand::BatchAcross { runs, .. } = &command {
            throttled |= runs.iter().any(|run| has_limits(run.namespace));
        }
        if throttled {
            self.throttle.check_room(namespace, &command)?;
        }
        let work = OperationWork::Command(command);
        let at = self.operations.begin((front_end, token), namespace, work, self.now);
        if let Err(status) = self.prepare_operation(at, keys) {
            self.operations.withdraw(at);
            return Err(SubmitError::Refused(status));
        }
        if throttled {
            self.admit(at);
        } else {
            self.schedule.incoming.push_back(at);
        }
        Ok(())
    }

    /// Computes what an operation that begins needs, and checks it.
    #[inline]
    fn prepare_operation(&mut self, at: usize, keys: Option<Box<BatchKeys>>) -> Result<(), Status> {
        let operation = &mut self.operations[at];
        operation.format = self.ftl.namespace_table().format(operation.namespace);
        operation.batch_keys = keys;
        operation.compute_spans(self.ftl.hasher())?;
        if !operation.is_checked() {
            let checks = self.batch_checks();
            self.operations[at].check_part(checks)?;
        }
        let operation = &mut self.operations[at];
        if let OperationWork::Command(SsdCommand::Store {
            value: ValueSource::Received { receipt, .. },
            ..
        }) = &operation.work
        {
            operation.extent_store = Some(self.ftl.take_receipt(receipt)?);
        }
        Ok(())
    }
}
