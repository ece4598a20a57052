//! What the simulator drives: a device over simulated flash, seen from its one face.
//!
//! In: commands and time. Out: completions. The trait is as narrow as the world needs it, so that a test can put a
//! deliberately broken device in and see the checker object.

mod converged;

use crate::media::SimMedia;
use headwater_converged::command::{Command, Completion, NamespaceId, SubmitError};
use headwater_converged::device::DeviceConfig;
use headwater_converged::namespace::Namespace;
use headwater_host::clock::{Nanos, UnixMillis};

/// When a device is opened.
#[derive(Clone, Copy, Debug)]
pub struct BootTime {
    /// Monotonic time.
    pub now: Nanos,
    /// Wall time.
    pub wall: UnixMillis,
}

/// A device that the world can drive.
pub trait Engine: Sized {
    /// Opens the device over a medium, recovery included; the medium completes in virtual time by `wait`.
    ///
    /// # Errors
    /// Why it could not be opened, in words. The medium is dropped, so that its wreck can be booted again.
    fn open(media: SimMedia, config: &DeviceConfig, at: BootTime) -> Result<Self, String>;

    /// Looks at a medium that no device runs on, as an operator would. Nothing by default.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    fn inspect(media: SimMedia, config: &DeviceConfig, at: BootTime) -> Result<(), String> {
        let _ = (media, config, at);
        Ok(())
    }

    /// Submits a command. `Ok` means exactly one completion will follow; `Err` means none will.
    ///
    /// # Errors
    /// Why the command was not accepted.
    fn submit(&mut self, namespace: NamespaceId, token: u64, command: Command) -> Result<(), SubmitError>;

    /// Goes as far as it can at this time. Returns whether anything moved.
    fn poll(&mut self, now: Nanos, wall: UnixMillis) -> bool;

    /// Takes the next completion.
    fn next_completion(&mut self) -> Option<Completion>;

    /// What it says that a namespace is. A device without a table of namespaces has none but key spaces.
    fn namespace(&self, namespace: NamespaceId) -> Option<Namespace> {
        let _ = namespace;
        None
    }

    /// Whether it says that a controller has a namespace. Without a table, every controller has all.
    fn is_attached(&self, namespace: NamespaceId, controller: u16) -> bool {
        let _ = (namespace, controller);
        true
    }

    /// Asks for what only an operator asks for: a checkpoint, say. Nothing by default.
    fn nudge(&mut self) {}

    /// Makes everything durable and writes what makes the next boot fast, in virtual time; returns the time then, or
    /// `None` when it cannot or the power went meanwhile.
    fn shut_down(&mut self, at: BootTime) -> Option<Nanos> {
        let _ = at;
        None
    }

    /// When it next has work; `None` when only a command can wake it.
    fn next_deadline(&self) -> Option<Nanos>;
}
