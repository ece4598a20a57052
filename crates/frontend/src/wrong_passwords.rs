//! The limit of wrong passwords: an address that sent too many is told to wait, right or wrong.
//!
//! Input: the address of each wrong password, and the time. Output: whether a password of this address is looked at.
//! Invariant: an address has at most 10 wrong passwords looked at in each 10 seconds.

use headwater_host::clock::Nanos;
use std::collections::BTreeMap;

/// Wrong passwords of an address in a period.
const WRONG_MAX: u32 = 10;
/// Period in which they are counted.
const PERIOD: Nanos = Nanos::from_millis(10_000);
/// Addresses that are counted at most; beyond it those of ended periods are forgotten, and then all wait.
const ADDRESSES_MAX: usize = 4_096;

/// The wrong passwords of each address.
#[derive(Debug, Default)]
pub struct WrongPasswords {
    /// The start of the period, and the number in it.
    of_address: BTreeMap<String, (Nanos, u32)>,
}

impl WrongPasswords {
    /// Returns true if a password of the client at this address may be looked at.
    #[must_use]
    pub fn may_try(&mut self, address: &str, now: Nanos) -> bool {
        if self.of_address.len() >= ADDRESSES_MAX {
            self.of_address.retain(|_, (since, _)| now.since(*since) < PERIOD);
        }
        let known = self.of_address.get(host_of(address)).filter(|(since, _)| now.since(*since) < PERIOD);
        match known {
            Some((_, wrong)) => *wrong < WRONG_MAX,
            None => self.of_address.len() < ADDRESSES_MAX,
        }
    }

    /// Returns the number of wrong passwords of the client at this address in the present period.
    #[must_use]
    pub fn number(&self, address: &str, now: Nanos) -> u32 {
        let known = self.of_address.get(host_of(address)).filter(|(since, _)| now.since(*since) < PERIOD);
        known.map_or(0, |(_, wrong)| *wrong)
    }

    /// Counts a wrong password of the client at this address.
    pub fn count(&mut self, address: &str, now: Nanos) {
        let (since, wrong) = self.of_address.entry(host_of(address).to_owned()).or_insert((now, 0));
        if now.since(*since) >= PERIOD {
            (*since, *wrong) = (now, 0);
        }
        *wrong += 1;
    }
}

/// Returns an address without its port.
fn host_of(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_with_too_many_wrong_passwords_waits_for_the_end_of_the_period() {
        let mut wrong = WrongPasswords::default();
        let at = Nanos::from_millis;
        for time in 0..10 {
            let client = format!("192.0.2.1:{time}");
            assert!(wrong.may_try(&client, at(time)));
            wrong.count(&client, at(time));
        }
        assert!(!wrong.may_try("192.0.2.1:99", at(20)));
        assert!(wrong.may_try("192.0.2.2:99", at(20)), "another machine");
        assert!(!wrong.may_try("192.0.2.1:99", at(9_999)));
        assert!(wrong.may_try("192.0.2.1:99", at(10_000)));
        wrong.count("192.0.2.1:99", at(10_000));
        assert!(wrong.may_try("192.0.2.1:99", at(10_001)));
    }

    #[test]
    fn addresses_are_bounded_and_forgotten() {
        let mut wrong = WrongPasswords::default();
        for number in 0..ADDRESSES_MAX {
            wrong.count(&format!("host {number}:1"), Nanos(0));
        }
        assert!(!wrong.may_try("one more:1", Nanos(1)));
        assert!(wrong.may_try("one more:1", PERIOD));
    }
}
