//! The properties of an open flash file: its name, its version, and the damage of its superblock.

use super::version1::Version1Pages;
use super::{BadSuperblock, FeatureBits, FileMedia, TransferRing};
use std::path::Path;

impl<R: TransferRing> FileMedia<R> {
    /// Returns the uuid that the file got when it was created.
    #[must_use]
    pub fn uuid(&self) -> [u8; 16] {
        self.layout.uuid
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the copies of the superblock that were not as they should be when the file was opened. They were written
    /// again, unless the file was opened read-only.
    #[must_use]
    pub fn bad_superblocks(&self) -> &[BadSuperblock] {
        &self.bad_superblocks
    }

    /// Returns the last session of a file of version 1; `None` on other files.
    #[must_use]
    pub fn version_1_session(&self) -> Option<u64> {
        self.version1.as_ref().map(Version1Pages::session)
    }

    /// Returns the number of flushes that the calling thread waited for.
    #[must_use]
    pub fn blocking_flushes(&self) -> u64 {
        self.flush.blocking()
    }

    /// Returns true if the file was upgraded and may hold blocks of version 1.
    #[must_use]
    pub fn holds_version_1(&self) -> bool {
        self.features.incompatible & FeatureBits::HOLDS_VERSION_1 != 0
    }
}
