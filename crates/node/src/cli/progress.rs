//! Progress of operations that take longer than a second: a bar on a terminal, plain lines elsewhere.
//!
//! Input: counts. Output: standard error only, so that standard output holds results only. Nothing shows in the first
//! second.

use crate::config::ByteSize;
use crate::load::LoadProgress;
use headwater_host::clock::{Clock, Nanos};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal as _;

const FIRST_AFTER: Nanos = Nanos(1_000_000_000);
const LINE_INTERVAL: Nanos = Nanos(2_000_000_000);

/// The progress of one operation.
#[derive(Debug)]
pub struct ProgressDisplay {
    what: &'static str,
    clock: Clock,
    next: Nanos,
    bar: Option<ProgressBar>,
    terminal: bool,
    total: Option<u64>,
    done: u64,
    bytes: u64,
}

impl ProgressDisplay {
    /// Starts the display; `what` is a verb in its -ing form.
    #[must_use]
    pub fn start(what: &'static str) -> Self {
        Self {
            what,
            clock: Clock::start(),
            next: FIRST_AFTER,
            bar: None,
            terminal: std::io::stderr().is_terminal(),
            total: None,
            done: 0,
            bytes: 0,
        }
    }

    /// Sets the name of the current step.
    pub fn phase(&mut self, what: &'static str) {
        if self.what != what {
            self.what = what;
            if let Some(bar) = self.bar.take() {
                bar.finish_and_clear();
            }
        }
    }

    /// Sets the total number of items.
    pub fn total(&mut self, total: Option<u64>) {
        self.total = total;
    }

    /// Sets the items and bytes done.
    pub fn set(&mut self, done: u64, bytes: u64) {
        self.done = done;
        self.bytes = bytes;
        self.show();
    }

    /// Returns the seconds since the start.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.clock.now().to_duration().as_secs_f64()
    }

    #[expect(clippy::print_stderr, reason = "progress of the command line goes to standard error")]
    fn show(&mut self) {
        let now = self.clock.now();
        if now < self.next {
            return;
        }
        let bytes = if self.bytes > 0 { ByteSize(self.bytes).to_string() } else { String::new() };
        if self.terminal {
            // Ten updates a second are enough for the eye.
            self.next = now.after(Nanos::from_millis(100));
            let bar = self.bar.get_or_insert_with(|| bar(self.what, self.total));
            bar.set_position(self.done);
            bar.set_message(bytes);
        } else {
            self.next = now.after(LINE_INTERVAL);
            let of = self.total.map(|total| format!(" of {total}")).unwrap_or_default();
            eprintln!("{}: {}{of}, {bytes}, {:.0} s", self.what, self.done, self.seconds());
        }
    }
}

impl Drop for ProgressDisplay {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl LoadProgress for ProgressDisplay {
    fn expect(&mut self, items: Option<u64>, _bytes: Option<u64>) {
        self.total(items);
    }

    fn advance(&mut self, items: u64, bytes: u64) {
        self.set(self.done + items, self.bytes + bytes);
    }
}

fn bar(what: &'static str, total: Option<u64>) -> ProgressBar {
    let (bar, template) = match total {
        Some(total) => (ProgressBar::new(total), "{prefix} {wide_bar} {pos}/{len} {msg} {eta}"),
        None => (ProgressBar::new_spinner(), "{prefix} {spinner} {pos} {msg} {elapsed}"),
    };
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_bad| ProgressStyle::default_bar());
    bar.with_style(style).with_prefix(what)
}
