//! Calls that return when their request is answered, and batches.
//!
//! In: buffers by value. Out: the same buffers, with an error or without. Invariant: answers of other requests that come
//! meanwhile stay there to be taken by `poll`.

use super::{Handle, Refused, Request};
use crate::backend::Answer;
use crate::buffer::Buffer;
use crate::command::{Data, Durable};
use crate::error::IoError;
use headwater_nvme::spec::status::Status;

/// A request that failed, with its buffers.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Failed {
    /// Why.
    pub error: IoError,
    /// What was lent; nothing when the device is gone and may still write there.
    pub data: Data,
}

impl From<Failed> for IoError {
    fn from(failed: Failed) -> Self {
        failed.error
    }
}

impl Handle {
    /// Reads as many bytes as fill `into`.
    ///
    /// # Errors
    /// [`Failed`], with the buffer.
    pub fn read(&mut self, offset: u64, into: Buffer) -> Result<Buffer, Box<Failed>> {
        self.run(Request::read(offset, into)).and_then(only)
    }

    /// Writes what `from` holds.
    ///
    /// # Errors
    /// [`Failed`], with the buffer.
    pub fn write(&mut self, offset: u64, from: Buffer, durable: Durable) -> Result<Buffer, Box<Failed>> {
        self.run(Request::write(offset, from, durable)).and_then(only)
    }

    /// Whether the device has what `with` holds.
    ///
    /// # Errors
    /// [`Failed`], with the buffer. Bytes that differ are no failure.
    pub fn compare(&mut self, offset: u64, with: Buffer) -> Result<(bool, Buffer), Box<Failed>> {
        match self.run(Request::compare(offset, with)) {
            Ok(data) => only(data).map(|buffer| (true, buffer)),
            Err(failed) if failed.error.status() == Some(Status::COMPARE_FAILURE) => {
                only(failed.data).map(|buffer| (false, buffer))
            }
            Err(failed) => Err(failed),
        }
    }

    /// Makes a run of bytes zeroes.
    ///
    /// # Errors
    /// [`IoError`].
    pub fn write_zeroes(&mut self, offset: u64, bytes: u64, durable: Durable) -> Result<(), IoError> {
        self.run(Request::write_zeroes(offset, bytes, durable)).map(drop).map_err(|failed| failed.error)
    }

    /// Says that a run of bytes is not needed any more; `list` is for what the device is told.
    ///
    /// # Errors
    /// [`Failed`], with the list.
    pub fn discard(&mut self, offset: u64, bytes: u64, list: Buffer) -> Result<Buffer, Box<Failed>> {
        self.run(Request::discard(offset, bytes, list)).and_then(only)
    }

    /// Makes durable what was answered before.
    ///
    /// # Errors
    /// [`IoError`].
    pub fn flush(&mut self) -> Result<(), IoError> {
        self.run(Request::flush()).map(drop).map_err(|failed| failed.error)
    }

    /// Any request, from its submission to its answer; its buffers.
    ///
    /// # Errors
    /// [`Failed`], with the buffers.
    pub fn run(&mut self, request: Request) -> Result<Data, Box<Failed>> {
        let failed = |error, data| Box::new(Failed { error, data });
        self.awaited = None;
        if let Err(Refused { request, error }) = self.submit_awaited(request) {
            return Err(failed(error.into(), request.data));
        }
        match self.wait_for(None, Self::look_awaited) {
            Ok(Some(Answer { completion, data })) => match completion.ok() {
                Ok(_) => Ok(data),
                Err(error) => Err(failed(error, data)),
            },
            Ok(None) => {
                let reason = "the device ended without an answer".to_owned();
                Err(failed(IoError::Device { reason }, Data::None))
            }
            Err(error) => Err(failed(error, Data::None)),
        }
    }

    fn submit_awaited(&mut self, request: Request) -> Result<(), Refused> {
        if let Err(error) = self.geometry.judge(&request, &self.limits) {
            return Err(Refused { request, error });
        }
        self.submit_long_as(request, 0, true)
    }

    fn look_awaited(&mut self) -> Result<Option<Answer>, IoError> {
        self.turn()?;
        Ok(self.awaited.take())
    }

    /// Submits several requests at once, in order, each with its token. How many were accepted; if not all were, the first
    /// that was not, with the reason.
    ///
    /// # Errors
    /// The number that was accepted, and [`Refused`] for the one after them. Those behind it come back in `requests`.
    pub fn submit_batch(
        &mut self,
        requests: &mut Vec<(Request, u64)>,
    ) -> Result<usize, (usize, Box<Refused>)> {
        let mut accepted = 0;
        let mut refused = None;
        let mut all = std::mem::take(requests).into_iter();
        for (request, token) in all.by_ref() {
            match self.submit(request, token) {
                Ok(()) => accepted += 1,
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
        }
        requests.extend(all);
        match refused {
            None => Ok(accepted),
            Some(refused) => Err((accepted, Box::new(refused))),
        }
    }

    /// Takes up to `most` answers that have come; how many.
    ///
    /// # Errors
    /// [`IoError`] when a device is gone or breaks the protocol; answers taken before it are in `into`.
    pub fn poll_batch(&mut self, into: &mut Vec<Answer>, most: usize) -> Result<usize, IoError> {
        let had = into.len();
        while into.len() - had < most {
            match self.poll()? {
                Some(answer) => into.push(answer),
                None => break,
            }
        }
        Ok(into.len() - had)
    }
}

/// The one buffer of a request that had one.
fn only(data: Data) -> Result<Buffer, Box<Failed>> {
    match data {
        Data::FromDevice(buffer) | Data::ToDevice(buffer) => Ok(buffer),
        other => {
            let reason = "the buffer did not come back".to_owned();
            Err(Box::new(Failed { error: IoError::Device { reason }, data: other }))
        }
    }
}
