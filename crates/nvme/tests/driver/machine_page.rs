//! Doorbells in a file that somebody else maps, as a process does to whom a queue is lent.
//!
//! In: what is stored there. Out: doorbells that changed. A value that was stored twice is one: nobody rings a doorbell with
//! the value that it has.

use headwater_host::foreign::Foreign;
use headwater_host::registers::{MappedRegisters, Registers};
use headwater_nvme::controller::QueueId;
use std::os::fd::{AsFd, OwnedFd};

/// Queues whose doorbells are looked at.
const QUEUES: usize = 64;

/// A doorbell that was rung.
pub(crate) enum Rung {
    Tail(QueueId, u32),
    Head(QueueId, u32),
}

pub(crate) struct DoorbellPage {
    file: OwnedFd,
    registers: MappedRegisters,
    seen: [u32; 2 * QUEUES],
}

impl DoorbellPage {
    pub(crate) fn new(bar_bytes: usize) -> Self {
        let (_, file) = Foreign::memfd(bar_bytes).unwrap();
        let registers = MappedRegisters::map(file.as_fd(), 0, bar_bytes).unwrap();
        Self { file, registers, seen: [0; 2 * QUEUES] }
    }

    pub(crate) fn file(&self) -> OwnedFd {
        self.file.try_clone().unwrap()
    }

    /// A queue begins: its doorbells are zero.
    pub(crate) fn clear(&mut self, queue: QueueId) {
        for doorbell in [2 * usize::from(queue.0), 2 * usize::from(queue.0) + 1] {
            self.seen[doorbell] = 0;
            self.registers.store32(super::DOORBELLS + 4 * doorbell, 0);
        }
    }

    pub(crate) fn rung(&mut self) -> Vec<Rung> {
        let mut rung = Vec::new();
        for (doorbell, seen) in self.seen.iter_mut().enumerate() {
            let value = self.registers.load32(super::DOORBELLS + 4 * doorbell);
            if std::mem::replace(seen, value) == value {
                continue;
            }
            let queue = QueueId(u16::try_from(doorbell / 2).unwrap());
            rung.push(if doorbell % 2 == 0 { Rung::Tail(queue, value) } else { Rung::Head(queue, value) });
        }
        rung
    }
}
