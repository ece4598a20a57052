//! Detection of namespaces that changed since the host last read the list (NVMe Base 2.0 section 5.16.1.5).
//!
//! Input: the subsystem, at each poll. Output: the list of changed namespaces, and an indication of new changes.
//! Invariant: the namespaces are compared only when the subsystem's generation changes.

use crate::controller::admin::subsystem::{NamespaceProperties, NvmSubsystem};
use std::collections::{BTreeMap, BTreeSet};

/// The namespaces that one controller last saw.
#[derive(Clone, Debug, Default)]
pub(super) struct NamespaceWatch {
    generation: Option<u64>,
    last_seen: BTreeMap<u32, NamespaceProperties>,
    changed: BTreeSet<u32>,
}

/// The outcome of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatchOutcome {
    /// No change that the host must receive.
    Unchanged,
    /// Namespaces were attached, detached or changed.
    Changed,
}

impl NamespaceWatch {
    /// Compares with the last call. The first call only stores the namespaces.
    pub(super) fn update(&mut self, subsystem: &impl NvmSubsystem, controller: u16) -> WatchOutcome {
        let generation = subsystem.generation();
        if self.generation == Some(generation) {
            return WatchOutcome::Unchanged;
        }
        let is_first = self.generation.replace(generation).is_none();
        let now = attached(subsystem, controller);
        let before = std::mem::replace(&mut self.last_seen, now);
        if is_first {
            return WatchOutcome::Unchanged;
        }
        let different = before.keys().chain(self.last_seen.keys()).copied();
        let different: Vec<u32> =
            different.filter(|nsid| before.get(nsid) != self.last_seen.get(nsid)).collect();
        self.changed.extend(&different);
        if different.is_empty() { WatchOutcome::Unchanged } else { WatchOutcome::Changed }
    }

    /// Returns the changed NSIDs, in ascending order.
    pub(super) fn changed(&self) -> impl Iterator<Item = u32> {
        self.changed.iter().copied()
    }

    /// Clears the list, because the host read it.
    pub(super) fn clear(&mut self) {
        self.changed.clear();
    }
}

/// Returns the attached namespaces without their utilization, whose changes are not reported.
fn attached(subsystem: &impl NvmSubsystem, controller: u16) -> BTreeMap<u32, NamespaceProperties> {
    (1..=subsystem.namespaces_max())
        .filter(|&nsid| subsystem.is_attached(nsid, controller))
        .filter_map(|nsid| Some((nsid, NamespaceProperties { utilization: 0, ..subsystem.namespace(nsid)? })))
        .collect()
}
