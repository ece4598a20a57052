//! The window: the limit of a handle's commands in flight at its device.
//!
//! Input: latencies of the device. Output: a limit. A scheduler cannot reorder commands at the device, so a policy with
//! deadlines keeps no more in flight than the device completes in time. Invariant: the limit lies between 1 and what
//! the queues hold; it falls by at most a quarter in each round of as many completions as the limit, and rises by one
//! after a round in which all completions were early.

use headwater_host::clock::Nanos;

/// The limit, and the state of the current round.
#[derive(Clone, Copy, Debug)]
pub struct InFlightWindow {
    limit: u32,
    max: u32,
    /// The target latency; with `None` the limit stays at the maximum.
    target: Option<Nanos>,
    /// The remaining completions of this round.
    round: u32,
    /// The highest latency in this round.
    latency_max: Nanos,
}

impl InFlightWindow {
    /// Returns a window of at most `max` commands in flight, fewer while latency exceeds `target`.
    #[must_use]
    pub fn new(most: u32, target: Option<Nanos>) -> Self {
        let max = most.max(1);
        Self { limit: max, max, target, round: max, latency_max: Nanos::ZERO }
    }

    /// Returns the most commands in flight now.
    #[must_use]
    #[inline]
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Notes the latency of a command.
    pub fn observe(&mut self, latency: Nanos) {
        let Some(target) = self.target else {
            return;
        };
        self.latency_max = self.latency_max.max(latency);
        self.round -= 1;
        let late = self.latency_max > target;
        if self.round > 0 && !(late && self.round <= self.limit / 2) {
            return;
        }
        if late {
            self.limit = (self.limit - self.limit.div_ceil(4)).max(1);
        } else if self.latency_max.0 < target.0 / 4 * 3 {
            self.limit = (self.limit + 1).min(self.max);
        }
        self.latency_max = Nanos::ZERO;
        // Commands submitted before the limit fell are also late; they are no evidence about the new limit.
        self.round = if late { self.limit * 2 } else { self.limit };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Models a serial device, whose latency is its service time multiplied by the commands in flight.
    #[test]
    fn limit_settles_where_a_serial_device_completes_in_time() {
        for (service_us, target_us) in [(100, 1_000), (10, 1_000), (400, 1_000), (2_000, 1_000)] {
            let mut window = InFlightWindow::new(64, Some(Nanos::from_micros(target_us)));
            for _ in 0..20_000 {
                window.observe(Nanos::from_micros(service_us * u64::from(window.limit())));
            }
            let fits = (target_us / service_us).clamp(1, 64);
            let limit = u64::from(window.limit());
            assert!(limit <= fits + 1 && limit * 2 >= fits, "limit {limit}, {fits} complete in time");
        }
    }

    #[test]
    fn without_a_target_the_limit_is_what_the_queues_hold() {
        let mut window = InFlightWindow::new(7, None);
        window.observe(Nanos::from_millis(9_000));
        assert_eq!(window.limit(), 7);
    }
}
