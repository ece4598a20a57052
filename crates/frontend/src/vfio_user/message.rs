//! Messages of the vfio-user protocol, version 0.1, as a server sees them.
//!
//! Input: the header and the rest of one message. Output: a [`VfioUserRequest`], or the reason it is refused; and replies as
//! bytes. Invariant: a message is decoded once; no length in it determines an allocation.
//!
//! The protocol is QEMU's `docs/interop/vfio-user.rst`; `docs/formats/vfio-user.md` describes the supported messages.

use super::DMA_MAPS_MAX;
use headwater_host::width::narrow;
use rustix::io::Errno;
use std::mem::size_of;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Maximum bytes of a message, header included; a client that announces more is disconnected.
pub const MESSAGE_BYTES_MAX: usize = 16 + 16 + DATA_BYTES_MAX;
/// Maximum bytes of one region access.
pub const DATA_BYTES_MAX: usize = 4_096;
/// Maximum descriptors of one message.
pub const DESCRIPTORS_MAX: usize = 8;

/// The header of every message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct VfioUserHeader {
    /// Chosen by the client, returned with the reply.
    pub id: U16,
    /// The number of the message type.
    pub command: U16,
    /// Bytes of the whole message.
    pub size: U32,
    /// Reply (bit 0), no reply wanted (bit 4), error (bit 5).
    pub flags: U32,
    /// An errno, in a reply with the error bit.
    pub error: U32,
}
const _: () = assert!(size_of::<VfioUserHeader>() == 16);

const REPLY: u32 = 1;
const TYPE: u32 = 0xF;
const NO_REPLY: u32 = 1 << 4;
const ERROR: u32 = 1 << 5;

/// `VFIO_USER_DMA_MAP`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DmaMap {
    argsz: U32,
    flags: U32,
    offset: U64,
    address: U64,
    size: U64,
}
const _: () = assert!(size_of::<DmaMap>() == 32);

/// The flag of an unmap of everything, with address and size 0 (`VFIO_DMA_UNMAP_FLAG_ALL`).
const UNMAP_ALL: u32 = 1 << 1;

/// `VFIO_USER_DMA_UNMAP`, and its reply.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DmaUnmap {
    argsz: U32,
    flags: U32,
    address: U64,
    size: U64,
}
const _: () = assert!(size_of::<DmaUnmap>() == 24);

/// `VFIO_USER_DEVICE_GET_INFO`, and `VFIO_USER_DEVICE_GET_IRQ_INFO` with an index and a count in the last two words.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct InfoWords {
    argsz: U32,
    flags: U32,
    third: U32,
    fourth: U32,
}
const _: () = assert!(size_of::<InfoWords>() == 16);

/// `VFIO_USER_DEVICE_GET_REGION_INFO`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RegionInfo {
    argsz: U32,
    flags: U32,
    index: U32,
    capabilities: U32,
    size: U64,
    offset: U64,
}
const _: () = assert!(size_of::<RegionInfo>() == 32);

/// `VFIO_USER_DEVICE_SET_IRQS`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SetIrqs {
    argsz: U32,
    flags: U32,
    index: U32,
    start: U32,
    count: U32,
}
const _: () = assert!(size_of::<SetIrqs>() == 20);

/// `VFIO_USER_REGION_READ` and `VFIO_USER_REGION_WRITE`, before the data.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RegionAccess {
    offset: U64,
    region: U32,
    count: U32,
}
const _: () = assert!(size_of::<RegionAccess>() == 16);

/// The action on the interrupts that a message names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IrqAction {
    /// Signal through the message's descriptors; without any, disable.
    Assign,
    /// Signal once, now.
    Trigger,
}

/// A request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VfioUserRequest<'a> {
    /// Negotiate the version: major and minor number.
    Version(u16, u16),
    /// Map memory of the guest.
    DmaMap {
        /// The device's address of it.
        address: u64,
        /// Its length.
        size: u64,
        /// Its offset in the descriptor's file.
        offset: u64,
        /// True if the device may also write it.
        writable: bool,
    },
    /// Unmap memory.
    DmaUnmap {
        /// First address.
        address: u64,
        /// Length.
        size: u64,
        /// True to unmap everything, regardless of address and length.
        all: bool,
    },
    /// Describe the device.
    DeviceInfo,
    /// Describe a region: its index.
    RegionInfo(u32),
    /// Count the interrupts of a kind: its index.
    IrqInfo(u32),
    /// Configure interrupts.
    SetIrqs {
        /// Their kind.
        index: u32,
        /// The first vector.
        start: u32,
        /// Number of vectors; 0 disables the kind.
        count: u32,
        /// The action.
        action: IrqAction,
    },
    /// Read from a region: region, offset, length.
    Read(u32, u64, usize),
    /// Write to a region: region, offset, data.
    Write(u32, u64, &'a [u8]),
    /// Reset the device.
    Reset,
}

impl VfioUserHeader {
    /// Converts bytes to a header.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        zerocopy::transmute!(bytes)
    }

    /// Returns the number of bytes after the header, `None` for a malformed header.
    #[must_use]
    pub fn rest(&self) -> Option<usize> {
        let size = usize::try_from(self.size.get()).ok()?;
        let rest = size.checked_sub(size_of::<Self>())?;
        (size <= MESSAGE_BYTES_MAX && self.flags.get() & TYPE == 0).then_some(rest)
    }

    /// Decodes the client's request.
    ///
    /// # Errors
    /// The errno of the reply: [`Errno::OPNOTSUPP`] for unsupported messages, [`Errno::INVAL`] for malformed ones.
    pub fn decode<'a>(&self, rest: &'a [u8]) -> Result<VfioUserRequest<'a>, Errno> {
        match self.command.get() {
            1 => {
                let (major, rest) = U16::read_from_prefix(rest).map_err(|_| Errno::INVAL)?;
                let (minor, _capabilities) = U16::read_from_prefix(rest).map_err(|_| Errno::INVAL)?;
                Ok(VfioUserRequest::Version(major.get(), minor.get()))
            }
            2 => {
                let map: DmaMap = fixed_part(rest)?;
                let (flags, address) = (map.flags.get(), map.address.get());
                // Readable, and optionally writable.
                if flags & !3 != 0 || flags & 1 == 0 {
                    return Err(Errno::INVAL);
                }
                let writable = flags & 2 != 0;
                Ok(VfioUserRequest::DmaMap {
                    address,
                    size: map.size.get(),
                    offset: map.offset.get(),
                    writable,
                })
            }
            3 => {
                let unmap: DmaUnmap = fixed_part(rest)?;
                match unmap.flags.get() {
                    flags @ (0 | UNMAP_ALL) => Ok(VfioUserRequest::DmaUnmap {
                        address: unmap.address.get(),
                        size: unmap.size.get(),
                        all: flags == UNMAP_ALL,
                    }),
                    // Dirty pages are for live migration.
                    _ => Err(Errno::OPNOTSUPP),
                }
            }
            4 => fixed_part::<InfoWords>(rest).map(|_| VfioUserRequest::DeviceInfo),
            5 => fixed_part::<RegionInfo>(rest).map(|info| VfioUserRequest::RegionInfo(info.index.get())),
            7 => fixed_part::<InfoWords>(rest).map(|info| VfioUserRequest::IrqInfo(info.third.get())),
            8 => decode_irqs(rest),
            9 => {
                let access: RegionAccess = fixed_part(rest)?;
                let bytes = data_bytes(access)?;
                Ok(VfioUserRequest::Read(access.region.get(), access.offset.get(), bytes))
            }
            10 => {
                let (access, data) = RegionAccess::read_from_prefix(rest).map_err(|_| Errno::INVAL)?;
                if data.len() != data_bytes(access)? {
                    return Err(Errno::INVAL);
                }
                Ok(VfioUserRequest::Write(access.region.get(), access.offset.get(), data))
            }
            13 => Ok(VfioUserRequest::Reset),
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    /// Appends the reply to `out`: a header and `parts`. Has no effect if the client requested no reply.
    pub fn reply(&self, parts: &[&[u8]], out: &mut Vec<u8>) {
        if self.flags.get() & NO_REPLY != 0 {
            return;
        }
        let bytes = size_of::<Self>() + parts.iter().map(|part| part.len()).sum::<usize>();
        let size = U32::new(narrow(bytes));
        let header = Self { size, flags: U32::new(REPLY), error: U32::ZERO, ..*self };
        out.extend_from_slice(header.as_bytes());
        parts.iter().for_each(|part| out.extend_from_slice(part));
    }

    /// Appends a refusal to `out`.
    pub fn refuse(&self, errno: Errno, out: &mut Vec<u8>) {
        if self.flags.get() & NO_REPLY != 0 {
            return;
        }
        let size = U32::new(16);
        let error = U32::new(errno.raw_os_error().unsigned_abs());
        out.extend_from_slice(Self { size, flags: U32::new(REPLY | ERROR), error, ..*self }.as_bytes());
    }
}

fn decode_irqs(rest: &[u8]) -> Result<VfioUserRequest<'_>, Errno> {
    let set: SetIrqs = fixed_part(rest)?;
    let action = match set.flags.get() {
        // Data: descriptors (bit 2) or none (bit 0); action: trigger (bit 5).
        0x24 => IrqAction::Assign,
        0x21 if set.count.get() == 0 => IrqAction::Assign,
        0x21 => IrqAction::Trigger,
        _ => return Err(Errno::INVAL),
    };
    Ok(VfioUserRequest::SetIrqs {
        index: set.index.get(),
        start: set.start.get(),
        count: set.count.get(),
        action,
    })
}

fn data_bytes(access: RegionAccess) -> Result<usize, Errno> {
    let bytes = access.count.get() as usize;
    if bytes > DATA_BYTES_MAX { Err(Errno::INVAL) } else { Ok(bytes) }
}

/// Returns the fixed part of a message; clients may send more after it.
fn fixed_part<T: FromBytes + KnownLayout + Immutable>(rest: &[u8]) -> Result<T, Errno> {
    T::read_from_prefix(rest).map(|(message, _)| message).map_err(|_| Errno::INVAL)
}

/// Appends the reply to [`VfioUserRequest::Version`], with the common version and the limits: a client accepts no minor number
/// above the one it proposed.
pub(crate) fn version(header: &VfioUserHeader, proposed_minor: u16, out: &mut Vec<u8>) {
    let capabilities = format!(
        r#"{{"capabilities":{{"max_msg_fds":{DESCRIPTORS_MAX},"max_data_xfer_size":{DATA_BYTES_MAX},"max_dma_maps":{DMA_MAPS_MAX},"pgsizes":4096}}}}"#
    );
    let (major, minor) = (U16::new(0), U16::new(proposed_minor.min(1)));
    header.reply(&[major.as_bytes(), minor.as_bytes(), capabilities.as_bytes(), &[0]], out);
}

/// Appends the reply to [`VfioUserRequest::DeviceInfo`]: a PCI device that can be reset.
pub(crate) fn device_info(header: &VfioUserHeader, regions: u32, irqs: u32, out: &mut Vec<u8>) {
    let (argsz, flags) = (U32::new(16), U32::new(0b11));
    let info = InfoWords { argsz, flags, third: U32::new(regions), fourth: U32::new(irqs) };
    header.reply(&[info.as_bytes()], out);
}

/// Appends the reply to [`VfioUserRequest::RegionInfo`]: readable and writable, or absent.
pub(crate) fn region_info(header: &VfioUserHeader, index: u32, size: u64, out: &mut Vec<u8>) {
    let info = RegionInfo {
        argsz: U32::new(32),
        flags: U32::new(if size == 0 { 0 } else { 0b11 }),
        index: U32::new(index),
        capabilities: U32::ZERO,
        size: U64::new(size),
        offset: U64::ZERO,
    };
    header.reply(&[info.as_bytes()], out);
}

/// Appends the reply to [`VfioUserRequest::IrqInfo`]: signalled by eventfds; the number of vectors is fixed while enabled.
pub(crate) fn irq_info(header: &VfioUserHeader, index: u32, count: u32, out: &mut Vec<u8>) {
    let flags = U32::new(if count == 0 { 0 } else { 0b1001 });
    let info = InfoWords { argsz: U32::new(16), flags, third: U32::new(index), fourth: U32::new(count) };
    header.reply(&[info.as_bytes()], out);
}

/// Appends the reply to a region access: the accessed range, and the data of a read.
pub(crate) fn access(
    header: &VfioUserHeader,
    region: u32,
    offset: u64,
    data: &[u8],
    written: usize,
    out: &mut Vec<u8>,
) {
    let count = U32::new(narrow(data.len() + written));
    let access = RegionAccess { offset: U64::new(offset), region: U32::new(region), count };
    header.reply(&[access.as_bytes(), data], out);
}

/// Appends the reply to [`VfioUserRequest::DmaUnmap`]: the unmapped range.
pub(crate) fn unmapped(header: &VfioUserHeader, address: u64, size: u64, out: &mut Vec<u8>) {
    let (address, size) = (U64::new(address), U64::new(size));
    header.reply(&[DmaUnmap { argsz: U32::new(24), flags: U32::ZERO, address, size }.as_bytes()], out);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(command: u16, bytes: usize) -> VfioUserHeader {
        VfioUserHeader {
            id: U16::new(7),
            command: U16::new(command),
            size: U32::new(u32::try_from(16 + bytes).unwrap()),
            flags: U32::ZERO,
            error: U32::ZERO,
        }
    }

    #[test]
    fn malformed_headers_are_rejected() {
        for (size, flags) in [(15, 0), (0, 0), (u32::MAX, 0), (16, 1), (16, 2)] {
            let odd = VfioUserHeader { size: U32::new(size), flags: U32::new(flags), ..header(4, 0) };
            assert_eq!(odd.rest(), None);
        }
        assert_eq!(header(4, DATA_BYTES_MAX + 16).rest(), Some(DATA_BYTES_MAX + 16));
        assert_eq!(header(4, DATA_BYTES_MAX + 17).rest(), None);
    }

    #[test]
    fn short_and_unknown_messages_are_refused() {
        for command in [1, 2, 3, 4, 5, 7, 8, 9, 10] {
            assert_eq!(header(command, 3).decode(&[0; 3]), Err(Errno::INVAL), "command {command}");
        }
        for command in [0, 6, 11, 12, 14, 15, 16, 17, 18, 400] {
            assert_eq!(header(command, 64).decode(&[0; 64]), Err(Errno::OPNOTSUPP), "command {command}");
        }
    }

    #[test]
    fn a_write_with_a_wrong_count_is_refused() {
        let access = RegionAccess { offset: U64::new(8), region: U32::new(7), count: U32::new(4) };
        let mut bytes = access.as_bytes().to_vec();
        bytes.extend([1, 2, 3, 4]);
        assert_eq!(header(10, 20).decode(&bytes), Ok(VfioUserRequest::Write(7, 8, &[1, 2, 3, 4])));
        assert_eq!(header(10, 19).decode(&bytes[..19]), Err(Errno::INVAL));
        let huge = RegionAccess { count: U32::new(u32::MAX), ..access };
        assert_eq!(header(9, 16).decode(huge.as_bytes()), Err(Errno::INVAL));
    }

    #[test]
    fn replies_carry_the_id_and_posted_messages_get_no_reply() {
        let mut out = Vec::new();
        header(13, 0).reply(&[&[1, 2], &[3]], &mut out);
        assert_eq!(out, [7, 0, 13, 0, 19, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3]);
        out.clear();
        header(13, 0).refuse(Errno::INVAL, &mut out);
        assert_eq!(out, [7, 0, 13, 0, 16, 0, 0, 0, 0x21, 0, 0, 0, 22, 0, 0, 0]);
        out.clear();
        let posted = VfioUserHeader { flags: U32::new(NO_REPLY), ..header(10, 0) };
        posted.reply(&[&[1]], &mut out);
        posted.refuse(Errno::INVAL, &mut out);
        assert!(out.is_empty());
    }
}
