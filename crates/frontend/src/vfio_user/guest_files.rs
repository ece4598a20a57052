//! The files of a guest's memory, each mapped once.
//!
//! Input: the descriptor of each region that the hypervisor maps. Output: the part of a mapping that the region is.
//! Invariant: a file is mapped as long as a region of it is. Behind a virtual IOMMU a guest's memory is mapped page by
//! page; the number of mappings in this process is that of the files.

use headwater_host::fault_guard::LostPages;
use headwater_host::shared_memory::{MapDescriptorError, MapError, SharedMemory, SharedPages};
use rustix::fs::fstat;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;

/// Maximum files of a guest: QEMU has one for each memory backend.
pub(super) const FILES_MAX: usize = 1_024;

/// A file of this machine: its device and its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileId(u64, u64);

#[derive(Debug)]
struct MappedFile {
    /// The whole file, as long as it was when a region needed it.
    memory: SharedMemory,
    regions: usize,
}

/// The mapped files of one guest.
#[derive(Debug, Default)]
pub(super) struct GuestFiles {
    files: BTreeMap<FileId, MappedFile>,
    lost: LostPages,
}

impl GuestFiles {
    /// Maps a range of a file for one region. [`release`](Self::release) follows for each success.
    pub(super) fn map(
        &mut self,
        descriptor: BorrowedFd<'_>,
        offset: u64,
        bytes: usize,
    ) -> Result<(FileId, SharedPages), MapDescriptorError> {
        let errno_of = |errno| MapError { bytes, errno };
        let file = fstat(descriptor).map_err(errno_of)?;
        let file_bytes = u64::try_from(file.st_size).unwrap_or(0);
        let id = FileId(file.st_dev, file.st_ino);
        let out = MapDescriptorError::Range { offset, bytes, file_bytes };
        let start = usize::try_from(offset).map_err(|_| out)?;
        let end = start.checked_add(bytes).ok_or(out)?;
        let is_mapped = |mapped: &MappedFile| end <= mapped.memory.bytes();
        if !self.files.get(&id).is_some_and(is_mapped) {
            if self.files.len() >= FILES_MAX && !self.files.contains_key(&id) {
                return Err(errno_of(Errno::NOSPC).into());
            }
            let whole = usize::try_from(file_bytes).map_err(|_| out)?;
            if end > whole || bytes == 0 {
                // The error says what is wrong with the file, if its range is not the only fault.
                return SharedMemory::map_client(descriptor, offset, bytes, &self.lost).and(Err(out));
            }
            let memory = SharedMemory::map_client(descriptor, 0, whole, &self.lost)?;
            // Regions of a mapping before the file grew keep that one.
            let regions = self.files.get(&id).map_or(0, |mapped| mapped.regions);
            self.files.insert(id, MappedFile { memory, regions });
        }
        let mapped = self.files.get_mut(&id).ok_or(out)?;
        mapped.regions += 1;
        Ok((id, SharedPages { region: mapped.memory.clone(), offset: start, bytes }))
    }

    /// Removes one region of a file. Commands in flight keep the mapping.
    pub(super) fn release(&mut self, id: FileId) {
        if let Some(mapped) = self.files.get_mut(&id) {
            mapped.regions -= 1;
            if mapped.regions == 0 {
                self.files.remove(&id);
            }
        }
    }

    /// Returns true if an access to a file found no page.
    pub(super) fn have_lost_pages(&self) -> bool {
        self.lost.is_set()
    }
}
