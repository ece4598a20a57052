//! Whether this process was forked off since some moment.
//!
//! In: nothing. Out: a [`Generation`] to keep beside whatever a child must not use. Invariant: in the process that took it
//! a generation is current for ever, in every child of that process it is not, and finding out is one load.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many forks lie between this process and the one that first asked.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// A process, among itself and its descendants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation(u64);

impl Generation {
    /// This process.
    #[must_use]
    pub fn current() -> Self {
        static WATCH: Once = Once::new();
        WATCH.call_once(|| {
            // SAFETY: the handler runs in the child, on the one thread there is, before fork returns there; it touches an
            // atomic and nothing else, which is async-signal-safe. It lives as long as the program. If the C library has
            // no memory to note it, children are not told apart, as in any program that does not ask.
            let _ = unsafe { libc::pthread_atfork(None, None, Some(count)) };
        });
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this is still the process in which it was taken.
    #[must_use]
    #[inline]
    pub fn is_current(self) -> bool {
        FORKS.load(Ordering::Relaxed) == self.0
    }
}

unsafe extern "C" fn count() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_another_generation_and_its_parent_is_not() {
        let taken = Generation::current();
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
