//! Questions that callers ask of a device between two turns.
//!
//! Input: a device. Output: its state, its settings and its parts. Invariant: nothing here runs a stage.

use super::administration::AdminState;
use super::trace::StageTrace;
use super::{DeviceStats, OpeningReads, SsdDevice};
use crate::command::NamespaceId;
use crate::ftl::Ftl;
use crate::ftl::namespace_table::NamespaceDefinition;
use crate::index::RecordIndex;
use crate::limits::NAMESPACES;
use crate::media::{Media, MediaError};
use crate::namespace::{Namespace, NamespaceKind};
use headwater_host::clock::{Nanos, UnixMillis};

impl<M: Media> SsdDevice<M> {
    /// Returns the next time at which the device has work without outside input: a durability interval, a command that
    /// waits for the limits of its namespace, a read that is repeated, a commit that waits for more commands, a job of the mover
    /// on a channel that must be polled, or a simulated media event. `None` if only a command or a media completion creates work. Expiry is wall time: see [`next_expiry`](Self::next_expiry).
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        let limits = self.throttle.next_start();
        let of_ftl =
            [self.ftl.victim_retry_at(), self.ftl.idle_record_due(), self.ftl.commit_gathers_until(self.now)];
        let of_ftl = of_ftl.into_iter().flatten().chain(self.ftl.media().next_event());
        let of_ftl = of_ftl.chain(self.ftl.moves_due(self.now));
        self.interval_due.into_iter().chain(limits).chain(of_ftl).min()
    }

    /// Returns the wall time at which the next key expires, if any key has an expiry.
    #[must_use]
    pub fn next_expiry(&self) -> Option<UnixMillis> {
        self.ftl.expiry().next_expiry_ms().map(UnixMillis)
    }

    /// Returns true if there are keys that have expired and are not removed yet.
    #[must_use]
    pub fn is_expiring(&self, wall: UnixMillis) -> bool {
        self.schedule.expiries_in_flight > 0 || self.next_expiry().is_some_and(|next| next <= wall)
    }

    /// Returns a namespace's settings; `None` if hosts see no namespace under this number.
    #[must_use]
    pub fn namespace(&self, namespace: NamespaceId) -> Option<Namespace> {
        if namespace.index() >= NAMESPACES {
            return None;
        }
        let seen = namespace == NamespaceId::FIRST || self.keys(namespace) > 0;
        match self.ftl.namespace_table().visible(namespace) {
            NamespaceDefinition::Implicit => seen.then_some(Namespace::IMPLICIT),
            NamespaceDefinition::Created(made) => Some(made),
            NamespaceDefinition::Damaged => None,
        }
    }

    /// Returns a counter that grows whenever a result of [`namespace`](Self::namespace) changes.
    #[must_use]
    pub fn namespace_generation(&self) -> u64 {
        self.ftl.namespace_table().generation()
    }

    /// Returns the used part of a namespace in the unit of its [`size`](Namespace::size): written blocks, or bytes of
    /// records.
    #[must_use]
    pub fn namespace_usage(&self, namespace: NamespaceId) -> u64 {
        let state = self.ftl.counts().get(namespace.index()).copied().unwrap_or_default();
        match self.ftl.namespace_table().get(namespace) {
            NamespaceDefinition::Created(Namespace { kind: NamespaceKind::Block(_), .. }) => state.keys,
            _ => state.bytes,
        }
    }

    /// Returns the number of keys of a key space, or of written blocks of a block namespace.
    #[must_use]
    pub fn keys(&self, namespace: NamespaceId) -> u64 {
        self.ftl.counts().get(namespace.index()).map_or(0, |state| state.keys)
    }

    /// Returns the list position of a key in the device's order, whether the key exists or not.
    #[must_use]
    pub fn list_position_of(&self, namespace: NamespaceId, key: &[u8]) -> crate::command::ListPosition {
        crate::command::ListPosition(self.ftl.hasher().hash(namespace, key).0)
    }

    /// Returns true if every record of a namespace has at most [`SHORT_RECORD_BYTES`](crate::limits::SHORT_RECORD_BYTES)
    /// bytes, header included. Operations in flight do not count.
    #[must_use]
    #[inline]
    pub fn has_only_short_records(&self, namespace: NamespaceId) -> bool {
        self.ftl.counts().get(namespace.index()).is_some_and(|state| state.long == 0)
    }

    /// Returns the bytes of a key's record, header and extents included, from one probe of the index; 0 if there is none. If another
    /// key has the same hash of 60 bits, the bytes may be those of its record. Operations in flight do not count.
    #[must_use]
    #[inline]
    pub fn record_bytes(&self, namespace: NamespaceId, key: &[u8]) -> usize {
        let hash = self.ftl.hasher().hash(namespace, key);
        let record = self.ftl.index().find(hash, 0).filter(|entry| !self.ftl.is_clearing(entry.namespace));
        record.map_or(0, |entry| self.ftl.stored_bytes(entry))
    }

    /// Returns the number of operations in flight, without completions that wait for durability.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.operations.len()
    }

    /// Schedules a checkpoint, which later calls of [`poll`](Self::poll) write.
    pub fn request_checkpoint(&mut self) {
        self.checkpointer.request();
    }

    /// Returns the failure after which the device refuses all writes, if there was one.
    #[must_use]
    pub fn failure(&self) -> Option<MediaError> {
        self.ftl.failure()
    }

    /// Returns the reads that failed when the device was opened.
    #[must_use]
    pub fn opening_reads(&self) -> &OpeningReads {
        &self.opening_reads
    }

    /// Returns what the opening found lost or damaged.
    #[must_use]
    pub fn opening_losses(&self) -> &super::OpeningLosses {
        &self.opening_losses
    }

    /// Returns the number of namespaces of which records may be lost: some of their keys are answered with errors.
    #[must_use]
    pub fn namespaces_in_doubt(&self) -> usize {
        self.ftl.doubts().namespaces()
    }

    /// Returns the stage times of the last sampled request.
    #[must_use]
    pub fn trace(&self) -> Option<StageTrace> {
        self.tracer.last()
    }

    /// Returns the flash translation layer, for the NVMe side.
    pub(crate) fn ftl(&self) -> &Ftl<M> {
        &self.ftl
    }

    /// Returns the flash translation layer, for the NVMe side.
    pub(crate) fn ftl_mut(&mut self) -> &mut Ftl<M> {
        &mut self.ftl
    }

    /// Returns the state that no single namespace owns.
    pub(crate) fn administration(&self) -> &AdminState {
        &self.administration
    }

    /// Returns the state that no single namespace owns.
    pub(crate) fn administration_mut(&mut self) -> &mut AdminState {
        &mut self.administration
    }

    /// Returns the time of the last turn.
    pub(crate) fn now(&self) -> Nanos {
        self.now
    }

    /// Returns the medium.
    pub fn media(&self) -> &M {
        self.ftl.media()
    }

    /// Returns the medium, so that a simulator can inject faults.
    pub fn media_mut(&mut self) -> &mut M {
        self.ftl.media_mut()
    }

    /// Returns the index, for tests that damage it.
    #[cfg(test)]
    pub(crate) fn index_mut(&mut self) -> &mut crate::index::CompositeIndex {
        self.ftl.index_mut()
    }

    /// Returns the medium as a power cut would leave it.
    pub fn into_media(self) -> M {
        self.ftl.into_media()
    }

    /// Returns the device's counters.
    #[must_use]
    pub fn stats(&self) -> DeviceStats {
        let mut stats = self.ftl.stats();
        stats.completed = self.release_queue.pushed();
        (stats.cache_hits, stats.cache_misses) = self.schedule.cache_hits_and_misses();
        stats.no_room = self.schedule.no_room();
        (stats.checkpoints, stats.checkpoint_pages) = self.checkpointer.counts();
        stats.gated = self.release_queue.gated() as u64;
        stats.in_flight = self.operations.len() as u64;
        stats.namespaces_in_doubt = self.namespaces_in_doubt() as u64;
        stats.lost_pages = self.opening_losses.lost_pages();
        stats.damaged_copies = self.opening_losses.damaged_copies() + self.ftl.media().damaged_copies();
        stats.registered_memory = self.ftl.media().registered_memory();
        stats
    }
}
