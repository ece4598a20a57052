//! The batches of the model of the device.
//!
//! Input: a batch of one namespace or of several. Output: the completion. Invariant: all of the writes happen, or none;
//! conditions are decided first, and writes come behind all clears.

use crate::model::KvDeviceModel;
use headwater_host::clock::UnixMillis;
use headwater_ssd::command::{BatchClear, BatchWrite, NamespaceId, NamespaceRun, SsdCommand, SsdCompletion};

impl KvDeviceModel {
    /// Carries out a batch, and sets position and status of its completion.
    pub(crate) fn batch(
        &mut self,
        namespace: NamespaceId,
        command: SsdCommand,
        wall: UnixMillis,
        completion: &mut SsdCompletion,
    ) {
        let (writes, runs) = match command {
            SsdCommand::BatchAcross { writes, runs } => (writes, runs),
            SsdCommand::Batch { writes } => {
                let end = writes.len();
                (writes, vec![NamespaceRun { namespace, end, clear: BatchClear::No }])
            }
            other => panic!("{other:?} is no batch"),
        };
        let namespace_of = |at: usize| runs.iter().find(|run| at < run.end).unwrap().namespace;
        let mut keys: Vec<(NamespaceId, &[u8])> = Vec::new();
        for (at, write) in writes.iter().enumerate() {
            let (BatchWrite::Store { key, condition, .. }
            | BatchWrite::Delete { key, condition }
            | BatchWrite::Check { key, condition }) = write;
            let namespace = namespace_of(at);
            assert!(!keys.contains(&(namespace, &key[..])), "a batch names a key twice");
            keys.push((namespace, key));
            completion.status = self.check(namespace, key, *condition, wall);
            if !completion.status.is_success() {
                completion.position = u32::try_from(at).unwrap();
                return;
            }
        }
        for run in runs.iter().filter(|run| run.clear == BatchClear::BeforeWrites) {
            self.clear(run.namespace);
        }
        for (at, write) in writes.iter().enumerate() {
            match write {
                BatchWrite::Store { key, value, expiry, .. } => {
                    self.put(namespace_of(at), key, value, *expiry, wall);
                }
                BatchWrite::Delete { key, .. } => self.remove(namespace_of(at), key),
                BatchWrite::Check { .. } => {}
            }
        }
    }
}
