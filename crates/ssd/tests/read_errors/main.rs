//! Operations of the medium that fail: while a device opens, while it serves, and while its collector works.
#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod churned;
mod collection;
mod extents;
mod failing_media;
mod host;
mod misdirected;
mod newest_commit;
mod opening;
mod serving;
mod write_errors;
