//! Which namespaces are attached to which controllers.
//!
//! In: attachments and detachments. Out: whether a controller sees a namespace. A namespace is attached to all controllers,
//! those to come included, until a host says otherwise.

use crate::command::NamespaceId;
use crate::limits::NAMESPACES;
use std::collections::BTreeSet;

/// Of one namespace.
#[derive(Clone, Debug)]
enum Attachment {
    /// To all but these.
    AllBut(BTreeSet<u16>),
    /// To these only.
    Only(BTreeSet<u16>),
}

/// Of all namespaces.
#[derive(Clone, Debug)]
pub(crate) struct Attachments([Attachment; NAMESPACES]);

impl Default for Attachments {
    fn default() -> Self {
        Self([const { Attachment::AllBut(BTreeSet::new()) }; NAMESPACES])
    }
}

impl Attachments {
    /// Whether a controller has a namespace.
    pub(crate) fn has(&self, namespace: NamespaceId, controller: u16) -> bool {
        match self.0.get(namespace.index()) {
            Some(Attachment::AllBut(these)) => !these.contains(&controller),
            Some(Attachment::Only(these)) => these.contains(&controller),
            None => false,
        }
    }

    /// Attaches.
    pub(crate) fn attach(&mut self, namespace: NamespaceId, controllers: &[u16]) {
        match self.0.get_mut(namespace.index()) {
            Some(Attachment::AllBut(these)) => these.retain(|id| !controllers.contains(id)),
            Some(Attachment::Only(these)) => these.extend(controllers),
            None => {}
        }
    }

    /// Detaches.
    pub(crate) fn detach(&mut self, namespace: NamespaceId, controllers: &[u16]) {
        match self.0.get_mut(namespace.index()) {
            Some(Attachment::AllBut(these)) => these.extend(controllers),
            Some(Attachment::Only(these)) => these.retain(|id| !controllers.contains(id)),
            None => {}
        }
    }

    /// A host made it, or took it away: nobody has it.
    pub(crate) fn give_to_nobody(&mut self, namespace: NamespaceId) {
        if let Some(attachment) = self.0.get_mut(namespace.index()) {
            *attachment = Attachment::Only(BTreeSet::new());
        }
    }

    /// It is nobody's in particular any more: everybody has it.
    pub(crate) fn give_to_all(&mut self, namespace: NamespaceId) {
        if let Some(attachment) = self.0.get_mut(namespace.index()) {
            *attachment = Attachment::AllBut(BTreeSet::new());
        }
    }

    /// A controller is gone: its number says nothing of whoever has it next. What only it had is everybody's, as after a
    /// restart: a host that connects again has another controller, and finds its namespace.
    pub(crate) fn forget(&mut self, controller: u16) {
        for attachment in &mut self.0 {
            match attachment {
                Attachment::AllBut(these) => {
                    these.remove(&controller);
                }
                Attachment::Only(these) => {
                    if these.remove(&controller) && these.is_empty() {
                        *attachment = Attachment::AllBut(BTreeSet::new());
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_to_come_have_what_nobody_spoke_of_and_what_is_nobodys_any_more() {
        let mut attachments = Attachments::default();
        let (one, two) = (NamespaceId(1), NamespaceId(2));
        attachments.detach(one, &[7]);
        attachments.give_to_nobody(two);
        attachments.attach(two, &[7]);
        assert!(!attachments.has(one, 7) && attachments.has(one, 8));
        assert!(attachments.has(two, 7) && !attachments.has(two, 8));
        attachments.forget(7);
        assert!(attachments.has(one, 7));
        assert!(attachments.has(two, 9), "what only it had is found by whoever comes");
        assert!(!attachments.has(NamespaceId(0), 1) && !attachments.has(NamespaceId(200), 1));
    }
}
