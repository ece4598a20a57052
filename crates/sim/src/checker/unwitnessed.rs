//! The writes that the model lets go of because the medium lied.
//!
//! Input: the sequence behind which a lie took the last commit; errors. Output: writes that may be gone, as if a power cut
//! had come before their acknowledgement. Invariant: a key that was written since the medium is honest again has no error.

use super::keys::KeyHistory;
use super::{CheckedKind, DeviceChecker, PromiseViolation};
use bytes::Bytes;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::Sequence;

impl DeviceChecker {
    /// Makes the acknowledged writes behind a sequence uncertain, after a power cut. They lie in one commit.
    pub fn lose_above(&mut self, durable: Sequence) {
        let is_lost = |sequence: u64| sequence > durable.0;
        let writes = self.spaces.iter().flat_map(|space| space.keys.values()).flat_map(|key| &key.writes);
        let known: Vec<u64> =
            writes.filter(|write| write.sequence.is_some_and(is_lost)).map(|write| write.group).collect();
        for group in self.groups.values_mut().filter(|group| is_lost(group.sequence)) {
            (group.certain, group.kept) = (false, false);
        }
        for id in known {
            if let Some(group) = self.groups.get_mut(id) {
                (group.certain, group.kept) = (false, false);
            }
        }
        let undone = self.last_change.take();
        let undone =
            undone.filter(|(_, id)| self.groups.get(*id).is_some_and(|group| is_lost(group.sequence)));
        self.change = undone.or(self.change);
    }

    /// Notes that the medium may lie from now on.
    pub fn begin_faulty(&mut self) {
        self.keeps_all = true;
    }

    /// Notes that the medium keeps its promises from now on.
    pub fn begin_honest(&mut self) {
        self.keeps_all = false;
        self.honest_since = Some(self.tick);
    }

    /// Checks that a read that failed is of a key, or of one block of several, which no write settled.
    ///
    /// # Errors
    /// A write of the key was acknowledged since the medium is honest again.
    pub fn check_unsettled(&self, token: u64, status: Status) -> Result<(), PromiseViolation> {
        let Some(asked) = self.commands_in_flight.get(&token) else { return Ok(()) };
        let namespace = asked.namespace;
        let keys = match &asked.kind {
            CheckedKind::Read { key, .. } | CheckedKind::Exist { key, .. } => vec![key.clone()],
            CheckedKind::Blocks { start, blocks } => {
                (*start..start + blocks.count()).map(super::block_key).collect()
            }
            _ => return Ok(()),
        };
        let settled = |key: &Bytes| {
            let history = self.space(namespace).and_then(|space| space.keys.get(key));
            history.filter(|history| self.is_settled(history))
        };
        let histories: Option<Vec<&KeyHistory>> = keys.iter().map(settled).collect();
        match histories.as_deref() {
            Some([first, ..]) => {
                Err(PromiseViolation::SettledKeyFailed { namespace, key: first.number, status })
            }
            _ => Ok(()),
        }
    }

    /// Returns true if a write of the key was acknowledged since the medium is honest again.
    fn is_settled(&self, history: &KeyHistory) -> bool {
        let since = self.honest_since.unwrap_or(u64::MAX);
        // A record that expired is an absence that nothing proves.
        history.writes.iter().any(|write| {
            let group = self.groups.get(write.group).filter(|group| group.certain && group.submitted > since);
            group.is_some_and(|group| group.settles && group.acked_at.is_some()) && !write.effect.may_expire()
        })
    }
}
