//! A minimal NVMe driver for the tests, with queues at fixed addresses in guest memory.
//!
//! ```text
//!   0x0000 admin SQ   0x1000 admin CQ   0x2000 SQ 1   0x3000 CQ 1   0x4000 shadow doorbells   0x5000 EventIdx
//!   0x10000 data
//! ```

use crate::hypervisor::{TestGuest, VfioTestNode};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::completion::CompletionEntry;
use headwater_nvme::spec::status::Status;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes as _, IntoBytes as _};

pub(crate) const SLOTS: u32 = 8;
pub(crate) const DATA: u64 = 0x1_0000;
pub(crate) const SHADOW: u64 = 0x4000;
pub(crate) const EVENT_INDEX: u64 = 0x5000;

/// The way in which a driver rings doorbells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DoorbellMode {
    /// Through registers.
    Registers,
    /// Through shadow doorbells in memory, and a register only when EventIdx requires it.
    Shadow,
}

/// A queue pair of the driver.
pub(crate) struct DriverQueuePair {
    number: u16,
    ringing: DoorbellMode,
    tail: u32,
    head: u32,
    phase: u16,
    next_id: u16,
    /// Number of doorbell writes through registers.
    pub(crate) messages: u32,
}

impl DriverQueuePair {
    pub(crate) fn new(number: u16, ringing: DoorbellMode) -> Self {
        Self { number, ringing, tail: 0, head: 0, phase: 1, next_id: 0, messages: 0 }
    }

    fn ring_offset(&self, completion: u64) -> usize {
        usize::try_from(u64::from(self.number) * 0x2000 + completion * 0x1000).unwrap()
    }

    /// Writes an entry and rings; returns its identifier.
    pub(crate) fn submit(
        &mut self,
        node: &mut VfioTestNode,
        guest: &mut TestGuest,
        mut entry: SubmissionEntry,
    ) -> u16 {
        self.next_id += 1;
        entry.command_id = U16::new(self.next_id);
        let at = self.ring_offset(0) + usize::try_from(self.tail).unwrap() * 64;
        guest.memory.copy_out(at, entry.as_bytes()).unwrap();
        let old = self.tail;
        self.tail = (self.tail + 1) % SLOTS;
        self.ring(node, guest, 0, old, self.tail);
        self.next_id
    }

    fn ring(&mut self, node: &mut VfioTestNode, guest: &mut TestGuest, completion: u64, old: u32, new: u32) {
        let cell = u64::from(self.number) * 2 + completion;
        if self.ringing == DoorbellMode::Shadow {
            let place = |page: u64| usize::try_from(page + cell * 4).unwrap();
            guest.memory.copy_out(place(SHADOW), &new.to_le_bytes()).unwrap();
            let mut event = [0; 4];
            guest.memory.copy_in(place(EVENT_INDEX), &mut event).unwrap();
            let low = |value: u32| u16::try_from(value & 0xFFFF).unwrap();
            let [event, new16, old16] = [u32::from_le_bytes(event), new, old].map(low);
            // The rule of the specification and of Linux: ring only if EventIdx lies between the old and the new
            // position.
            if new16.wrapping_sub(event).wrapping_sub(1) >= new16.wrapping_sub(old16) {
                return;
            }
        }
        self.messages += 1;
        guest.set_register(node, 0x1000 + cell * 4, new);
    }

    /// Returns the next completion, if it is posted.
    pub(crate) fn reap(&mut self, node: &mut VfioTestNode, guest: &mut TestGuest) -> Option<CompletionEntry> {
        let at = self.ring_offset(1) + usize::try_from(self.head).unwrap() * 16;
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

    /// Runs one command until its completion.
    pub(crate) fn run(
        &mut self,
        node: &mut VfioTestNode,
        guest: &mut TestGuest,
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

/// CC.CSS 111b: enabled without an I/O command set.
pub(crate) const ADMIN_ONLY: u32 = ENABLE | 7 << 4;

/// Enables the controller.
pub(crate) fn enable(node: &mut VfioTestNode, guest: &mut TestGuest) -> DriverQueuePair {
    enable_as(node, guest, ENABLE)
}

/// Enables the controller by this value of CC.
pub(crate) fn enable_as(
    node: &mut VfioTestNode,
    guest: &mut TestGuest,
    configuration: u32,
) -> DriverQueuePair {
    guest.memory.copy_out(0, &[0; 0x6000]).unwrap();
    guest.set_register(node, 0x24, (SLOTS - 1) << 16 | (SLOTS - 1));
    guest.set_register(node, 0x28, 0);
    guest.set_register(node, 0x2C, 0);
    guest.set_register(node, 0x30, 0x1000);
    guest.set_register(node, 0x34, 0);
    guest.set_register(node, 0x14, configuration);
    assert_eq!(guest.register(node, 0x1C), 1, "CSTS.RDY");
    DriverQueuePair::new(0, DoorbellMode::Registers)
}

/// Clears CC.EN and waits until CSTS.RDY is 0.
pub(crate) fn disable(node: &mut VfioTestNode, guest: &mut TestGuest) {
    guest.set_register(node, 0x14, ENABLE & !1);
    for _ in 0..10_000 {
        if guest.register(node, 0x1C) & 1 == 0 {
            return;
        }
    }
    panic!("CSTS.RDY is not cleared after CC.EN");
}

/// Enables the controller and creates I/O queue 1.
pub(crate) fn start(
    node: &mut VfioTestNode,
    guest: &mut TestGuest,
    ringing: DoorbellMode,
) -> (DriverQueuePair, DriverQueuePair) {
    let mut admin = enable(node, guest);
    if ringing == DoorbellMode::Shadow {
        let config = admin_entry(0x7C, 0, SHADOW, [0; 2]);
        let config = SubmissionEntry { prp2: U64::new(EVENT_INDEX), ..config };
        assert_eq!(admin.run(node, guest, config).0, Status::SUCCESS);
    }
    let queue = create_queue(node, guest, &mut admin, ringing);
    (admin, queue)
}

/// Creates I/O queue 1.
pub(crate) fn create_queue(
    node: &mut VfioTestNode,
    guest: &mut TestGuest,
    admin: &mut DriverQueuePair,
    ringing: DoorbellMode,
) -> DriverQueuePair {
    let size = (SLOTS - 1) << 16 | 1;
    assert_eq!(admin.run(node, guest, admin_entry(0x05, 0, 0x3000, [size, 1 << 16 | 3])).0, Status::SUCCESS);
    assert_eq!(admin.run(node, guest, admin_entry(0x01, 0, 0x2000, [size, 1 << 16 | 1])).0, Status::SUCCESS);
    DriverQueuePair::new(1, ringing)
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
