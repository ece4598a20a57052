//! The memory that this process may lock, and a check of a plan against it.
//!
//! Input: the kernel's limits and status of this process. Output: a budget, and advice that an administrator can
//! follow. Invariant: values that the kernel does not report count as nothing locked and no privilege.

use super::uring::process_registered_bytes;
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
    /// Bytes that the process has locked or pinned for devices, without [`registered_bytes`](Self::registered_bytes).
    pub locked_bytes: u64,
    /// Bytes that rings of this process registered because their buffers are transferred often. The kernel reports them as pinned,
    /// but counts them against the limit of the user's registrations only: not against what mlock and VFIO may lock.
    pub registered_bytes: u64,
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
        let limit_bytes = getrlimit(Resource::Memlock).current;
        Self { limit_bytes, ..Self::read_from(Path::new("/proc/self"), process_registered_bytes()) }
    }

    /// Reads the budget of a process whose rings have registered so many bytes.
    fn read_from(process: &Path, registered_bytes: u64) -> Self {
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
        let bytes = |name| kibibytes(name).saturating_mul(1_024);
        Self {
            limit_bytes: Some(0),
            locked_bytes: bytes("VmLck:").saturating_add(bytes("VmPin:").saturating_sub(registered_bytes)),
            registered_bytes,
            privileged: capable && first,
        }
    }

    /// Returns the budget of memory that is registered with io_uring: what its rings registered already counts as locked.
    #[must_use]
    pub fn of_registrations(self) -> Self {
        Self {
            locked_bytes: self.locked_bytes.saturating_add(self.registered_bytes),
            registered_bytes: 0,
            ..self
        }
    }

    /// Returns the bytes that the rings of this process may register together, because their buffers are transferred often: half of
    /// the limit. `None` means no limit.
    #[must_use]
    pub fn registrations_max(&self) -> Option<u64> {
        self.limit_bytes.filter(|_| !self.privileged).map(|limit| limit / 2)
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
        with_registered(status, uid_map, 0)
    }

    fn with_registered(status: &str, uid_map: &str, registered_bytes: u64) -> MemlockBudget {
        let process = tempfile::TempDir::new().unwrap_or_else(|error| panic!("{error}"));
        for (name, text) in [("status", status), ("uid_map", uid_map)] {
            fs::write(process.path().join(name), text).unwrap_or_else(|error| panic!("{error}"));
        }
        let limit_bytes = Some(8 << 20);
        MemlockBudget { limit_bytes, ..MemlockBudget::read_from(process.path(), registered_bytes) }
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
    fn registered_bytes_take_no_room_of_memory_that_is_locked() {
        let status = "VmLck:\t    1024 kB\nVmPin:\t 3072 kB\nCapEff:\t0000000000000000\n";
        let budget = with_registered(status, FIRST, 2 << 20);
        assert_eq!((budget.locked_bytes, budget.room_bytes()), (2 << 20, Some(6 << 20)));
        assert_eq!(budget.check(6 << 20), Ok(()));
        let registrations = budget.of_registrations();
        assert_eq!((registrations.locked_bytes, registrations.room_bytes()), (4 << 20, Some(4 << 20)));
        assert!(registrations.check(6 << 20).is_err());
        // More than the kernel reports: memory that is about to be registered.
        assert_eq!(with_registered(status, FIRST, 4 << 20).locked_bytes, 1 << 20);
        assert_eq!(budget.registrations_max(), Some(4 << 20));
        assert_eq!(MemlockBudget { privileged: true, ..budget }.registrations_max(), None);
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
