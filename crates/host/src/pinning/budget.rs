//! The memory that this process may lock, and a check of a plan against it.
//!
//! Input: the kernel's limits and status of this process. Output: a budget, and advice that an administrator can
//! follow. Invariant: values that the kernel does not report count as nothing locked and no privilege.

use rustix::process::{Resource, getrlimit};
use std::fs;
use std::path::Path;

/// The bit of the capability to lock memory beyond the limit.
const CAP_IPC_LOCK: u32 = 14;

/// The locked-memory budget of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemlockBudget {
    /// The limit in bytes (RLIMIT_MEMLOCK). `None` is no limit.
    pub limit_bytes: Option<u64>,
    /// Bytes that the process has locked or pinned for devices. The kernel accounts io_uring registrations to the user
    /// and does not report them here.
    pub locked_bytes: u64,
    /// True if the process may exceed the limit (CAP_IPC_LOCK in the initial user namespace).
    pub privileged: bool,
}

/// The error that a plan exceeds the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{asked} bytes cannot be locked in addition to {locked}: the limit is {limit}. Raise it to {} KiB (ulimit -l, \
     LimitMEMLOCK= of the unit, --ulimit memlock= of the container), give CAP_IPC_LOCK, or request less",
    asked.saturating_add(*locked).div_ceil(1_024)
)]
pub struct OverBudget {
    /// Bytes to lock.
    pub asked: u64,
    /// Bytes locked already.
    pub locked: u64,
    /// The limit in bytes.
    pub limit: u64,
}

impl MemlockBudget {
    /// Reads the current budget of this process.
    #[must_use]
    pub fn read() -> Self {
        Self { limit_bytes: getrlimit(Resource::Memlock).current, ..Self::read_from(Path::new("/proc/self")) }
    }

    fn read_from(process: &Path) -> Self {
        let status = fs::read_to_string(process.join("status")).unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()
        };
        let kibibytes = |name| field(name).and_then(|number| number.parse::<u64>().ok()).unwrap_or(0);
        let capable = field("CapEff:")
            .and_then(|mask| u64::from_str_radix(mask, 16).ok())
            .is_some_and(|mask| mask >> CAP_IPC_LOCK & 1 == 1);
        // In a user namespace of its own a process has every capability, but none of them counts for locking.
        let map = fs::read_to_string(process.join("uid_map")).unwrap_or_default();
        let first = map.split_whitespace().eq(["0", "0", "4294967295"]);
        Self {
            limit_bytes: Some(0),
            locked_bytes: kibibytes("VmLck:").saturating_add(kibibytes("VmPin:")).saturating_mul(1_024),
            privileged: capable && first,
        }
    }

    /// Returns the bytes that can still be locked; `None` means no limit.
    #[must_use]
    pub fn room_bytes(&self) -> Option<u64> {
        let limit = self.limit_bytes.filter(|_| !self.privileged)?;
        Some(limit.saturating_sub(self.locked_bytes))
    }

    /// Checks that `bytes` more can be locked.
    ///
    /// # Errors
    /// [`OverBudget`] has the numbers and how to raise the limit.
    pub fn check(&self, bytes: u64) -> Result<(), OverBudget> {
        match self.room_bytes() {
            Some(room) if bytes > room => Err(OverBudget {
                asked: bytes,
                locked: self.locked_bytes,
                limit: self.limit_bytes.unwrap_or(u64::MAX),
            }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(status: &str, uid_map: &str) -> MemlockBudget {
        let process = tempfile::TempDir::new().unwrap_or_else(|error| panic!("{error}"));
        for (name, text) in [("status", status), ("uid_map", uid_map)] {
            fs::write(process.path().join(name), text).unwrap_or_else(|error| panic!("{error}"));
        }
        MemlockBudget { limit_bytes: Some(8 << 20), ..MemlockBudget::read_from(process.path()) }
    }

    const FIRST: &str = "         0          0 4294967295\n";

    #[test]
    fn plan_above_the_limit_is_refused_with_the_required_limit() {
        let budget = of("Name: x\nVmLck:\t    1024 kB\nVmPin:\t 4 kB\nCapEff:\t0000000000000000\n", FIRST);
        assert_eq!(budget.room_bytes(), Some((8 << 20) - (1_028 << 10)));
        assert_eq!(budget.check((8 << 20) - (1_028 << 10)), Ok(()));
        let refused = budget.check(8 << 20).unwrap_err();
        assert_eq!(refused, OverBudget { asked: 8 << 20, locked: 1_028 << 10, limit: 8 << 20 });
        assert!(refused.to_string().contains("9220 KiB"), "{refused}");
        assert!(budget.check(u64::MAX).unwrap_err().to_string().contains("KiB"));
    }

    #[test]
    fn privilege_counts_only_in_the_initial_user_namespace() {
        let all = "CapEff:\t000001fffeffffff\n";
        assert_eq!(of(all, FIRST).room_bytes(), None);
        assert_eq!(of(all, "0 1000 1\n").room_bytes(), Some(8 << 20));
        assert_eq!(of("CapEff:\t0000000000003fff\n", FIRST).room_bytes(), Some(8 << 20));
        let unlimited = MemlockBudget { limit_bytes: None, ..of("", "") };
        assert_eq!((unlimited.room_bytes(), unlimited.check(u64::MAX)), (None, Ok(())));
    }

    #[test]
    fn this_process_has_a_budget() {
        let budget = MemlockBudget::read();
        assert!(budget.privileged || budget.limit_bytes.is_none_or(|limit| limit >= budget.locked_bytes));
    }
}
