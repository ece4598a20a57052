//! One client: what it said, what it is owed, and who it is.
//!
//! In: bytes of its socket. Out: replies in the order of its commands. A command that waits for the device has a slot;
//! finished slots leave from the front only. Invariant: every command that was taken from the input puts exactly one reply
//! into the output, unless the client asked for silence.

use super::command_table::Verb;
use super::limits::{READ_BYTES, SLOTS_MAX};
use super::locks::ClientIndex;
use super::operation::Operation;
use super::output::Output;
use super::parser::{Batch, Parser, ProtocolError};
use super::plan::Access;
use super::reply::{Protocol, Reply};
use super::shared::Shared;
use super::wait::Wait;
use bytes::{Bytes, BytesMut};
use headwater_host::clock::Nanos;
use headwater_ssd::command::NamespaceId;
use rustix::net::{RecvFlags, recv};
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

/// What a slot waits for.
#[derive(Debug)]
pub(crate) enum State {
    /// Only for the slots before it.
    Ready(Reply),
    /// One completion.
    Waiting(Wait),
    /// Several steps.
    Working(Box<Operation>),
}

/// One command between its input and its reply.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) state: State,
    pub(crate) verb: Verb,
    pub(crate) arguments: u32,
    pub(crate) silent: bool,
    pub(crate) started: Nanos,
}

/// Whether replies are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyMode {
    /// All of them.
    On,
    /// None.
    Off,
    /// Not the next one.
    SkipNext,
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// It does not.
    Open,
    /// When what it is owed has been sent.
    Closing,
    /// Now.
    Dead,
}

/// Commands that were parsed, with the bytes they lie in.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    pub(crate) chunk: Bytes,
    pub(crate) batch: Batch,
    pub(crate) cursor: usize,
}

impl Pending {
    pub(crate) fn is_done(&self) -> bool {
        self.cursor == self.batch.len()
    }
}

/// Who a client is.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) id: u64,
    pub(crate) address: String,
    pub(crate) local: String,
    pub(crate) name: Vec<u8>,
    pub(crate) library: Vec<u8>,
    pub(crate) library_version: Vec<u8>,
    pub(crate) created: Nanos,
}

/// What the kernel has said about the socket.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Readiness {
    /// There may be more bytes.
    pub(crate) readable: bool,
    /// The other side will send no more.
    pub(crate) hung_up: bool,
}

/// On which of the face's lists the connection is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Queued {
    /// To be run.
    pub(crate) dirty: bool,
    /// To be flushed.
    pub(crate) flushing: bool,
}

/// The locked key that a connection's next command waits for.
#[derive(Debug)]
pub(crate) struct WaitsFor {
    pub(crate) namespace: NamespaceId,
    pub(crate) key: Bytes,
    pub(crate) access: Access,
}

/// A client's connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) index: ClientIndex,
    pub(crate) identity: Identity,
    /// `None` once closed; the rest stays until the device has answered everything.
    pub(crate) socket: Option<OwnedFd>,
    pub(crate) database: u8,
    pub(crate) protocol: Protocol,
    pub(crate) authenticated: bool,
    pub(crate) reply_mode: ReplyMode,
    pub(crate) life: Life,
    pub(crate) no_evict: bool,
    pub(crate) input: BytesMut,
    pub(crate) parser: Parser,
    pub(crate) protocol_error: Option<ProtocolError>,
    pub(crate) pending: Pending,
    pub(crate) slots: VecDeque<Slot>,
    /// Number of the first slot.
    pub(crate) base: u64,
    /// Device commands without a completion yet.
    pub(crate) in_flight: u32,
    /// Read-modify-writes that have not written yet.
    pub(crate) locks: u32,
    /// The locked key that its next command waits for.
    pub(crate) waits_for: Option<WaitsFor>,
    /// The slot that lets nothing behind it begin.
    pub(crate) barrier: Option<u64>,
    pub(crate) output: Output,
    pub(crate) ready: Readiness,
    pub(crate) queued: Queued,
    pub(crate) last_active: Nanos,
    pub(crate) last_verb: Option<Verb>,
}

impl Connection {
    pub(crate) fn new(index: ClientIndex, identity: Identity, socket: OwnedFd) -> Self {
        Self {
            index,
            last_active: identity.created,
            identity,
            socket: Some(socket),
            database: 0,
            protocol: Protocol::Resp2,
            authenticated: false,
            reply_mode: ReplyMode::On,
            life: Life::Open,
            no_evict: false,
            input: BytesMut::new(),
            parser: Parser::default(),
            protocol_error: None,
            pending: Pending::default(),
            slots: VecDeque::new(),
            base: 0,
            in_flight: 0,
            locks: 0,
            waits_for: None,
            barrier: None,
            output: Output::default(),
            ready: Readiness::default(),
            queued: Queued::default(),
            last_verb: None,
        }
    }

    /// The namespace behind the selected database.
    #[inline]
    pub(crate) fn namespace(&self) -> NamespaceId {
        NamespaceId(self.database + 1)
    }

    /// Whether no further command may begin now.
    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        self.barrier.is_some() || self.slots.len() >= SLOTS_MAX || self.life != Life::Open
    }

    /// Number of the next slot.
    #[inline]
    pub(crate) fn next_slot(&self) -> u64 {
        self.base + self.slots.len() as u64
    }

    /// The device token of one part of a slot's work.
    #[inline]
    pub(crate) fn token(&self, slot: u64) -> u64 {
        u64::from(self.index.0) << 48 | (slot & 0xFF_FFFF) << 24
    }

    /// The place of the slot a token names.
    #[inline]
    pub(crate) fn slot_place(&self, token: u64) -> usize {
        let short = (token >> 24) & 0xFF_FFFF;
        usize::try_from(short.wrapping_sub(self.base) & 0xFF_FFFF).unwrap_or(usize::MAX)
    }

    /// Opens a slot behind all others.
    #[inline]
    pub(crate) fn open_slot(&mut self, state: State, verb: Verb, arguments: usize, started: Nanos) {
        let silent = self.reply_mode != ReplyMode::On;
        self.slots.push_back(Slot {
            state,
            verb,
            arguments: u32::try_from(arguments).unwrap_or(u32::MAX),
            silent,
            started,
        });
    }

    /// Gives a slot its reply and sends off every finished slot at the front.
    #[inline]
    pub(crate) fn settle(&mut self, place: usize, reply: Reply, shared: &mut Shared) {
        let Some(slot) = self.slots.get_mut(place) else {
            return;
        };
        let failed = matches!(reply, Reply::Error(_));
        let took = shared.now.since(slot.started);
        shared.account(slot.verb, took, failed);
        if shared.slowlog.wants(took) {
            shared.log_slow(slot.verb, slot.arguments, took, &self.identity);
        }
        if place > 0 {
            slot.state = State::Ready(reply);
            return;
        }
        if let Some(slot) = self.slots.pop_front() {
            self.base += 1;
            if !slot.silent {
                self.output.reply(reply, self.protocol, &mut shared.sinks);
            }
        }
        while matches!(self.slots.front(), Some(Slot { state: State::Ready(_), .. })) {
            if let Some(Slot { state: State::Ready(reply), silent, .. }) = self.slots.pop_front() {
                self.base += 1;
                if !silent {
                    self.output.reply(reply, self.protocol, &mut shared.sinks);
                }
            }
        }
    }

    /// Answers a command that needed no device.
    #[inline]
    pub(crate) fn answer(&mut self, verb: Verb, reply: Reply, shared: &mut Shared) {
        shared.account(verb, Nanos::ZERO, matches!(reply, Reply::Error(_)));
        self.answer_unaccounted(reply, shared);
    }

    /// Answers something that was no command of the table.
    pub(crate) fn answer_unaccounted(&mut self, reply: Reply, shared: &mut Shared) {
        let silent = self.reply_mode != ReplyMode::On;
        if silent {
            return;
        }
        if self.slots.is_empty() {
            self.output.reply(reply, self.protocol, &mut shared.sinks);
        } else {
            self.open_slot(State::Ready(reply), Verb::Ping, 0, Nanos::ZERO);
        }
    }

    /// Reads once. The number of bytes, or `None` when there is nothing more for now.
    pub(crate) fn read(&mut self, scratch: &mut [u8]) -> Option<usize> {
        let socket = self.socket.as_ref()?;
        match recv(socket.as_fd(), &mut *scratch, RecvFlags::empty()) {
            Ok((_, 0)) => {
                // What it asked before it stopped speaking it may still want to hear.
                self.life = Life::Closing;
                self.ready.readable = false;
                None
            }
            Ok((_, count)) => {
                self.ready.readable = count == READ_BYTES || self.ready.hung_up;
                self.reserve();
                self.input.extend_from_slice(&scratch[..count]);
                Some(count)
            }
            Err(rustix::io::Errno::AGAIN) => {
                self.ready.readable = false;
                None
            }
            Err(rustix::io::Errno::INTR) => None,
            Err(_) => {
                self.life = Life::Dead;
                self.ready.readable = false;
                None
            }
        }
    }

    /// Makes room for a long argument once instead of growing towards it.
    fn reserve(&mut self) {
        let wanted = self.parser.wanted();
        if wanted > self.input.capacity() {
            self.input.reserve(wanted - self.input.len() + READ_BYTES);
        } else if self.input.capacity() - self.input.len() < READ_BYTES / 4 {
            self.input.reserve(READ_BYTES / 4);
        }
    }
}
