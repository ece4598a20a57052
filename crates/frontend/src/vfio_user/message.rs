//! Messages of the vfio-user protocol, version 0.1, as a server sees them.
//!
//! In: the header and the rest of one message. Out: a [`Request`], or the reason it is refused; and replies as bytes.
//! Invariant: a message is decoded once, whatever is in it; nothing it says is used to allocate.
//!
//! The protocol is QEMU's `docs/interop/vfio-user.rst`; `docs/formats/vfio-user.md` draws what we read and write.

use rustix::io::Errno;
use std::mem::size_of;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Longest message taken, header included; a client that announces more is disconnected.
pub const MESSAGE_BYTES_MAX: usize = 16 + 16 + DATA_BYTES_MAX;
/// Most bytes of one region access.
pub const DATA_BYTES_MAX: usize = 4_096;
/// Most descriptors with one message.
pub const DESCRIPTORS_MAX: usize = 8;

/// What every message begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// Chosen by the client, returned with the reply.
    pub id: U16,
    /// Which message.
    pub command: U16,
    /// Bytes of the whole message.
    pub size: U32,
    /// Reply (bit 0), no reply wanted (bit 4), error (bit 5).
    pub flags: U32,
    /// An errno, in a reply with the error bit.
    pub error: U32,
}
const _: () = assert!(size_of::<Header>() == 16);

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
struct FourWords {
    argsz: U32,
    flags: U32,
    third: U32,
    fourth: U32,
}
const _: () = assert!(size_of::<FourWords>() == 16);

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

/// What the interrupts named in a message are to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IrqAction {
    /// Signal by the descriptors that came along; without any, not at all.
    Assign,
    /// Signal once, now.
    Trigger,
}

/// What a client asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Which version to speak: major and minor number.
    Version(u16, u16),
    /// Here is memory of the guest.
    DmaMap {
        /// Where the device sees it.
        address: u64,
        /// Its length.
        size: u64,
        /// Where it begins in the descriptor.
        offset: u64,
        /// Whether the device may write it, too.
        writable: bool,
    },
    /// Memory goes away.
    DmaUnmap {
        /// First address.
        address: u64,
        /// Length.
        size: u64,
        /// All there is, whatever address and length say.
        all: bool,
    },
    /// What kind of device this is.
    DeviceInfo,
    /// What a region is like: its index.
    RegionInfo(u32),
    /// How many interrupts of a kind there are: its index.
    IrqInfo(u32),
    /// How interrupts are signalled.
    SetIrqs {
        /// Which kind.
        index: u32,
        /// The first.
        start: u32,
        /// How many; none at all disables the kind.
        count: u32,
        /// What to do.
        action: IrqAction,
    },
    /// Read from a region: region, offset, how many bytes.
    Read(u32, u64, usize),
    /// Write to a region: region, offset, the bytes.
    Write(u32, u64, &'a [u8]),
    /// Forget everything the guest did.
    Reset,
}

impl Header {
    /// The header that these bytes are.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        zerocopy::transmute!(bytes)
    }

    /// The bytes behind the header, `None` for a message that cannot be one.
    #[must_use]
    pub fn rest(&self) -> Option<usize> {
        let size = usize::try_from(self.size.get()).ok()?;
        let rest = size.checked_sub(size_of::<Self>())?;
        (size <= MESSAGE_BYTES_MAX && self.flags.get() & TYPE == 0).then_some(rest)
    }

    /// Decodes what the client asks.
    ///
    /// # Errors
    /// The errno that the client is told: [`Errno::OPNOTSUPP`] for messages we do not serve, [`Errno::INVAL`] for the rest.
    pub fn decode<'a>(&self, rest: &'a [u8]) -> Result<Request<'a>, Errno> {
        match self.command.get() {
            1 => {
                let (major, rest) = U16::read_from_prefix(rest).map_err(|_| Errno::INVAL)?;
                let (minor, _capabilities) = U16::read_from_prefix(rest).map_err(|_| Errno::INVAL)?;
                Ok(Request::Version(major.get(), minor.get()))
            }
            2 => {
                let map: DmaMap = whole(rest)?;
                let (flags, address) = (map.flags.get(), map.address.get());
                // Readable, and perhaps writable.
                if flags & !3 != 0 || flags & 1 == 0 {
                    return Err(Errno::INVAL);
                }
                let writable = flags & 2 != 0;
                Ok(Request::DmaMap { address, size: map.size.get(), offset: map.offset.get(), writable })
            }
            3 => {
                let unmap: DmaUnmap = whole(rest)?;
                match unmap.flags.get() {
                    flags @ (0 | 4) => Ok(Request::DmaUnmap {
                        address: unmap.address.get(),
                        size: unmap.size.get(),
                        all: flags == 4,
                    }),
                    // Dirty pages are for live migration.
                    _ => Err(Errno::OPNOTSUPP),
                }
            }
            4 => whole::<FourWords>(rest).map(|_| Request::DeviceInfo),
            5 => whole::<RegionInfo>(rest).map(|info| Request::RegionInfo(info.index.get())),
            7 => whole::<FourWords>(rest).map(|info| Request::IrqInfo(info.third.get())),
            8 => decode_irqs(rest),
            9 => {
                let access: RegionAccess = whole(rest)?;
                let bytes = data_bytes(access)?;
                Ok(Request::Read(access.region.get(), access.offset.get(), bytes))
            }
            10 => {
                let (access, data) = RegionAccess::read_from_prefix(rest).map_err(|_| Errno::INVAL)?;
                if data.len() != data_bytes(access)? {
                    return Err(Errno::INVAL);
                }
                Ok(Request::Write(access.region.get(), access.offset.get(), data))
            }
            13 => Ok(Request::Reset),
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    /// Appends the reply to `out`: `parts` behind a header that fits them. Nothing if the client wants none.
    pub fn reply(&self, parts: &[&[u8]], out: &mut Vec<u8>) {
        if self.flags.get() & NO_REPLY != 0 {
            return;
        }
        let bytes = size_of::<Self>() + parts.iter().map(|part| part.len()).sum::<usize>();
        let size = U32::new(u32::try_from(bytes).unwrap_or(u32::MAX));
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

fn decode_irqs(rest: &[u8]) -> Result<Request<'_>, Errno> {
    let set: SetIrqs = whole(rest)?;
    let action = match set.flags.get() {
        // Data: descriptors (bit 2) or none (bit 0); action: trigger (bit 5).
        0x24 => IrqAction::Assign,
        0x21 if set.count.get() == 0 => IrqAction::Assign,
        0x21 => IrqAction::Trigger,
        _ => return Err(Errno::INVAL),
    };
    Ok(Request::SetIrqs { index: set.index.get(), start: set.start.get(), count: set.count.get(), action })
}

fn data_bytes(access: RegionAccess) -> Result<usize, Errno> {
    let bytes = usize::try_from(access.count.get()).unwrap_or(usize::MAX);
    if bytes > DATA_BYTES_MAX { Err(Errno::INVAL) } else { Ok(bytes) }
}

/// The fixed part of a message; clients may send more behind it.
fn whole<T: FromBytes + KnownLayout + Immutable>(rest: &[u8]) -> Result<T, Errno> {
    T::read_from_prefix(rest).map(|(message, _)| message).map_err(|_| Errno::INVAL)
}

/// The version that both speak and our limits, as the reply to [`Request::Version`]: a client takes no minor number above
/// the one it proposed.
pub(crate) fn version(header: &Header, proposed_minor: u16, out: &mut Vec<u8>) {
    let capabilities = format!(
        r#"{{"capabilities":{{"max_msg_fds":{DESCRIPTORS_MAX},"max_data_xfer_size":{DATA_BYTES_MAX},"pgsizes":4096}}}}"#
    );
    let (major, minor) = (U16::new(0), U16::new(proposed_minor.min(1)));
    header.reply(&[major.as_bytes(), minor.as_bytes(), capabilities.as_bytes(), &[0]], out);
}

/// The reply to [`Request::DeviceInfo`]: a PCI device that can be reset.
pub(crate) fn device_info(header: &Header, regions: u32, irqs: u32, out: &mut Vec<u8>) {
    let (argsz, flags) = (U32::new(16), U32::new(0b11));
    let info = FourWords { argsz, flags, third: U32::new(regions), fourth: U32::new(irqs) };
    header.reply(&[info.as_bytes()], out);
}

/// The reply to [`Request::RegionInfo`]: readable and writable, or not there.
pub(crate) fn region_info(header: &Header, index: u32, size: u64, out: &mut Vec<u8>) {
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

/// The reply to [`Request::IrqInfo`]: signalled by descriptors; the number of a kind is fixed while it is enabled.
pub(crate) fn irq_info(header: &Header, index: u32, count: u32, out: &mut Vec<u8>) {
    let flags = U32::new(if count == 0 { 0 } else { 0b1001 });
    let info = FourWords { argsz: U32::new(16), flags, third: U32::new(index), fourth: U32::new(count) };
    header.reply(&[info.as_bytes()], out);
}

/// The reply to a region access: what was accessed, and what was read.
pub(crate) fn access(
    header: &Header,
    region: u32,
    offset: u64,
    data: &[u8],
    written: usize,
    out: &mut Vec<u8>,
) {
    let count = U32::new(u32::try_from(data.len() + written).unwrap_or(u32::MAX));
    let access = RegionAccess { offset: U64::new(offset), region: U32::new(region), count };
    header.reply(&[access.as_bytes(), data], out);
}

/// The reply to [`Request::DmaUnmap`]: what is unmapped.
pub(crate) fn unmapped(header: &Header, address: u64, size: u64, out: &mut Vec<u8>) {
    let (address, size) = (U64::new(address), U64::new(size));
    header.reply(&[DmaUnmap { argsz: U32::new(24), flags: U32::ZERO, address, size }.as_bytes()], out);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(command: u16, bytes: usize) -> Header {
        Header {
            id: U16::new(7),
            command: U16::new(command),
            size: U32::new(u32::try_from(16 + bytes).unwrap()),
            flags: U32::ZERO,
            error: U32::ZERO,
        }
    }

    #[test]
    fn what_cannot_be_a_message_has_no_rest() {
        for (size, flags) in [(15, 0), (0, 0), (u32::MAX, 0), (16, 1), (16, 2)] {
            let odd = Header { size: U32::new(size), flags: U32::new(flags), ..header(4, 0) };
            assert_eq!(odd.rest(), None);
        }
        assert_eq!(header(4, DATA_BYTES_MAX + 16).rest(), Some(DATA_BYTES_MAX + 16));
        assert_eq!(header(4, DATA_BYTES_MAX + 17).rest(), None);
    }

    #[test]
    fn short_messages_and_unknown_ones_are_refused() {
        for command in [1, 2, 3, 4, 5, 7, 8, 9, 10] {
            assert_eq!(header(command, 3).decode(&[0; 3]), Err(Errno::INVAL), "command {command}");
        }
        for command in [0, 6, 11, 12, 14, 15, 16, 17, 18, 400] {
            assert_eq!(header(command, 64).decode(&[0; 64]), Err(Errno::OPNOTSUPP), "command {command}");
        }
    }

    #[test]
    fn a_write_whose_count_lies_is_refused() {
        let access = RegionAccess { offset: U64::new(8), region: U32::new(7), count: U32::new(4) };
        let mut bytes = access.as_bytes().to_vec();
        bytes.extend([1, 2, 3, 4]);
        assert_eq!(header(10, 20).decode(&bytes), Ok(Request::Write(7, 8, &[1, 2, 3, 4])));
        assert_eq!(header(10, 19).decode(&bytes[..19]), Err(Errno::INVAL));
        let huge = RegionAccess { count: U32::new(u32::MAX), ..access };
        assert_eq!(header(9, 16).decode(huge.as_bytes()), Err(Errno::INVAL));
    }

    #[test]
    fn replies_carry_the_id_and_posted_messages_get_none() {
        let mut out = Vec::new();
        header(13, 0).reply(&[&[1, 2], &[3]], &mut out);
        assert_eq!(out, [7, 0, 13, 0, 19, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3]);
        out.clear();
        header(13, 0).refuse(Errno::INVAL, &mut out);
        assert_eq!(out, [7, 0, 13, 0, 16, 0, 0, 0, 0x21, 0, 0, 0, 22, 0, 0, 0]);
        out.clear();
        let posted = Header { flags: U32::new(NO_REPLY), ..header(10, 0) };
        posted.reply(&[&[1]], &mut out);
        posted.refuse(Errno::INVAL, &mut out);
        assert!(out.is_empty());
    }
}
