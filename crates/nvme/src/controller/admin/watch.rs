//! Which namespaces changed since the host last asked (NVMe Base 2.0 section 5.16.1.5).
//!
//! In: the subsystem, whenever somebody looks. Out: whether something changed, and the list of it. Invariant: the table is
//! walked only when the subsystem's generation says so.

use crate::controller::admin::subsystem::{NamespaceFacts, Subsystem};
use std::collections::{BTreeMap, BTreeSet};

/// What one controller last saw.
#[derive(Clone, Debug, Default)]
pub(super) struct NamespaceWatch {
    generation: Option<u64>,
    seen: BTreeMap<u32, NamespaceFacts>,
    changed: BTreeSet<u32>,
}

/// What a look brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Nothing a host must know of.
    Same,
    /// Namespaces came, went, or are not what they were.
    Changed,
}

impl NamespaceWatch {
    /// Compares with the last look. The first one only remembers.
    pub(super) fn look(&mut self, subsystem: &impl Subsystem, controller: u16) -> Look {
        let generation = subsystem.generation();
        if self.generation == Some(generation) {
            return Look::Same;
        }
        let is_first = self.generation.replace(generation).is_none();
        let now = attached(subsystem, controller);
        let before = std::mem::replace(&mut self.seen, now);
        if is_first {
            return Look::Same;
        }
        let different = before.keys().chain(self.seen.keys()).copied();
        let different: Vec<u32> = different.filter(|nsid| before.get(nsid) != self.seen.get(nsid)).collect();
        self.changed.extend(&different);
        if different.is_empty() { Look::Same } else { Look::Changed }
    }

    /// The numbers that changed, in ascending order.
    pub(super) fn changed(&self) -> impl Iterator<Item = u32> {
        self.changed.iter().copied()
    }

    /// The host read the list.
    pub(super) fn clear(&mut self) {
        self.changed.clear();
    }
}

/// What a host would see change: everything but how full a namespace is.
fn attached(subsystem: &impl Subsystem, controller: u16) -> BTreeMap<u32, NamespaceFacts> {
    (1..=subsystem.namespaces_max())
        .filter(|&nsid| subsystem.is_attached(nsid, controller))
        .filter_map(|nsid| Some((nsid, NamespaceFacts { utilization: 0, ..subsystem.namespace(nsid)? })))
        .collect()
}
