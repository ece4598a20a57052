//! Gives the operations and the collector what was read for them.
//!
//! Input: the ends of reads of pages, and of runs of extents. Output: operations with the pages that they asked for, runnable
//! once none is missing. Invariant: an operation runs once for all that it asked for.

use super::SsdDevice;
use crate::log::extent_reads::EndedRun;
use crate::log::page_reads::{EndedRead, ReadResult, ReadWaiter};
use crate::media::Media;

impl<M: Media> SsdDevice<M> {
    /// Notifies the operations and the collector whose pages were read.
    pub(super) fn notify_waiters(&mut self) {
        for EndedRead { waiter, page, result } in self.ended_reads.drain(..) {
            match waiter {
                ReadWaiter::Collector => self.ftl.end_victim_read(page, result, self.now),
                ReadWaiter::Operation(at) => {
                    let operation = &mut self.operations[at];
                    match result {
                        ReadResult::Pinned => operation.pinned_pages.push(page),
                        ReadResult::Outdated => {}
                        ReadResult::Failed(_) => operation.failed_pages.push(page),
                    }
                    let missing = &mut operation.missing_pages;
                    *missing =
                        missing.checked_sub(1).expect("an operation got a page that it did not wait for");
                    if *missing == 0 {
                        self.schedule.make_runnable(at);
                    }
                }
            }
        }
        for EndedRun { operation: at, run } in self.ftl.take_ended_runs() {
            let operation = &mut self.operations[at];
            operation.missing_pages -= usize::from(run.run.pages);
            operation.read_runs.push(run);
            if operation.missing_pages == 0 {
                self.schedule.make_runnable(at);
            }
        }
    }
}
