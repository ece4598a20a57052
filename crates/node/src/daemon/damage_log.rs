//! The damage of a running node: its log lines, at a limited rate, and its sentence in `/healthz`.
//!
//! Input: the counters of the device, whenever they are published. Output: one warning for what is new. Invariant: the
//! first read error, the failure after which writes are refused, and the moment at which collection cannot go on are
//! logged at once; a medium on which every read fails does not fill the log, and every line is written in the end.

use headwater_host::clock::Nanos;
use headwater_ssd::engine::{DeviceStats, FailedOperation, FailedWrite};
use std::path::Path;

/// Minimum time between two lines.
const LINE_INTERVAL: Nanos = Nanos::from_millis(10_000);

/// The counters at the last line.
#[derive(Debug, Default)]
pub struct DamageLog {
    read_errors: u64,
    damaged_pages: u64,
    quarantined: u64,
    stuck: bool,
    logged_at: Option<Nanos>,
    /// The time at which a line is due that came too soon after the last one.
    due_at: Option<Nanos>,
    failure_taken: bool,
    lacks_space: bool,
}

impl DamageLog {
    /// Logs the damage that is new since the last line, unless that line is too recent.
    pub fn update(&mut self, stats: &DeviceStats, now: Nanos) {
        let lines = [self.space_line(stats), self.next_line(stats, now)];
        for line in lines.into_iter().flatten() {
            tracing::warn!("{line}");
        }
    }

    /// Returns the time at which [`update`](Self::update) is to be called again, even if nothing moved.
    pub fn deadline(&self) -> Option<Nanos> {
        self.due_at
    }

    /// Returns the failure after which every write is refused, once.
    pub fn take_failure(&mut self, stats: &DeviceStats) -> Option<FailedWrite> {
        let failed = stats.failed_write?;
        (!std::mem::replace(&mut self.failure_taken, true)).then_some(failed)
    }

    /// Returns a line when writes begin to wait for space of the file system, and when they end.
    fn space_line(&mut self, stats: &DeviceStats) -> Option<String> {
        let before = std::mem::replace(&mut self.lacks_space, stats.lack_of_space.is_some());
        match (before, stats.lack_of_space) {
            (false, Some(failed)) => Some(format!(
                "{failed}; commands that write fail, and reads go on, until the file system beneath the flash file has \
                 space again"
            )),
            (true, None) => {
                Some("the file system beneath the flash file has space again: writes go on".to_owned())
            }
            _ => None,
        }
    }

    /// Returns the next line.
    fn next_line(&mut self, stats: &DeviceStats, now: Nanos) -> Option<String> {
        let errors = stats.read_errors.saturating_sub(self.read_errors);
        let quarantined = stats.quarantined.saturating_sub(self.quarantined);
        let is_new = errors > 0 || quarantined > 0 || stats.collection_stuck != self.stuck;
        let too_soon = self.logged_at.filter(|at| now.since(*at) < LINE_INTERVAL);
        let is_stuck_now = stats.collection_stuck && !self.stuck;
        self.due_at = too_soon.filter(|_| is_new && !is_stuck_now).map(|at| at.after(LINE_INTERVAL));
        if !is_new || self.due_at.is_some() {
            return None;
        }
        let mut parts = Vec::new();
        if errors > 0 {
            let last =
                stats.last_read_error.map_or(String::new(), |last| format!(", the last one of {last}"));
            parts.push(format!("{errors} reads of the flash failed{last}"));
        }
        let damaged = stats.damaged_pages.saturating_sub(self.damaged_pages);
        if damaged > 0 {
            parts.push(format!("{damaged} of them found a damaged page, also when repeated"));
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
            damaged_pages: stats.damaged_pages,
            quarantined: stats.quarantined,
            stuck: stats.collection_stuck,
            logged_at: Some(now),
            due_at: None,
            failure_taken: self.failure_taken,
            lacks_space: self.lacks_space,
        };
        Some(format!(
            "{}; check the disk, and run `headwater device check` on the stopped node",
            parts.join("; ")
        ))
    }
}

/// Logs the failure after which every write is refused, at once and whatever was logged before it.
pub fn log_failure(failed: &FailedWrite, place: Option<(&Path, u64)>) {
    tracing::error!("{}", failure_line(failed, place));
}

/// Returns the line of a failure: the operation, the error, the file and the offset in it, and what to do.
fn failure_line(failed: &FailedWrite, place: Option<(&Path, u64)>) -> String {
    let place = match (place, failed.operation) {
        (Some((path, _)), FailedOperation::Flush) => format!("{}: ", path.display()),
        (Some((path, offset)), _) => format!("{} at byte {offset}: ", path.display()),
        (None, _) => String::new(),
    };
    format!(
        "{place}{failed}; the node refuses every write from now on, and reads go on: repair the disk or free space \
         on it, then restart the node, which keeps everything that was durable before"
    )
}

/// Returns why the device carries out no writes; `None` if it does.
#[must_use]
pub fn write_refusal(stats: &DeviceStats) -> Option<String> {
    match stats.failed_write {
        Some(failed) => Some(format!("writes fail: {failed}; repair the disk and restart the node")),
        None if stats.lack_of_space.is_some() => {
            let failed = stats.lack_of_space.map_or(String::new(), |failed| failed.to_string());
            Some(format!("writes fail: {failed}; they go on when the file system has space again"))
        }
        None if stats.collection_stuck => Some("writes fail: collection cannot free a block".to_owned()),
        None => None,
    }
}

/// Returns the damage of a device in words; `None` without any.
#[must_use]
pub fn damage_text(stats: &DeviceStats) -> Option<String> {
    let counts = [
        (stats.namespaces_in_doubt, "namespaces in doubt"),
        (stats.lost_pages, "lost pages"),
        (stats.unreadable_pages, "unreadable pages given up"),
        (stats.damaged, "damaged records"),
        (stats.damaged_pages, "reads of damaged pages"),
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
        assert_eq!(log.deadline(), Some(LINE_INTERVAL), "an idle node would never log the last errors");
        let line = log.next_line(&stats, LINE_INTERVAL).unwrap();
        assert!(line.starts_with("998 reads"), "{line}");
        assert_eq!(log.deadline(), None);
    }

    #[test]
    fn failure_is_logged_once_whenever_it_comes_with_file_offset_and_error() {
        let mut log = DamageLog::default();
        let mut stats = DeviceStats { read_errors: 1, ..DeviceStats::default() };
        assert!(log.next_line(&stats, Nanos::ZERO).is_some());
        assert_eq!(log.take_failure(&stats), None);
        let failed = FailedWrite { operation: FailedOperation::Program, block: 3, page: 4, errno: Some(28) };
        stats.failed_write = Some(failed);
        assert_eq!(log.take_failure(&stats), Some(failed));
        assert_eq!(log.take_failure(&stats), None, "the failure was logged twice");
        let path = Path::new("/data/flash");
        let line = failure_line(&failed, Some((path, 4_608)));
        assert!(
            line.starts_with(
                "/data/flash at byte 4608: the write of block 3 page 4 failed: No space left on device (os error 28);"
            ),
            "{line}"
        );
        let flush = FailedWrite { operation: FailedOperation::Flush, errno: Some(5), ..failed };
        let line = failure_line(&flush, Some((path, 0)));
        assert!(line.starts_with("/data/flash: a flush failed: Input/output error (os error 5);"), "{line}");
    }

    #[test]
    fn lack_of_space_is_logged_when_it_begins_and_when_it_ends_and_is_the_reason_of_refused_writes() {
        let mut log = DamageLog::default();
        let mut stats = DeviceStats::default();
        assert_eq!((log.space_line(&stats), write_refusal(&stats)), (None, None));
        stats.lack_of_space =
            Some(FailedWrite { operation: FailedOperation::Program, block: 1, page: 2, errno: Some(28) });
        let line = log.space_line(&stats).unwrap();
        assert!(line.starts_with("the write of block 1 page 2 failed: No space left on device"), "{line}");
        assert_eq!(log.space_line(&stats), None, "the line was repeated");
        assert!(write_refusal(&stats).unwrap().contains("when the file system has space again"));
        stats.lack_of_space = None;
        assert!(log.space_line(&stats).unwrap().ends_with("writes go on"));
    }

    #[test]
    fn stuck_collection_is_logged_when_it_begins_and_when_it_ends() {
        let mut log = DamageLog::default();
        let mut stats = DeviceStats { collection_stuck: true, quarantined: 7, ..DeviceStats::default() };
        let line = log.next_line(&stats, Nanos::ZERO).unwrap();
        assert!(line.contains("7 blocks are quarantined") && line.contains("writes fail"), "{line}");
        stats.collection_stuck = false;
        assert_eq!(log.next_line(&stats, Nanos(1)), None);
        assert!(log.next_line(&stats, LINE_INTERVAL).unwrap().contains("frees blocks again"));
        stats.collection_stuck = true;
        let line =
            log.next_line(&stats, LINE_INTERVAL.after(Nanos(1))).expect("writes fail, and the log waits");
        assert!(line.contains("collection cannot free a block, and writes fail"), "{line}");
    }
}
