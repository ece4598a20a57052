//! The damages that version 1 of the format does not notice.
//!
//! *Silent*: some key is answered wrongly without a word. *Unchecked*: the device refuses, answers with errors or is
//! silent, and `device check` finds nothing.

/// The older copy of a piece of the erase table counts when the newer one is damaged.
pub(crate) const SILENT_METADATA_V1: &[&str] = &[
    "bit of newer erase table copy: crc",
    "bit of newer erase table copy: generations",
    "bit of newer erase table copy: number",
    "bit of newer erase table copy: reserved",
    "bit of newer erase table copy: write",
    "bit of newer erase table copy: zero",
    "newer erase table copy stale",
    "newer erase table copy zeroed",
];

/// `device check` reads the same copy.
pub(crate) const UNCHECKED_METADATA_V1: &[&str] = SILENT_METADATA_V1;

/// A page without an intact stamp of its block's generation is blank, and a record that rots is not missed: a tombstone
/// never, a value only where the checkpoint names it.
pub(crate) const SILENT_PAGES_V1: &[&str] = &[
    "bit of a log page: check",
    "bit of a log page: data",
    "bit of a log page: generation",
    "first sector of a log page zeroed",
    "last sector of a log page zeroed",
    "log page of ones",
    "log page stale",
    "log page swapped with another",
    "log page zeroed",
];

/// `device check` takes the same pages for blank.
pub(crate) const UNCHECKED_PAGES_V1: &[&str] = SILENT_PAGES_V1;

/// A read that failed once was answered with an error, and nothing is left for `device check` to find.
pub(crate) const PASSING_READ_ERRORS: &[&str] = &["log page unreadable once"];

/// A page that did not arrive is blank or of another generation.
pub(crate) const SILENT_WRITES_V1: &[&str] = &["write done in part", "write lost", "write misdirected"];

/// `device check` takes the same pages for blank.
pub(crate) const UNCHECKED_WRITES_V1: &[&str] = SILENT_WRITES_V1;
