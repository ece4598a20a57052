//! The damage of a running node: its log lines, at a limited rate, and its sentence in `/healthz`.
//!
//! Input: the counters of the device, whenever they are published. Output: one warning for what is new. Invariant: the
//! first read error is logged at once, and a medium on which every read fails does not fill the log.

use headwater_host::clock::Nanos;
use headwater_ssd::engine::DeviceStats;

/// Minimum time between two lines.
const LINE_INTERVAL: Nanos = Nanos::from_millis(10_000);

/// The counters at the last line.
#[derive(Debug, Default)]
pub struct DamageLog {
    read_errors: u64,
    quarantined: u64,
    stuck: bool,
    logged_at: Option<Nanos>,
}

impl DamageLog {
    /// Logs the damage that is new since the last line, unless that line is too recent.
    pub fn update(&mut self, stats: &DeviceStats, now: Nanos) {
        if let Some(line) = self.next_line(stats, now) {
            tracing::warn!("{line}");
        }
    }

    /// Returns the next line.
    fn next_line(&mut self, stats: &DeviceStats, now: Nanos) -> Option<String> {
        let errors = stats.read_errors.saturating_sub(self.read_errors);
        let quarantined = stats.quarantined.saturating_sub(self.quarantined);
        let is_new = errors > 0 || quarantined > 0 || stats.collection_stuck != self.stuck;
        if !is_new || self.logged_at.is_some_and(|at| now.since(at) < LINE_INTERVAL) {
            return None;
        }
        let mut parts = Vec::new();
        if errors > 0 {
            let last =
                stats.last_read_error.map_or(String::new(), |last| format!(", the last one of {last}"));
            parts.push(format!("{errors} reads of the flash failed{last}"));
        }
        if quarantined > 0 {
            parts.push(format!("{quarantined} blocks are quarantined, because pages of them cannot be read"));
        }
        match (self.stuck, stats.collection_stuck) {
            (false, true) => parts.push("collection cannot free a block, and writes fail".to_owned()),
            (true, false) => parts.push("collection frees blocks again".to_owned()),
            _ => {}
        }
        *self = Self {
            read_errors: stats.read_errors,
            quarantined: stats.quarantined,
            stuck: stats.collection_stuck,
            logged_at: Some(now),
        };
        Some(format!(
            "{}; check the disk, and run `headwater device check` on the stopped node",
            parts.join("; ")
        ))
    }
}

/// Returns the damage of a device in words; `None` without any.
#[must_use]
pub fn damage_text(stats: &DeviceStats) -> Option<String> {
    let counts = [
        (stats.unreadable_pages, "unreadable pages given up"),
        (stats.damaged, "damaged records"),
        (stats.quarantined, "quarantined blocks"),
        (stats.read_errors, "failed reads"),
    ];
    let found = counts.into_iter().filter(|(count, _)| *count > 0);
    let texts: Vec<String> = found.map(|(count, what)| format!("{count} {what}")).collect();
    (!texts.is_empty()).then(|| texts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_ssd::engine::FailedRead;

    #[test]
    fn first_error_is_logged_at_once_and_later_ones_together() {
        let mut log = DamageLog::default();
        let mut stats = DeviceStats::default();
        assert_eq!(log.next_line(&stats, Nanos::ZERO), None);
        stats.read_errors = 1;
        stats.last_read_error = Some(FailedRead { block: 3, page: 4, errno: Some(5) });
        let line = log.next_line(&stats, Nanos::ZERO).unwrap();
        assert!(
            line.starts_with("1 reads of the flash failed, the last one of block 3 page 4 (errno 5);"),
            "{line}"
        );
        for number in 2..1_000 {
            stats.read_errors = number;
            assert_eq!(log.next_line(&stats, Nanos::from_millis(number)), None);
        }
        let line = log.next_line(&stats, LINE_INTERVAL).unwrap();
        assert!(line.starts_with("998 reads"), "{line}");
    }

    #[test]
    fn stuck_collection_is_logged_when_it_begins_and_when_it_ends() {
        let mut log = DamageLog::default();
        let mut stats = DeviceStats { collection_stuck: true, quarantined: 7, ..DeviceStats::default() };
        let line = log.next_line(&stats, Nanos::ZERO).unwrap();
        assert!(line.contains("7 blocks are quarantined") && line.contains("writes fail"), "{line}");
        stats.collection_stuck = false;
        assert!(log.next_line(&stats, LINE_INTERVAL).unwrap().contains("frees blocks again"));
    }
}
