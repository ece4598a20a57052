//! How many commands of a handle are kept at its device.
//!
//! In: how late the device answered. Out: a limit. What lies at the device is out of a scheduler's reach, so a policy that
//! promises something about time keeps no more there than the device answers in time. Invariant: the limit lies between 1
//! and what the queues hold; it falls by a quarter at most once for each limit's worth of answers, and rises by one for
//! each such round in which all were early.

use headwater_host::clock::Nanos;

/// The limit, and the round that decides on the next.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    limit: u32,
    most: u32,
    /// `None`: the limit stays at the most.
    target: Option<Nanos>,
    /// Answers left of this round.
    round: u32,
    /// The latest answer of this round.
    latest: Nanos,
}

impl Window {
    /// At most `most` at the device, fewer when it answers later than `target`.
    #[must_use]
    pub fn new(most: u32, target: Option<Nanos>) -> Self {
        let most = most.max(1);
        Self { limit: most, most, target, round: most, latest: Nanos::ZERO }
    }

    /// Most commands at the device now.
    #[must_use]
    #[inline]
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// The device answered a command so long after it was given.
    pub fn answered(&mut self, latency: Nanos) {
        let Some(target) = self.target else {
            return;
        };
        self.latest = self.latest.max(latency);
        self.round -= 1;
        let late = self.latest > target;
        if self.round > 0 && !(late && self.round <= self.limit / 2) {
            return;
        }
        if late {
            self.limit = (self.limit - self.limit.div_ceil(4)).max(1);
        } else if self.latest.0 < target.0 / 4 * 3 {
            self.limit = (self.limit + 1).min(self.most);
        }
        self.latest = Nanos::ZERO;
        // What was given before the limit fell is answered late too: it says nothing about the new limit.
        self.round = if late { self.limit * 2 } else { self.limit };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that serves one after the other answers after as many service times as there are commands.
    #[test]
    fn the_limit_settles_where_a_serial_device_answers_in_time() {
        for (service_us, target_us) in [(100, 1_000), (10, 1_000), (400, 1_000), (2_000, 1_000)] {
            let mut window = Window::new(64, Some(Nanos::from_micros(target_us)));
            for _ in 0..20_000 {
                window.answered(Nanos::from_micros(service_us * u64::from(window.limit())));
            }
            let fits = (target_us / service_us).clamp(1, 64);
            let limit = u64::from(window.limit());
            assert!(limit <= fits + 1 && limit * 2 >= fits, "{limit} kept where {fits} fit");
        }
    }

    #[test]
    fn without_a_target_everything_that_the_queues_hold_is_kept_there() {
        let mut window = Window::new(7, None);
        window.answered(Nanos::from_millis(9_000));
        assert_eq!(window.limit(), 7);
    }
}
