//! As much of an NVMe driver as the tests need: queues at fixed places in guest memory, one command at a time or many.
//!
//! ```text
//!   0x0000 admin SQ   0x1000 admin CQ   0x2000 SQ 1   0x3000 CQ 1   0x4000 shadow doorbells   0x5000 EventIdx
//!   0x10000 data
//! ```

use crate::hypervisor::{Guest, Node};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::completion::CompletionEntry;
use headwater_nvme::spec::status::Status;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes as _, IntoBytes as _};

pub(crate) const SLOTS: u32 = 8;
pub(crate) const DATA: u64 = 0x1_0000;
pub(crate) const SHADOW: u64 = 0x4000;
pub(crate) const EVENT_INDEX: u64 = 0x5000;

/// How a driver rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ringing {
    /// By registers.
    Registers,
    /// By memory, and by a register only when EventIdx asks for it.
    Shadow,
}

/// A queue pair of the driver.
pub(crate) struct Pair {
    number: u16,
    ringing: Ringing,
    tail: u32,
    head: u32,
    phase: u16,
    next_id: u16,
    /// Doorbell writes that had to be messages.
    pub(crate) messages: u32,
}

impl Pair {
    pub(crate) fn new(number: u16, ringing: Ringing) -> Self {
        Self { number, ringing, tail: 0, head: 0, phase: 1, next_id: 0, messages: 0 }
    }

    fn place(&self, completion: u64) -> usize {
        usize::try_from(u64::from(self.number) * 0x2000 + completion * 0x1000).unwrap()
    }

    /// Writes an entry and rings; returns its id.
    pub(crate) fn submit(&mut self, node: &mut Node, guest: &mut Guest, mut entry: SubmissionEntry) -> u16 {
        self.next_id += 1;
        entry.command_id = U16::new(self.next_id);
        let at = self.place(0) + usize::try_from(self.tail).unwrap() * 64;
        guest.memory.copy_out(at, entry.as_bytes()).unwrap();
        let old = self.tail;
        self.tail = (self.tail + 1) % SLOTS;
        self.ring(node, guest, 0, old, self.tail);
        self.next_id
    }

    fn ring(&mut self, node: &mut Node, guest: &mut Guest, completion: u64, old: u32, new: u32) {
        let cell = u64::from(self.number) * 2 + completion;
        if self.ringing == Ringing::Shadow {
            let place = |page: u64| usize::try_from(page + cell * 4).unwrap();
            guest.memory.copy_out(place(SHADOW), &new.to_le_bytes()).unwrap();
            let mut event = [0; 4];
            guest.memory.copy_in(place(EVENT_INDEX), &mut event).unwrap();
            let low = |value: u32| u16::try_from(value & 0xFFFF).unwrap();
            let [event, new16, old16] = [u32::from_le_bytes(event), new, old].map(low);
            // The rule of the specification, and of Linux: the position left must be the one that was asked for.
            if new16.wrapping_sub(event).wrapping_sub(1) >= new16.wrapping_sub(old16) {
                return;
            }
        }
        self.messages += 1;
        guest.set_register(node, 0x1000 + cell * 4, new);
    }

    /// The next completion, if it is there.
    pub(crate) fn reap(&mut self, node: &mut Node, guest: &mut Guest) -> Option<CompletionEntry> {
        let at = self.place(1) + usize::try_from(self.head).unwrap() * 16;
        let mut bytes = [0; 16];
        guest.memory.copy_in(at, &mut bytes).unwrap();
        let entry = CompletionEntry::read_from_bytes(&bytes).unwrap();
        if entry.status_and_phase.get() & 1 != self.phase {
            return None;
        }
        let old = self.head;
        self.head = (self.head + 1) % SLOTS;
        if self.head == 0 {
            self.phase ^= 1;
        }
        self.ring(node, guest, 1, old, self.head);
        Some(entry)
    }

    /// One command to its end.
    pub(crate) fn run(
        &mut self,
        node: &mut Node,
        guest: &mut Guest,
        entry: SubmissionEntry,
    ) -> (Status, u32) {
        let id = self.submit(node, guest, entry);
        for _ in 0..10_000 {
            if let Some(answer) = self.reap(node, guest) {
                assert_eq!(answer.command_id.get(), id);
                return (answer.status(), answer.result.get());
            }
            node.turn();
        }
        panic!("opcode {:#x} has no completion", entry.opcode);
    }
}

/// CC: enabled, all command sets, entries of 64 and 16 bytes.
const ENABLE: u32 = 1 | 6 << 4 | 6 << 16 | 4 << 20;

/// Enables the controller.
pub(crate) fn enable(node: &mut Node, guest: &mut Guest) -> Pair {
    guest.memory.copy_out(0, &[0; 0x6000]).unwrap();
    guest.set_register(node, 0x24, (SLOTS - 1) << 16 | (SLOTS - 1));
    guest.set_register(node, 0x28, 0);
    guest.set_register(node, 0x2C, 0);
    guest.set_register(node, 0x30, 0x1000);
    guest.set_register(node, 0x34, 0);
    guest.set_register(node, 0x14, ENABLE);
    assert_eq!(guest.register(node, 0x1C), 1, "CSTS.RDY");
    Pair::new(0, Ringing::Registers)
}

/// Clears CC.EN and waits for CSTS.RDY to fall.
pub(crate) fn disable(node: &mut Node, guest: &mut Guest) {
    guest.set_register(node, 0x14, ENABLE & !1);
    for _ in 0..10_000 {
        if guest.register(node, 0x1C) & 1 == 0 {
            return;
        }
    }
    panic!("CSTS.RDY never falls");
}

/// Enables the controller and makes I/O queue 1.
pub(crate) fn start(node: &mut Node, guest: &mut Guest, ringing: Ringing) -> (Pair, Pair) {
    let mut admin = enable(node, guest);
    if ringing == Ringing::Shadow {
        let config = admin_entry(0x7C, 0, SHADOW, [0; 2]);
        let config = SubmissionEntry { prp2: U64::new(EVENT_INDEX), ..config };
        assert_eq!(admin.run(node, guest, config).0, Status::SUCCESS);
    }
    let size = (SLOTS - 1) << 16 | 1;
    assert_eq!(admin.run(node, guest, admin_entry(0x05, 0, 0x3000, [size, 1 << 16 | 3])).0, Status::SUCCESS);
    assert_eq!(admin.run(node, guest, admin_entry(0x01, 0, 0x2000, [size, 1 << 16 | 1])).0, Status::SUCCESS);
    (admin, Pair::new(1, ringing))
}

pub(crate) fn admin_entry(
    opcode: u8,
    namespace: u32,
    prp1: u64,
    [cdw10, cdw11]: [u32; 2],
) -> SubmissionEntry {
    SubmissionEntry {
        opcode,
        namespace: U32::new(namespace),
        prp1: U64::new(prp1),
        cdw10: U32::new(cdw10),
        cdw11: U32::new(cdw11),
        ..SubmissionEntry::default()
    }
}
