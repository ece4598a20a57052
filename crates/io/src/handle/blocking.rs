//! Blocking calls and batches.
//!
//! Input: buffers by value. Output: the same buffers, with or without an error. Invariant: completions of other
//! requests that arrive during a call stay available to `poll`.

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
    /// The reason.
    pub error: IoError,
    /// The buffers lent; none when the device is gone and may still write to them.
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

    /// Writes the bytes of `from`.
    ///
    /// # Errors
    /// [`Failed`], with the buffer.
    pub fn write(&mut self, offset: u64, from: Buffer, durable: Durable) -> Result<Buffer, Box<Failed>> {
        self.run(Request::write(offset, from, durable)).and_then(only)
    }

    /// Compares the device's bytes with those of `with`; returns true if they are equal.
    ///
    /// # Errors
    /// [`Failed`], with the buffer. Bytes that differ are not an error.
    pub fn compare(&mut self, offset: u64, with: Buffer) -> Result<(bool, Buffer), Box<Failed>> {
        match self.run(Request::compare(offset, with)) {
            Ok(data) => only(data).map(|buffer| (true, buffer)),
            Err(failed) if failed.error.status() == Some(Status::COMPARE_FAILURE) => {
                only(failed.data).map(|buffer| (false, buffer))
            }
            Err(failed) => Err(failed),
        }
    }

    /// Zeroes a run of bytes.
    ///
    /// # Errors
    /// [`IoError`].
    pub fn write_zeroes(&mut self, offset: u64, bytes: u64, durable: Durable) -> Result<(), IoError> {
        self.run(Request::write_zeroes(offset, bytes, durable)).map(drop).map_err(|failed| failed.error)
    }

    /// Deallocates a run of bytes; `list` holds the ranges sent to the device.
    ///
    /// # Errors
    /// [`Failed`], with the list.
    pub fn discard(&mut self, offset: u64, bytes: u64, list: Buffer) -> Result<Buffer, Box<Failed>> {
        self.run(Request::discard(offset, bytes, list)).and_then(only)
    }

    /// Makes the requests completed before it durable.
    ///
    /// # Errors
    /// [`IoError`].
    pub fn flush(&mut self) -> Result<(), IoError> {
        self.run(Request::flush()).map(drop).map_err(|failed| failed.error)
    }

    /// Submits any request, waits for its completion, and returns its buffers.
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
                let reason = "the request did not complete; open the device again".to_owned();
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

    /// Submits several requests in order, each with its token. Returns how many were accepted; if not all were, also
    /// the first refused one with the reason.
    ///
    /// # Errors
    /// The number accepted, and [`Refused`] for the next request. Those after it come back in `requests`.
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

    /// Takes up to `most` available completions, and returns how many.
    ///
    /// # Errors
    /// [`IoError`] when a device is gone or breaks the protocol; completions taken before the error are in `into`.
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

/// Returns the buffer of a request that has exactly one.
fn only(data: Data) -> Result<Buffer, Box<Failed>> {
    match data {
        Data::FromDevice(buffer) | Data::ToDevice(buffer) => Ok(buffer),
        other => {
            let reason = "the request returned without its one buffer".to_owned();
            Err(Box::new(Failed { error: IoError::Device { reason }, data: other }))
        }
    }
}
