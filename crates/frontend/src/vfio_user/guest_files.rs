//! The files of a guest's memory, each mapped once.
//!
//! Input: the descriptor of each region that the hypervisor maps. Output: the part of a mapping that the region is.
//! Invariant: a file is mapped as long as a region of it is. Behind a virtual IOMMU a guest's memory is mapped page by
//! page; the number of mappings in this process is that of the files, and of the times that a file had grown when a region
//! was mapped: it has an upper bound.

use headwater_host::fault_guard::LostPages;
use headwater_host::shared_memory::{MapDescriptorError, MapError, SharedMemory, SharedPages};
use rustix::fs::fstat;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;

/// Maximum mappings of the files of a guest: QEMU has one file for each memory backend.
pub(super) const FILE_MAPPINGS_MAX: usize = 1_024;

/// A file of this machine: its device and its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileId(u64, u64);

#[derive(Debug)]
struct MappedFile {
    /// The whole file, as long as it was when a region needed it.
    memory: SharedMemory,
    regions: usize,
    /// Mappings that were made of it since it had no region. Regions may hold all of them.
    mappings: usize,
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
            if self.files.values().map(|mapped| mapped.mappings).sum::<usize>() >= FILE_MAPPINGS_MAX {
                return Err(errno_of(Errno::NOSPC).into());
            }
            let whole = usize::try_from(file_bytes).map_err(|_| out)?;
            if end > whole || bytes == 0 {
                // The error says what is wrong with the file, if its range is not the only fault.
                return SharedMemory::map_client(descriptor, offset, bytes, &self.lost).and(Err(out));
            }
            let memory = SharedMemory::map_client(descriptor, 0, whole, &self.lost)?;
            // Regions of a mapping before the file grew keep that one.
            let (regions, mappings) =
                self.files.get(&id).map_or((0, 0), |mapped| (mapped.regions, mapped.mappings));
            self.files.insert(id, MappedFile { memory, regions, mappings: mappings + 1 });
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    use std::os::fd::{AsFd as _, OwnedFd};

    const PAGE: usize = 4_096;

    fn growing_file() -> OwnedFd {
        let file = memfd_create(c"guest", MemfdFlags::ALLOW_SEALING).unwrap();
        fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        file
    }

    #[test]
    fn file_that_grows_for_each_region_is_mapped_a_bounded_number_of_times() {
        let (file, mut files) = (growing_file(), GuestFiles::default());
        let mut held = Vec::new();
        for page in 0..FILE_MAPPINGS_MAX {
            ftruncate(&file, ((page + 1) * PAGE) as u64).unwrap();
            held.push(files.map(file.as_fd(), (page * PAGE) as u64, PAGE).unwrap());
        }
        ftruncate(&file, (2 * FILE_MAPPINGS_MAX * PAGE) as u64).unwrap();
        let beyond = (FILE_MAPPINGS_MAX * PAGE) as u64;
        assert!(files.map(file.as_fd(), beyond, PAGE).is_err(), "each growth took a mapping of the process");
        // Parts of what is mapped take none.
        held.push(files.map(file.as_fd(), 0, PAGE).unwrap());
        held.drain(..).for_each(|(id, _)| files.release(id));
        files.map(file.as_fd(), beyond, PAGE).unwrap();
    }
}
