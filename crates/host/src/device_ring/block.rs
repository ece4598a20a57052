//! Block commands of a file or a block device: reads, writes, syncs, and deallocating or zeroing ranges.
//!
//! Input: [`BlockWork`]. Output: entries of the kernel's submission queue, or plain system calls with the same effect.

use super::uring_engine::{DataLocation, IoVector, WorkEncoding};
use super::{MemoryExtent, MemoryExtents};
use io_uring::{cqueue, opcode, squeue, types};
use rustix::fs::{FallocateFlags, fallocate, fdatasync};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `BLKDISCARD` of `linux/fs.h`: `_IO(0x12, 119)`.
const BLKDISCARD: libc::c_ulong = 0x1277;
/// `BLOCK_URING_CMD_DISCARD` of `linux/blkdev.h`: `_IO(0x12, 0)`.
const URING_DISCARD: u32 = 0x1200;
/// `FALLOC_FL_*` of `linux/falloc.h`.
const KEEP_SIZE: i32 = 0x01;
const PUNCH_HOLE: i32 = 0x02;
const ZERO_RANGE: i32 = 0x10;

/// One command. Offsets and lengths are in bytes.
#[derive(Debug)]
pub enum BlockWork {
    /// A read from the device into memory.
    Read {
        /// The first byte of the range.
        offset: u64,
        /// The destination, in order.
        into: MemoryExtents,
    },
    /// A write of memory to the device.
    Write {
        /// The first byte of the range.
        offset: u64,
        /// The source, in order.
        from: MemoryExtents,
        /// True if the data must be durable before the completion.
        durable: bool,
    },
    /// A flush that makes every write durable that had completed before.
    Sync,
    /// A deallocation of a range, which then reads as zeroes.
    Punch {
        /// The first byte of the range.
        offset: u64,
        /// The length of the range.
        bytes: u64,
    },
    /// A zero fill of a range.
    Zero {
        /// The first byte of the range.
        offset: u64,
        /// The length of the range.
        bytes: u64,
    },
    /// A discard of a range of a block device, whose contents are undefined afterwards.
    Discard {
        /// The first byte of the range.
        offset: u64,
        /// The length of the range.
        bytes: u64,
    },
}

impl WorkEncoding for BlockWork {
    type Entry = squeue::Entry;
    type Answer = cqueue::Entry;

    #[inline]
    fn extents(&self) -> &[MemoryExtent] {
        match self {
            Self::Read { into: extents, .. } | Self::Write { from: extents, .. } => extents.all(),
            _ => &[],
        }
    }

    /// Returns true for reads and non-durable writes; durable ones use the kernel's flush sequence, whose completions
    /// come by interrupt.
    #[inline]
    fn is_polled(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::Write { durable: false, .. })
    }

    #[inline]
    fn encode(&self, file: types::Fixed, place: DataLocation) -> squeue::Entry {
        let start = std::ptr::with_exposed_provenance_mut::<u8>(place.address);
        match *self {
            Self::Read { offset, .. } => match place {
                DataLocation { is_list: true, count, .. } => {
                    opcode::Readv::new(file, start.cast(), count).offset(offset).build()
                }
                DataLocation { slot: Some(slot), count, .. } => {
                    opcode::ReadFixed::new(file, start, count, slot).offset(offset).build()
                }
                DataLocation { count, .. } => opcode::Read::new(file, start, count).offset(offset).build(),
            },
            Self::Write { offset, durable, .. } => {
                let flags = if durable { libc::RWF_DSYNC } else { 0 };
                match place {
                    DataLocation { is_list: true, count, .. } => {
                        opcode::Writev::new(file, start.cast(), count).offset(offset).rw_flags(flags).build()
                    }
                    DataLocation { slot: Some(slot), count, .. } => {
                        opcode::WriteFixed::new(file, start, count, slot)
                            .offset(offset)
                            .rw_flags(flags)
                            .build()
                    }
                    DataLocation { count, .. } => {
                        opcode::Write::new(file, start, count).offset(offset).rw_flags(flags).build()
                    }
                }
            }
            Self::Sync => opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build(),
            Self::Punch { offset, bytes } => {
                opcode::Fallocate::new(file, bytes).offset(offset).mode(PUNCH_HOLE | KEEP_SIZE).build()
            }
            Self::Zero { offset, bytes } => {
                opcode::Fallocate::new(file, bytes).offset(offset).mode(ZERO_RANGE | KEEP_SIZE).build()
            }
            Self::Discard { offset, bytes } => {
                let mut command = [0; 16];
                command[..8].copy_from_slice(&bytes.to_le_bytes());
                opcode::UringCmd16::new(file, URING_DISCARD).cmd(command).addr(Some(offset)).build()
            }
        }
    }

    #[inline]
    fn decode(answer: &cqueue::Entry) -> (i32, u64) {
        (answer.result(), 0)
    }

    fn execute_blocking(&self, file: &File, vectors: &[IoVector]) -> (Result<u32, i32>, u64) {
        let result = match *self {
            Self::Read { offset, .. } => transfer(file, vectors, offset, RingDirection::In),
            Self::Write { offset, durable, .. } => {
                transfer(file, vectors, offset, RingDirection::Out { durable })
            }
            Self::Sync => retry_interrupted(|| fdatasync(file)),
            Self::Punch { offset, bytes } => {
                let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                retry_interrupted(|| fallocate(file, mode, offset, bytes))
            }
            Self::Zero { offset, bytes } => {
                let mode = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
                retry_interrupted(|| fallocate(file, mode, offset, bytes))
            }
            Self::Discard { offset, bytes } => retry_interrupted(|| discard(file, offset, bytes)),
        };
        (result.map_err(Errno::raw_os_error), 0)
    }
}

#[derive(Clone, Copy)]
enum RingDirection {
    In,
    Out { durable: bool },
}

/// Moves bytes between vectors of memory that a command holds and the file, and returns how many.
fn transfer(file: &File, vectors: &[IoVector], offset: u64, way: RingDirection) -> Result<u32, Errno> {
    let offset = i64::try_from(offset).map_err(|_| Errno::INVAL)?;
    let count = libc::c_int::try_from(vectors.len()).map_err(|_| Errno::INVAL)?;
    let (descriptor, list) = (file.as_raw_fd(), vectors.as_ptr().cast::<libc::iovec>());
    loop {
        let answer = match way {
            // SAFETY: bounds and lifetime: the list has `count` vectors of the layout of `iovec`, each inside memory to
            // which the running command holds a handle. Alignment: as an `iovec`'s. Aliasing: the memory is shared:
            // other processes may access it at any time, and no reference into it exists.
            RingDirection::In => unsafe { libc::preadv(descriptor, list, count, offset) },
            RingDirection::Out { durable } => {
                let flags = if durable { libc::RWF_DSYNC } else { 0 };
                // SAFETY: as above; the kernel only reads the memory.
                unsafe { libc::pwritev2(descriptor, list, count, offset, flags) }
            }
        };
        match u32::try_from(answer) {
            Ok(bytes) => return Ok(bytes),
            Err(_) => match last_errno() {
                Errno::INTR => {}
                errno => return Err(errno),
            },
        }
    }
}

fn discard(file: &File, offset: u64, bytes: u64) -> Result<(), Errno> {
    let range = [offset, bytes];
    // SAFETY: bounds, alignment and lifetime: the kernel reads two 64-bit words from this stack. Aliasing: it writes
    // nothing.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), BLKDISCARD, range.as_ptr()) };
    if answer == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Repeats a call that a signal interrupted.
fn retry_interrupted(mut call: impl FnMut() -> Result<(), Errno>) -> Result<u32, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other.map(|()| 0),
        }
    }
}

pub(super) fn last_errno() -> Errno {
    let errno = io::Error::last_os_error().raw_os_error();
    Errno::from_raw_os_error(errno.unwrap_or(libc::EIO))
}
