//! The controllers that a namespace is attached to.
//!
//! Input: attachments and detachments. Output: the controllers that see a namespace. A namespace is attached to all
//! controllers, including future ones, until a host changes it. Invariant: the number of a dynamic controller (from
//! [`DYNAMIC_CONTROLLERS`] on) is reused for other hosts, so a list entry for it holds only while that controller is
//! connected.

use headwater_nvme::fabrics::DYNAMIC_CONTROLLERS;
use std::collections::BTreeSet;

/// The controllers of one namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NamespaceAttachment {
    /// All controllers except these.
    AllBut(BTreeSet<u16>),
    /// These controllers only.
    Only(BTreeSet<u16>),
}

impl NamespaceAttachment {
    /// All controllers: no host changed it.
    pub(crate) const ALL_CONTROLLERS: Self = Self::AllBut(BTreeSet::new());
    /// No controller: a host created the namespace, or detached it from all controllers.
    pub(crate) const NO_CONTROLLERS: Self = Self::Only(BTreeSet::new());

    /// Returns true if the namespace is attached to a controller.
    #[inline]
    pub(crate) fn includes(&self, controller: u16) -> bool {
        match self {
            Self::AllBut(these) => !these.contains(&controller),
            Self::Only(these) => these.contains(&controller),
        }
    }

    /// Adds these controllers.
    pub(crate) fn with(mut self, controllers: &[u16]) -> Self {
        match &mut self {
            Self::AllBut(these) => these.retain(|id| !controllers.contains(id)),
            Self::Only(these) => these.extend(controllers),
        }
        self
    }

    /// Removes these controllers.
    pub(crate) fn without(mut self, controllers: &[u16]) -> Self {
        match &mut self {
            Self::AllBut(these) => these.extend(controllers),
            Self::Only(these) => these.retain(|id| !controllers.contains(id)),
        }
        self
    }

    /// Removes the controllers that are gone. A list that becomes empty by this turns into all controllers: a host that
    /// connects again gets another controller, and finds its namespace.
    pub(crate) fn remove_gone(&mut self, is_gone: impl Fn(u16) -> bool) {
        match self {
            Self::AllBut(these) => these.retain(|&id| !is_gone(id)),
            Self::Only(these) => {
                let before = these.len();
                these.retain(|&id| !is_gone(id));
                if these.len() < before && these.is_empty() {
                    *self = Self::ALL_CONTROLLERS;
                }
            }
        }
    }

    /// Returns what remains of it after a restart of the node.
    pub(crate) fn after_restart(mut self) -> Self {
        self.remove_gone(|id| id >= DYNAMIC_CONTROLLERS);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn future_controllers_see_unchanged_namespaces_and_those_of_gone_controllers() {
        let mut one = NamespaceAttachment::ALL_CONTROLLERS.without(&[7]);
        let mut two = NamespaceAttachment::NO_CONTROLLERS.with(&[7]);
        assert!(!one.includes(7) && one.includes(8));
        assert!(two.includes(7) && !two.includes(8));
        one.remove_gone(|id| id == 7);
        two.remove_gone(|id| id == 7);
        assert!(one.includes(7));
        assert!(two.includes(9), "a namespace whose only controller is gone is visible to every controller");
    }

    #[test]
    fn a_restart_keeps_attachments_of_fixed_controllers_only() {
        let (fixed, dynamic) = (1, DYNAMIC_CONTROLLERS);
        let kept = NamespaceAttachment::NO_CONTROLLERS.with(&[fixed, dynamic]).after_restart();
        assert!(kept.includes(fixed) && !kept.includes(dynamic) && !kept.includes(2));
        assert_eq!(
            NamespaceAttachment::NO_CONTROLLERS.after_restart(),
            NamespaceAttachment::NO_CONTROLLERS,
            "created, and never attached"
        );
        assert_eq!(
            NamespaceAttachment::NO_CONTROLLERS.with(&[dynamic]).after_restart(),
            NamespaceAttachment::ALL_CONTROLLERS
        );
        assert_eq!(
            NamespaceAttachment::ALL_CONTROLLERS.without(&[dynamic]).after_restart(),
            NamespaceAttachment::ALL_CONTROLLERS
        );
    }
}
