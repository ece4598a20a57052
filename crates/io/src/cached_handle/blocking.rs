//! Blocking calls on a cached handle.
//!
//! Input: requests, the longest wait. Output: completions. Invariant: no thread sleeps with the cache locked while the
//! cache has other users; completions of other requests stay available.

use super::CachedHandle;
use crate::backend::CompletedCommand;
use crate::buffer::Buffer;
use crate::command::{TransferData, WriteDurability};
use crate::error::IoError;
use crate::handle::{FailedRequest, Handle, IoRequest, RefusedRequest};
use headwater_host::clock::Nanos;

/// The longest sleep while the cache has other users, or the mover has jobs.
const SHARED_SLEEP_MAX: Nanos = Nanos::from_micros(20);
/// The longest sleep of the only user.
const SOLE_SLEEP_MAX: Nanos = Nanos::from_millis(10);
/// The number of polls before the first sleep.
const POLLS_BEFORE_SLEEP: u32 = 64;

impl CachedHandle {
    /// Waits for the next completion, at most for `longest`. Returns `None` when the time is over or nothing is
    /// outstanding.
    ///
    /// # Errors
    /// [`IoError`] when the device is gone, once all requests in progress have completed.
    pub fn wait(&mut self, timeout: Option<Nanos>) -> Result<Option<CompletedCommand>, IoError> {
        let started = self.time.now();
        let mut looks = 0;
        loop {
            if let Some(answer) = self.poll()? {
                return Ok(Some(answer));
            }
            let waited = self.time.now().since(started);
            if self.outstanding() == 0 || timeout.is_some_and(|longest| waited >= longest) {
                return Ok(None);
            }
            looks += 1;
            self.pause(looks, timeout.map(|longest| longest.since(waited)));
        }
    }

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

    /// Makes the requests completed before it durable, for all handles of the cache.
    ///
    /// # Errors
    /// [`IoError`]; pages that could not be written stay in the cache and are retried.
    pub fn flush(&mut self) -> Result<(), IoError> {
        self.run(IoRequest::flush()).map(drop).map_err(|failed| failed.error)
    }

    /// Submits any request, waits for its completion, and returns its buffers.
    ///
    /// # Errors
    /// [`FailedRequest`], with the buffers.
    pub fn run(&mut self, request: IoRequest) -> Result<TransferData, Box<FailedRequest>> {
        if let Err(error) = self.admit(&request) {
            let RefusedRequest { request, error } = RefusedRequest { request, error };
            return Err(Box::new(FailedRequest { error: error.into(), data: request.data }));
        }
        let key = self.start(request, 0);
        let CompletedCommand { completion, data } = self.wait_for_key(key);
        match completion.into_result() {
            Ok(_) => Ok(data),
            Err(error) => Err(Box::new(FailedRequest { error, data })),
        }
    }

    /// Waits for the completion of one request.
    pub(super) fn wait_for_key(&mut self, key: u32) -> CompletedCommand {
        loop {
            if let Some(answer) = self.wait_for_key_within(key, None) {
                return answer;
            }
        }
    }

    /// Waits for the completion of one request, at most for `longest`.
    pub(super) fn wait_for_key_within(
        &mut self,
        key: u32,
        longest: Option<Nanos>,
    ) -> Option<CompletedCommand> {
        let started = self.time.now();
        let mut looks = 0;
        loop {
            let found = self.ready.iter().position(|(of, _)| *of == key);
            if let Some((_, answer)) = found.and_then(|at| self.ready.remove(at)) {
                return Some(answer);
            }
            looks += 1;
            if looks > 1 {
                let waited = self.time.now().since(started);
                if longest.is_some_and(|longest| waited >= longest) {
                    return None;
                }
                self.pause(looks, longest.map(|longest| longest.since(waited)));
            }
            self.poll_cache();
        }
    }

    fn pause(&mut self, looks: u32, timeout: Option<Nanos>) {
        let within = |span: Nanos| timeout.map_or(span, |longest| longest.min(span));
        if self.member.cache().with_parts(|cache, _| cache.moves_in_flight()) > 0 {
            // The end of a job is found by a poll, and by no completion of the device.
            if looks < POLLS_BEFORE_SLEEP {
                return std::hint::spin_loop();
            }
            return self.time.sleep(within(SHARED_SLEEP_MAX));
        }
        if !self.member.is_alone()
            && let Some(span) = self.with_handle(Handle::next_pause)
        {
            // The pace of the handle, without the cache locked.
            if span == Nanos::ZERO {
                return std::hint::spin_loop();
            }
            let slept = self.time.sleep_observed(within(span));
            return self.with_handle(|handle| handle.observe_pause(slept));
        }
        if looks < POLLS_BEFORE_SLEEP {
            return std::hint::spin_loop();
        }
        if self.member.is_alone() {
            let span = within(SOLE_SLEEP_MAX);
            let user = self.member.user();
            self.member.cache().with_parts(|_, lower| lower.wait_for_completion(user, span));
        } else {
            self.time.sleep(within(SHARED_SLEEP_MAX));
        }
    }
}

/// Returns the buffer of a request that has exactly one.
fn single_buffer(data: TransferData) -> Result<Buffer, Box<FailedRequest>> {
    match data {
        TransferData::FromDevice(buffer) | TransferData::ToDevice(buffer) => Ok(buffer),
        data => {
            let reason = "the request returned without its one buffer".to_owned();
            Err(Box::new(FailedRequest { error: IoError::Device { reason }, data }))
        }
    }
}
