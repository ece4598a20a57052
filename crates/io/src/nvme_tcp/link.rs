//! An NVMe/TCP connection with its socket.
//!
//! Input: commands with their buffers. Output: their completions. [`InitiatorConnection`] implements the protocol; this
//! file moves its bytes. Invariant: nothing blocks but [`TcpLink::sleep`] and the functions documented to block.

use super::NvmeTcpTarget;
use super::command_buffers::CommandBuffers;
use super::secure_link::tls_stream;
use crate::buffer::Buffer;
use crate::error::IoError;
use headwater_host::clock::{Clock, Nanos};
use headwater_host::shared_memory::{SEND_PIECES_MAX, SocketPiece as Sent, send_pieces};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::completion::CompletionEntry;
use headwater_nvme::tcp::initiator::InitiatorSubmitError;
use headwater_nvme::tcp::secure::SecureStream;
use headwater_nvme::tcp::send_queue::SendPiece;
use headwater_nvme::tcp::{CommandTransfer, InitiatorConnection, InitiatorParameters, InitiatorStep};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{RecvFlags, recv};
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::os::fd::{AsFd as _, BorrowedFd};

/// Longest wait for a device to accept a connection, or to complete a blocking command.
pub(super) const ANSWER_WITHIN: Nanos = Nanos::from_millis(10_000);
/// Bytes of the receive buffer for headers and short data.
const SCRATCH_BYTES: usize = 16 << 10;
/// Minimum remaining data bytes that are received directly into the command's buffer.
const DIRECT_BYTES_MIN: usize = 4 << 10;
/// Maximum receive calls of one poll.
pub(super) const RECEIVES_MAX: usize = 8;

/// A completion with the token of its command. The command's slot may already be reused.
#[derive(Debug)]
pub(super) struct TaggedCompletion {
    pub(super) token: u64,
    pub(super) entry: CompletionEntry,
}

/// An open connection.
#[derive(Debug)]
pub(super) struct TcpLink {
    pub(super) socket: TcpStream,
    pub(super) connection: InitiatorConnection<CommandBuffers>,
    /// The TLS stream, if the target has a key.
    pub(super) secure: Option<SecureStream>,
    pub(super) scratch: Box<[u8]>,
    done: VecDeque<TaggedCompletion>,
    /// The caller's token of each outstanding command, by slot.
    tokens: Vec<u64>,
    opened: bool,
    pub(super) peer_name: String,
}

impl TcpLink {
    /// Connects and completes the handshake. Blocks.
    pub(super) fn open(target: &NvmeTcpTarget, depth: u16, in_capsule_max: u32) -> Result<Self, IoError> {
        let what = target.address.to_string();
        let secure = tls_stream(target)?;
        let gone = |error: std::io::Error| IoError::Gone { what: what.clone(), reason: error.to_string() };
        let socket =
            TcpStream::connect_timeout(&target.address, ANSWER_WITHIN.to_duration()).map_err(gone)?;
        socket.set_nodelay(true).map_err(gone)?;
        socket.set_nonblocking(true).map_err(gone)?;
        let parameters = InitiatorParameters {
            digests: target.digests,
            depth,
            in_capsule_max,
            ..InitiatorParameters::default()
        };
        let mut link = Self {
            socket,
            connection: InitiatorConnection::new(parameters),
            secure,
            scratch: vec![0; SCRATCH_BYTES].into_boxed_slice(),
            done: VecDeque::new(),
            tokens: vec![0; usize::from(depth)],
            opened: false,
            peer_name: what,
        };
        link.wait_until(ANSWER_WITHIN, |link| link.opened)?;
        Ok(link)
    }

    /// Enqueues a command; [`flush`](Self::flush) sends it.
    pub(super) fn submit(
        &mut self,
        entry: SubmissionEntry,
        transfer: CommandTransfer<CommandBuffers>,
        token: u64,
    ) -> Result<(), InitiatorSubmitError<CommandBuffers>> {
        if self.outstanding() >= self.tokens.len() {
            return Err(InitiatorSubmitError::Full(transfer));
        }
        let id = self.connection.submit(entry, transfer)?;
        self.tokens[id.slot()] = token;
        Ok(())
    }

    /// Sends pending bytes until the socket would block.
    pub(super) fn flush(&mut self) -> Result<(), IoError> {
        if self.secure.is_some() {
            return self.flush_secured();
        }
        while self.connection.outgoing().pending() > 0 {
            let mut pieces = [Sent::Local(&[]); SEND_PIECES_MAX];
            let mut count = 0;
            let mut add = |piece| {
                let slot = pieces.get_mut(count);
                count += usize::from(slot.is_some());
                slot.map(|slot| *slot = piece)
            };
            'filled: for piece in self.connection.outgoing().pieces() {
                match piece {
                    SendPiece::Copied(text) => {
                        if add(Sent::Local(text)).is_none() {
                            break 'filled;
                        }
                    }
                    SendPiece::Lent(buffers, range) => {
                        for (buffer, part) in buffers.parts(range) {
                            let (memory, start) = buffer.memory();
                            let offset = start + part.start;
                            if add(Sent::Shared { memory, offset, bytes: part.len() }).is_none() {
                                break 'filled;
                            }
                        }
                    }
                }
            }
            match send_pieces(self.socket.as_fd(), &pieces[..count]) {
                Ok(sent) => self.connection.outgoing_mut().sent(sent, drop),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.gone(&error.to_string())),
            }
        }
        Ok(())
    }

    /// Receives, and returns the next completion if there is one.
    #[inline]
    pub(super) fn reap(&mut self) -> Result<Option<TaggedCompletion>, IoError> {
        if let Some(done) = self.done.pop_front() {
            return Ok(Some(done));
        }
        self.receive()?;
        Ok(self.done.pop_front())
    }

    /// Returns the next completion that is already received.
    pub(super) fn take_done(&mut self) -> Option<TaggedCompletion> {
        self.done.pop_front()
    }

    /// Returns true if a completion is already received.
    pub(super) fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// Returns the socket, which becomes readable when bytes arrive.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns the number of commands whose completion is not yet taken.
    fn outstanding(&self) -> usize {
        self.connection.outstanding() + self.done.len()
    }

    /// Sleeps until the socket is readable, or writable while bytes are pending.
    pub(super) fn sleep(&self, longest: Option<Nanos>) -> Result<(), IoError> {
        let mut events = PollFlags::IN;
        // Before the TLS handshake completes, PDUs wait for the peer, not for the socket.
        let waits = match &self.secure {
            Some(stream) if !stream.is_established() => !stream.outgoing().is_empty(),
            Some(stream) => !stream.outgoing().is_empty() || self.connection.outgoing().pending() > 0,
            None => self.connection.outgoing().pending() > 0,
        };
        if waits {
            events |= PollFlags::OUT;
        }
        let span = longest.map(Nanos::to_timespec);
        match poll(&mut [PollFd::new(&self.socket, events)], span.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(self.gone(&errno.to_string())),
        }
    }

    /// Sends a command and blocks for its completion; for a connection with no other command in flight.
    pub(super) fn call(
        &mut self,
        entry: SubmissionEntry,
        transfer: CommandTransfer<Buffer>,
    ) -> Result<CompletionEntry, IoError> {
        self.call_within(entry, transfer, ANSWER_WITHIN)
    }

    /// Calls as [`call`](Self::call), with another timeout.
    pub(super) fn call_within(
        &mut self,
        entry: SubmissionEntry,
        transfer: CommandTransfer<Buffer>,
        within: Nanos,
    ) -> Result<CompletionEntry, IoError> {
        if self.submit(entry, CommandBuffers::of_one(transfer), 0).is_err() {
            return Err(self.gone("the connection accepts no command"));
        }
        self.wait_until(within, |link| !link.done.is_empty())?;
        self.done.pop_front().map(|done| done.entry).ok_or_else(|| self.gone("no completion arrived"))
    }

    fn wait_until(&mut self, within: Nanos, done: impl Fn(&Self) -> bool) -> Result<(), IoError> {
        let clock = Clock::start();
        loop {
            self.flush()?;
            self.receive()?;
            if done(self) {
                return Ok(());
            }
            let waited = clock.now();
            if waited >= within {
                return Err(self.gone("it does not answer in time"));
            }
            self.sleep(Some(within.since(waited)))?;
        }
    }

    /// Receives the bytes that the socket holds, without blocking.
    fn receive(&mut self) -> Result<(), IoError> {
        if self.secure.is_some() {
            return self.receive_secured();
        }
        for _ in 0..RECEIVES_MAX {
            // Of several buffers, those of one are received at a time.
            let direct = self.connection.destination();
            let direct = direct.and_then(|(buffers, range)| buffers.parts(range).next());
            let (wanted, received) = match direct {
                Some((buffer, range)) if range.len() >= DIRECT_BYTES_MIN => {
                    let (memory, start) = buffer.memory();
                    let got = memory.receive(start + range.start, range.len(), self.socket.as_fd());
                    let bytes = range.len();
                    if let Ok(bytes) = got
                        && bytes > 0
                    {
                        self.connection.note_direct_data(bytes);
                        self.process_received(0)?;
                    }
                    (bytes, got)
                }
                _ => {
                    let got = recv(&self.socket, &mut self.scratch[..], RecvFlags::empty());
                    let got = got.map(|(_, bytes)| bytes).map_err(std::io::Error::from);
                    if let Ok(bytes) = got {
                        self.process_received(bytes)?;
                    }
                    (self.scratch.len(), got)
                }
            };
            match received {
                Ok(0) => return Err(self.gone("it closed the connection")),
                // A short read means that the socket is empty.
                Ok(bytes) if bytes < wanted => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.gone(&error.to_string())),
            }
        }
        Ok(())
    }

    /// Processes the first bytes of the receive buffer.
    pub(super) fn process_received(&mut self, bytes: usize) -> Result<(), IoError> {
        let mut input = &self.scratch[..bytes];
        loop {
            match self.connection.advance(&mut input) {
                InitiatorStep::NeedInput => return Ok(()),
                InitiatorStep::Opened => self.opened = true,
                InitiatorStep::Completed(done) => {
                    self.done.push_back(TaggedCompletion {
                        token: self.tokens[done.id.slot()],
                        entry: done.entry,
                    });
                }
                InitiatorStep::Closed(ended) => {
                    return Err(self.gone(&format!("the connection ended: {ended:?}")));
                }
            }
        }
    }

    pub(super) fn gone(&self, reason: &str) -> IoError {
        IoError::Gone { what: self.peer_name.clone(), reason: reason.to_owned() }
    }
}
