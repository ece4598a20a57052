//! The PCI function: what a hypervisor asks, answered from configuration space, interrupts, guest memory and the
//! controller behind BAR0.
//!
//! In: one request at a time with its descriptors. Out: its reply, at once or, for memory that goes away, when nothing in
//! flight names it any more. Invariant: the device touches guest memory only where it is registered writable, and a region
//! that was said to be unmapped is never touched again.

use super::config_space::{ConfigEffect, ConfigSpace};
use super::layout::{BAR_BYTES, BarPlace, VECTORS};
use super::message::{self, Header, IrqAction, Request};
use super::vectors::Vectors;
use headwater_dma::iova::{ClientMemory, Iova, REGIONS_MAX, Revocation};
use headwater_host::foreign::{Foreign, TakeError};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};

/// Regions that are numbered: six BARs, expansion ROM, configuration space, VGA.
const REGIONS: u32 = 9;
const BAR0: u32 = 0;
const CONFIG: u32 = 7;
/// Kinds of interrupts that are numbered: INTx, MSI, MSI-X.
const IRQS: u32 = 3;
const MSIX: u32 = 2;

/// What lies behind BAR0.
pub trait Registers {
    /// Reads an aligned register of 4 or 8 bytes.
    fn read(&mut self, offset: u16, bytes: usize) -> u64;
    /// Writes an aligned register of 4 or 8 bytes.
    fn write(&mut self, offset: u16, bytes: usize, value: u64, memory: &ClientMemory);
    /// The guest rang a submission queue.
    fn submission_tail(&mut self, queue: u16, value: u32);
    /// The guest rang a completion queue.
    fn completion_head(&mut self, queue: u16, value: u32);
    /// As if power had just come. What is in flight goes on, and its answers go nowhere.
    fn reset(&mut self);
    /// Whether nothing is in flight.
    fn is_quiet(&self) -> bool;
    /// Guest memory is going away: nothing in it is a queue from now on.
    fn unmapped(&mut self, start: Iova, bytes: u64);
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handled {
    /// It has its reply.
    Done,
    /// It waits until nothing in flight names the memory that goes away, or nothing is in flight at all: see
    /// [`Function::go_on`].
    Waiting,
}

/// The function, as one client sees it.
#[derive(Debug, Default)]
pub struct Function {
    config: ConfigSpace,
    table: Table,
    /// Who is woken.
    pub vectors: Vectors,
    /// The guest's memory.
    pub memory: ClientMemory,
    /// Everything that the client mapped, with its length, whether the device can reach it or not.
    mapped: BTreeMap<u64, u64>,
    awaited: Option<Awaited>,
    negotiated: bool,
}

/// The guest's MSI-X table. Hypervisors keep their own; this one is only there to be read back.
#[derive(Debug)]
struct Table([u8; VECTORS as usize * 16]);

impl Default for Table {
    fn default() -> Self {
        Self([0; VECTORS as usize * 16])
    }
}

/// What a reply waits for.
#[derive(Debug)]
enum Awaited {
    /// Nothing names these regions any more.
    Unmapping { header: Header, address: u64, size: u64, regions: Vec<Revocation> },
    /// Nothing is in flight any more.
    Reset { header: Header },
}

impl Function {
    /// Answers one request; the reply goes behind `out`.
    pub fn handle(
        &mut self,
        header: &Header,
        rest: &[u8],
        descriptors: Vec<OwnedFd>,
        registers: &mut impl Registers,
        out: &mut Vec<u8>,
    ) -> Handled {
        let answered = header.decode(rest).and_then(|request| match request {
            Request::Version(0, minor) => {
                self.negotiated = true;
                message::version(header, minor, out);
                Ok(Handled::Done)
            }
            // Version first, once: nothing else means anything before.
            _ if !self.negotiated => Err(Errno::INVAL),
            Request::DmaUnmap { address, size, all } => {
                self.unmap(header, (address, size, all), registers)?;
                Ok(self.go_on(registers, out))
            }
            Request::Reset => {
                self.reset(registers);
                self.awaited = Some(Awaited::Reset { header: *header });
                Ok(self.go_on(registers, out))
            }
            other => self.answer(header, other, descriptors, registers, out).map(|()| Handled::Done),
        });
        answered.unwrap_or_else(|errno| {
            header.refuse(errno, out);
            Handled::Done
        })
    }

    fn answer(
        &mut self,
        header: &Header,
        request: Request<'_>,
        descriptors: Vec<OwnedFd>,
        registers: &mut impl Registers,
        out: &mut Vec<u8>,
    ) -> Result<(), Errno> {
        match request {
            Request::Version(..) | Request::DmaUnmap { .. } | Request::Reset => return Err(Errno::INVAL),
            Request::DmaMap { address, size, offset, writable } => {
                self.map(address, size, offset, descriptors.first().filter(|_| writable))?;
                header.reply(&[], out);
            }
            Request::DeviceInfo => message::device_info(header, REGIONS, IRQS, out),
            Request::RegionInfo(index) => message::region_info(header, index, region_bytes(index)?, out),
            Request::IrqInfo(index) if index < IRQS => {
                message::irq_info(header, index, if index == MSIX { u32::from(VECTORS) } else { 0 }, out);
            }
            Request::SetIrqs { index: MSIX, start, count, action } => {
                match action {
                    IrqAction::Assign if count == 0 => self.vectors.disable(),
                    IrqAction::Assign => self.vectors.assign(start, count, descriptors)?,
                    IrqAction::Trigger => self.vectors.trigger(start, count)?,
                }
                header.reply(&[], out);
            }
            // Turning off what is not there is no mistake.
            Request::SetIrqs { index, count: 0, .. } if index < IRQS => header.reply(&[], out),
            Request::IrqInfo(_) | Request::SetIrqs { .. } => return Err(Errno::INVAL),
            Request::Read(region, offset, bytes) => {
                let mut data = vec![0; bytes];
                self.read(region, offset, &mut data, registers)?;
                message::access(header, region, offset, &data, 0, out);
            }
            Request::Write(region, offset, data) => {
                self.write(region, offset, data, registers)?;
                message::access(header, region, offset, &[], data.len(), out);
            }
        }
        Ok(())
    }

    /// Registers guest memory. Memory without a descriptor (ROM) is noted and stays out of reach.
    fn map(&mut self, address: u64, size: u64, offset: u64, from: Option<&OwnedFd>) -> Result<(), Errno> {
        let end = address.checked_add(size).filter(|_| size > 0).ok_or(Errno::INVAL)?;
        if self.mapped.len() >= REGIONS_MAX {
            return Err(Errno::NOSPC);
        }
        let before = self.mapped.range(..end).next_back();
        if before.is_some_and(|(&start, &bytes)| start + bytes > address) {
            return Err(Errno::EXIST);
        }
        if let Some(descriptor) = from {
            let bytes = usize::try_from(size).map_err(|_| Errno::INVAL)?;
            let memory = Foreign::take(descriptor.as_fd(), offset, bytes).map_err(|error| {
                tracing::warn!(address, size, %error, "guest memory is refused");
                match error {
                    TakeError::Unsealed => Errno::PERM,
                    TakeError::Map(map) => map.errno,
                    _ => Errno::INVAL,
                }
            })?;
            self.memory.register(Iova(address), memory).map_err(|_| Errno::INVAL)?;
        }
        self.mapped.insert(address, size);
        tracing::debug!(address, size, reachable = from.is_some(), "guest memory is mapped");
        Ok(())
    }

    /// Begins to unmap. Ranges name what was mapped, one or several whole regions.
    fn unmap(
        &mut self,
        header: &Header,
        (address, size, all): (u64, u64, bool),
        registers: &mut impl Registers,
    ) -> Result<(), Errno> {
        let (address, size) = if all { (0, u64::MAX) } else { (address, size) };
        let end = address.checked_add(size).ok_or(Errno::INVAL)?;
        let inside: Vec<(u64, u64)> =
            self.mapped.range(address..end).map(|(&start, &bytes)| (start, bytes)).collect();
        if inside.iter().any(|&(start, bytes)| start + bytes > end) || (inside.is_empty() && !all) {
            return Err(Errno::INVAL);
        }
        let mut regions = Vec::new();
        for (start, bytes) in inside {
            self.mapped.remove(&start);
            // Memory out of reach was never registered.
            regions.extend(self.memory.revoke(Iova(start)));
            registers.unmapped(Iova(start), bytes);
        }
        self.awaited = Some(Awaited::Unmapping { header: *header, address, size, regions });
        Ok(())
    }

    /// Gives the reply that waits, if what it waits for has come.
    pub fn go_on(&mut self, registers: &impl Registers, out: &mut Vec<u8>) -> Handled {
        let has_come = |awaited: &mut Awaited| match awaited {
            Awaited::Unmapping { regions, .. } => regions.iter().all(Revocation::is_quiet),
            Awaited::Reset { .. } => registers.is_quiet(),
        };
        match self.awaited.take_if(has_come) {
            Some(Awaited::Unmapping { header, address, size, .. }) => {
                message::unmapped(&header, address, size, out);
            }
            Some(Awaited::Reset { header }) => header.reply(&[], out),
            None if self.awaited.is_some() => return Handled::Waiting,
            None => {}
        }
        Handled::Done
    }

    fn read(
        &mut self,
        region: u32,
        offset: u64,
        into: &mut [u8],
        registers: &mut impl Registers,
    ) -> Result<(), Errno> {
        check_range(region, offset, into.len())?;
        if region == CONFIG {
            self.config.read(offset, into);
            return Ok(());
        }
        for (at, byte) in (offset..).zip(into.iter_mut()) {
            *byte = match BarPlace::at(at) {
                BarPlace::VectorTable(place) => self.table.0[place],
                _ => 0,
            };
        }
        for (at, bytes) in words(offset, into.len()) {
            if let BarPlace::Register(register) = BarPlace::at(offset + at as u64) {
                let value = registers.read(register, bytes).to_le_bytes();
                into[at..at + bytes].copy_from_slice(&value[..bytes]);
            }
        }
        Ok(())
    }

    fn write(
        &mut self,
        region: u32,
        offset: u64,
        data: &[u8],
        registers: &mut impl Registers,
    ) -> Result<(), Errno> {
        check_range(region, offset, data.len())?;
        if region == CONFIG {
            if self.config.write(offset, data) == ConfigEffect::FunctionReset {
                self.reset(registers);
            }
            return Ok(());
        }
        for (at, &byte) in (offset..).zip(data) {
            if let BarPlace::VectorTable(place) = BarPlace::at(at) {
                self.table.0[place] = byte;
            }
        }
        // Accesses that are no aligned words name no register (NVMe Base 2.0 section 3.1.3) and change nothing.
        for (at, bytes) in words(offset, data.len()) {
            let mut value = [0; 8];
            value[..bytes].copy_from_slice(&data[at..at + bytes]);
            let value = u64::from_le_bytes(value);
            let position = u32::try_from(value);
            match (BarPlace::at(offset + at as u64), position) {
                (BarPlace::Register(register), _) => registers.write(register, bytes, value, &self.memory),
                (BarPlace::SubmissionTail(queue), Ok(tail)) => registers.submission_tail(queue, tail),
                (BarPlace::CompletionHead(queue), Ok(head)) => registers.completion_head(queue, head),
                _ => {}
            }
        }
        Ok(())
    }

    /// As after power came, except that the hypervisor's descriptors and the guest's memory stay.
    fn reset(&mut self, registers: &mut impl Registers) {
        self.config = ConfigSpace::new();
        self.table = Table::default();
        registers.reset();
    }

    /// Whether the guest lets the function touch its memory.
    #[must_use]
    pub fn is_bus_master(&self) -> bool {
        self.config.is_bus_master()
    }
}

fn region_bytes(index: u32) -> Result<u64, Errno> {
    match index {
        BAR0 => Ok(BAR_BYTES),
        CONFIG => Ok(super::config_space::CONFIG_BYTES as u64),
        other if other < REGIONS => Ok(0),
        _ => Err(Errno::INVAL),
    }
}

fn check_range(region: u32, offset: u64, bytes: usize) -> Result<(), Errno> {
    let end = u64::try_from(bytes).ok().and_then(|bytes| offset.checked_add(bytes));
    let inside = end.is_some_and(|end| region_bytes(region).is_ok_and(|size| end <= size));
    if inside { Ok(()) } else { Err(Errno::INVAL) }
}

/// Cuts an access into aligned words: where each begins in the data, and its 8 or 4 bytes. What is left over is no word.
fn words(offset: u64, bytes: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let here = offset + at as u64;
        let left = bytes - at;
        let word = match () {
            () if here.is_multiple_of(8) && left >= 8 && here < super::layout::DOORBELLS => 8,
            () if here.is_multiple_of(4) && left >= 4 => 4,
            () => return None,
        };
        at += word;
        Some((at - word, word))
    })
}
