//! Who may do what: grants by user and group.
//!
//! In: grants from the configuration and from administration, and the person at the other end of a socket. Out: the one
//! grant that counts. Of a user or group counts what administration said last, else the configuration file, else that the
//! node's own user and root may do everything. Invariant: whoever no grant names may do nothing; what administration says is
//! kept, if there is a file to keep it in, before it counts.

use super::grant_file::{self, GrantFileError, Said};
use headwater_io::attach::admin::{Grant, Who};
use headwater_ssd::command::NamespaceId;
use headwater_ssd::limits::NAMESPACES;
use headwater_ssd::nvme::rings::rights::{Access, NamespaceRights, Rights};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The user at the other end of a socket, as the kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Person {
    /// Process.
    pub pid: i32,
    /// User.
    pub uid: u32,
    /// First group.
    pub gid: u32,
}

/// The grants.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The daemon's own user.
    owner: u32,
    grants: BTreeMap<Who, Grant>,
    /// What administration said last of each.
    said: Said,
    /// Where that is kept; nowhere for a node that keeps nothing.
    file: Option<PathBuf>,
}

impl Policy {
    /// The daemon's own user and root may do everything, and whoever these grants name may do what they say. A grant for
    /// one of the two replaces theirs.
    #[must_use]
    pub fn new(grants: impl IntoIterator<Item = Grant>) -> Self {
        Self::of_owner(rustix::process::geteuid().as_raw(), grants)
    }

    /// The same, with what administration said before and is kept in this file, where it will be kept from now on.
    ///
    /// # Errors
    /// [`GrantFileError`] for a file that cannot be read.
    pub fn kept(grants: impl IntoIterator<Item = Grant>, file: PathBuf) -> Result<Self, GrantFileError> {
        let said = grant_file::read(&file)?;
        let mut policy = Self::new(grants);
        for (who, grant) in &said {
            policy.put(*who, grant.clone());
        }
        Ok(Self { said, file: Some(file), ..policy })
    }

    fn of_owner(owner: u32, grants: impl IntoIterator<Item = Grant>) -> Self {
        // Both could take the device from this process anyway.
        let own = [0, owner].map(|uid| Grant { direct: true, ..Grant::everything(Who::Uid(uid)) });
        let grants = own.into_iter().chain(grants).map(|grant| (grant.who, grant)).collect();
        Self { owner, grants, said: Said::new(), file: None }
    }

    /// The grant that counts for a person: that of the user, else that of the group.
    #[must_use]
    pub fn find(&self, person: Person) -> Option<&Grant> {
        self.grants.get(&Who::Uid(person.uid)).or_else(|| self.grants.get(&Who::Gid(person.gid)))
    }

    /// Whether a person may administer: the daemon's own user and root, whatever they are granted.
    #[must_use]
    pub fn is_administrator(&self, person: Person) -> bool {
        person.uid == self.owner || person.uid == 0
    }

    /// Every grant, users before groups.
    pub fn grants(&self) -> impl Iterator<Item = &Grant> {
        self.grants.values()
    }

    /// Gives a grant, in place of what its user or group had.
    ///
    /// # Errors
    /// Says what is impossible about it, or why it cannot be kept; nothing has changed.
    pub fn grant(&mut self, grant: Grant) -> Result<(), String> {
        check(&grant)?;
        self.say(grant.who, Some(grant))
    }

    /// Takes a grant away.
    ///
    /// # Errors
    /// Says that there is none, or why that cannot be kept; nothing has changed.
    pub fn revoke(&mut self, who: Who) -> Result<(), String> {
        self.find_own(who)?;
        self.say(who, None)
    }

    /// Changes the limits of a grant.
    ///
    /// # Errors
    /// Says that there is none, or why that cannot be kept; nothing has changed.
    pub fn limit(&mut self, who: Who, queues: Option<u32>, memory: Option<u64>) -> Result<(), String> {
        let grant = self.find_own(who)?.clone();
        let (queues, memory) = (queues.unwrap_or(grant.queues), memory.unwrap_or(grant.memory));
        self.say(who, Some(Grant { queues, memory, ..grant }))
    }

    fn find_own(&self, who: Who) -> Result<&Grant, String> {
        self.grants.get(&who).ok_or_else(|| format!("nothing is granted to {who}"))
    }

    fn say(&mut self, who: Who, grant: Option<Grant>) -> Result<(), String> {
        let before = self.said.insert(who, grant.clone());
        if let Some(file) = &self.file
            && let Err(error) = grant_file::write(file, &self.said)
        {
            match before {
                Some(before) => self.said.insert(who, before),
                None => self.said.remove(&who),
            };
            return Err(error.to_string());
        }
        self.put(who, grant);
        Ok(())
    }

    fn put(&mut self, who: Who, grant: Option<Grant>) {
        match grant {
            Some(grant) => self.grants.insert(who, grant),
            None => self.grants.remove(&who),
        };
    }
}

/// Whether a grant can be given.
///
/// # Errors
/// Says what is impossible about it.
pub fn check(grant: &Grant) -> Result<(), String> {
    if let Some(number) =
        grant.namespaces.iter().find(|&&number| !(1..=NAMESPACES).contains(&usize::from(number)))
    {
        return Err(format!("namespaces are numbered 1 to {NAMESPACES}, and {number} was granted"));
    }
    if grant.direct && (grant.read_only || grant.blocks.is_some() || !grant.namespaces.is_empty()) {
        return Err(
            "whoever drives queues of the hardware's reaches every block: grant `direct` without namespaces, blocks and \
             read-only"
                .to_owned(),
        );
    }
    match grant.blocks {
        Some((first, end)) if first >= end => {
            Err(format!("blocks {first} to {end} are none; give the first and one past the last"))
        }
        _ => Ok(()),
    }
}

/// What rings are told of a grant.
#[must_use]
pub fn rights_of(grant: &Grant) -> Rights {
    let access = if grant.read_only { Access::Read } else { Access::Write };
    let blocks = grant.blocks.map(|(first, end)| first..end);
    let all = (1..=NAMESPACES).filter_map(|number| u8::try_from(number).ok());
    all.filter(|number| grant.namespaces.is_empty() || grant.namespaces.contains(number))
        .fold(Rights::none(), |rights, number| {
            rights.with(NamespaceId(number), NamespaceRights { access, blocks: blocks.clone() })
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn person(uid: u32, gid: u32) -> Person {
        Person { pid: 1, uid, gid }
    }

    #[test]
    fn strangers_have_nothing_and_a_user_counts_before_its_group() {
        let mut policy = Policy::of_owner(1_000, []);
        assert!(policy.find(person(1_000, 5)).is_some());
        assert!(policy.find(person(0, 0)).is_some());
        assert!(policy.find(person(1_001, 0)).is_none());
        policy.grant(Grant { queues: 1, ..Grant::everything(Who::Gid(7)) }).unwrap();
        policy.grant(Grant { queues: 2, ..Grant::everything(Who::Uid(1_001)) }).unwrap();
        assert_eq!(policy.find(person(1_001, 7)).unwrap().queues, 2);
        assert_eq!(policy.find(person(1_002, 7)).unwrap().queues, 1);
        policy.revoke(Who::Uid(1_001)).unwrap();
        assert_eq!(policy.find(person(1_001, 7)).unwrap().queues, 1);
        assert!(policy.revoke(Who::Uid(1_001)).is_err());
        assert!(policy.is_administrator(person(1_000, 5)) && !policy.is_administrator(person(1_002, 7)));
    }

    #[test]
    fn impossible_grants_are_refused() {
        let mut policy = Policy::of_owner(1_000, []);
        for (namespaces, blocks, direct) in [
            (vec![0], None, false),
            (vec![1, 17], None, false),
            (vec![], Some((5, 5)), false),
            (vec![1], None, true),
            (vec![], Some((0, 5)), true),
        ] {
            let grant = Grant { namespaces, blocks, direct, ..Grant::everything(Who::Uid(7)) };
            assert!(policy.grant(grant).is_err());
        }
        assert!(policy.find(person(7, 7)).is_none());
    }

    #[test]
    fn what_administration_said_counts_before_the_configuration_file_after_a_restart_too() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(grant_file::GRANTS_FILE);
        let configured = || [7, 8, 9].map(|uid| Grant { queues: 3, ..Grant::everything(Who::Uid(uid)) });
        let kept = || Policy::kept(configured(), file.clone()).unwrap();
        let mut policy = kept();
        policy.revoke(Who::Uid(7)).unwrap();
        policy.limit(Who::Uid(8), None, Some(5)).unwrap();
        policy.grant(Grant { queues: 1, ..Grant::everything(Who::Gid(6)) }).unwrap();
        let of = |policy: &Policy, uid| policy.find(person(uid, 0)).map(|grant| (grant.queues, grant.memory));
        for policy in [&policy, &kept()] {
            assert_eq!(of(policy, 7), None, "revoked, whatever the file says");
            assert_eq!(of(policy, 8), Some((3, 5)));
            assert_eq!(of(policy, 9), Some((3, 1 << 30)), "nothing was said: as configured");
            assert_eq!(policy.find(person(1, 6)).unwrap().queues, 1);
        }
        policy.grant(Grant::everything(Who::Uid(7))).unwrap();
        assert!(of(&kept(), 7).is_some());
    }

    #[test]
    fn what_cannot_be_kept_does_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("gone").join(grant_file::GRANTS_FILE);
        let mut policy = Policy::kept([Grant::everything(Who::Uid(7))], file).unwrap();
        assert!(policy.grant(Grant::everything(Who::Uid(8))).unwrap_err().contains("cannot keep"));
        assert!(policy.revoke(Who::Uid(7)).is_err());
        assert!(policy.find(person(8, 1)).is_none() && policy.find(person(7, 1)).is_some());
    }

    #[test]
    fn rights_are_those_of_the_grant() {
        let grant = Grant {
            namespaces: vec![2],
            read_only: true,
            blocks: Some((10, 20)),
            ..Grant::everything(Who::Uid(1))
        };
        let rights = rights_of(&grant);
        assert_eq!(rights.of(NamespaceId(1)), None);
        let second = rights.of(NamespaceId(2)).unwrap();
        assert_eq!((second.access, second.blocks.clone()), (Access::Read, Some(10..20)));
        assert_eq!(rights_of(&Grant::everything(Who::Uid(1))), Rights::all());
    }
}
