//! Access control: grants by user and group.
//!
//! Input: grants from the configuration and from administrators, and the credentials of a peer. Output: the one grant
//! that applies. For a user or group, the latest decision of an administrator wins over the configuration file, which
//! wins over the default: all rights for the node's own user and root. Invariant: a user without a grant has no rights;
//! a decision is durable, where the node has a file for it, before it applies.

use super::grant_file::{self, GrantDecisions, GrantFileError};
use headwater_io::attach::admin::{AccessGrant, GrantSubject};
use headwater_ssd::command::NamespaceId;
use headwater_ssd::limits::NAMESPACES;
use headwater_ssd::nvme::rings::rights::{AccessLevel, ClientRights, NamespaceRights};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The credentials of a peer, as the kernel reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// The process.
    pub pid: i32,
    /// The user.
    pub uid: u32,
    /// The primary group.
    pub gid: u32,
}

/// The grants of a node.
#[derive(Clone, Debug)]
pub struct GrantPolicy {
    /// The daemon's own user.
    owner: u32,
    grants: BTreeMap<GrantSubject, AccessGrant>,
    /// The latest decisions of administrators.
    decisions: GrantDecisions,
    /// The file of these decisions; `None` for a node without durable state.
    file: Option<PathBuf>,
}

impl GrantPolicy {
    /// Creates a policy of these grants, and of all rights for the daemon's own user and root. A grant for one of these
    /// two replaces the default.
    #[must_use]
    pub fn new(grants: impl IntoIterator<Item = AccessGrant>) -> Self {
        Self::with_owner(rustix::process::geteuid().as_raw(), grants)
    }

    /// Creates a policy that also applies the decisions in this file, and writes later decisions to it.
    ///
    /// # Errors
    /// [`GrantFileError`] for a file that cannot be read.
    pub fn with_file(
        grants: impl IntoIterator<Item = AccessGrant>,
        file: PathBuf,
    ) -> Result<Self, GrantFileError> {
        let decisions = grant_file::read(&file)?;
        let mut policy = Self::new(grants);
        for (who, grant) in &decisions {
            policy.apply_decision(*who, grant.clone());
        }
        Ok(Self { decisions, file: Some(file), ..policy })
    }

    fn with_owner(owner: u32, grants: impl IntoIterator<Item = AccessGrant>) -> Self {
        // Both users could take the device from this process anyway.
        let own = [0, owner]
            .map(|uid| AccessGrant { direct: true, ..AccessGrant::everything(GrantSubject::Uid(uid)) });
        let grants = own.into_iter().chain(grants).map(|grant| (grant.who, grant)).collect();
        Self { owner, grants, decisions: GrantDecisions::new(), file: None }
    }

    /// Returns the grant that applies to a peer: that of its user, else that of its group.
    #[must_use]
    pub fn find(&self, person: PeerCredentials) -> Option<&AccessGrant> {
        self.grants
            .get(&GrantSubject::Uid(person.uid))
            .or_else(|| self.grants.get(&GrantSubject::Gid(person.gid)))
    }

    /// Returns true if a peer may administer: the daemon's own user and root, whatever their grants.
    #[must_use]
    pub fn is_administrator(&self, person: PeerCredentials) -> bool {
        person.uid == self.owner || person.uid == 0
    }

    /// Returns the users and groups with a grant, other than the node's own user and root.
    pub fn other_subjects(&self) -> impl Iterator<Item = GrantSubject> {
        let own = [GrantSubject::Uid(0), GrantSubject::Uid(self.owner)];
        self.grants.keys().copied().filter(move |who| !own.contains(who))
    }

    /// Returns the reason for which a peer is turned away, if nothing is granted to it.
    pub(super) fn refusal(&self, peer: PeerCredentials) -> Option<String> {
        self.find(peer).is_none().then(|| {
            format!(
                "nothing is granted to uid {} or gid {}; ask an administrator for `headwater attach grant --uid {}`",
                peer.uid, peer.gid, peer.uid
            )
        })
    }

    /// Returns every grant, users before groups.
    pub fn grants(&self) -> impl Iterator<Item = &AccessGrant> {
        self.grants.values()
    }

    /// Adds a grant, in place of the one that its user or group had.
    ///
    /// # Errors
    /// The fault of an invalid grant, or the reason why it cannot be made durable; nothing changed.
    pub fn grant(&mut self, grant: AccessGrant) -> Result<(), String> {
        validate_grant(&grant)?;
        self.record_decision(grant.who, Some(grant))
    }

    /// Revokes a grant.
    ///
    /// # Errors
    /// There is no such grant, or the revocation cannot be made durable; nothing changed.
    pub fn revoke(&mut self, who: GrantSubject) -> Result<(), String> {
        self.require_grant(who)?;
        self.record_decision(who, None)
    }

    /// Changes the limits of a grant.
    ///
    /// # Errors
    /// There is no such grant, or the change cannot be made durable; nothing changed.
    pub fn limit(
        &mut self,
        who: GrantSubject,
        queues: Option<u32>,
        memory: Option<u64>,
    ) -> Result<(), String> {
        let grant = self.require_grant(who)?.clone();
        let (queues, memory) = (queues.unwrap_or(grant.queues), memory.unwrap_or(grant.memory));
        self.record_decision(who, Some(AccessGrant { queues, memory, ..grant }))
    }

    fn require_grant(&self, who: GrantSubject) -> Result<&AccessGrant, String> {
        self.grants.get(&who).ok_or_else(|| format!("nothing is granted to {who}"))
    }

    fn record_decision(&mut self, who: GrantSubject, grant: Option<AccessGrant>) -> Result<(), String> {
        let before = self.decisions.insert(who, grant.clone());
        if let Some(file) = &self.file
            && let Err(error) = grant_file::write(file, &self.decisions)
        {
            match before {
                Some(before) => self.decisions.insert(who, before),
                None => self.decisions.remove(&who),
            };
            return Err(error.to_string());
        }
        self.apply_decision(who, grant);
        Ok(())
    }

    fn apply_decision(&mut self, who: GrantSubject, grant: Option<AccessGrant>) {
        match grant {
            Some(grant) => self.grants.insert(who, grant),
            None => self.grants.remove(&who),
        };
    }
}

/// Validates a grant.
///
/// # Errors
/// The fault of an invalid grant.
pub fn validate_grant(grant: &AccessGrant) -> Result<(), String> {
    if let Some(number) =
        grant.namespaces.iter().find(|&&number| !(1..=NAMESPACES).contains(&usize::from(number)))
    {
        return Err(format!("namespaces are numbered 1 to {NAMESPACES}, and {number} was granted"));
    }
    if grant.direct && (grant.read_only || grant.blocks.is_some() || !grant.namespaces.is_empty()) {
        return Err(
            "a client that drives hardware queues can access every block: grant `direct` without namespaces, \
             blocks and read-only"
                .to_owned(),
        );
    }
    match grant.blocks {
        Some((first, end)) if first >= end => Err(format!(
            "the block range {first} to {end} is empty; give the first block and one past the last"
        )),
        _ => Ok(()),
    }
}

/// Returns the rights of a grant, as rings enforce them.
#[must_use]
pub fn rights_of(grant: &AccessGrant) -> ClientRights {
    let access = if grant.read_only { AccessLevel::Read } else { AccessLevel::Write };
    let blocks = grant.blocks.map(|(first, end)| first..end);
    let all = (1..=NAMESPACES).filter_map(|number| u8::try_from(number).ok());
    all.filter(|number| grant.namespaces.is_empty() || grant.namespaces.contains(number)).fold(
        ClientRights::none(),
        |rights, number| {
            rights.with_namespace(NamespaceId(number), NamespaceRights { access, blocks: blocks.clone() })
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn person(uid: u32, gid: u32) -> PeerCredentials {
        PeerCredentials { pid: 1, uid, gid }
    }

    #[test]
    fn users_without_a_grant_have_no_rights_and_a_user_grant_wins_over_its_group() {
        let mut policy = GrantPolicy::with_owner(1_000, []);
        assert!(policy.find(person(1_000, 5)).is_some());
        assert!(policy.find(person(0, 0)).is_some());
        assert!(policy.find(person(1_001, 0)).is_none());
        policy.grant(AccessGrant { queues: 1, ..AccessGrant::everything(GrantSubject::Gid(7)) }).unwrap();
        policy.grant(AccessGrant { queues: 2, ..AccessGrant::everything(GrantSubject::Uid(1_001)) }).unwrap();
        assert_eq!(policy.find(person(1_001, 7)).unwrap().queues, 2);
        assert_eq!(policy.find(person(1_002, 7)).unwrap().queues, 1);
        policy.revoke(GrantSubject::Uid(1_001)).unwrap();
        assert_eq!(policy.find(person(1_001, 7)).unwrap().queues, 1);
        assert!(policy.revoke(GrantSubject::Uid(1_001)).is_err());
        assert!(policy.is_administrator(person(1_000, 5)) && !policy.is_administrator(person(1_002, 7)));
    }

    #[test]
    fn impossible_grants_are_refused() {
        let mut policy = GrantPolicy::with_owner(1_000, []);
        for (namespaces, blocks, direct) in [
            (vec![0], None, false),
            (vec![1, 17], None, false),
            (vec![], Some((5, 5)), false),
            (vec![1], None, true),
            (vec![], Some((0, 5)), true),
        ] {
            let grant =
                AccessGrant { namespaces, blocks, direct, ..AccessGrant::everything(GrantSubject::Uid(7)) };
            assert!(policy.grant(grant).is_err());
        }
        assert!(policy.find(person(7, 7)).is_none());
    }

    #[test]
    fn administrator_decisions_win_over_the_configuration_file_also_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(grant_file::GRANTS_FILE);
        let configured = || {
            [7, 8, 9].map(|uid| AccessGrant { queues: 3, ..AccessGrant::everything(GrantSubject::Uid(uid)) })
        };
        let kept = || GrantPolicy::with_file(configured(), file.clone()).unwrap();
        let mut policy = kept();
        policy.revoke(GrantSubject::Uid(7)).unwrap();
        policy.limit(GrantSubject::Uid(8), None, Some(5)).unwrap();
        policy.grant(AccessGrant { queues: 1, ..AccessGrant::everything(GrantSubject::Gid(6)) }).unwrap();
        let of =
            |policy: &GrantPolicy, uid| policy.find(person(uid, 0)).map(|grant| (grant.queues, grant.memory));
        for policy in [&policy, &kept()] {
            assert_eq!(of(policy, 7), None, "revoked, whatever the file says");
            assert_eq!(of(policy, 8), Some((3, 5)));
            assert_eq!(of(policy, 9), Some((3, 1 << 30)), "no decision: as configured");
            assert_eq!(policy.find(person(1, 6)).unwrap().queues, 1);
        }
        policy.grant(AccessGrant::everything(GrantSubject::Uid(7))).unwrap();
        assert!(of(&kept(), 7).is_some());
    }

    #[test]
    fn a_decision_that_cannot_be_made_durable_does_not_apply() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("gone").join(grant_file::GRANTS_FILE);
        let mut policy =
            GrantPolicy::with_file([AccessGrant::everything(GrantSubject::Uid(7))], file).unwrap();
        assert!(
            policy.grant(AccessGrant::everything(GrantSubject::Uid(8))).unwrap_err().contains("cannot write")
        );
        assert!(policy.revoke(GrantSubject::Uid(7)).is_err());
        assert!(policy.find(person(8, 1)).is_none() && policy.find(person(7, 1)).is_some());
    }

    #[test]
    fn rights_equal_those_of_the_grant() {
        let grant = AccessGrant {
            namespaces: vec![2],
            read_only: true,
            blocks: Some((10, 20)),
            ..AccessGrant::everything(GrantSubject::Uid(1))
        };
        let rights = rights_of(&grant);
        assert_eq!(rights.rights_in(NamespaceId(1)), None);
        let second = rights.rights_in(NamespaceId(2)).unwrap();
        assert_eq!((second.access, second.blocks.clone()), (AccessLevel::Read, Some(10..20)));
        assert_eq!(rights_of(&AccessGrant::everything(GrantSubject::Uid(1))), ClientRights::all());
    }
}
