//! A hostile hypervisor and guest: any messages, memory contents, doorbells and entries, against a device.
//!
//! Input: steps, each an action, the number of its bytes, and the bytes. The guest starts with its memory mapped, the
//! controller enabled and one pair of I/O queues.

use headwater_frontend::vfio_user::controller::GuestController;
use headwater_frontend::vfio_user::function::{BarRegisters as _, ReplyState, VfioUserFunction};
use headwater_frontend::vfio_user::message::{MESSAGE_BYTES_MAX, VfioUserHeader};
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_host::shared_memory::SharedMemory;
use headwater_host::wake::WakeDescriptor;
use headwater_ssd::command::FrontEndId;
use headwater_ssd::engine::{DeviceConfig, SsdDevice, StartTime};
use headwater_ssd::media::FlashGeometry;
use headwater_ssd::media::memory::MemoryMedia;
use std::os::fd::{AsFd as _, OwnedFd};

const MEMORY_BYTES: usize = 64 << 10;
const ENABLE: u32 = 1 | 6 << 4 | 6 << 16 | 4 << 20;
const SLOTS: u16 = 8;

/// A guest and its hypervisor, connected to a device.
struct GuestWorld {
    device: SsdDevice<MemoryMedia>,
    controller: GuestController,
    function: VfioUserFunction,
    memory: SharedMemory,
    now: Nanos,
    tails: [u16; 2],
}

/// Runs steps of a hypervisor and its guest against a device.
///
/// # Panics
/// If a message has no reply or a malformed one, or if commands of a disconnected guest never end.
pub fn body(bytes: &[u8]) {
    let mut world = GuestWorld::started();
    let mut rest = bytes;
    while let Some((&[kind, length], behind)) = rest.split_first_chunk::<2>() {
        let (step, behind) = behind.split_at(usize::from(length).min(behind.len()));
        rest = behind;
        match kind % 8 {
            0 => world.message(step, Vec::new()),
            1 => world.message(step, vec![SharedMemory::memfd(8_192).expect("memory").1]),
            2 => {
                let bell = WakeDescriptor::new().expect("a descriptor");
                world.message(step, vec![bell.as_fd().try_clone_to_owned().expect("a descriptor")]);
            }
            3 => world.write_memory(step),
            4 => {
                world.poll_turns(usize::from(length));
            }
            5 => world.doorbell(step),
            6 => world.entry(0, step),
            _ => world.entry(1, step),
        }
        world.poll_turns(1);
    }
    world.end();
}

impl GuestWorld {
    fn started() -> Self {
        let media = MemoryMedia::erased(FlashGeometry::with_blocks(32)).expect("a medium");
        let start = StartTime { now: Nanos::ZERO, wall: UnixMillis(1) };
        let device = SsdDevice::open(media, DeviceConfig::default(), start, &mut |_| {}).expect("a device");
        let (memory, descriptor) = SharedMemory::memfd(MEMORY_BYTES).expect("memory");
        let mut world = Self {
            device,
            controller: GuestController::new(FrontEndId(4)),
            function: VfioUserFunction::default(),
            memory,
            now: Nanos::ZERO,
            tails: [0; 2],
        };
        world.message(&message(1, &[0, 0, 1, 0]), Vec::new());
        let mut map = [0; 32];
        map[4] = 3;
        map[24..32].copy_from_slice(&(MEMORY_BYTES as u64).to_le_bytes());
        world.message(&message(2, &map), vec![descriptor]);
        world.message(&message(10, &access(7, 4, &[6, 4])), Vec::new());
        for (offset, value) in [(0x24, 0x0007_0007), (0x30, 0x1000), (0x14, ENABLE)] {
            world.message(&message(10, &access(0, offset, &u32::to_le_bytes(value))), Vec::new());
        }
        let size = u32::from(SLOTS - 1) << 16 | 1;
        world.entry(0, &create(0x05, 0x3000, size, 1));
        world.poll_turns(4);
        world.entry(0, &create(0x01, 0x2000, size, 1 << 16 | 1));
        world.poll_turns(4);
        world
    }

    /// Passes a message as the socket would, with its correct size.
    fn message(&mut self, bytes: &[u8], descriptors: Vec<OwnedFd>) {
        let mut bytes = bytes.to_vec();
        bytes.resize(bytes.len().clamp(16, MESSAGE_BYTES_MAX), 0);
        let size = u32::try_from(bytes.len()).expect("short");
        bytes[4..8].copy_from_slice(&size.to_le_bytes());
        let (head, rest) = bytes.split_at(16);
        let header = VfioUserHeader::from_bytes(head.try_into().expect("16 bytes"));
        if header.rest() != Some(rest.len()) {
            return;
        }
        let mut out = Vec::new();
        let mut behind = self.controller.registers(self.now);
        let mut handled = self.function.handle(&header, rest, descriptors, &mut behind, &mut out);
        for _ in 0..10_000 {
            if handled == ReplyState::Done {
                break;
            }
            self.poll_turns(1);
            handled = self.function.complete_awaited(&self.controller.registers(self.now), &mut out);
        }
        assert_eq!(handled, ReplyState::Done, "the message was never answered");
        if let Some(size) = out.get(4..8) {
            let size = u32::from_le_bytes(size.try_into().expect("four bytes"));
            assert_eq!(
                usize::try_from(size).expect("short"),
                out.len(),
                "one reply, of the size in its header"
            );
            assert_eq!(out[..2], bytes[..2], "the reply has the id of its message");
        }
    }

    fn write_memory(&mut self, step: &[u8]) {
        if let Some((&[low, high], data)) = step.split_first_chunk::<2>() {
            let at = usize::from(u16::from_le_bytes([low, high]));
            let _outside_is_ignored = self.memory.copy_out(at, data);
        }
    }

    fn doorbell(&mut self, step: &[u8]) {
        let &[queue, kind, low, high, ..] = step else {
            return;
        };
        let value = u32::from(u16::from_le_bytes([low, high]));
        let mut behind = self.controller.registers(self.now);
        if kind & 1 == 0 {
            behind.submission_tail(u16::from(queue), value);
        } else {
            behind.completion_head(u16::from(queue), value);
        }
    }

    /// Writes an entry at the tail of the admin queue or of queue 1, and rings its doorbell.
    fn entry(&mut self, queue: u16, step: &[u8]) {
        let mut entry = [0; 64];
        let bytes = step.len().min(64);
        entry[..bytes].copy_from_slice(&step[..bytes]);
        let tail = &mut self.tails[usize::from(queue)];
        let at = usize::from(queue) * 0x2000 + usize::from(*tail) * 64;
        self.memory.copy_out(at, &entry).expect("inside");
        *tail = (*tail + 1) % SLOTS;
        let value = u32::from(*tail);
        self.controller.registers(self.now).submission_tail(queue, value);
    }

    fn poll_turns(&mut self, turns: usize) -> bool {
        let mut moved = false;
        for _ in 0..turns {
            self.now = self.now.after(Nanos::from_micros(10));
            let memory = self.function.is_bus_master().then_some(&self.function.memory);
            moved = self.controller.poll(&mut self.device, memory, self.now);
            let vectors = &mut self.function.vectors;
            self.controller.interrupt(self.now, |vector| vectors.signal(vector));
            moved |= self.device.poll(self.now, UnixMillis(1));
        }
        moved
    }

    /// Disconnects the guest and checks that commands in flight end.
    fn end(&mut self) {
        self.controller.abandon();
        for _ in 0..10_000 {
            if !self.poll_turns(1) && self.controller.is_quiet() {
                return;
            }
        }
        panic!("commands of a disconnected guest never end");
    }
}

fn message(command: u16, rest: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 16];
    bytes[2..4].copy_from_slice(&command.to_le_bytes());
    bytes.extend_from_slice(rest);
    bytes
}

fn access(region: u32, offset: u64, data: &[u8]) -> Vec<u8> {
    let count = u32::try_from(data.len()).expect("short");
    [&offset.to_le_bytes()[..], &region.to_le_bytes(), &count.to_le_bytes(), data].concat()
}

fn create(opcode: u8, base: u64, cdw10: u32, cdw11: u32) -> [u8; 64] {
    let mut entry = [0; 64];
    entry[0] = opcode;
    entry[2] = opcode;
    entry[24..32].copy_from_slice(&base.to_le_bytes());
    entry[40..44].copy_from_slice(&cdw10.to_le_bytes());
    entry[44..48].copy_from_slice(&cdw11.to_le_bytes());
    entry
}
