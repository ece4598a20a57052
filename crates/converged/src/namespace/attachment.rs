//! Which controllers a namespace is attached to.
//!
//! In: attachments and detachments. Out: whether a controller sees a namespace. A namespace is attached to all controllers,
//! those to come included, until a host says otherwise. Invariant: controllers that are given out as hosts connect
//! (from [`DYNAMIC_CONTROLLERS`] on) say nothing of whoever has their number next, so they count while they are connected.

use headwater_nvme::fabrics::DYNAMIC_CONTROLLERS;
use std::collections::BTreeSet;

/// Of one namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Attachment {
    /// To all but these.
    AllBut(BTreeSet<u16>),
    /// To these only.
    Only(BTreeSet<u16>),
}

impl Attachment {
    /// Everybody has it: nobody said otherwise.
    pub(crate) const EVERYBODY: Self = Self::AllBut(BTreeSet::new());
    /// Nobody has it: a host made it, or took it away from all.
    pub(crate) const NOBODY: Self = Self::Only(BTreeSet::new());

    /// Whether a controller has it.
    #[inline]
    pub(crate) fn has(&self, controller: u16) -> bool {
        match self {
            Self::AllBut(these) => !these.contains(&controller),
            Self::Only(these) => these.contains(&controller),
        }
    }

    /// With these controllers too.
    pub(crate) fn with(mut self, controllers: &[u16]) -> Self {
        match &mut self {
            Self::AllBut(these) => these.retain(|id| !controllers.contains(id)),
            Self::Only(these) => these.extend(controllers),
        }
        self
    }

    /// Without these controllers.
    pub(crate) fn without(mut self, controllers: &[u16]) -> Self {
        match &mut self {
            Self::AllBut(these) => these.extend(controllers),
            Self::Only(these) => these.retain(|id| !controllers.contains(id)),
        }
        self
    }

    /// These controllers are gone. What only they had is everybody's: a host that connects again has another controller,
    /// and finds its namespace.
    pub(crate) fn forget(&mut self, is_gone: impl Fn(u16) -> bool) {
        match self {
            Self::AllBut(these) => these.retain(|&id| !is_gone(id)),
            Self::Only(these) => {
                let before = these.len();
                these.retain(|&id| !is_gone(id));
                if these.len() < before && these.is_empty() {
                    *self = Self::EVERYBODY;
                }
            }
        }
    }

    /// What is left of it when the node starts anew.
    pub(crate) fn after_restart(mut self) -> Self {
        self.forget(|id| id >= DYNAMIC_CONTROLLERS);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_to_come_have_what_nobody_spoke_of_and_what_is_nobodys_any_more() {
        let mut one = Attachment::EVERYBODY.without(&[7]);
        let mut two = Attachment::NOBODY.with(&[7]);
        assert!(!one.has(7) && one.has(8));
        assert!(two.has(7) && !two.has(8));
        one.forget(|id| id == 7);
        two.forget(|id| id == 7);
        assert!(one.has(7));
        assert!(two.has(9), "what only it had is found by whoever comes");
    }

    #[test]
    fn a_restart_keeps_the_controllers_that_are_always_there() {
        let (fixed, dynamic) = (1, DYNAMIC_CONTROLLERS);
        let kept = Attachment::NOBODY.with(&[fixed, dynamic]).after_restart();
        assert!(kept.has(fixed) && !kept.has(dynamic) && !kept.has(2));
        assert_eq!(Attachment::NOBODY.after_restart(), Attachment::NOBODY, "made, and never attached");
        assert_eq!(Attachment::NOBODY.with(&[dynamic]).after_restart(), Attachment::EVERYBODY);
        assert_eq!(Attachment::EVERYBODY.without(&[dynamic]).after_restart(), Attachment::EVERYBODY);
    }
}
