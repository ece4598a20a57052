//! A lent buffer that an io_uring ring uses by its registered buffer number.
//!
//! Input: a lent buffer whose memory is registered. Output: its pages, to be owned by a
//! [`FileTransfer`](headwater_host::uring::FileTransfer), and a stub that turns them back into the buffer. Invariant:
//! pages and stub belong to one buffer; memory whose stub is dropped or whose pages never return is counted and never
//! reused.

use super::{LentBuffer, PoolBuffer};
use crate::pool::ReleaseTarget;
use headwater_host::reservation::PageRun;
use headwater_host::uring::FixedBuffer;

/// The rest of a buffer while its pages are in a transfer.
#[derive(Debug)]
#[must_use = "a stub that is dropped quarantines its buffer permanently: rejoin it with its pages"]
pub struct BufferStub {
    address: usize,
    run: PageRun,
    bytes: usize,
    /// `None` only after it was rejoined.
    release_target: Option<ReleaseTarget>,
}

impl LentBuffer<PoolBuffer> {
    /// Takes the buffer apart for a ring's [`ReadFixed`](headwater_host::uring::FileTransfer::ReadFixed) or `WriteFixed`.
    ///
    /// # Errors
    /// Returns the buffer unchanged if its memory is not registered with a ring, because the pool has another pinner.
    pub fn into_fixed(mut self) -> Result<(FixedBuffer, BufferStub), Self> {
        let number = self.segments().first().and_then(|segment| segment.slot);
        let Some((slot, _)) = number else {
            return Err(self);
        };
        let taken = self.take().and_then(|mut buffer| Some((buffer.span.take()?, buffer)));
        let Some((span, buffer)) = taken else {
            unreachable!("a lent buffer is whole until it is taken apart, by value")
        };
        let (address, run, bytes) = (span.address(), span.run(), buffer.bytes);
        let stub = BufferStub { address, run, bytes, release_target: Some(buffer.release_target) };
        Ok((FixedBuffer::new(span.lend(), slot, bytes), stub))
    }
}

impl BufferStub {
    /// Restores the buffer from the pages that a transfer returned. It is still lent: complete it with the result of
    /// the transfer.
    ///
    /// # Errors
    /// Returns both if the pages belong to another buffer.
    pub fn rejoin(mut self, fixed: FixedBuffer) -> Result<LentBuffer<PoolBuffer>, (Self, FixedBuffer)> {
        if fixed.address() != self.address {
            return Err((self, fixed));
        }
        let span = fixed.into_span().reclaim();
        match self.release_target.take() {
            Some(home) => {
                let mut buffer = PoolBuffer::new(span, 0, home);
                buffer.resize(self.bytes);
                Ok(buffer.lend())
            }
            None => unreachable!("a stub is rejoined once, because that takes it by value"),
        }
    }
}

impl Drop for BufferStub {
    fn drop(&mut self) {
        if let Some(home) = self.release_target.take() {
            home.quarantine(self.run.bytes());
        }
    }
}
