//! A pool whose chunks a PCI device accesses through an IOMMU, checked with QEMU's `edu` device, which copies bytes
//! between memory and 4 KiB of its own.
//!
//! Input: the address of an `edu` device that is bound to vfio-pci. Output: a report, or an error for the first wrong
//! byte. With `stale` after the address, the device is finally commanded to read memory that was just unmapped, which
//! the IOMMU must refuse.
//!
//! `vfio_pool 0000:00:03.0 [stale]`
#![expect(clippy::print_stdout, reason = "this program reports its observations")]

use headwater_dma::buffer::{LentBuffer, PoolBuffer};
use headwater_dma::pool::{ChunkRule, Pool, PoolConfig, VfioPinner};
use headwater_host::clock::{Clock, Nanos};
use headwater_host::pinning::vfio::{AssignedDevice, DeviceRegion, VfioContainer};
use std::error::Error;
use std::sync::Arc;

/// Regions of a PCI device by index (`linux/vfio.h`).
const BAR0: u32 = 0;
const CONFIGURATION: u32 = 7;
/// PCI's command register: memory space and bus mastering.
const COMMAND: u64 = 4;
const MEMORY_AND_BUS_MASTER: u16 = 2 | 4;
/// The device's registers (QEMU, docs/specs/edu.rst).
const SOURCE: u64 = 0x80;
const DESTINATION: u64 = 0x88;
const COUNT: u64 = 0x90;
const COMMAND_REGISTER: u64 = 0x98;
const OWN_MEMORY: u32 = 0x4_0000;
const TO_DEVICE: u32 = 1;
const FROM_DEVICE: u32 = 1 | 2;

const BYTES: usize = 4_096;
const CHUNK: usize = 2 << 20;
const CAP: usize = 32 << 20;
const COPY_TIMEOUT: Nanos = Nanos::from_millis(20_000);

struct EduCopier {
    device: AssignedDevice,
    registers: DeviceRegion,
    clock: Clock,
}

impl EduCopier {
    fn open(device: AssignedDevice) -> Result<Self, Box<dyn Error>> {
        let (registers, configuration) = (device.region(BAR0)?, device.region(CONFIGURATION)?);
        let mut command = [0; 2];
        device.read(configuration, COMMAND, &mut command)?;
        let command = u16::from_le_bytes(command) | MEMORY_AND_BUS_MASTER;
        device.write(configuration, COMMAND, &command.to_le_bytes())?;
        Ok(Self { device, registers, clock: Clock::start() })
    }

    fn set(&self, register: u64, value: u32) -> Result<(), Box<dyn Error>> {
        Ok(self.device.write(self.registers, register, &value.to_le_bytes())?)
    }

    /// Starts a copy by the device, and waits until it is done.
    fn copy(&self, source: u32, destination: u32, order: u32) -> Result<(), Box<dyn Error>> {
        self.set(SOURCE, source)?;
        self.set(DESTINATION, destination)?;
        self.set(COUNT, u32::try_from(BYTES)?)?;
        self.set(COMMAND_REGISTER, order)?;
        let start = self.clock.now();
        let mut running = order.to_le_bytes();
        while u32::from_le_bytes(running) & 1 != 0 {
            if self.clock.now().since(start) > COPY_TIMEOUT {
                return Err("the device did not finish the copy in time".into());
            }
            self.device.read(self.registers, COMMAND_REGISTER, &mut running)?;
        }
        Ok(())
    }
}

/// Returns the device address of a buffer.
fn address(lent: &LentBuffer<PoolBuffer>) -> Result<u32, Box<dyn Error>> {
    let segment = lent.segments().first().copied().ok_or("the buffer has no segment")?;
    Ok(u32::try_from(segment.iova.ok_or("the buffer has no device address")?)?)
}

/// Copies a buffer's bytes through the device into another buffer.
fn there_and_back(pool: &Pool, copier: &EduCopier, round: u8) -> Result<(), Box<dyn Error>> {
    // The bytes before and after the range that is copied must stay unchanged.
    let mut from = pool.buffer(3 * BYTES)?;
    for (byte, index) in from.iter_mut().zip(0_usize..) {
        *byte = round ^ u8::try_from(index % 251)?;
    }
    let expected = from.to_vec();
    let mut into = pool.buffer(3 * BYTES)?;
    into.fill(0);
    let (from, into) = (from.lend(), into.lend());
    let middle = u32::try_from(BYTES)?;
    copier.copy(address(&from)? + middle, OWN_MEMORY, TO_DEVICE)?;
    copier.copy(OWN_MEMORY, address(&into)? + middle, FROM_DEVICE)?;
    let (into, _) = into.complete(Ok::<(), ()>(()));
    let (from, _) = from.complete(Ok::<(), ()>(()));
    let untouched = into[..BYTES].iter().chain(&into[2 * BYTES..]).all(|&byte| byte == 0);
    if into[BYTES..2 * BYTES] != expected[BYTES..2 * BYTES] || !untouched || *from != *expected {
        return Err(format!("round {round}: the received bytes differ from those sent").into());
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().ok_or("vfio_pool DEVICE [stale]")?;
    let stale = arguments.next().is_some_and(|word| word == "stale");
    let container = Arc::new(VfioContainer::open(&[&name])?);
    println!("{:x?}", container.limits());
    let copier = EduCopier::open(container.device(&name)?)?;
    let pool = Pool::open(PoolConfig {
        chunk: CHUNK,
        chunk_rule: ChunkRule::Fixed,
        cap: CAP,
        idle: Nanos(1),
        cache_per_mille: 0,
        pinner: Arc::new(VfioPinner::new(Arc::clone(&container))),
        ..PoolConfig::default()
    })?;
    let room = container.room();
    let mut last = 0;
    for round in 0..8 {
        // More chunks every round, so that addresses are mapped, unmapped and mapped again.
        let held: Vec<PoolBuffer> =
            (0..round).map(|_| pool.buffer(CHUNK - BYTES)).collect::<Result<_, _>>()?;
        there_and_back(&pool, &copier, round)?;
        println!("round {round}: {} bytes in {} mappings", container.mapped_bytes(), room - container.room());
        drop(held);
        let lent = pool.buffer(BYTES)?.lend();
        last = address(&lent)?;
        drop(lent.complete(Ok::<(), ()>(())).0);
        (1..=3).for_each(|now| pool.tick(Nanos(now * 1_000 * u64::from(round + 1))));
    }
    if container.mapped_bytes() != 0 || container.room() != room || pool.statistics().stuck_bytes != 0 {
        return Err(format!("{container:?}: not all memory was unmapped").into());
    }
    println!("all memory is unmapped");
    if stale {
        copier.copy(last, OWN_MEMORY, TO_DEVICE)?;
        println!("the device was commanded to read {last:#x}, which is not mapped");
    }
    Ok(())
}
