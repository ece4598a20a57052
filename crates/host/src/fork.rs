//! Detection that this process was forked.
//!
//! Input: nothing. Output: a [`ProcessGeneration`] to store beside anything a child must not use. Invariant: a generation
//! stays current for ever in the process that took it and is never current in a child of that process; the check is one
//! load.

use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Forks between this process and the first process that called [`ProcessGeneration::current`].
static FORK_COUNT: AtomicUsize = AtomicUsize::new(0);

/// The identity of a process among its ancestors and descendants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessGeneration(usize);

impl ProcessGeneration {
    /// Returns the generation of this process.
    #[must_use]
    pub fn current() -> Self {
        static WATCH: Once = Once::new();
        WATCH.call_once(|| {
            // SAFETY: the handler runs in the child, on the one thread there is, before fork returns there; it touches
            // an atomic and nothing else, which is async-signal-safe. It lives as long as the program. If the C library
            // has no memory to register it, children are not detected, as in any program without a handler.
            let _ = unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
        });
        Self(FORK_COUNT.load(Ordering::Relaxed))
    }

    /// Returns true if this is still the process in which the generation was taken.
    #[must_use]
    #[inline]
    pub fn is_current(self) -> bool {
        FORK_COUNT.load(Ordering::Relaxed) == self.0
    }

    /// Returns the number of forks between this process and the first one that took a generation.
    #[must_use]
    #[inline]
    pub fn forks(self) -> usize {
        self.0
    }
}

unsafe extern "C" fn count_fork() {
    FORK_COUNT.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_is_stale_in_child_and_current_in_parent() {
        let taken = ProcessGeneration::current();
        // SAFETY: the child only loads an atomic and leaves by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let code = i32::from(taken.is_current());
            // SAFETY: ends the child at once, running nothing of the parent's.
            unsafe { libc::_exit(code) };
        }
        assert!(child > 0);
        let mut status = 0;
        // SAFETY: `status` outlives the call.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((waited, status), (child, 0));
        assert!(taken.is_current());
    }
}
