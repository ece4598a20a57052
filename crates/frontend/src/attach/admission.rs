//! The admission of users to places of which there is a bounded number: connections, descriptors, regions.
//!
//! Input: the grants, what each user holds, and a user that wants one more. Output: yes or no. Invariant: whatever the
//! users other than the node's own user and root do, each grant keeps [`PlaceLimit::guaranteed`] places, and a user
//! without a place finds one as long as one is left for users with fewer.
//!
//! ```text
//!   total = reserve (node's user, root) + guaranteed places of each grant + shared rest
//!   a user takes of the rest only while it holds fewer than are left of it: of 496 at most 248
//! ```

use super::policy::{GrantPolicy, PeerCredentials};
use headwater_io::attach::admin::GrantSubject;
use std::collections::BTreeMap;

/// The part of all places that is left to the node's own user and root.
const RESERVE_DIVISOR: usize = 32;
/// The part of the other places that is guaranteed to a grant at most.
const GUARANTEE_DIVISOR: usize = 32;

/// The places of one kind that clients hold.
#[derive(Clone, Debug, Default)]
pub struct PlaceUsage {
    all: usize,
    of_user: BTreeMap<u32, usize>,
    of_grant: BTreeMap<GrantSubject, usize>,
}

impl PlaceUsage {
    /// Adds the places of a client. Those of users without a grant count only among all.
    pub fn add(&mut self, policy: &GrantPolicy, peer: PeerCredentials, places: usize) {
        self.all += places;
        *self.of_user.entry(peer.uid).or_default() += places;
        if let Some(grant) = policy.find(peer) {
            *self.of_grant.entry(grant.who).or_default() += places;
        }
    }
}

/// The bounds of the places of one kind.
#[derive(Clone, Copy, Debug)]
pub struct PlaceLimit {
    /// Places of all users.
    pub total: usize,
    /// Places of the node's own user, and of root.
    pub trusted_max: usize,
}

impl PlaceLimit {
    /// Returns the number of places that users other than the node's own user and root share.
    fn shared(&self) -> usize {
        self.total - self.total / RESERVE_DIVISOR
    }

    /// Returns the number of places that each grant keeps, at this number of grants: together at most half of them.
    #[must_use]
    pub fn guaranteed(&self, grants: usize) -> usize {
        (self.shared() / GUARANTEE_DIVISOR).min(self.shared() / 2 / grants.max(1))
    }

    /// Returns true if a user may take one more place.
    #[must_use]
    pub fn admits(&self, policy: &GrantPolicy, usage: &PlaceUsage, peer: PeerCredentials) -> bool {
        let of_user = usage.of_user.get(&peer.uid).copied().unwrap_or(0);
        if usage.all >= self.total {
            return false;
        }
        if policy.is_administrator(peer) {
            return of_user < self.trusted_max;
        }
        let Some(grant) = policy.find(peer) else {
            return false;
        };
        let of_grant = |who: &GrantSubject| usage.of_grant.get(who).copied().unwrap_or(0);
        let guaranteed = self.guaranteed(policy.other_subjects().count());
        if of_grant(&grant.who) < guaranteed {
            return true;
        }
        // What the other grants have not yet taken of their guaranteed places is theirs.
        let kept: usize = policy.other_subjects().map(|who| guaranteed.saturating_sub(of_grant(&who))).sum();
        of_user < self.shared().saturating_sub(usage.all + kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_io::attach::admin::AccessGrant;

    const LIMIT: PlaceLimit = PlaceLimit { total: 512, trusted_max: 256 };

    fn person(uid: u32, gid: u32) -> PeerCredentials {
        PeerCredentials { pid: 1, uid, gid }
    }

    fn policy(subjects: impl IntoIterator<Item = GrantSubject>) -> GrantPolicy {
        GrantPolicy::new(subjects.into_iter().map(AccessGrant::everything))
    }

    /// The places that users hold, and the rules for more.
    struct Crowd {
        policy: GrantPolicy,
        usage: PlaceUsage,
    }

    impl Crowd {
        fn new(subjects: impl IntoIterator<Item = GrantSubject>) -> Self {
            Self { policy: policy(subjects), usage: PlaceUsage::default() }
        }

        fn take(&mut self, peer: PeerCredentials) -> bool {
            let admitted = LIMIT.admits(&self.policy, &self.usage, peer);
            if admitted {
                self.usage.add(&self.policy, peer, 1);
            }
            admitted
        }

        /// Takes places for a user until it gets no more, and returns their number.
        fn take_all(&mut self, peer: PeerCredentials) -> usize {
            (0..2 * LIMIT.total).take_while(|_| self.take(peer)).count()
        }
    }

    #[test]
    fn user_that_takes_all_it_gets_leaves_as_many_places() {
        let mut crowd = Crowd::new([1, 2, 3].map(GrantSubject::Uid));
        let (first, second) = (crowd.take_all(person(1, 1)), crowd.take_all(person(2, 1)));
        assert!((200..=248).contains(&first) && second >= first / 2, "{first}, {second}");
        assert!(crowd.take_all(person(3, 1)) >= LIMIT.guaranteed(3));
    }

    #[test]
    fn users_that_take_everything_one_after_the_other_leave_each_grant_its_places() {
        for users in [1, 2, 10, 40, 200] {
            let mut crowd = Crowd::new((1..=users).map(GrantSubject::Uid));
            let guaranteed = LIMIT.guaranteed(users as usize);
            assert!(guaranteed >= 1, "{users} users");
            for uid in (1..=users).rev() {
                let got = crowd.take_all(person(uid, 1));
                assert!(got >= guaranteed, "user {uid} of {users} got {got}, not {guaranteed}");
            }
            assert!(crowd.take_all(person(0, 0)) >= LIMIT.total / RESERVE_DIVISOR, "root found none left");
        }
    }

    #[test]
    fn member_of_a_group_leaves_places_to_the_other_members() {
        let mut crowd = Crowd::new([GrantSubject::Gid(7), GrantSubject::Uid(1)]);
        for uid in 100..105 {
            assert!(crowd.take_all(person(uid, 7)) > 0, "user {uid}");
        }
        assert!(crowd.take_all(person(1, 1)) >= LIMIT.guaranteed(2));
    }

    #[test]
    fn grant_keeps_its_places_also_beside_many_connections_of_root() {
        let mut crowd = Crowd::new([1, 2].map(GrantSubject::Uid));
        assert!(crowd.take_all(person(1, 1)) > 200);
        assert_eq!(crowd.take_all(person(0, 0)), LIMIT.trusted_max);
        assert!(crowd.take_all(person(2, 1)) >= LIMIT.guaranteed(2));
    }

    #[test]
    fn users_without_a_grant_get_no_place_and_the_own_user_has_a_limit() {
        let mut crowd = Crowd::new([]);
        assert_eq!(crowd.take_all(person(9_999_999, 9_999_999)), 0);
        assert_eq!(crowd.take_all(person(0, 0)), LIMIT.trusted_max);
    }

    /// Draws users that take and release places at random, and checks after each step that the promises hold.
    #[test]
    fn promises_hold_whatever_users_take_and_release() {
        let seed = 0xad31;
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..20 {
            let users = random.u32(1..30);
            let mut held = BTreeMap::<u32, usize>::new();
            let mut crowd = Crowd::new((1..=users).map(GrantSubject::Uid));
            let guaranteed = LIMIT.guaranteed(users as usize);
            for _ in 0..2_000 {
                let uid = random.u32(0..=users);
                let count = held.entry(uid).or_default();
                if random.u8(..4) == 0 && *count > 0 {
                    *count -= random.usize(1..=*count);
                } else if crowd.take(person(uid, 1)) {
                    *count += 1;
                }
                crowd.usage = PlaceUsage::default();
                for (&uid, &count) in &held {
                    crowd.usage.add(&crowd.policy, person(uid, 1), count);
                }
                assert!(crowd.usage.all <= LIMIT.total);
                if held.get(&0).is_none_or(|&root| root <= LIMIT.total / RESERVE_DIVISOR) {
                    for uid in 1..=users {
                        let few = held.get(&uid).copied().unwrap_or(0) < guaranteed;
                        let admits = LIMIT.admits(&crowd.policy, &crowd.usage, person(uid, 1));
                        assert!(
                            admits || !few,
                            "seed {seed}: user {uid} of {users} has fewer than its places: {held:?}"
                        );
                    }
                }
            }
        }
    }
}
