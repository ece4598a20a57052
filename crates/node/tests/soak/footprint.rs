//! The resources that a node holds: resident memory and open descriptors.
//!
//! Input: samples at rest. Output: the medians of each third of the run. Invariant: the last third holds as much as the
//! second one; the first is warm-up.

use headwater_host::clock::{Clock, Nanos};

/// Longest wait until the descriptors of clients that are gone are closed.
const REST_MAX: Nanos = Nanos::from_millis(15_000);
/// Time at rest before memory is measured.
const SETTLE: Nanos = Nanos::from_millis(100);
/// Growth of the resident set that an allocator may cause.
const SLACK_KIB: u64 = 8 << 10;

/// One sample.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Footprint {
    /// Open descriptors.
    pub(crate) descriptors: u64,
    resident_kib: u64,
}

impl Footprint {
    /// Measures a process.
    pub(crate) fn of(pid: u32) -> Self {
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count() as u64;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let resident_kib = line.split_whitespace().next().unwrap().parse().unwrap();
        Self { descriptors, resident_kib }
    }

    /// Measures a process once it has no more than these descriptors, or does not get there.
    pub(crate) fn at_rest(pid: u32, descriptors: u64) -> Self {
        let clock = Clock::start();
        while clock.now() < REST_MAX && Self::of(pid).descriptors > descriptors {
            Clock::sleep(Nanos::from_millis(5));
        }
        Clock::sleep(SETTLE);
        Self::of(pid)
    }
}

/// The medians of each third of a run.
pub(crate) struct FootprintThirds {
    descriptors: [u64; 3],
    resident_kib: [u64; 3],
}

impl FootprintThirds {
    /// Takes the medians of at least three samples.
    pub(crate) fn of(samples: &[Footprint]) -> Self {
        let thirds = |value: fn(&Footprint) -> u64| {
            [0, 1, 2].map(|third| {
                let part = &samples[samples.len() * third / 3..samples.len() * (third + 1) / 3];
                let mut values: Vec<u64> = part.iter().map(value).collect();
                values.sort_unstable();
                values[values.len() / 2]
            })
        };
        Self {
            descriptors: thirds(|sample| sample.descriptors),
            resident_kib: thirds(|sample| sample.resident_kib),
        }
    }

    /// Returns the figures as text.
    pub(crate) fn text(&self) -> String {
        let mib = self.resident_kib.map(|kib| format!("{:.1}", kib as f64 / 1_024.0));
        format!("thirds of the run: resident MiB {mib:?}, descriptors {:?}", self.descriptors)
    }

    /// Asserts that nothing grew from the second third to the last.
    pub(crate) fn assert_flat(&self) {
        let [_, before, after] = self.descriptors;
        assert!(after <= before, "descriptors grow: {}", self.text());
        let [_, before, after] = self.resident_kib;
        assert!(after <= before + SLACK_KIB, "memory grows: {}", self.text());
    }
}
