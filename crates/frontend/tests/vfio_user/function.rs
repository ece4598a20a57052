//! The PCI function, tested by its messages over a register file that only records accesses.

use crate::wire::{dma_map, dma_unmap, info, message, outcome, read, set_irqs, version, write};
use headwater_dma::iova::{ClientMemory, Iova};
use headwater_frontend::vfio_user::DMA_MAPS_MAX;
use headwater_frontend::vfio_user::function::{BarRegisters, ReplyState, VfioUserFunction};
use headwater_frontend::vfio_user::message::VfioUserHeader;
use headwater_host::shared_memory::SharedMemory;
use headwater_host::wake::{WaitOutcome, WakeDescriptor};
use std::os::fd::{AsFd as _, OwnedFd};
use zerocopy::FromBytes as _;

const EINVAL: u32 = 22;
const EPERM: u32 = 1;
const EEXIST: u32 = 17;
const ENOSPC: u32 = 28;
const EOPNOTSUPP: u32 = 95;

#[derive(Debug, PartialEq, Eq)]
enum RecordedAccess {
    Write(u16, usize, u64),
    Tail(u16, u32),
    Head(u16, u32),
    Reset,
    Unmapped(u64, u64),
}

#[derive(Default)]
struct RecordingRegisters(Vec<RecordedAccess>, bool);

impl BarRegisters for RecordingRegisters {
    fn read(&mut self, offset: u16, bytes: usize) -> u64 {
        (0x1111_1111_1111_1111 * (u64::from(offset) / 4 + 1)) >> (64 - 8 * bytes)
    }
    fn write(&mut self, offset: u16, bytes: usize, value: u64, _memory: &ClientMemory) {
        self.0.push(RecordedAccess::Write(offset, bytes, value));
    }
    fn submission_tail(&mut self, queue: u16, value: u32) {
        self.0.push(RecordedAccess::Tail(queue, value));
    }
    fn completion_head(&mut self, queue: u16, value: u32) {
        self.0.push(RecordedAccess::Head(queue, value));
    }
    fn reset(&mut self) {
        self.0.push(RecordedAccess::Reset);
    }
    fn is_quiet(&self) -> bool {
        !self.1
    }
    fn unmapped(&mut self, start: Iova, bytes: u64) {
        self.0.push(RecordedAccess::Unmapped(start.0, bytes));
    }
}

#[derive(Default)]
struct FunctionClient {
    function: VfioUserFunction,
    registers: RecordingRegisters,
    out: Vec<u8>,
}

impl FunctionClient {
    fn connected() -> Self {
        let mut client = Self::default();
        let reply = client.ask(&version()).unwrap();
        assert!(reply.starts_with(&[0, 0, 1, 0]) && reply.ends_with(b"}\0"));
        client
    }

    fn send(&mut self, message: &[u8], descriptors: Vec<OwnedFd>) -> ReplyState {
        let (header, rest) = VfioUserHeader::read_from_prefix(message).unwrap();
        assert_eq!(header.rest(), Some(rest.len()));
        self.out.clear();
        self.function.handle(&header, rest, descriptors, &mut self.registers, &mut self.out)
    }

    fn ask_with(&mut self, message: &[u8], descriptors: Vec<OwnedFd>) -> Result<Vec<u8>, u32> {
        assert_eq!(self.send(message, descriptors), ReplyState::Done);
        outcome(&self.out).map(<[u8]>::to_vec)
    }

    fn ask(&mut self, message: &[u8]) -> Result<Vec<u8>, u32> {
        self.ask_with(message, Vec::new())
    }

    fn go_on(&mut self) -> ReplyState {
        self.function.complete_awaited(&self.registers, &mut self.out)
    }

    /// Reads bytes of a region.
    fn read_region(&mut self, region: u32, offset: u64, count: u32) -> Vec<u8> {
        self.ask(&read(region, offset, count)).unwrap()[16..].to_vec()
    }
}

#[test]
fn no_request_is_served_before_the_version_is_negotiated() {
    let mut client = FunctionClient::default();
    assert_eq!(client.ask(&info(4, 0)), Err(EINVAL));
    let old = client.ask(&message(1, 0, &[0, 0, 0, 0, 0])).unwrap();
    assert_eq!(old[..4], [0; 4], "no minor version above the client's");
    let mut client = FunctionClient::default();
    let future = message(1, 0, &[1, 0, 0, 0, 0]);
    assert_eq!(client.ask(&future), Err(EINVAL), "another major version");
    client.ask(&version()).unwrap();
    assert_eq!(client.ask(&info(4, 0)).unwrap()[4..], [3, 0, 0, 0, 9, 0, 0, 0, 3, 0, 0, 0]);
}

#[test]
fn regions_and_interrupts_report_their_sizes() {
    let mut client = FunctionClient::connected();
    for (index, size) in [(0, 0x4000_u64), (1, 0), (6, 0), (7, 4_096), (8, 0)] {
        let reply = client.ask(&info(5, index)).unwrap();
        assert_eq!(reply[16..24], size.to_le_bytes(), "region {index}");
    }
    assert_eq!(client.ask(&info(5, 9)), Err(EINVAL));
    for (index, count) in [(0, 0), (1, 0), (2, 33_u32)] {
        assert_eq!(client.ask(&info(7, index)).unwrap()[12..], count.to_le_bytes(), "kind {index}");
    }
    assert_eq!(client.ask(&info(7, 3)), Err(EINVAL));
}

#[test]
fn registers_and_doorbells_accept_aligned_words_only() {
    let mut client = FunctionClient::connected();
    assert_eq!(client.read_region(0, 0, 8), [0x11; 8]);
    assert_eq!(client.read_region(0, 8, 4), [0x33; 4]);
    assert_eq!(client.read_region(0, 9, 2), [0; 2]);
    client.ask(&write(0, 0x14, &[1, 2, 3, 4])).unwrap();
    client.ask(&write(0, 0x28, &[1, 2, 3, 4, 5, 6, 7, 8])).unwrap();
    client.ask(&write(0, 0x15, &[9; 4])).unwrap();
    client.ask(&write(0, 0x1008, &[5, 0, 0, 0])).unwrap();
    client.ask(&write(0, 0x100C, &[6, 0, 0, 0])).unwrap();
    client.ask(&write(0, 0x1009, &[7, 0, 0, 0])).unwrap();
    let expected = [
        RecordedAccess::Write(0x14, 4, 0x0403_0201),
        RecordedAccess::Write(0x28, 8, 0x0807_0605_0403_0201),
        RecordedAccess::Tail(1, 5),
        RecordedAccess::Head(1, 6),
    ];
    assert_eq!(client.registers.0, expected);
}

#[test]
fn accesses_outside_a_region_are_refused() {
    let mut client = FunctionClient::connected();
    let bad = [(0, 0x3FFD, 4), (0, u64::MAX, 4), (7, 4_095, 2), (1, 0, 1), (9, 0, 1), (u32::MAX, 0, 4)];
    for (region, offset, count) in bad {
        assert_eq!(client.ask(&read(region, offset, count)), Err(EINVAL), "{region} {offset:#x}");
        let data = vec![0; usize::try_from(count).unwrap()];
        assert_eq!(client.ask(&write(region, offset, &data)), Err(EINVAL), "{region} {offset:#x}");
    }
    assert!(client.registers.0.is_empty());
}

#[test]
fn writes_to_the_vector_table_can_be_read_back() {
    let mut client = FunctionClient::connected();
    client.ask(&write(0, 0x2010, &[1, 2, 3, 4, 5, 6, 7, 8])).unwrap();
    assert_eq!(client.read_region(0, 0x200E, 6), [0, 0, 1, 2, 3, 4]);
    assert_eq!(client.read_region(0, 0x3000, 8), [0; 8], "nothing is pending");
}

#[test]
fn memory_is_mapped_and_files_outside_memory_are_refused() {
    let mut client = FunctionClient::connected();
    let (memory, descriptor) = SharedMemory::memfd(3 * 4_096).unwrap();
    let again = descriptor.try_clone().unwrap();
    client.ask_with(&dma_map(3, 0x10_0000, 8_192, 4_096), vec![again]).unwrap();
    client.function.memory.resolve(Iova(0x10_1000), 5).unwrap().copy_out(0, b"hello");
    let mut found = [0; 5];
    memory.copy_in(8_192, &mut found).unwrap();
    assert_eq!(&found, b"hello");
    let file: OwnedFd = std::fs::File::open("/proc/self/maps").unwrap().into();
    assert_eq!(client.ask_with(&dma_map(3, 0x20_0000, 4_096, 0), vec![file]), Err(EPERM));
    let outside = vec![descriptor.try_clone().unwrap()];
    assert_eq!(client.ask_with(&dma_map(3, 0x20_0000, 4 * 4_096, 0), outside), Err(EINVAL));
    let overlapping = vec![descriptor.try_clone().unwrap()];
    assert_eq!(client.ask_with(&dma_map(3, 0x10_1000, 4_096, 0), overlapping), Err(EEXIST));
    assert_eq!(client.function.memory.regions(), 1);
}

#[test]
fn number_of_regions_is_limited_and_the_limit_is_told() {
    let told = FunctionClient::default().ask(&version()).unwrap();
    let told = String::from_utf8_lossy(&told);
    assert!(told.contains(&format!("\"max_dma_maps\":{DMA_MAPS_MAX},")), "{told}");
    let mut client = FunctionClient::connected();
    let (_memory, descriptor) = SharedMemory::memfd(4_096).unwrap();
    let map = |client: &mut FunctionClient, number: usize| {
        let address = u64::try_from(number).unwrap() * 8_192;
        client.ask_with(&dma_map(3, address, 4_096, 0), vec![descriptor.try_clone().unwrap()])
    };
    for number in 0..DMA_MAPS_MAX {
        map(&mut client, number).unwrap();
    }
    assert_eq!(map(&mut client, DMA_MAPS_MAX), Err(ENOSPC));
    client.ask(&dma_unmap(2, 0, 0)).unwrap();
    map(&mut client, DMA_MAPS_MAX).unwrap();
}

#[test]
fn read_only_memory_is_only_read_and_memory_without_a_descriptor_stays_inaccessible() {
    let mut client = FunctionClient::connected();
    let (memory, descriptor) = SharedMemory::memfd(4_096).unwrap();
    memory.copy_out(7, b"read me").unwrap();
    client.ask_with(&dma_map(1, 0xC_0000, 4_096, 0), vec![descriptor]).unwrap();
    client.ask(&dma_map(3, 0xFEB0_0000, 4_096, 0)).unwrap();
    let found = client.function.memory.resolve(Iova(0xC_0007), 7).unwrap();
    let mut text = [0; 7];
    assert_eq!((found.copy_in(0, &mut text), &text), (7, b"read me"));
    assert!(!found.is_writable());
    drop(found);
    // A ROM whose file this process may not even map.
    let rom: OwnedFd = std::fs::File::open("/proc/self/maps").unwrap().into();
    client.ask_with(&dma_map(1, 0xD_0000, 4_096, 0), vec![rom]).unwrap();
    assert!(client.function.memory.resolve(Iova(0xD_0000), 1).is_err());
    assert!(client.function.memory.resolve(Iova(0xFEB0_0000), 1).is_err());
    client.ask(&dma_unmap(0, 0xC_0000, 4_096)).unwrap();
    client.ask(&dma_unmap(0, 0xFEB0_0000, 4_096)).unwrap();
}

#[test]
fn an_unmap_is_answered_only_when_no_command_in_flight_uses_the_region() {
    let mut client = FunctionClient::connected();
    let (_memory, descriptor) = SharedMemory::memfd(8_192).unwrap();
    client.ask_with(&dma_map(3, 0x1000, 8_192, 0), vec![descriptor]).unwrap();
    let transfer = client.function.memory.resolve(Iova(0x1800), 16).unwrap();
    assert_eq!(client.send(&dma_unmap(0, 0x1000, 8_192), Vec::new()), ReplyState::Waiting);
    assert_eq!(client.registers.0, [RecordedAccess::Unmapped(0x1000, 8_192)]);
    assert!(client.function.memory.resolve(Iova(0x1800), 16).is_err(), "a new command can still use it");
    assert_eq!(client.go_on(), ReplyState::Waiting);
    assert!(client.out.is_empty());
    drop(transfer);
    assert_eq!(client.go_on(), ReplyState::Done);
    assert_eq!(
        outcome(&client.out).unwrap()[8..],
        [0x1000_u64.to_le_bytes(), 8_192_u64.to_le_bytes()].concat()
    );
}

#[test]
fn an_unmap_must_name_whole_regions() {
    let mut client = FunctionClient::connected();
    for at in [0x1000, 0x2000, 0x8000] {
        let (_memory, descriptor) = SharedMemory::memfd(4_096).unwrap();
        client.ask_with(&dma_map(3, at, 4_096, 0), vec![descriptor]).unwrap();
    }
    for (address, size) in [(0x1000, 0x1800), (0x1800, 0x800), (0x5000, 0x1000), (u64::MAX, 2)] {
        assert_eq!(client.ask(&dma_unmap(0, address, size)), Err(EINVAL), "{address:#x} {size:#x}");
    }
    client.ask(&dma_unmap(0, 0x1000, 0x2000)).unwrap();
    assert_eq!(client.function.memory.regions(), 1);
    client.ask(&dma_unmap(2, 0, 0)).unwrap();
    assert_eq!(client.function.memory.regions(), 0);
    client.ask(&dma_unmap(2, 0, 0)).unwrap();
    assert_eq!(client.ask(&dma_unmap(1, 0, 0)), Err(EOPNOTSUPP), "dirty pages");
}

#[test]
fn vectors_signal_the_descriptors_of_the_message() {
    let mut client = FunctionClient::connected();
    let bell = WakeDescriptor::new().unwrap();
    let sent = || vec![bell.as_fd().try_clone_to_owned().unwrap()];
    client.ask_with(&set_irqs(0x24, 2, 1, 1), sent()).unwrap();
    client.function.vectors.signal(0);
    assert_eq!(bell.take(), Ok(WaitOutcome::NotSignalled));
    client.function.vectors.signal(1);
    assert_eq!(bell.take(), Ok(WaitOutcome::Signalled));
    client.ask(&set_irqs(0x21, 2, 1, 1)).unwrap();
    assert_eq!(bell.take(), Ok(WaitOutcome::Signalled), "a test signal");
    client.ask(&set_irqs(0x21, 2, 0, 0)).unwrap();
    client.function.vectors.signal(1);
    assert_eq!(bell.take(), Ok(WaitOutcome::NotSignalled), "disabled");
    for (flags, index, start, count) in
        [(0x24, 2, 33, 1), (0x24, 2, 0, u32::MAX), (0x24, 0, 0, 1), (0x22, 2, 0, 1), (0x09, 2, 0, 1)]
    {
        assert_eq!(client.ask_with(&set_irqs(flags, index, start, count), sent()), Err(EINVAL));
    }
    client.ask(&set_irqs(0x21, 0, 0, 0)).unwrap();
}

#[test]
fn a_reset_of_device_or_function_resets_the_registers() {
    let mut client = FunctionClient::connected();
    client.ask(&write(7, 4, &[6, 4])).unwrap();
    assert!(client.function.is_bus_master());
    client.ask(&message(13, 0, &[])).unwrap();
    assert!(!client.function.is_bus_master());
    client.ask(&write(7, 0x68, &[0x10, 0xA8])).unwrap();
    assert_eq!(client.registers.0, [RecordedAccess::Reset, RecordedAccess::Reset]);
}

#[test]
fn a_reset_is_answered_only_when_no_command_is_in_flight() {
    let mut client = FunctionClient::connected();
    client.registers.1 = true;
    assert_eq!(client.send(&message(13, 0, &[]), Vec::new()), ReplyState::Waiting);
    assert_eq!(client.registers.0, [RecordedAccess::Reset]);
    assert_eq!(client.go_on(), ReplyState::Waiting);
    client.registers.1 = false;
    assert_eq!(client.go_on(), ReplyState::Done);
    assert_eq!(outcome(&client.out), Ok(&[][..]));
}

#[test]
fn posted_messages_get_no_reply_and_unknown_messages_are_refused() {
    let mut client = FunctionClient::connected();
    let mut posted = write(0, 0x1000, &[1, 0, 0, 0]);
    posted[8] = 0x10;
    assert_eq!(client.send(&posted, Vec::new()), ReplyState::Done);
    assert!(client.out.is_empty());
    assert_eq!(client.registers.0, [RecordedAccess::Tail(0, 1)]);
    for command in [0, 6, 11, 12, 14, 99] {
        assert_eq!(client.ask(&message(command, 0, &[0; 64])), Err(EOPNOTSUPP));
    }
}
