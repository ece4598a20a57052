//! The databases as the commands of a transaction see them: a view of each one that they work on.
//!
//! Input: the device commands of the transaction's commands, and records read from the device. Output: their completions,
//! the keys that must be read first, and the batch of all databases. Invariant: a command meets the view of its namespace.

use super::transaction::WatchedKeys;
use super::transaction_batch::TransactionBatch;
use super::transaction_view::{KeyDetail, KeyRange, TransactionView, ViewRecord, unchanged};
use crate::core_device::{CoreDevice, CoreWork};
use bytes::Bytes;
use headwater_host::clock::{Clock, Nanos, UnixMillis};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{BatchWrite, FrontEndId, NamespaceId, SsdCommand, SsdCompletion, SubmitError};
use headwater_ssd::engine::DeviceStats;
use std::collections::{BTreeMap, BTreeSet};

/// A key to be read.
#[derive(Clone, Debug)]
pub(crate) struct WantedKey {
    pub(crate) namespace: NamespaceId,
    pub(crate) key: Bytes,
    pub(crate) detail: KeyDetail,
}

/// The views of a transaction.
#[derive(Debug, Default)]
pub(crate) struct TransactionDatabases {
    wall: UnixMillis,
    views: BTreeMap<NamespaceId, TransactionView>,
    /// True if the present command counts keys of a database, and keys of the device have expired and are not removed yet.
    is_expiring: bool,
    /// The namespaces that are no databases, which are never cleared.
    block_namespaces: BTreeSet<NamespaceId>,
}

impl TransactionDatabases {
    /// Returns the view of a namespace, in which nothing is known if it is new.
    pub(crate) fn view(&mut self, namespace: NamespaceId) -> &mut TransactionView {
        let wall = self.wall;
        self.views.entry(namespace).or_insert_with(|| {
            let mut view = TransactionView::new(namespace);
            view.begin_run(wall);
            view
        })
    }

    /// Clears all changes: the commands are run from the first one again.
    pub(crate) fn begin_run(&mut self, wall: UnixMillis) {
        self.wall = wall;
        self.views.values_mut().for_each(|view| view.begin_run(wall));
    }

    /// Stores the number of keys that the device has in a namespace, which the present command counts, and whether keys of
    /// the device have expired and are not removed yet.
    pub(crate) fn count_device_keys(&mut self, namespace: NamespaceId, keys: u64, is_expiring: bool) {
        let view = self.view(namespace);
        view.count_device_keys(keys);
        // No key of the device counts behind a clear.
        self.is_expiring = is_expiring && !view.is_cleared();
    }

    /// Notes which namespaces are no databases, for a command that clears.
    pub(crate) fn set_block_namespaces(&mut self, namespaces: BTreeSet<NamespaceId>) {
        self.block_namespaces = namespaces;
    }

    /// Returns true if a command of this run needed a key that was not read.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.views.values().any(TransactionView::is_incomplete)
    }

    /// Returns the bytes of values copied in this run.
    pub(crate) fn copied(&self) -> usize {
        self.views.values().map(TransactionView::copied).sum()
    }

    /// Returns the keys that the present command lists, if it waits for them.
    pub(crate) fn listing(&self) -> Option<(NamespaceId, KeyRange)> {
        self.views.iter().find_map(|(namespace, view)| Some((*namespace, view.listing()?)))
    }

    /// Applies the changes to a list of the device's keys, which ends the wait of the command that lists them.
    pub(crate) fn finish_listing(&mut self, completion: &mut SsdCompletion) {
        let waiting = self.views.values_mut().find(|view| view.listing().is_some());
        let Some(view) = waiting else {
            unreachable!("keys were listed for a transaction that waits for none");
        };
        view.finish_listing(completion);
    }

    /// Takes the keys to read before the next run.
    pub(crate) fn take_wanted(&mut self) -> Vec<WantedKey> {
        self.collect(TransactionView::take_wanted)
    }

    /// Forgets everything; returns the keys that were known, to be read again.
    pub(crate) fn forget(&mut self) -> Vec<WantedKey> {
        self.collect(TransactionView::forget)
    }

    fn collect<I: Iterator<Item = (Bytes, KeyDetail)>>(
        &mut self,
        keys_of: impl Fn(&mut TransactionView) -> I,
    ) -> Vec<WantedKey> {
        let keys = self.views.iter_mut().flat_map(|(&namespace, view)| {
            keys_of(view).map(move |(key, detail)| WantedKey { namespace, key, detail })
        });
        keys.collect()
    }

    /// Notes what the device has under a key.
    pub(crate) fn learn(&mut self, namespace: NamespaceId, key: Bytes, record: Option<ViewRecord>) {
        self.view(namespace).learn(key, record);
    }

    /// Returns the batch that makes the changes, if every key read and every watched key is unchanged. It clears a database
    /// before all writes: of the changes before a clear nothing is left, so that those behind it are all there are.
    pub(crate) fn batch(&self, watched: &WatchedKeys) -> TransactionBatch {
        let mut batch = TransactionBatch::default();
        for ((namespace, key), seen) in &watched.keys {
            let (condition, view) = (unchanged(*seen), self.views.get(namespace));
            let check = || BatchWrite::Check { key: key.clone(), condition };
            batch.push(*namespace, view.map_or_else(check, |view| view.write(key, condition)));
        }
        batch.end_watched();
        for (namespace, view) in &self.views {
            if view.is_cleared() {
                batch.clear(*namespace);
            }
            view.writes(watched).for_each(|write| batch.push(*namespace, write));
        }
        batch
    }

    /// Executes a device command.
    ///
    /// # Errors
    /// The status of the limit that the command exceeds.
    pub(crate) fn execute(
        &mut self,
        namespace: NamespaceId,
        command: SsdCommand,
    ) -> Result<SsdCompletion, Status> {
        self.view(namespace).execute(command)
    }
}

impl CoreDevice for TransactionDatabases {
    fn submit(
        &mut self,
        _front_end: FrontEndId,
        namespace: NamespaceId,
        token: u64,
        command: SsdCommand,
    ) -> Result<(), SubmitError> {
        if matches!(command, SsdCommand::Clear) && self.block_namespaces.contains(&namespace) {
            return Err(SubmitError::Refused(Status::INVALID_NAMESPACE));
        }
        self.view(namespace).submit(token, command)
    }

    fn has_room(&self, _namespace: NamespaceId, _command: &SsdCommand) -> bool {
        true
    }

    fn value_bytes(&self, namespace: NamespaceId, key: &[u8]) -> usize {
        self.views.get(&namespace).map_or(0, |view| view.value_bytes(key))
    }

    fn batch_bytes_max(&self) -> usize {
        // The batch of the whole transaction is checked when it is submitted.
        usize::MAX
    }

    fn next_completion(&mut self, _front_end: FrontEndId) -> Option<SsdCompletion> {
        self.views.values_mut().find_map(TransactionView::next_completion)
    }
}

impl CoreWork for TransactionDatabases {
    fn poll(&mut self, _now: Nanos, _wall: UnixMillis) -> bool {
        false
    }

    fn is_expiring(&self, _wall: UnixMillis) -> bool {
        self.is_expiring
    }

    fn stats(&self) -> DeviceStats {
        let mut stats = DeviceStats::default();
        for (namespace, view) in &self.views {
            stats.keys[namespace.index()] = view.key_count();
        }
        stats
    }

    fn shutdown(&mut self, _clock: &Clock) -> Result<(), String> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WALL: UnixMillis = UnixMillis(1_000);

    fn count(databases: &TransactionDatabases, namespace: NamespaceId) -> u64 {
        CoreWork::stats(databases).keys[namespace.index()]
    }

    #[test]
    fn count_of_one_database_does_not_wait_for_what_had_expired_at_the_count_of_another() {
        // The flag of the first database stayed set, and delayed the count of the second one.
        let mut databases = TransactionDatabases::default();
        databases.begin_run(WALL);
        databases.count_device_keys(NamespaceId(1), 5, true);
        assert!(databases.is_expiring(WALL));
        databases.count_device_keys(NamespaceId(2), 7, false);
        assert!(!databases.is_expiring(WALL));
        assert_eq!(count(&databases, NamespaceId(1)), 5);
        assert_eq!(count(&databases, NamespaceId(2)), 7);
    }

    #[test]
    fn count_of_a_cleared_database_waits_for_no_key_of_the_device() {
        let mut databases = TransactionDatabases::default();
        databases.begin_run(WALL);
        databases.execute(NamespaceId(1), SsdCommand::Clear).unwrap();
        databases.count_device_keys(NamespaceId(1), 5, true);
        assert!(!databases.is_expiring(WALL));
        assert_eq!(count(&databases, NamespaceId(1)), 0);
        databases.count_device_keys(NamespaceId(2), 7, true);
        assert!(databases.is_expiring(WALL), "the other database has keys of the device");
        databases.begin_run(WALL);
        databases.count_device_keys(NamespaceId(1), 5, true);
        assert!(databases.is_expiring(WALL), "a new run begins with what the device has");
        assert_eq!(count(&databases, NamespaceId(1)), 5);
    }
}
