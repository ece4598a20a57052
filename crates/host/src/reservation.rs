//! A reserved range of addresses, pages committed to parts of it, and claims on committed pages.
//!
//! Input: lengths and runs of pages that an allocator chose. Output: [`PageSpan`]s, each the only access to its bytes.
//! Invariant: each page has at most one span, owned, lent or leaked for its address; a page of a span is committed,
//! present and mapped as long as the span is claimed. An allocator that requests a claimed page gets an error, never a
//! second span over one byte, so no mistake in it can break memory safety.
//!
//! The caller serialises (`&mut`), except for the [`PageTable`], which any thread uses without a lock.
//!
//! # Writes by devices
//! A device that was given the descriptor of a [shared](Reservation::shared) reservation, or for which its pages were
//! pinned, can write them at any time, as hardware can. It is trusted to access only what is lent to it; a compiler's
//! promises end where such a device breaks that trust.

mod address_range;
mod backing;
mod error;
mod page_run;
mod page_set;
mod page_span;
mod page_table;

#[cfg(all(test, loom))]
mod models;
#[cfg(test)]
mod tests;

pub use backing::{Backing, BackingOrder, PAGE_BYTES};
pub use error::{ClaimError, CommitError, DecommitError, ReserveError};
pub use page_run::PageRun;
pub use page_span::{LentSpan, PageSpan};
pub use page_table::{AdoptError, ClaimState, FoundClaim, PageTable};

use crate::numa::{BindError, NodeId};
use crate::pinning::MemoryRange;
use address_range::{AddressRange, BackingError};
use page_set::PageSet;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The maximum number of pages of one reservation: 4 TiB.
pub const PAGES_MAX: u32 = (1 << 30) - 1;

/// A range of addresses to which pages can be committed.
pub struct Reservation {
    range: AddressRange,
    table: PageTable,
    /// The pages committed and not claimed.
    available: PageSet,
    /// The committed runs by their first page. `None` is a run whose addresses the kernel lost.
    committed: BTreeMap<u32, (u32, Option<Backing>)>,
    pages: u32,
    claimed_pages: u32,
}

impl Reservation {
    /// Reserves addresses for private memory. They start on a multiple of 2 MiB, or of 1 GiB if there are as many; the
    /// length is rounded up to pages.
    ///
    /// # Errors
    /// No bytes at all, more than [`PAGES_MAX`] pages, or the kernel has no such range of addresses.
    pub fn new(bytes: usize) -> Result<Self, ReserveError> {
        Self::reserve(bytes, |_| Ok(None))
    }

    /// Reserves addresses over one memory file that a device or another process can map by its
    /// [`descriptor`](Self::descriptor). It is sealed, so that its length stays. Pages of the kernel's fixed pools
    /// cannot back it.
    ///
    /// # Errors
    /// As for [`new`](Self::new), and when the kernel has no descriptor to give.
    pub fn shared(bytes: usize) -> Result<Self, ReserveError> {
        Self::reserve(bytes, |bytes| {
            let file = memfd_create(c"headwater", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
            ftruncate(&file, bytes as u64)?;
            fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
            Ok(Some(file))
        })
    }

    fn reserve(
        bytes: usize,
        file: impl FnOnce(usize) -> Result<Option<OwnedFd>, Errno>,
    ) -> Result<Self, ReserveError> {
        let pages = u32::try_from(bytes.div_ceil(PAGE_BYTES)).ok();
        let pages = pages.filter(|pages| (1..=PAGES_MAX).contains(pages));
        let pages = pages.ok_or(ReserveError::Length { bytes })?;
        let errno_of = |errno: Errno| ReserveError::Refused { bytes, errno: errno.raw_os_error() };
        let rounded = pages as usize * PAGE_BYTES;
        let huge = if pages >= Backing::Huge1G.granule_pages() { Backing::Huge1G } else { Backing::Huge2M };
        let align = huge.granule_pages() as usize * PAGE_BYTES;
        let file = file(rounded).map_err(errno_of)?;
        let range = AddressRange::reserve(rounded, align, file).map_err(errno_of)?;
        let table = PageTable::new(range.start(), pages);
        let available = PageSet::empty(pages);
        Ok(Self { range, table, available, committed: BTreeMap::new(), pages, claimed_pages: 0 })
    }

    /// Returns the number of pages, committed or not.
    #[must_use]
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// Returns the first address in this process.
    #[must_use]
    pub fn address(&self) -> usize {
        self.table.start().as_ptr().addr()
    }

    /// Returns the number of pages that are claimed now.
    #[must_use]
    pub fn claimed_pages(&self) -> u32 {
        self.claimed_pages
    }

    /// Returns the table that maps addresses to claims.
    #[must_use]
    pub fn table(&self) -> &PageTable {
        &self.table
    }

    /// Returns the descriptor by which other processes map a shared reservation; `None` for a private one.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.range.shared().map(OwnedFd::as_fd)
    }

    /// Binds all pages that are committed from now on to one memory node.
    ///
    /// # Errors
    /// [`BindError`] names the cause and the remedy; nothing has changed then.
    pub fn bind(&mut self, node: NodeId) -> Result<(), BindError> {
        self.range.bind(node)
    }

    /// Returns a committed run as memory that can be pinned; `None` if a page of it is not committed.
    #[must_use]
    pub fn memory(&self, run: PageRun) -> Option<MemoryRange> {
        let mut page = run.first;
        while self.available.is_in_range(run) && page < run.end() {
            let (&first, &(pages, backing)) = self.committed.range(..=page).next_back()?;
            backing.filter(|_| page - first < pages)?;
            page = first + pages;
        }
        let address = self.table.page_address(run.first).as_ptr().addr();
        self.available.is_in_range(run).then(|| MemoryRange::new(address, run.bytes()))
    }

    /// Commits zeroed pages to a run that has none, all of them present. Returns their kind: the first in `kinds` that
    /// the run is aligned for and that the kernel has.
    ///
    /// # Errors
    /// A run out of reach or partly committed already; or no kind in `kinds` is available, with the kernel's last
    /// error.
    pub fn commit(&mut self, run: PageRun, order: BackingOrder) -> Result<Backing, CommitError> {
        if !self.available.is_in_range(run) {
            return Err(CommitError::OutOfRange { run, pages: self.pages });
        }
        if let Some((&first, &(pages, _))) = self.committed.range(..run.end()).next_back()
            && first + pages > run.first
        {
            return Err(CommitError::Committed { run, by: PageRun { first, pages } });
        }
        let mut refusal = CommitError::Misaligned { run };
        for backing in order.kinds() {
            let granule = backing.granule_pages();
            if !run.first.is_multiple_of(granule) || !run.pages.is_multiple_of(granule) {
                continue;
            }
            match self.range.commit(run, backing) {
                Ok(()) => {
                    self.committed.insert(run.first, (run.pages, Some(backing)));
                    self.available.insert(run);
                    return Ok(backing);
                }
                Err(BackingError::Refused(errno)) => {
                    refusal = CommitError::Refused { run, backing, errno: errno.raw_os_error() };
                }
                Err(BackingError::Lost(errno)) => {
                    self.committed.insert(run.first, (run.pages, None));
                    return Err(CommitError::Refused { run, backing, errno: errno.raw_os_error() });
                }
            }
        }
        Err(refusal)
    }

    /// Decommits a run, exactly as it was committed.
    ///
    /// # Errors
    /// It was not committed as this run, a page of it is claimed, or the kernel refuses.
    pub fn decommit(&mut self, run: PageRun) -> Result<(), DecommitError> {
        let found = self.committed.get(&run.first).copied();
        let Some((pages, Some(backing))) = found else {
            return Err(DecommitError::NotCommitted { run });
        };
        if pages != run.pages {
            return Err(DecommitError::NotCommitted { run });
        }
        if !self.available.take(run) {
            return Err(DecommitError::Claimed { run });
        }
        match self.range.decommit(run, backing) {
            Ok(()) => {
                self.committed.remove(&run.first);
                Ok(())
            }
            Err(BackingError::Refused(errno)) => {
                self.available.insert(run);
                Err(DecommitError::Refused { run, errno: errno.raw_os_error() })
            }
            Err(BackingError::Lost(errno)) => {
                self.committed.insert(run.first, (run.pages, None));
                Err(DecommitError::Refused { run, errno: errno.raw_os_error() })
            }
        }
    }

    /// Returns the kind of a committed page.
    #[must_use]
    pub fn backing(&self, page: u32) -> Option<Backing> {
        let (&first, &(pages, backing)) = self.committed.range(..=page).next_back()?;
        if page - first < pages { backing } else { None }
    }

    /// Claims a run of committed, unclaimed pages, which may span several commits.
    ///
    /// # Errors
    /// A page of it is out of reach, not committed, or claimed.
    #[inline]
    pub fn claim(&mut self, run: PageRun) -> Result<PageSpan, ClaimError> {
        if !self.available.take(run) {
            return Err(self.claim_error(run));
        }
        self.claimed_pages += run.pages;
        self.table.record_claim(run);
        // SAFETY: every page of the run was available: committed, so its bytes are mapped writable and were zeroed by
        // the kernel, and not claimed, so no span covers it. It is not available any more, and so neither claimed again
        // nor decommitted, and the range is not unmapped, before `release` has taken the span back.
        Ok(unsafe { PageSpan::new(self.table.page_address(run.first), run) })
    }

    /// Takes a span back and returns its pages.
    ///
    /// # Panics
    /// The span is of another reservation.
    #[inline]
    pub fn release(&mut self, span: PageSpan) -> PageRun {
        let run = span.run();
        // No two mappings share an address, so only a span of this reservation starts where its first page does.
        assert!(
            self.table.page_address(run.first) == span.start(),
            "a span must be released to its own reservation"
        );
        self.table.erase_claim(run);
        self.available.insert(run);
        self.claimed_pages -= run.pages;
        run
    }

    #[cold]
    fn claim_error(&self, run: PageRun) -> ClaimError {
        if !self.available.is_in_range(run) {
            return ClaimError::OutOfRange { run, pages: self.pages };
        }
        match (run.first..run.end()).find(|&page| self.backing(page).is_none()) {
            Some(page) => ClaimError::NotCommitted { run, page },
            None => ClaimError::Claimed { run },
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let lost = self.committed.values().any(|(_, backing)| backing.is_none());
        if self.claimed_pages == 0 && !lost {
            // SAFETY: no page is claimed, so no span, lent span or leaked address leads into the range, and no new one
            // can be made; and no part of it is lost to another mapping. Otherwise the range stays mapped for ever.
            unsafe { self.range.unmap() };
        }
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reservation({} pages, {} claimed)", self.pages, self.claimed_pages)
    }
}
