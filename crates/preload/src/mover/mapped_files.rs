//! The mappings of files that the library keeps.
//!
//! ```text
//!  empty --> busy --> live --> retired --> busy --> empty
//!           (filled)  (used)  (no new use) (unmapped)
//! ```
//! Input: a file's identity. Output: its mapping, in use until it is released. Invariant: a mapping that is in use is not
//! unmapped, and a place has one file while it is in use. State and number of users are one word, so that no step takes a
//! lock: a thread that is interrupted, or dies, at any point costs at most its place.
//!
//! A mapping keeps its file's inode, so that no new file gets the same identity while the old one is found here.

use super::counters::{COUNTERS, count};
use super::prefault::{PREFAULT_BYTES, PageAccess, populate};
use rustix::mm::munmap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// The most mappings at a time.
pub(super) const MAPPED_FILES_MAX: usize = 64;

/// A mapping has whole units, so that the kernel can use huge pages. The pages of one are made present together.
pub(super) const UNIT_BYTES: usize = 2 << 20;
/// The words of bits of a file: for 4 GiB of it. What lies behind takes the faults of its pages.
const UNIT_WORDS: usize = 32;

const EMPTY: u64 = 0;
const BUSY: u64 = 1 << 32;
const LIVE: u64 = 2 << 32;
const RETIRED: u64 = 3 << 32;
/// The bits of the number of users.
const USERS: u64 = 0xFFFF_FFFF;

/// The identity of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileIdentity {
    pub(super) device: u64,
    pub(super) inode: u64,
}

/// A place for the mapping of one file.
#[derive(Debug)]
struct MappedFile {
    /// The state, and the number of users.
    gate: AtomicU64,
    device: AtomicU64,
    inode: AtomicU64,
    start: AtomicUsize,
    bytes: AtomicUsize,
    is_writable: AtomicBool,
    /// The length of the file that is known to be committed, or was when it was mapped.
    file_bytes: AtomicUsize,
    /// A bit for each of the first units, set once its pages were made present for reads.
    read_units: [AtomicU64; UNIT_WORDS],
    /// The same for writes.
    written_units: [AtomicU64; UNIT_WORDS],
}

static FILES: [MappedFile; MAPPED_FILES_MAX] = [const {
    MappedFile {
        gate: AtomicU64::new(EMPTY),
        device: AtomicU64::new(0),
        inode: AtomicU64::new(0),
        start: AtomicUsize::new(0),
        bytes: AtomicUsize::new(0),
        is_writable: AtomicBool::new(false),
        file_bytes: AtomicUsize::new(0),
        read_units: [const { AtomicU64::new(0) }; UNIT_WORDS],
        written_units: [const { AtomicU64::new(0) }; UNIT_WORDS],
    }
}; MAPPED_FILES_MAX];

/// Places that are not empty, for a caller that has nothing to do if there are none.
static FILES_USED: AtomicUsize = AtomicUsize::new(0);

/// A fresh mapping of a file, from its first byte on.
#[derive(Clone, Copy, Debug)]
pub(super) struct FreshMapping {
    pub(super) start: usize,
    pub(super) bytes: usize,
    pub(super) is_writable: bool,
    /// The length of the file.
    pub(super) file_bytes: usize,
}

/// The access that a transfer needs of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AccessWanted {
    Read,
    /// By a descriptor that can be mapped for writing.
    Write,
    /// By one that cannot: only a mapping of another descriptor serves.
    WriteOfAnother,
}

/// A mapping in use. It is not unmapped before this is dropped.
#[derive(Debug)]
pub(super) struct MappingUse {
    file: &'static MappedFile,
}

impl MappingUse {
    /// Returns the address of the file's first byte.
    pub(super) fn start(&self) -> usize {
        self.file.start.load(Ordering::Relaxed)
    }

    /// Returns the length of the file that needs no commit.
    pub(super) fn file_bytes(&self) -> usize {
        self.file.file_bytes.load(Ordering::Relaxed)
    }

    /// Notes the present length: one that grows again may need another commit.
    pub(super) fn lower_file_bytes(&self, size: usize) {
        self.file.file_bytes.fetch_min(size, Ordering::Relaxed);
    }

    /// Makes the pages of a range present that lie in whole units of it, each unit once for each access. What the kernel refuses
    /// takes the faults of its pages.
    pub(super) fn prefault(&self, start: usize, bytes: usize, access: PageAccess) {
        if bytes < PREFAULT_BYTES.load(Ordering::Relaxed).max(UNIT_BYTES) {
            return;
        }
        for unit in start.div_ceil(UNIT_BYTES)..(start + bytes) / UNIT_BYTES {
            let is_refused = self.is_first_use(unit, access)
                && !populate(self.start() + unit * UNIT_BYTES, UNIT_BYTES, access);
            if is_refused {
                return;
            }
        }
    }

    /// Returns true once for each unit and access; false for a unit that has no bit.
    fn is_first_use(&self, unit: usize, access: PageAccess) -> bool {
        let units = match access {
            PageAccess::Read => &self.file.read_units,
            PageAccess::Write => &self.file.written_units,
        };
        let bit = 1_u64 << (unit % 64);
        units.get(unit / 64).is_some_and(|word| word.fetch_or(bit, Ordering::Relaxed) & bit == 0)
    }

    /// Notes that the file's length is committed as far as this.
    pub(super) fn raise_file_bytes(&self, end: usize) {
        self.file.file_bytes.fetch_max(end, Ordering::Relaxed);
    }
}

impl Drop for MappingUse {
    fn drop(&mut self) {
        if self.file.gate.fetch_sub(1, Ordering::AcqRel) == RETIRED | 1 {
            self.file.unmap_unused();
        }
    }
}

impl MappedFile {
    fn is(&self, identity: FileIdentity) -> bool {
        self.device.load(Ordering::Relaxed) == identity.device
            && self.inode.load(Ordering::Relaxed) == identity.inode
    }

    /// Begins a use, if the place has this file.
    fn acquire(&'static self, identity: FileIdentity) -> Option<MappingUse> {
        let mut gate = self.gate.load(Ordering::Acquire);
        while gate & !USERS == LIVE && self.is(identity) {
            match self.acquire_at(gate, identity) {
                Ok(used) => return used,
                Err(changed) => gate = changed,
            }
        }
        None
    }

    /// Begins a use, if the gate is as it was seen. Returns nothing if the place has another file by now, or the changed gate.
    fn acquire_at(&'static self, gate: u64, identity: FileIdentity) -> Result<Option<MappingUse>, u64> {
        self.gate.compare_exchange_weak(gate, gate + 1, Ordering::AcqRel, Ordering::Acquire)?;
        let used = MappingUse { file: self };
        // From here on the place keeps what it has.
        Ok(self.is(identity).then_some(used))
    }

    /// Lets no new use begin. Unmaps now, or at the end of the last use.
    fn retire(&self) {
        let mut gate = self.gate.load(Ordering::Acquire);
        while gate & !USERS == LIVE {
            let retired = RETIRED | gate & USERS;
            match self.gate.compare_exchange_weak(gate, retired, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return self.unmap_unused(),
                Err(changed) => gate = changed,
            }
        }
    }

    /// Unmaps a retired mapping without users.
    fn unmap_unused(&self) {
        if self.gate.compare_exchange(RETIRED, BUSY, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return;
        }
        unmap_range(self.start.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed));
        FILES_USED.fetch_sub(1, Ordering::Relaxed);
        self.gate.store(EMPTY, Ordering::Release);
    }

    /// Puts a mapping into an empty place, and begins a use of it.
    fn fill(&'static self, identity: FileIdentity, mapping: FreshMapping) -> Option<MappingUse> {
        self.gate.compare_exchange(EMPTY, BUSY, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        FILES_USED.fetch_add(1, Ordering::Relaxed);
        self.device.store(identity.device, Ordering::Relaxed);
        self.inode.store(identity.inode, Ordering::Relaxed);
        self.start.store(mapping.start, Ordering::Relaxed);
        self.bytes.store(mapping.bytes, Ordering::Relaxed);
        self.is_writable.store(mapping.is_writable, Ordering::Relaxed);
        self.file_bytes.store(mapping.file_bytes, Ordering::Relaxed);
        self.read_units.iter().chain(&self.written_units).for_each(|word| word.store(0, Ordering::Relaxed));
        self.gate.store(LIVE | 1, Ordering::Release);
        Some(MappingUse { file: self })
    }
}

/// Returns a mapping of the file that has its first `end` bytes, with the access wanted. One that does not suffice is retired,
/// unless the caller cannot make a better one.
pub(super) fn find(identity: FileIdentity, end: usize, wanted: AccessWanted) -> Option<MappingUse> {
    if FILES_USED.load(Ordering::Relaxed) == 0 {
        return None;
    }
    for file in &FILES {
        let Some(used) = file.acquire(identity) else { continue };
        let is_allowed = wanted == AccessWanted::Read || file.is_writable.load(Ordering::Relaxed);
        if end <= file.bytes.load(Ordering::Relaxed) && is_allowed {
            return Some(used);
        }
        if wanted != AccessWanted::WriteOfAnother {
            file.retire();
        }
    }
    None
}

/// Keeps a fresh mapping, and begins a use of it. Unmaps it, and returns nothing, if every place is in use.
pub(super) fn keep(identity: FileIdentity, mapping: FreshMapping) -> Option<MappingUse> {
    let fill = || FILES.iter().find_map(|file| file.fill(identity, mapping));
    let kept = fill().or_else(|| {
        let start = usize::try_from(identity.inode % MAPPED_FILES_MAX as u64).unwrap_or(0);
        let unused = |file: &&MappedFile| file.gate.load(Ordering::Relaxed) == LIVE;
        let (before, after) = FILES.split_at(start);
        let victim = after.iter().chain(before).find(unused)?;
        victim.retire();
        fill()
    });
    if kept.is_none() {
        unmap(mapping);
    }
    kept
}

/// Retires every mapping of a file.
pub(super) fn forget(identity: FileIdentity) {
    for file in &FILES {
        if let Some(_used) = file.acquire(identity) {
            file.retire();
        }
    }
}

/// Retires every mapping.
pub(super) fn forget_all() {
    FILES.iter().for_each(MappedFile::retire);
}

/// Returns true if there is no mapping.
pub(super) fn is_empty() -> bool {
    FILES_USED.load(Ordering::Relaxed) == 0
}

/// Unmaps a mapping that is not kept.
pub(super) fn unmap(FreshMapping { start, bytes, .. }: FreshMapping) {
    unmap_range(start, bytes);
}

fn unmap_range(start: usize, bytes: usize) {
    // SAFETY: the range is a mapping of this library without users: no copy works on it, and nothing else knows it.
    // A kernel that refuses leaves the mapping, which is then only lost.
    let _ = unsafe { munmap(std::ptr::without_provenance_mut(start), bytes) };
    count(&COUNTERS.maps_removed, 1);
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

    fn mapping() -> FreshMapping {
        // SAFETY: the kernel chooses the address of a mapping that only the place knows.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), 4_096, ProtFlags::READ, MapFlags::PRIVATE) };
        FreshMapping { start: start.unwrap().addr(), bytes: 4_096, is_writable: false, file_bytes: 4_096 }
    }

    /// Returns true if the kernel knows a mapping at this address.
    fn is_mapped(start: usize) -> bool {
        let mut resident = [0_u8];
        // SAFETY: the kernel fills in one byte for one page.
        let result =
            unsafe { libc::mincore(std::ptr::without_provenance_mut(start), 4_096, resident.as_mut_ptr()) };
        result == 0
    }

    /// Returns the number of mappings that were removed: only one test removes any.
    fn removed() -> u64 {
        COUNTERS.maps_removed.load(Ordering::Relaxed)
    }

    /// Finds, keeps and forgets the same files on several threads, which never see a mapping of another one.
    fn use_from_threads(identity: impl Fn(u64) -> FileIdentity + Copy + Send) {
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(thread);
                    for _ in 0..20_000 {
                        let file = identity(random.u64(..6));
                        match random.u8(..4) {
                            0 => forget(file),
                            1 => drop(keep(file, mapping())),
                            _ => {
                                let Some(used) = find(file, 1, AccessWanted::Read) else { continue };
                                assert!(used.file.is(file) && is_mapped(used.start()));
                            }
                        }
                    }
                });
            }
        });
    }

    // One test, because the places belong to the process.
    #[test]
    fn mappings_live_as_long_as_their_uses_and_places_return() {
        let identity = |inode| FileIdentity { device: 7, inode };
        let fresh = mapping();
        let first = keep(identity(1), fresh).unwrap();
        assert_eq!(find(identity(1), 4_096, AccessWanted::Read).unwrap().start(), fresh.start);
        assert!(find(identity(2), 1, AccessWanted::Read).is_none());
        assert!(find(FileIdentity { device: 8, inode: 1 }, 1, AccessWanted::Read).is_none());
        // A mapping that is too short, or not writable, is retired and lives until its last use ends.
        assert!(find(identity(1), 4_097, AccessWanted::Read).is_none());
        assert!(find(identity(1), 1, AccessWanted::Read).is_none());
        assert!(is_mapped(fresh.start) && removed() == 0);
        first.raise_file_bytes(5_000);
        assert_eq!(first.file_bytes(), 5_000);
        first.lower_file_bytes(4_500);
        first.raise_file_bytes(4_400);
        assert_eq!(first.file_bytes(), 4_500);
        // A unit is made present once for reads and once for writes.
        assert!(first.is_first_use(70, PageAccess::Read) && !first.is_first_use(70, PageAccess::Read));
        assert!(first.is_first_use(70, PageAccess::Write) && first.is_first_use(6, PageAccess::Read));
        assert!(!first.is_first_use(64 * UNIT_WORDS, PageAccess::Read));
        drop(first);
        assert!(removed() == 1 && is_empty());
        let again = keep(identity(1), mapping()).unwrap();
        assert!(again.is_first_use(70, PageAccess::Read), "another mapping has other pages");
        forget(identity(1));
        drop(again);
        assert!(removed() == 2 && is_empty());
        COUNTERS.maps_removed.store(1, Ordering::Relaxed);
        drop(keep(identity(1), mapping()).unwrap());
        assert!(find(identity(1), 1, AccessWanted::WriteOfAnother).is_none() && removed() == 1);
        assert!(find(identity(1), 1, AccessWanted::Write).is_none() && removed() == 2);

        // Between the look at a place and its use, the place gets another file.
        drop(keep(identity(1), mapping()).unwrap());
        let seen = FILES[0].gate.load(Ordering::Acquire);
        forget(identity(1));
        drop(keep(identity(2), mapping()).unwrap());
        let found = loop {
            // The exchange may fail for no reason.
            if let Ok(found) = FILES[0].acquire_at(seen, identity(1)) {
                break found;
            }
        };
        assert!(found.is_none() && FILES[0].gate.load(Ordering::Acquire) == LIVE);
        forget(identity(2));
        assert!(is_empty());
        COUNTERS.maps_removed.store(2, Ordering::Relaxed);

        let files = MAPPED_FILES_MAX as u64;
        (0..files * 3).for_each(|inode| drop(keep(identity(inode), mapping()).unwrap()));
        assert_eq!(removed(), 2 + 2 * files);
        (0..files * 3).for_each(|inode| forget(identity(inode)));
        assert!(is_empty() && removed() == 2 + 3 * files);

        // When all places are in use, a fresh mapping is not kept.
        let uses: Vec<MappingUse> =
            (0..files).map(|inode| keep(identity(inode), mapping()).unwrap()).collect();
        assert!(keep(identity(99), mapping()).is_none() && removed() == 3 + 3 * files);
        (0..files).for_each(|inode| forget(identity(inode)));
        assert!(
            !is_empty() && find(identity(3), 1, AccessWanted::Read).is_none() && removed() == 3 + 3 * files
        );
        drop(uses);
        assert!(is_empty() && removed() == 3 + 4 * files);

        use_from_threads(identity);
        (0..6).for_each(|inode| forget(identity(inode)));
        assert!(is_empty());
    }
}
