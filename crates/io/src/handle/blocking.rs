//! Blocking calls and batches.
//!
//! Input: buffers by value. Output: the same buffers, with or without an error. Invariant: completions of other
//! requests that arrive during a call stay available to `poll`.

use super::{Handle, IoRequest, RefusedRequest};
use crate::backend::CompletedCommand;
use crate::buffer::Buffer;
use crate::command::{TransferData, WriteDurability};
use crate::error::IoError;
use headwater_nvme::spec::status::Status;

/// A request that failed, with its buffers.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct FailedRequest {
    /// The reason.
    pub error: IoError,
    /// The buffers lent; none when the device is gone and may still write to them.
    pub data: TransferData,
}

impl From<FailedRequest> for IoError {
    fn from(failed: FailedRequest) -> Self {
        failed.error
    }
}

impl From<Box<FailedRequest>> for IoError {
    fn from(failed: Box<FailedRequest>) -> Self {
        failed.error
    }
}

impl Handle {
    /// Reads as many bytes as fill `into`.
    ///
    /// # Errors
    /// [`FailedRequest`], with the buffer.
    pub fn read(&mut self, offset: u64, into: Buffer) -> Result<Buffer, Box<FailedRequest>> {
        self.run(IoRequest::read(offset, into)).and_then(single_buffer)
    }

    /// Writes the bytes of `from`.
    ///
    /// # Errors
    /// [`FailedRequest`], with the buffer.
    pub fn write(
        &mut self,
        offset: u64,
        from: Buffer,
        durable: WriteDurability,
    ) -> Result<Buffer, Box<FailedRequest>> {
        self.run(IoRequest::write(offset, from, durable)).and_then(single_buffer)
    }

    /// Compares the device's bytes with those of `with`; returns true if they are equal.
    ///
    /// # Errors
    /// [`FailedRequest`], with the buffer. Bytes that differ are not an error.
    pub fn compare(&mut self, offset: u64, with: Buffer) -> Result<(bool, Buffer), Box<FailedRequest>> {
        match self.run(IoRequest::compare(offset, with)) {
            Ok(data) => single_buffer(data).map(|buffer| (true, buffer)),
            Err(failed) if failed.error.status() == Some(Status::COMPARE_FAILURE) => {
                single_buffer(failed.data).map(|buffer| (false, buffer))
            }
            Err(failed) => Err(failed),
        }
    }

    /// Zeroes a run of bytes.
    ///
    /// # Errors
    /// [`IoError`].
    pub fn write_zeroes(&mut self, offset: u64, bytes: u64, durable: WriteDurability) -> Result<(), IoError> {
        self.run(IoRequest::write_zeroes(offset, bytes, durable)).map(drop).map_err(|failed| failed.error)
    }

    /// Deallocates a run of bytes; `list` holds the ranges sent to the device.
    ///
    /// # Errors
    /// [`FailedRequest`], with the list.
    pub fn discard(&mut self, offset: u64, bytes: u64, list: Buffer) -> Result<Buffer, Box<FailedRequest>> {
        self.run(IoRequest::discard(offset, bytes, list)).and_then(single_buffer)
    }

    /// Makes the requests completed before it durable.
    ///
    /// # Errors
    /// [`IoError`].
    pub fn flush(&mut self) -> Result<(), IoError> {
        self.run(IoRequest::flush()).map(drop).map_err(|failed| failed.error)
    }

    /// Submits any request, waits for its completion, and returns its buffers.
    ///
    /// # Errors
    /// [`FailedRequest`], with the buffers.
    pub fn run(&mut self, request: IoRequest) -> Result<TransferData, Box<FailedRequest>> {
        let failed = |error, data| Box::new(FailedRequest { error, data });
        self.awaited = None;
        if let Err(RefusedRequest { request, error }) = self.submit_awaited(request) {
            return Err(failed(error.into(), request.data));
        }
        match self.wait_for(None, Self::poll_awaited) {
            Ok(Some(CompletedCommand { completion, data })) => match completion.into_result() {
                Ok(_) => Ok(data),
                Err(error) => Err(failed(error, data)),
            },
            Ok(None) => {
                let reason = "the request did not complete; open the device again".to_owned();
                Err(failed(IoError::Device { reason }, TransferData::None))
            }
            Err(error) => Err(failed(error, TransferData::None)),
        }
    }

    fn submit_awaited(&mut self, request: IoRequest) -> Result<(), RefusedRequest> {
        if let Err(error) = self.geometry.validate(&request, &self.limits) {
            return Err(RefusedRequest { request, error });
        }
        self.submit_slow_as(request, 0, true)
    }

    fn poll_awaited(&mut self) -> Result<Option<CompletedCommand>, IoError> {
        self.poll_queues()?;
        Ok(self.awaited.take())
    }
}

/// Returns the buffer of a request that has exactly one.
pub(crate) fn single_buffer(data: TransferData) -> Result<Buffer, Box<FailedRequest>> {
    match data {
        TransferData::FromDevice(buffer) | TransferData::ToDevice(buffer) => Ok(buffer),
        other => {
            let reason = "the request returned without its one buffer".to_owned();
            Err(Box::new(FailedRequest { error: IoError::Device { reason }, data: other }))
        }
    }
}
