//! NVMe commands that the kernel's driver passes through, by io_uring or by ioctl (`linux/nvme_ioctl.h`).
//!
//! Input: [`NvmeCommand`]s: the entry's dwords, without data pointer. Output: status and result. The driver maps the
//! memory and chooses PRPs or SGLs; it does not check which blocks a command may access: the layers above do.

use super::block::last_errno;
use super::uring_engine::{DataLocation, IoVector, WorkEncoding};
use super::{MemoryExtent, MemoryExtents};
use io_uring::{cqueue, opcode, squeue, types};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `_IO('N', 0x40)`.
const NVME_IOCTL_ID: libc::c_ulong = 0x4E40;
/// `_IOWR('N', 0x41, struct nvme_passthru_cmd)`.
const NVME_IOCTL_ADMIN_CMD: libc::c_ulong = 0xC048_4E41;
/// `_IOWR('N', 0x48, struct nvme_passthru_cmd64)`.
const NVME_IOCTL_IO64_CMD: libc::c_ulong = 0xC050_4E48;
/// `_IOWR('N', 0x49, struct nvme_passthru_cmd64)`.
const NVME_IOCTL_IO64_CMD_VEC: libc::c_ulong = 0xC050_4E49;
/// `_IOWR('N', 0x80, struct nvme_uring_cmd)`.
const NVME_URING_CMD_IO: u32 = 0xC048_4E80;
/// `_IOWR('N', 0x81, struct nvme_uring_cmd)`.
const NVME_URING_CMD_IO_VEC: u32 = 0xC048_4E81;
/// The size of `struct nvme_uring_cmd` and of `struct nvme_passthru_cmd`.
const COMMAND_BYTES: usize = 72;

/// A command in the driver's fields. The data pointer and length are filled in here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NvmeCommand {
    /// CDW0 7:0.
    pub opcode: u8,
    /// CDW1.
    pub namespace: u32,
    /// CDW2 and CDW3.
    pub words_2_3: [u32; 2],
    /// CDW10 to CDW15.
    pub words_10_15: [u32; 6],
    /// The timeout of the device, in milliseconds; 0 for the driver's own limit.
    pub timeout_ms: u32,
}

impl NvmeCommand {
    /// Encodes `struct nvme_uring_cmd`, whose first fields are those of the two other structures. The device's byte
    /// order is the processor's here.
    fn to_bytes(self, address: usize, count: u32) -> [u8; COMMAND_BYTES] {
        let mut bytes = [0; COMMAND_BYTES];
        bytes[0] = self.opcode;
        bytes[4..8].copy_from_slice(&self.namespace.to_le_bytes());
        for (at, word) in [8, 12].into_iter().zip(self.words_2_3) {
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        bytes[24..32].copy_from_slice(&(address as u64).to_le_bytes());
        bytes[36..40].copy_from_slice(&count.to_le_bytes());
        for (at, word) in (40..64).step_by(4).zip(self.words_10_15) {
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        bytes[64..68].copy_from_slice(&self.timeout_ms.to_le_bytes());
        bytes
    }
}

/// A command with its data; the opcode determines the direction.
#[derive(Debug)]
pub struct NvmeWork {
    /// The command.
    pub command: NvmeCommand,
    /// The data.
    pub data: MemoryExtents,
}

impl WorkEncoding for NvmeWork {
    type Entry = squeue::Entry128;
    type Answer = cqueue::Entry32;

    #[inline]
    fn extents(&self) -> &[MemoryExtent] {
        self.data.all()
    }

    /// Returns true if the command has data. Without data it has nothing by which the kernel polls for it; Linux 6.1
    /// polls nevertheless, on memory that is freed.
    #[inline]
    fn is_polled(&self) -> bool {
        !self.data.all().is_empty()
    }

    #[inline]
    fn encode(&self, file: types::Fixed, place: DataLocation) -> squeue::Entry128 {
        let mut bytes = [0; 80];
        bytes[..COMMAND_BYTES].copy_from_slice(&self.command.to_bytes(place.address, place.count));
        let call = if place.is_list { NVME_URING_CMD_IO_VEC } else { NVME_URING_CMD_IO };
        opcode::UringCmd80::new(file, call).cmd(bytes).buf_index(place.slot).build()
    }

    #[inline]
    fn decode(answer: &cqueue::Entry32) -> (i32, u64) {
        let [value, _] = *answer.big_cqe();
        (answer.result(), value)
    }

    fn execute_blocking(&self, file: &File, vectors: &[IoVector]) -> (Result<u32, i32>, u64) {
        let (call, address, count) = match vectors {
            [] => (NVME_IOCTL_IO64_CMD, 0, Ok(0)),
            [one] => (NVME_IOCTL_IO64_CMD, one.address, u32::try_from(one.bytes)),
            list => (NVME_IOCTL_IO64_CMD_VEC, list.as_ptr().expose_provenance(), u32::try_from(list.len())),
        };
        let Ok(count) = count else {
            return (Err(libc::EINVAL), 0);
        };
        let mut long = [0_u64; 10];
        copy_into_words(&self.command.to_bytes(address, count), &mut long);
        // SAFETY: bounds, alignment and lifetime: the kernel reads and writes one `nvme_passthru_cmd64` of 80 bytes on
        // this stack, and the memory, or the list of it, which lies inside memory to which the running command holds
        // handles. Aliasing: the memory is shared: other processes may access it at any time, and no reference into it
        // exists.
        let answer = unsafe { libc::ioctl(file.as_raw_fd(), call, long.as_mut_ptr()) };
        let result = u32::try_from(answer).map_err(|_| last_errno().raw_os_error());
        // The result is behind the reserved word: bytes 72 to 80.
        (result, long[9])
    }
}

/// Executes an admin command through the namespace's or the controller's device, and returns status and dword 0; needs
/// CAP_SYS_ADMIN.
///
/// # Errors
/// The kernel's error, or data of more than 4 GiB.
pub fn admin_command(file: &File, command: NvmeCommand, data: &mut [u8]) -> io::Result<(u32, u32)> {
    let count = u32::try_from(data.len()).map_err(|_| io::Error::from(Errno::INVAL))?;
    let address = if data.is_empty() { 0 } else { data.as_mut_ptr().expose_provenance() };
    let mut words = [0_u64; COMMAND_BYTES / 8];
    copy_into_words(&command.to_bytes(address, count), &mut words);
    // SAFETY: bounds, alignment and lifetime: the kernel reads and writes one `nvme_passthru_cmd` of 72 bytes on this
    // stack and `count` bytes of `data`, borrowed for the call. Aliasing: `data` is borrowed exclusively.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), NVME_IOCTL_ADMIN_CMD, words.as_mut_ptr()) };
    let status = u32::try_from(answer).map_err(|_| io::Error::last_os_error())?;
    // The result is the last word: bytes 68 to 72.
    let [.., a, b, c, d] = words[8].to_le_bytes();
    Ok((status, u32::from_le_bytes([a, b, c, d])))
}

/// Returns the number of the namespace behind a device.
///
/// # Errors
/// The kernel's error: the device is no NVMe namespace.
pub fn namespace_id(file: &File) -> io::Result<u32> {
    // SAFETY: the call takes no argument and touches no memory of ours.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), NVME_IOCTL_ID) };
    u32::try_from(answer).map_err(|_| io::Error::last_os_error())
}

/// Copies bytes into words, to align them for the kernel.
fn copy_into_words(bytes: &[u8; COMMAND_BYTES], words: &mut [u64]) {
    for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = chunk.try_into().map_or(0, u64::from_le_bytes);
    }
}
