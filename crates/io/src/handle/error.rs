//! A request that a handle does not accept, with its buffers, returned before anything reaches a device.

use super::request::IoRequest;
use crate::error::{IoError, RequestError};

/// A request that was not accepted: it had no effect, and no completion follows.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct RefusedRequest {
    /// The request with its buffers.
    pub request: IoRequest,
    /// The reason.
    pub error: RequestError,
}

impl From<RefusedRequest> for IoError {
    fn from(refused: RefusedRequest) -> Self {
        Self::Request(refused.error)
    }
}
