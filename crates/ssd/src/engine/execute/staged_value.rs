//! Values in memory that a client can take away while the device copies them.
//!
//! Input: the value of a write, or the sink of a read. Output: a value whose copy cannot fail any more, or the status of
//! the command. Invariant: zeroes in place of a page that is gone never become a value.

use crate::command::{ValueSink, ValueSource};
use headwater_nvme::spec::status::Status;
use std::borrow::Cow;

/// Returns the value, copied if the client can take its memory away.
///
/// # Errors
/// [`Status::DATA_TRANSFER_ERROR`] if a page of it is gone.
pub(super) fn stage(value: &ValueSource) -> Result<Cow<'_, ValueSource>, Status> {
    let ValueSource::Client(segments) = value else {
        return Ok(Cow::Borrowed(value));
    };
    if !segments.can_lose_pages() {
        return Ok(Cow::Borrowed(value));
    }
    let mut bytes = vec![0; segments.bytes()];
    if segments.copy_in(0, &mut bytes) != bytes.len() {
        return Err(Status::DATA_TRANSFER_ERROR);
    }
    Ok(Cow::Owned(ValueSource::from(bytes)))
}

/// Returns true if a page of the value is gone: what was copied of it may be zeroes.
pub(super) fn is_lost(value: &ValueSource) -> bool {
    matches!(value, ValueSource::Client(segments) if segments.has_lost_pages())
}

/// Returns true if a read wrote to client memory of which a page is gone.
pub(super) fn has_lost_pages(sink: &ValueSink) -> bool {
    matches!(sink, ValueSink::Client(segments) if segments.has_lost_pages())
}
