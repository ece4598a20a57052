//! What a backend gives: namespaces, registered memory, queues.
//!
//! In: wishes of a [`Device`](crate::Device). Out: [`Buffer`]s and [`Transport`]s. Each way to a device implements the two
//! traits once; whatever is above knows no other difference.

use crate::attach::admin::NamespaceWish;
use crate::buffer::Buffer;
use crate::command::Command;
use crate::error::{IoError, SubmitError};
use crate::facts::NamespaceFacts;
use crate::queue::Completion;
use headwater_host::clock::Nanos;
use std::fmt;

/// The control plane of a way to a device. May block.
pub trait Backend: Send + fmt::Debug {
    /// The namespaces that this client may use.
    ///
    /// # Errors
    /// [`IoError`] when the device cannot be asked.
    fn namespaces(&mut self) -> Result<Vec<NamespaceFacts>, IoError>;

    /// Changes the table of namespaces, durable when this returns; `id` is ignored when one is made. Returns its number.
    ///
    /// # Errors
    /// [`IoError`] when the device refuses, this client may not, or this way to a device cannot ask.
    fn change_namespace(&mut self, id: u8, wish: NamespaceWish) -> Result<u8, IoError>;

    /// Memory that the device may touch from now on: zeroes, on page borders.
    ///
    /// # Errors
    /// [`IoError`] when there is no memory, or a limit is reached.
    fn region(&mut self, bytes: usize) -> Result<Buffer, IoError>;

    /// Takes a region back, once nothing in flight names it.
    ///
    /// # Errors
    /// [`IoError`] for a region that is none.
    fn release(&mut self, region: &Buffer) -> Result<(), IoError>;

    /// A queue for up to `depth` commands in flight.
    ///
    /// # Errors
    /// [`IoError`] for an impossible depth, or when a limit is reached.
    fn queue(&mut self, depth: u32) -> Result<Box<dyn Transport>, IoError>;
}

/// The data plane: one queue. Never blocks but in [`sleep`](Self::sleep), and while it finds its device again.
pub trait Transport: Send + fmt::Debug {
    /// Takes a command; the device sees it after [`ring`](Self::ring). `Ok` means exactly one completion will follow.
    ///
    /// # Errors
    /// [`SubmitError`]: nothing happened.
    fn submit(&mut self, command: &Command, token: u64) -> Result<(), SubmitError>;

    /// Shows what was submitted to the device; costs nothing when it has seen all.
    ///
    /// # Errors
    /// [`IoError`] when the device is gone.
    fn ring(&mut self) -> Result<(), IoError>;

    /// Takes the next completion, if one has come.
    ///
    /// # Errors
    /// [`IoError`] when the device is gone or breaks the protocol.
    fn reap(&mut self) -> Result<Option<Completion>, IoError>;

    /// Sleeps until a completion may have come, at most for `longest`.
    ///
    /// # Errors
    /// [`IoError`] when the kernel refuses or the device is gone.
    fn sleep(&mut self, longest: Option<Nanos>) -> Result<(), IoError>;

    /// Commands accepted and not yet answered.
    fn in_flight(&self) -> u32;

    /// Most commands in flight.
    fn depth(&self) -> u32;
}
