//! A lent buffer in the hands of a ring of the kernel's, by its registered number.
//!
//! In: a lent buffer whose memory is registered. Out: its pages, for a [`Transfer`](headwater_host::uring::Transfer) to
//! own, and the stub by which they become the buffer again. Invariant: pages and stub are one buffer's; a stub that is
//! dropped, or pages that never come back, are memory that is counted and used no more.

use super::{Buffer, Lent};
use crate::pool::Home;
use headwater_host::reservation::PageRun;
use headwater_host::uring::Fixed;

/// What is kept of a buffer while its pages are in a transfer.
#[derive(Debug)]
#[must_use = "a stub that is dropped leaves its buffer in quarantine for good: rejoin it with its pages"]
pub struct Stub {
    address: usize,
    run: PageRun,
    bytes: usize,
    /// Empty only once it has been rejoined.
    home: Option<Home>,
}

impl Lent<Buffer> {
    /// Takes the buffer apart for a ring's [`ReadFixed`](headwater_host::uring::Transfer::ReadFixed) or `WriteFixed`.
    ///
    /// # Errors
    /// Its memory is not registered with a ring: the pool has another pinner. It is given back as it is.
    pub fn fixed(mut self) -> Result<(Fixed, Stub), Self> {
        let number = self.segments().first().and_then(|segment| segment.slot);
        let Some((slot, _)) = number else {
            return Err(self);
        };
        let taken = self.take().and_then(|mut buffer| Some((buffer.span.take()?, buffer)));
        let Some((span, buffer)) = taken else {
            unreachable!("a lent buffer is whole until it is taken apart, by value")
        };
        let (address, run, bytes) = (span.address(), span.run(), buffer.bytes);
        let stub = Stub { address, run, bytes, home: Some(buffer.home) };
        Ok((Fixed::new(span.lend(), slot, bytes), stub))
    }
}

impl Stub {
    /// Puts the buffer together again, with the pages that a transfer gave back. It is still lent: complete it with the
    /// transfer's answer.
    ///
    /// # Errors
    /// The pages are another buffer's; both are given back.
    pub fn rejoin(mut self, fixed: Fixed) -> Result<Lent<Buffer>, (Self, Fixed)> {
        if fixed.address() != self.address {
            return Err((self, fixed));
        }
        let span = fixed.back().back();
        match self.home.take() {
            Some(home) => {
                let mut buffer = Buffer::new(span, 0, home);
                buffer.resize(self.bytes);
                Ok(buffer.lend())
            }
            None => unreachable!("a stub is rejoined once, because that takes it by value"),
        }
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.quarantine(self.run.bytes());
        }
    }
}
