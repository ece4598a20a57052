//! The ways by which descriptors reach a work queue.
//!
//! Input: descriptors. Output: the device has them, or the reason that it has not. Invariant: after [`SubmissionPortal::stop`]
//! the device accesses nothing that a descriptor named.
//!
//! # What is assumed
//! The kernel waits for the descriptors of a process when the last descriptor of a work queue's file is closed (`idxd_cdev`,
//! release). The file is closed on exec and its mapping is not inherited; a child between fork and exec can delay that moment.

use super::descriptor::{DESCRIPTOR_BYTES, DsaDescriptor};
use super::discovery::{WorkQueueId, WorkQueueInfo, WorkQueueMode};
use super::instructions::{DsaInstructions, EnqueueAnswer, enqcmd, movdir64b};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::fmt;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};
use zerocopy::IntoBytes as _;

/// The length of a portal: one page.
const PORTAL_BYTES: usize = 4_096;

/// The reason that a portal did not take a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PortalRefusal {
    /// The queue has no room.
    Full,
    /// The device is gone.
    Gone,
    /// The kernel refused the write.
    Kernel(Errno),
}

/// A way to a work queue.
pub(super) trait SubmissionPortal: Send + fmt::Debug {
    /// Submits a descriptor.
    ///
    /// # Safety
    /// The memory that the descriptor names, and the lists and records that it leads to, stay valid and are accessed by
    /// nothing else until its record is written, or [`stop`](Self::stop) has returned.
    unsafe fn submit(&mut self, descriptor: &DsaDescriptor) -> Result<(), PortalRefusal>;

    /// Stops the device: when this returns, it has no descriptor of this portal and takes none any more. Blocks until then.
    fn stop(&mut self);

    /// Returns false if descriptors of batches are refused.
    fn allows_batches(&self) -> bool;
}

/// The way by which a queue gets descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmissionWay {
    /// By MOVDIR64B to a mapped portal.
    Movdir64b,
    /// By ENQCMD to a mapped portal.
    Enqcmd,
    /// By write(2), because the kernel refuses the map to this process.
    Write,
    /// To a thread of this process.
    Software,
}

impl SubmissionWay {
    /// Returns the name of the way, for reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Movdir64b => "movdir64b",
            Self::Enqcmd => "enqcmd",
            Self::Write => "write",
            Self::Software => "software portal",
        }
    }
}

/// The reason that a work queue cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenQueueError {
    /// The processor lacks the instruction of the queue's mode.
    #[error("{id} is a {} queue and this processor has no {instruction}: use a machine that has it", mode.name())]
    NoInstruction {
        /// The queue.
        id: WorkQueueId,
        /// Its mode.
        mode: WorkQueueMode,
        /// The instruction.
        instruction: &'static str,
    },
    /// This user may not open the file.
    #[error("{} may not be opened by this user: as root, `chown USER {}`, or a udev rule for it", path.display(), path.display())]
    NotPermitted {
        /// The file.
        path: PathBuf,
    },
    /// The file does not exist.
    #[error("{} does not exist: the queue is not bound to the user driver; as root, `accel-config enable-wq`", path.display())]
    NoFile {
        /// The file.
        path: PathBuf,
    },
    /// Another process has the dedicated queue.
    #[error("{} is in use by another process: end it, or configure the queue with --mode=shared", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// Another error.
    #[error("{} cannot be opened: {errno}", path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        errno: Errno,
    },
}

/// Opens the best way to a queue: a mapped portal, or write(2) if the kernel refuses the map.
pub(super) fn open_portal(
    queue: &WorkQueueInfo,
    instructions: DsaInstructions,
) -> Result<(Box<dyn SubmissionPortal>, SubmissionWay), OpenQueueError> {
    let WorkQueueInfo { id, mode, file: path, .. } = queue;
    let (has_instruction, instruction, way) = match mode {
        WorkQueueMode::Dedicated => (instructions.has_movdir64b(), "MOVDIR64B", SubmissionWay::Movdir64b),
        WorkQueueMode::Shared => (instructions.has_enqcmd(), "ENQCMD", SubmissionWay::Enqcmd),
    };
    if !has_instruction {
        return Err(OpenQueueError::NoInstruction { id: *id, mode: *mode, instruction });
    }
    let file = open_file(path)?;
    match MappedPortal::map(file.as_fd(), way) {
        Ok(mapped) => Ok((Box::new(mapped.keeping(file)), way)),
        Err(_) => Ok((Box::new(WrittenPortal { file: Some(file) }), SubmissionWay::Write)),
    }
}

fn open_file(path: &Path) -> Result<OwnedFd, OpenQueueError> {
    let path = || path.to_path_buf();
    open(path(), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|errno| match errno {
        Errno::NOENT => OpenQueueError::NoFile { path: path() },
        Errno::ACCESS | Errno::PERM => OpenQueueError::NotPermitted { path: path() },
        Errno::BUSY => OpenQueueError::InUse { path: path() },
        errno => OpenQueueError::Refused { path: path(), errno },
    })
}

/// A portal that is mapped into this process.
struct MappedPortal {
    /// `None` after the stop.
    page: Option<NonNull<u8>>,
    file: Option<OwnedFd>,
    way: SubmissionWay,
    /// The next of the 64 places of the page, which the device treats alike.
    next: usize,
}

// SAFETY: bounds and alignment: not concerned. Lifetime: the mapping belongs to the process, and is unmapped once. Aliasing:
// it is only stored to, by one owner.
unsafe impl Send for MappedPortal {}

impl MappedPortal {
    fn map(file: BorrowedFd<'_>, way: SubmissionWay) -> Result<Self, Errno> {
        // SAFETY: bounds: the kernel maps one page or fails. Alignment: it chooses an address on a page. Lifetime: ours until
        // `stop` unmaps it. Aliasing: a null hint without FIXED replaces no mapping.
        let mapped =
            unsafe { mmap(std::ptr::null_mut(), PORTAL_BYTES, ProtFlags::WRITE, MapFlags::SHARED, file, 0) };
        let page = NonNull::new(mapped?.cast::<u8>()).ok_or(Errno::NOMEM)?;
        Ok(Self { page: Some(page), file: None, way, next: 0 })
    }

    fn keeping(mut self, file: OwnedFd) -> Self {
        self.file = Some(file);
        self
    }
}

impl SubmissionPortal for MappedPortal {
    unsafe fn submit(&mut self, descriptor: &DsaDescriptor) -> Result<(), PortalRefusal> {
        let page = self.page.ok_or(PortalRefusal::Gone)?;
        let place = page.as_ptr().wrapping_add(self.next);
        self.next = (self.next + DESCRIPTOR_BYTES) % PORTAL_BYTES;
        if self.way == SubmissionWay::Enqcmd {
            // SAFETY: bounds and alignment: a multiple of 64 below the length of the page. Lifetime: the page is mapped until
            // `stop`; the caller promises the memory of the descriptor. `open_portal` found the instruction.
            let answer = unsafe { enqcmd(place, descriptor) };
            return if answer == EnqueueAnswer::Accepted { Ok(()) } else { Err(PortalRefusal::Full) };
        }
        // SAFETY: as for ENQCMD.
        unsafe { movdir64b(place, descriptor) };
        Ok(())
    }

    fn stop(&mut self) {
        if let Some(page) = self.page.take() {
            // SAFETY: bounds and alignment: exactly the page that the kernel returned. Lifetime: `page` was taken, so that
            // nothing stores to it any more. Aliasing: no reference to it was ever made.
            let _ = unsafe { munmap(page.as_ptr().cast::<c_void>(), PORTAL_BYTES) };
        }
        // The mapping had the file open too: with both gone the kernel waits for the device.
        self.file = None;
    }

    fn allows_batches(&self) -> bool {
        true
    }
}

impl Drop for MappedPortal {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for MappedPortal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappedPortal({})", self.way.name())
    }
}

/// A queue that takes descriptors by write(2): the kernel submits them, and allows no batches of them.
#[derive(Debug)]
struct WrittenPortal {
    /// `None` after the stop.
    file: Option<OwnedFd>,
}

impl SubmissionPortal for WrittenPortal {
    unsafe fn submit(&mut self, descriptor: &DsaDescriptor) -> Result<(), PortalRefusal> {
        let file = self.file.as_ref().ok_or(PortalRefusal::Gone)?;
        // The kernel orders none of our streaming stores before its own.
        fence(Ordering::SeqCst);
        loop {
            match rustix::io::write(file, descriptor.as_bytes()) {
                Ok(DESCRIPTOR_BYTES) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::BUSY) => return Err(PortalRefusal::Full),
                Ok(_) => return Err(PortalRefusal::Kernel(Errno::IO)),
                Err(errno) => return Err(PortalRefusal::Kernel(errno)),
            }
        }
    }

    fn stop(&mut self) {
        self.file = None;
    }

    fn allows_batches(&self) -> bool {
        false
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::dsa::discovery::DsaOpcodeSet;
    use std::io::Read as _;
    use std::os::unix::fs::PermissionsExt as _;

    fn queue(mode: WorkQueueMode, file: PathBuf) -> WorkQueueInfo {
        WorkQueueInfo {
            id: WorkQueueId { device: 0, queue: 1 },
            name: "headwater".into(),
            mode,
            size: 8,
            threshold: 8,
            transfer_bytes_max: 1 << 20,
            batch_max: 16,
            may_block_on_fault: false,
            can_read_back: false,
            file_minor: None,
            group: None,
            node: None,
            opcodes: DsaOpcodeSet::ALL,
            forbidden: DsaOpcodeSet::default(),
            file,
        }
    }

    #[test]
    fn a_processor_without_the_instruction_opens_no_queue() {
        for (mode, name) in [(WorkQueueMode::Dedicated, "MOVDIR64B"), (WorkQueueMode::Shared, "ENQCMD")] {
            let error = open_portal(&queue(mode, "/nowhere".into()), DsaInstructions::NONE).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn files_that_cannot_be_opened_say_what_to_do() {
        let root = tempfile::TempDir::new().unwrap();
        let path = root.path().join("wq0.1");
        assert_eq!(open_file(&path).unwrap_err(), OpenQueueError::NoFile { path: path.clone() });
        std::fs::write(&path, b"").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).unwrap();
        // Root may open every file.
        if let Err(error) = open_file(&path) {
            assert_eq!(error, OpenQueueError::NotPermitted { path: path.clone() });
            assert!(error.to_string().contains("chown"), "{error}");
        }
        assert!(matches!(open_file(root.path()), Err(OpenQueueError::Refused { .. })));
    }

    #[test]
    fn a_written_portal_sends_the_bytes_of_each_descriptor_and_refuses_after_its_end() {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut portal = WrittenPortal { file: Some(writer.into()) };
        let descriptors = [DsaDescriptor::no_op(), DsaDescriptor::drain().with_record(0x40)];
        for descriptor in &descriptors {
            // SAFETY: the descriptors name no memory, and the other end of the pipe is this test, no device.
            assert_eq!(unsafe { portal.submit(descriptor) }, Ok(()));
        }
        portal.stop();
        // SAFETY: as above.
        assert_eq!(unsafe { portal.submit(&descriptors[0]) }, Err(PortalRefusal::Gone));
        let mut found = Vec::new();
        { reader }.read_to_end(&mut found).unwrap();
        assert_eq!(found, descriptors.map(|descriptor| descriptor.as_bytes().to_vec()).concat());
        assert!(!portal.allows_batches());
    }

    #[test]
    fn a_pipe_that_is_full_is_a_full_queue_and_one_that_is_closed_an_error() {
        let (reader, writer) = std::io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        let mut portal = WrittenPortal { file: Some(writer.into()) };
        let refused = loop {
            // SAFETY: the descriptor names no memory, and there is no device.
            if let Err(refused) = unsafe { portal.submit(&DsaDescriptor::no_op()) } {
                break refused;
            }
        };
        assert_eq!(refused, PortalRefusal::Full);
        drop(reader);
        // SAFETY: as above.
        let refused = unsafe { portal.submit(&DsaDescriptor::no_op()) };
        assert_eq!(refused, Err(PortalRefusal::Kernel(Errno::PIPE)));
    }

    #[test]
    fn a_kernel_that_refuses_the_map_is_a_reason_to_write() {
        let (_reader, writer) = std::io::pipe().unwrap();
        assert!(MappedPortal::map(writer.as_fd(), SubmissionWay::Movdir64b).is_err());
        let file = tempfile::tempfile().unwrap();
        file.set_len(4_096).unwrap();
        let mut mapped = MappedPortal::map(file.as_fd(), SubmissionWay::Movdir64b).unwrap();
        assert!(mapped.allows_batches());
        mapped.stop();
        // SAFETY: the portal is stopped and does nothing.
        assert_eq!(unsafe { mapped.submit(&DsaDescriptor::no_op()) }, Err(PortalRefusal::Gone));
    }
}
