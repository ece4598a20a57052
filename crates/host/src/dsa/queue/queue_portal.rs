//! The portal of a queue: open, while its device is stopped, and behind that.
//!
//! Input: a portal. Output: the knowledge that the device accesses nothing any more. Invariant: a device counts as stopped only
//! when the stop of its portal has returned; one whose stop failed never does, so that its memory is never freed.

use crate::dsa::portal::SubmissionPortal;
use std::io;
use std::mem;
use std::panic::resume_unwind;
use std::thread::{Builder, JoinHandle};

/// The portal of a queue.
#[derive(Debug)]
pub(super) enum QueuePortal {
    /// It takes descriptors.
    Open(Box<dyn SubmissionPortal>),
    /// A thread stops it.
    Stopping(JoinHandle<()>),
    /// The device accesses nothing any more.
    Stopped,
    /// The stop has failed: the device may access anything that it has.
    Unknown,
}

/// The stop of a device: happens when it is called, or dropped.
pub(super) type PortalStop = Box<dyn FnOnce() + Send>;

/// A portal that is stopped when this value is dropped, on whatever thread that happens.
#[derive(Debug)]
struct StoppedOnDrop(Box<dyn SubmissionPortal>);

impl Drop for StoppedOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl QueuePortal {
    /// Begins the stop on a thread of its own. Without one it is done when this returns.
    pub(super) fn begin_stop(&mut self) {
        self.begin_stop_by(|stop| Builder::new().name("dsa-stop".into()).spawn(stop));
    }

    /// Begins the stop on the thread that `spawn` starts.
    pub(super) fn begin_stop_by(&mut self, spawn: impl FnOnce(PortalStop) -> io::Result<JoinHandle<()>>) {
        // A panic of the stop leaves `Unknown`.
        *self = match mem::replace(self, Self::Unknown) {
            Self::Open(portal) => {
                let portal = StoppedOnDrop(portal);
                // A closure that no thread takes is dropped here.
                spawn(Box::new(move || drop(portal))).map_or(Self::Stopped, Self::Stopping)
            }
            begun => begun,
        };
    }

    /// Returns true if the device is stopped. Never blocks.
    pub(super) fn poll_stop(&mut self) -> bool {
        match self {
            Self::Open(_) | Self::Unknown => return false,
            Self::Stopping(thread) if !thread.is_finished() => return false,
            Self::Stopping(_) | Self::Stopped => {}
        }
        self.stop()
    }

    /// Stops the device, and returns true when it is stopped; false if an earlier stop has failed.
    ///
    /// # Panics
    /// The stop has panicked, on this thread or on its own.
    pub(super) fn stop(&mut self) -> bool {
        match mem::replace(self, Self::Unknown) {
            Self::Open(portal) => drop(StoppedOnDrop(portal)),
            Self::Stopping(thread) => {
                if let Err(panic) = thread.join() {
                    resume_unwind(panic);
                }
            }
            Self::Stopped => {}
            Self::Unknown => return false,
        }
        *self = Self::Stopped;
        true
    }
}
