//! The device on file media: from a data directory to a device that serves.
//!
//! In: a locked directory and a configuration. Out: an open, recovered device. The flash file's own size wins over the
//! default; a capacity that differs from it is refused, never adjusted.
