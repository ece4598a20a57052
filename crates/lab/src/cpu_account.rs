//! CPU time used so far by another process or by one thread of this process.
//!
//! Input: a process or thread id.
//! Output: nanoseconds if the scheduler reports them (`schedstat`, summed over all threads), else clock ticks (`stat`).
//! A thread that ends removes its nanoseconds from `schedstat` but not from `stat`, so the larger of the two is correct
//! to within two ticks.

use headwater_host::clock::Nanos;
use std::fs;

/// The kernel's tick in `/proc/PID/stat`: 100 a second in every supported Linux ABI.
const TICK: Nanos = Nanos::from_millis(10);

/// The process or thread whose CPU time is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CpuAccount {
    /// All threads of a process.
    Process(u32),
    /// One thread of this process.
    Thread(u32),
}

impl CpuAccount {
    /// Returns the thread that is counted, or the first thread of the process.
    pub(crate) fn thread(self) -> u32 {
        match self {
            Self::Process(id) | Self::Thread(id) => id,
        }
    }

    /// Returns the time used so far; `None` if the process or thread is gone.
    pub(crate) fn used(self) -> Option<Nanos> {
        match self {
            Self::Thread(id) => schedstat(&format!("/proc/self/task/{id}/schedstat")),
            Self::Process(id) => {
                let ticks = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
                let by_ticks = Nanos(ticks_of(&ticks)?.saturating_mul(TICK.0));
                // The tick count lags at most two ticks (user and system) behind the time used.
                let fine = threads(id).unwrap_or_default();
                Some(fine.max(by_ticks))
            }
        }
    }
}

fn threads(process: u32) -> Option<Nanos> {
    let mut sum = Nanos::ZERO;
    for task in fs::read_dir(format!("/proc/{process}/task")).ok()? {
        let path = task.ok()?.path().join("schedstat");
        // A thread may end between the listing and the read.
        sum = sum.after(schedstat(path.to_str()?).unwrap_or_default());
    }
    Some(sum)
}

fn schedstat(path: &str) -> Option<Nanos> {
    let text = fs::read_to_string(path).ok()?;
    text.split_whitespace().next()?.parse().ok().map(Nanos)
}

/// Parses the user and system ticks of a `/proc/PID/stat` line. The program's name may contain spaces and brackets.
fn ticks_of(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_name_does_not_shift_the_fields() {
        let stat = "12 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 111 222 0 0 20";
        assert_eq!(ticks_of(stat), Some(333));
        assert_eq!(ticks_of("12 (short) S 1"), None);
    }

    #[test]
    fn used_time_never_decreases() {
        let account = CpuAccount::Process(std::process::id());
        let before = account.used().unwrap();
        let mut sum = 0_u64;
        for i in 0..20_000_000_u64 {
            sum = std::hint::black_box(sum ^ i);
        }
        assert!(account.used().unwrap() >= before);
    }

    #[test]
    fn missing_process_has_no_account() {
        assert_eq!(CpuAccount::Process(u32::MAX).used(), None);
        assert_eq!(CpuAccount::Thread(u32::MAX).used(), None);
    }
}
