//! An I/O queue: one connection, seen as a [`Transport`].
//!
//! In: commands with tokens. Out: completions with the same tokens.

use super::NvmeTcpTarget;
use super::control::{Control, connect_command, refused};
use super::link::Link;
use crate::backend::Transport;
use crate::command::{Command, Data};
use crate::error::{IoError, SubmitError};
use crate::queue::Completion;
use headwater_host::clock::Nanos;
use headwater_nvme::tcp::Transfer;
use headwater_nvme::tcp::initiator::Untaken;

/// The queue.
#[derive(Debug)]
pub(super) struct TcpQueue {
    link: Link,
    depth: u32,
}

impl TcpQueue {
    /// Connects queue `number` of the controller. Blocks.
    pub(super) fn open(
        target: &NvmeTcpTarget,
        control: &Control,
        number: u16,
        depth: u32,
    ) -> Result<Self, IoError> {
        // A queue of n entries holds n - 1 commands.
        let entries = u16::try_from(depth + 1)
            .ok()
            .filter(|&entries| depth > 0 && u32::from(entries) <= control.entries_max);
        let entries = entries.ok_or_else(|| IoError::Refused {
            reason: format!("a queue of {depth} commands; the device takes 1 to {}", control.entries_max - 1),
        })?;
        let mut link = Link::open(target, entries - 1, control.in_capsule_max)?;
        let (entry, data) = connect_command(target, number, entries, control.controller)?;
        let status = link.call(entry, data)?.status();
        if !status.is_success() {
            return Err(refused(target, status));
        }
        Ok(Self { link, depth })
    }
}

impl Transport for TcpQueue {
    fn submit(&mut self, command: &Command, token: u64) -> Result<(), SubmitError> {
        let transfer = match &command.data {
            Data::None => Transfer::None,
            Data::ToDevice(buffer) => Transfer::Out(buffer.clone()),
            Data::FromDevice(buffer) => Transfer::In(buffer.clone()),
        };
        match self.link.submit(command.entry, transfer, token) {
            Ok(()) => Ok(()),
            Err(Untaken::Full(_)) => Err(SubmitError::Full),
            Err(Untaken::NotOpen(_)) => Err(SubmitError::Gone),
        }
    }

    fn ring(&mut self) -> Result<(), IoError> {
        self.link.flush()
    }

    fn reap(&mut self) -> Result<Option<Completion>, IoError> {
        // What an R2T asked for leaves with the next look at the latest.
        let done = self.link.reap()?;
        self.link.flush()?;
        Ok(done.map(|done| Completion {
            token: done.token,
            result: done.entry.result.get(),
            status: done.entry.status(),
        }))
    }

    fn sleep(&mut self, longest: Option<Nanos>) -> Result<(), IoError> {
        self.link.sleep(longest)
    }

    fn in_flight(&self) -> u32 {
        u32::try_from(self.link.outstanding()).unwrap_or(u32::MAX)
    }

    fn depth(&self) -> u32 {
        self.depth
    }
}
