//! The PCI function: configuration space, interrupts, guest memory and the controller behind BAR0.
//!
//! Input: one request of the hypervisor at a time, with its descriptors. Output: its reply, immediate or, for an unmap,
//! once no command in flight uses the memory. Invariant: the device writes guest memory only where it is registered
//! writable, and never accesses a region after the reply to its unmap.

use super::DMA_MAPS_MAX;
use super::config_space::{ConfigEffect, ConfigSpace};
use super::guest_files::{FileId, GuestFiles};
use super::layout::{BAR_BYTES, BarLocation, VECTORS};
use super::message::{self, IrqAction, VfioUserHeader, VfioUserRequest};
use super::vectors::GuestVectors;
use headwater_dma::iova::{ClientMemory, Iova, RegionAccess, RegionRevocation};
use headwater_host::shared_memory::MapDescriptorError;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

/// Number of regions: six BARs, expansion ROM, configuration space, VGA.
const REGIONS: u32 = 9;
const BAR0: u32 = 0;
const CONFIG: u32 = 7;
/// Number of interrupt kinds: INTx, MSI, MSI-X.
const IRQS: u32 = 3;
const MSIX: u32 = 2;

/// The registers behind BAR0.
pub trait BarRegisters {
    /// Reads an aligned register of 4 or 8 bytes.
    fn read(&mut self, offset: u16, bytes: usize) -> u64;
    /// Writes an aligned register of 4 or 8 bytes.
    fn write(&mut self, offset: u16, bytes: usize, value: u64, memory: &ClientMemory);
    /// Writes a submission queue tail doorbell.
    fn submission_tail(&mut self, queue: u16, value: u32);
    /// Writes a completion queue head doorbell.
    fn completion_head(&mut self, queue: u16, value: u32);
    /// Resets to the power-on state. Commands in flight continue, and their completions are dropped.
    fn reset(&mut self);
    /// Returns true if no command is in flight.
    fn is_quiet(&self) -> bool;
    /// Fails the controller if a queue lies in this guest memory, which is unmapped.
    fn unmapped(&mut self, start: Iova, bytes: u64);
}

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyState {
    /// The reply is written.
    Done,
    /// The reply waits until no command in flight uses the unmapped memory, or none is in flight at all: see
    /// [`VfioUserFunction::complete_awaited`].
    Waiting,
}

/// The PCI function of one client.
#[derive(Debug, Default)]
pub struct VfioUserFunction {
    config: ConfigSpace,
    table: VectorTable,
    /// The interrupt vectors.
    pub vectors: GuestVectors,
    /// The guest's memory.
    pub memory: ClientMemory,
    /// Every region that the client mapped, by address, accessible to the device or not.
    mapped: BTreeMap<u64, MappedRange>,
    files: GuestFiles,
    awaited_reply: Option<AwaitedReply>,
    negotiated: bool,
}

/// A region that the client mapped.
#[derive(Clone, Copy, Debug)]
struct MappedRange {
    bytes: u64,
    /// The file that it is a part of, if the device can access it.
    file: Option<FileId>,
}

/// The guest's MSI-X table. Hypervisors keep their own; this one exists only to be read back.
#[derive(Debug)]
struct VectorTable([u8; VECTORS as usize * 16]);

impl Default for VectorTable {
    fn default() -> Self {
        Self([0; VECTORS as usize * 16])
    }
}

/// The condition for a pending reply.
#[derive(Debug)]
enum AwaitedReply {
    /// No command in flight uses these regions.
    Unmapping { header: VfioUserHeader, address: u64, size: u64, regions: Vec<RegionRevocation> },
    /// No command is in flight.
    Reset { header: VfioUserHeader },
}

impl VfioUserFunction {
    /// Serves one request; the reply is appended to `out`.
    ///
    /// # Panics
    /// If the reply to an earlier request is still awaited: the caller handles one request at a time.
    pub fn handle(
        &mut self,
        header: &VfioUserHeader,
        rest: &[u8],
        descriptors: Vec<OwnedFd>,
        registers: &mut impl BarRegisters,
        out: &mut Vec<u8>,
    ) -> ReplyState {
        assert!(self.awaited_reply.is_none(), "a request arrives before the reply to the last one");
        let answered = header.decode(rest).and_then(|request| match request {
            VfioUserRequest::Version(0, minor) => {
                self.negotiated = true;
                message::version(header, minor, out);
                Ok(ReplyState::Done)
            }
            // The version must be negotiated first.
            _ if !self.negotiated => Err(Errno::INVAL),
            VfioUserRequest::DmaUnmap { address, size, all } => {
                self.unmap(header, (address, size, all), registers)?;
                Ok(self.complete_awaited(registers, out))
            }
            VfioUserRequest::Reset => {
                self.reset(registers);
                self.awaited_reply = Some(AwaitedReply::Reset { header: *header });
                Ok(self.complete_awaited(registers, out))
            }
            other => self.answer(header, other, descriptors, registers, out).map(|()| ReplyState::Done),
        });
        answered.unwrap_or_else(|errno| {
            header.refuse(errno, out);
            ReplyState::Done
        })
    }

    fn answer(
        &mut self,
        header: &VfioUserHeader,
        request: VfioUserRequest<'_>,
        descriptors: Vec<OwnedFd>,
        registers: &mut impl BarRegisters,
        out: &mut Vec<u8>,
    ) -> Result<(), Errno> {
        match request {
            VfioUserRequest::Version(..) | VfioUserRequest::DmaUnmap { .. } | VfioUserRequest::Reset => {
                return Err(Errno::INVAL);
            }
            VfioUserRequest::DmaMap { address, size, offset, writable } => {
                let access = if writable { RegionAccess::ReadWrite } else { RegionAccess::ReadOnly };
                self.map(address, size, offset, descriptors.first().map(|file| (file.as_fd(), access)))?;
                header.reply(&[], out);
            }
            VfioUserRequest::DeviceInfo => message::device_info(header, REGIONS, IRQS, out),
            VfioUserRequest::RegionInfo(index) => {
                message::region_info(header, index, region_bytes(index)?, out);
            }
            VfioUserRequest::IrqInfo(index) if index < IRQS => {
                message::irq_info(header, index, if index == MSIX { u32::from(VECTORS) } else { 0 }, out);
            }
            VfioUserRequest::SetIrqs { index: MSIX, start, count, action } => {
                match action {
                    IrqAction::Assign if count == 0 => self.vectors.disable(),
                    IrqAction::Assign => self.vectors.assign(start, count, descriptors)?,
                    IrqAction::Trigger => self.vectors.trigger(start, count)?,
                }
                header.reply(&[], out);
            }
            // Disabling interrupts that do not exist is no error.
            VfioUserRequest::SetIrqs { index, count: 0, .. } if index < IRQS => header.reply(&[], out),
            VfioUserRequest::IrqInfo(_) | VfioUserRequest::SetIrqs { .. } => return Err(Errno::INVAL),
            VfioUserRequest::Read(region, offset, bytes) => {
                let mut data = vec![0; bytes];
                self.read(region, offset, &mut data, registers)?;
                message::access(header, region, offset, &data, 0, out);
            }
            VfioUserRequest::Write(region, offset, data) => {
                self.write(region, offset, data, registers)?;
                message::access(header, region, offset, &[], data.len(), out);
            }
        }
        Ok(())
    }

    /// Registers guest memory. Memory without a descriptor (ROM) is recorded, but the device cannot access it.
    fn map(
        &mut self,
        address: u64,
        size: u64,
        offset: u64,
        from: Option<(BorrowedFd<'_>, RegionAccess)>,
    ) -> Result<(), Errno> {
        let end = address.checked_add(size).filter(|_| size > 0).ok_or(Errno::INVAL)?;
        if self.mapped.len() >= DMA_MAPS_MAX {
            tracing::warn!(address, size, "guest memory cannot be mapped: it has {DMA_MAPS_MAX} regions");
            return Err(Errno::NOSPC);
        }
        let before = self.mapped.range(..end).next_back();
        if before.is_some_and(|(&start, range)| start + range.bytes > address) {
            return Err(Errno::EXIST);
        }
        let file = match from {
            Some((descriptor, access)) => self.map_file((address, size), descriptor, offset, access)?,
            None => None,
        };
        self.mapped.insert(address, MappedRange { bytes: size, file });
        tracing::debug!(address, size, reachable = file.is_some(), "guest memory is mapped");
        Ok(())
    }

    /// Registers a range of a file. Returns `None` for memory that the device may only read, if it cannot: ROM.
    fn map_file(
        &mut self,
        (address, size): (u64, u64),
        descriptor: BorrowedFd<'_>,
        offset: u64,
        access: RegionAccess,
    ) -> Result<Option<FileId>, Errno> {
        let bytes = usize::try_from(size).map_err(|_| Errno::INVAL)?;
        let (file, part) = match self.files.map(descriptor, offset, bytes) {
            Ok(mapped) => mapped,
            Err(error) if access == RegionAccess::ReadOnly => {
                tracing::debug!(address, size, %error, "guest memory stays inaccessible");
                return Ok(None);
            }
            Err(error) => {
                tracing::warn!(address, size, %error, "guest memory cannot be mapped");
                return Err(match error {
                    MapDescriptorError::Unsealed | MapDescriptorError::NotMemory => Errno::PERM,
                    MapDescriptorError::Map(map) => map.errno,
                    _ => Errno::INVAL,
                });
            }
        };
        if self.memory.register_part(Iova(address), part, access).is_err() {
            self.files.release(file);
            return Err(Errno::INVAL);
        }
        Ok(Some(file))
    }

    /// Begins an unmap. The range must contain one or more whole mapped regions.
    fn unmap(
        &mut self,
        header: &VfioUserHeader,
        (address, size, all): (u64, u64, bool),
        registers: &mut impl BarRegisters,
    ) -> Result<(), Errno> {
        let (address, size) = if all { (0, u64::MAX) } else { (address, size) };
        let end = address.checked_add(size).ok_or(Errno::INVAL)?;
        let inside: Vec<(u64, MappedRange)> =
            self.mapped.range(address..end).map(|(&start, &range)| (start, range)).collect();
        if inside.iter().any(|&(start, range)| start + range.bytes > end) || (inside.is_empty() && !all) {
            return Err(Errno::INVAL);
        }
        if all {
            tracing::info!(regions = inside.len(), "the vfio-user client unmapped all memory at once");
        }
        let mut regions = Vec::new();
        for (start, MappedRange { bytes, file }) in inside {
            self.mapped.remove(&start);
            // Memory without a file was never registered.
            regions.extend(self.memory.revoke(Iova(start)));
            file.into_iter().for_each(|file| self.files.release(file));
            registers.unmapped(Iova(start), bytes);
        }
        self.awaited_reply = Some(AwaitedReply::Unmapping { header: *header, address, size, regions });
        Ok(())
    }

    /// Appends the pending reply to `out`, if its condition holds.
    pub fn complete_awaited(&mut self, registers: &impl BarRegisters, out: &mut Vec<u8>) -> ReplyState {
        let is_met = |awaited: &mut AwaitedReply| match awaited {
            AwaitedReply::Unmapping { regions, .. } => regions.iter().all(RegionRevocation::is_drained),
            AwaitedReply::Reset { .. } => registers.is_quiet(),
        };
        match self.awaited_reply.take_if(is_met) {
            Some(AwaitedReply::Unmapping { header, address, size, .. }) => {
                message::unmapped(&header, address, size, out);
            }
            Some(AwaitedReply::Reset { header }) => header.reply(&[], out),
            None if self.awaited_reply.is_some() => return ReplyState::Waiting,
            None => {}
        }
        ReplyState::Done
    }

    fn read(
        &mut self,
        region: u32,
        offset: u64,
        into: &mut [u8],
        registers: &mut impl BarRegisters,
    ) -> Result<(), Errno> {
        check_range(region, offset, into.len())?;
        if region == CONFIG {
            self.config.read(offset, into);
            return Ok(());
        }
        for (at, byte) in (offset..).zip(into.iter_mut()) {
            *byte = match BarLocation::at(at) {
                BarLocation::VectorTable(place) => self.table.0[place],
                _ => 0,
            };
        }
        for (at, bytes) in words(offset, into.len()) {
            if let BarLocation::Register(register) = BarLocation::at(offset + at as u64) {
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
        registers: &mut impl BarRegisters,
    ) -> Result<(), Errno> {
        check_range(region, offset, data.len())?;
        if region == CONFIG {
            if self.config.write(offset, data) == ConfigEffect::FunctionReset {
                self.reset(registers);
            }
            return Ok(());
        }
        for (at, &byte) in (offset..).zip(data) {
            if let BarLocation::VectorTable(place) = BarLocation::at(at) {
                self.table.0[place] = byte;
            }
        }
        // Accesses that are not aligned words address no register (NVMe Base 2.0 section 3.1.3) and have no effect.
        for (at, bytes) in words(offset, data.len()) {
            let mut value = [0; 8];
            value[..bytes].copy_from_slice(&data[at..at + bytes]);
            let value = u64::from_le_bytes(value);
            let position = u32::try_from(value);
            match (BarLocation::at(offset + at as u64), position) {
                (BarLocation::Register(register), _) => registers.write(register, bytes, value, &self.memory),
                (BarLocation::SubmissionTail(queue), Ok(tail)) => registers.submission_tail(queue, tail),
                (BarLocation::CompletionHead(queue), Ok(head)) => registers.completion_head(queue, head),
                _ => {}
            }
        }
        Ok(())
    }

    /// Resets to the power-on state, except for the hypervisor's descriptors and the guest's memory, which stay.
    fn reset(&mut self, registers: &mut impl BarRegisters) {
        self.config = ConfigSpace::new();
        self.table = VectorTable::default();
        registers.reset();
    }

    /// Returns true if an access to the guest's memory found no page.
    #[must_use]
    pub fn has_lost_pages(&self) -> bool {
        self.files.have_lost_pages()
    }

    /// Returns true if the guest allows the function to access its memory.
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

/// Divides an access into aligned words: the offset of each in the data, and its length of 8 or 4 bytes. The unaligned
/// rest is omitted.
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
