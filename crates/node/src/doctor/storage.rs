//! The findings on the disk of the data directory: io_uring, direct I/O, free space.
//!
//! Input: a path that need not exist yet. Output: findings. A probe file is created in the directory, or in its nearest
//! existing parent, and removed again.

use super::{DoctorFinding, FindingVerdict, machine};
use crate::config::default_capacity;
use crate::daemon::data_dir::free_bytes;
use headwater_host::file::{DirectChoice, FileMode, is_in_memory};
use headwater_host::uring::{FileRing, RingKind, UringChoice};
use rustix::fs::{AtFlags, StatxFlags, statx};
use std::fs::File;
use std::path::{Path, PathBuf};

const RING_ENTRIES: usize = 8;

/// Examines the disk under `data`.
#[must_use]
pub fn examine(data: &Path) -> Vec<DoctorFinding> {
    let folder = nearest_existing_folder(data);
    let mut findings = Vec::new();
    match ProbeFile::make(&folder) {
        Err(error) => {
            findings.push(
                DoctorFinding::new(
                    "data directory",
                    FindingVerdict::Problem,
                    format!("{}: {error}", folder.display()),
                )
                .why("no file can be created here, so a node cannot store its data here")
                .change(format!("sudo install -d -o $USER {}", data.display())),
            );
        }
        Ok(probe) => {
            findings.push(DoctorFinding::new(
                "data directory",
                FindingVerdict::Note,
                data.display().to_string(),
            ));
            findings.push(io_uring(&probe));
            findings.push(direct_io(&probe));
        }
    }
    findings.push(free(&folder));
    findings
}

fn io_uring(probe: &ProbeFile) -> DoctorFinding {
    let ring = File::open(&probe.path).map_err(|error| error.to_string()).and_then(|file| {
        // As the flash file is opened.
        let ring = match is_in_memory(&file) {
            true => FileRing::in_memory(file, RING_ENTRIES),
            false => FileRing::open(file, RING_ENTRIES, UringChoice::Auto),
        };
        ring.map_err(|error| error.to_string())
    });
    let kind = match ring {
        Ok(ring) => ring.kind(),
        Err(error) => {
            return DoctorFinding::new("io_uring", FindingVerdict::Problem, error)
                .why("no ring could be created");
        }
    };
    match kind {
        RingKind::Uring => DoctorFinding::new("io_uring", FindingVerdict::Active, "available"),
        RingKind::Memory => DoctorFinding::new("io_uring", FindingVerdict::Note, "not used")
            .why("the folder lies in memory, where the core copies by itself; a kernel thread would only add wake-ups"),
        RingKind::Blocking { refused } => {
            let reason = refused.map_or_else(
                || "not requested".to_owned(),
                |number| std::io::Error::from_raw_os_error(number).to_string(),
            );
            let disabled = machine::read_first_line("/proc/sys/kernel/io_uring_disabled")
                .unwrap_or_else(|| "absent".to_owned());
            DoctorFinding::new("io_uring", FindingVerdict::StandIn, format!("refused: {reason}"))
                .why(format!(
                    "blocking system calls on a thread are used instead; kernel.io_uring_disabled is {disabled}, and \
                     containers often forbid io_uring"
                ))
                .change("sudo sysctl kernel.io_uring_disabled=0   # or --security-opt seccomp=unconfined for a container")
        }
    }
}

fn direct_io(probe: &ProbeFile) -> DoctorFinding {
    // The same call opens the flash file, so a node gets the mode that is reported here.
    let mode = match headwater_host::file::open(&probe.path, DirectChoice::Auto) {
        Ok((_file, mode)) => mode,
        Err(error) => {
            return DoctorFinding::new("direct I/O", FindingVerdict::Problem, error.to_string())
                .why("a file that was just created cannot be opened for reading and writing");
        }
    };
    let alignment = alignment(&probe.path);
    let found = alignment.map_or_else(
        || "this file system or kernel reports no alignment".to_owned(),
        |(memory, offset)| format!("alignment: memory {memory}, offset {offset}"),
    );
    match (mode, alignment) {
        (FileMode::Direct, _) => DoctorFinding::new("direct I/O", FindingVerdict::Active, found),
        (FileMode::Buffered, None) => DoctorFinding::new("direct I/O", FindingVerdict::StandIn, found)
            .why("transfers use the page cache; kernels before 6.1 and file systems such as tmpfs report none")
            .change("put the data directory on ext4 or xfs, kernel 6.1 or later"),
        (FileMode::Buffered, Some(_)) => DoctorFinding::new("direct I/O", FindingVerdict::StandIn, found)
            .why("page slots are 4,608 bytes, so 512-byte alignment is needed; transfers use the page cache instead")
            .change("put the data directory on a disk with 512-byte logical sectors"),
    }
}

/// Returns the alignment of memory and offset for direct transfers, if the system reports it.
fn alignment(path: &Path) -> Option<(u32, u32)> {
    let file = File::open(path).ok()?;
    let found = statx(&file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    let reported = found.stx_mask & StatxFlags::DIOALIGN.bits() != 0 && found.stx_dio_mem_align > 0;
    reported.then_some((found.stx_dio_mem_align, found.stx_dio_offset_align))
}

fn free(folder: &Path) -> DoctorFinding {
    match free_bytes(folder) {
        Err(error) => DoctorFinding::new("free disk", FindingVerdict::Problem, error.to_string())
            .why("the free space decides the capacity of a new node"),
        Ok(free) => DoctorFinding::new("free disk", FindingVerdict::Note, free.to_string())
            .why(format!("a new node uses {} of it", default_capacity(free)))
            .change("headwater serve --capacity SIZE"),
    }
}

/// Returns the nearest existing folder at or above a path.
fn nearest_existing_folder(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_no_current_folder| path.to_owned());
    absolute.ancestors().find(|folder| folder.is_dir()).map_or_else(|| PathBuf::from("/"), Path::to_owned)
}

/// A temporary file; dropping it removes the file.
struct ProbeFile {
    path: PathBuf,
}

impl ProbeFile {
    fn make(folder: &Path) -> std::io::Result<Self> {
        let path = folder.join(format!(".headwater-doctor-{}", std::process::id()));
        File::create_new(&path)?.set_len(1 << 16)?;
        Ok(Self { path })
    }
}

impl Drop for ProbeFile {
    fn drop(&mut self) {
        let _nothing_to_be_done = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_directory_is_examined_in_its_parent_and_the_probe_file_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let findings = examine(&dir.path().join("new/data"));
        assert!(findings.iter().any(|finding| finding.what == "io_uring"));
        assert!(findings.iter().any(|finding| finding.what == "direct I/O"));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
