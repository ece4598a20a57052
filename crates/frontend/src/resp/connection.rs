//! The connection of one client: its input and its pending replies.
//!
//! Input: bytes of the socket. Output: replies in the order of the commands. A command that waits for the device has a
//! slot; finished slots are removed from the front only. Invariant: every command taken from the input puts exactly one
//! reply into the output, unless CLIENT REPLY suppresses it.

mod input_room;

use super::client_identity::ClientIdentity;
use super::command_table::RespCommand;
use super::limits::{
    DIRECT_BYTES_MIN, DIRECT_READ_BYTES, HEADER_READ_BYTES, READ_BYTES, SLOT_BYTES_MAX, SLOTS_MAX,
};
use super::locks::{ClientIndex, KeyAccess};
use super::operation::RespOperation;
use super::output_queue::OutputQueue;
use super::parser::{CommandBatch, ProtocolError, RespParser};
use super::receive_buffers::ReceiveBuffers;
use super::received_bytes::ReceivedBytes;
use super::reply::{RespReply, RespVersion};
use super::reply_budget::ReplyAccount;
use super::reply_form::ReplyForm;
use super::slow_work::SlowState;
use super::state::RespState;
use super::transaction::ConnectionTransaction;
use super::turn_share::TurnShare;
use bytes::{Bytes, BytesMut};
use headwater_host::clock::Nanos;
use headwater_host::receive::receive_into;
use headwater_host::width::{narrow, to_usize};
use headwater_ssd::command::NamespaceId;
use rustix::net::{RecvFlags, recv};
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

/// The state of a slot.
#[derive(Debug)]
pub(crate) enum PipelineSlotState {
    /// The reply is known and waits for the slots before it.
    Ready(RespReply),
    /// One completion is outstanding.
    Waiting(ReplyForm),
    /// An operation of several device commands is running.
    Working(Box<RespOperation>),
}

/// A command that is not answered yet.
#[derive(Debug)]
pub(crate) struct PipelineSlot {
    pub(crate) state: PipelineSlotState,
    pub(crate) verb: RespCommand,
    pub(crate) arguments: u32,
    pub(crate) silent: bool,
    pub(crate) started: Nanos,
    /// Bytes of its arguments and values.
    held: usize,
    /// Bytes that its reply takes, or may take once it is known.
    pub(crate) reply: usize,
}

/// The mode that CLIENT REPLY sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyMode {
    /// Every reply is sent.
    On,
    /// No reply is sent.
    Off,
    /// The next reply is not sent.
    SkipNext,
}

/// The life-cycle state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionLife {
    /// Accepts commands.
    Open,
    /// Closes when its pending replies are sent.
    Closing,
    /// Closes immediately.
    Dead,
}

/// Parsed commands and the bytes that hold their arguments.
#[derive(Debug, Default)]
pub(crate) struct ParsedCommands {
    pub(crate) chunk: Bytes,
    pub(crate) batch: CommandBatch,
    pub(crate) cursor: usize,
}

impl ParsedCommands {
    pub(crate) fn is_done(&self) -> bool {
        self.cursor == self.batch.len()
    }
}

/// The readiness of the socket, from the kernel's events.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SocketReadiness {
    /// True if the socket may have unread bytes.
    pub(crate) readable: bool,
    /// True if the client sends no more bytes.
    pub(crate) hung_up: bool,
    /// True if the last bytes were received where a long argument stays.
    pub(crate) after_long: bool,
}

/// The front end's work lists that contain the connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WorkListFlags {
    /// True if the connection is queued to be run.
    pub(crate) dirty: bool,
    /// True if the connection is queued to be flushed.
    pub(crate) flushing: bool,
    /// True if the connection is queued to go on in the next turn.
    pub(crate) unread: bool,
}

/// The locked key that a connection's next command waits for.
#[derive(Debug)]
pub(crate) struct AwaitedKey {
    pub(crate) namespace: NamespaceId,
    pub(crate) key: Bytes,
    pub(crate) access: KeyAccess,
}

/// A client's connection.
#[derive(Debug)]
pub(crate) struct RespConnection {
    pub(crate) index: ClientIndex,
    pub(crate) identity: ClientIdentity,
    /// `None` once closed; the connection stays until its device commands have completed.
    pub(crate) socket: Option<OwnedFd>,
    pub(crate) database: u8,
    pub(crate) protocol: RespVersion,
    pub(crate) authenticated: bool,
    pub(crate) reply_mode: ReplyMode,
    pub(crate) life: ConnectionLife,
    pub(crate) no_evict: bool,
    pub(crate) input: BytesMut,
    /// Bytes of the buffer that the input lies in, if it was made for a long argument; else 0.
    long_input: usize,
    pub(crate) parser: RespParser,
    pub(crate) protocol_error: Option<ProtocolError>,
    pub(crate) pending: ParsedCommands,
    /// The bytes that the device received of the value of the next command.
    pub(crate) received: Option<ReceivedBytes>,
    pub(crate) transaction: ConnectionTransaction,
    pub(crate) slots: VecDeque<PipelineSlot>,
    /// Sum of the bytes that the slots hold.
    slot_bytes: usize,
    /// Sum of the bytes that the replies of the slots take.
    slot_replies: usize,
    /// The account of unread replies.
    pub(crate) replies: ReplyAccount,
    /// Bytes that were admitted for the reply of the command that is being started.
    pub(crate) admitted_reply: usize,
    /// True if the next command, or the next step of the present one, waits until replies are received.
    pub(crate) awaits_room: bool,
    /// The values of the APPEND commands to the same key that directly follow the present one.
    pub(crate) following_appends: Vec<Bytes>,
    /// The work done in the present turn.
    pub(crate) share: TurnShare,
    /// Bytes that the account of all clients has for this one.
    pub(crate) accounted: usize,
    /// Number of the first slot.
    pub(crate) first_slot: u64,
    /// Device commands in flight.
    pub(crate) in_flight: u32,
    /// Read-modify-writes that have not written yet.
    pub(crate) locks_held: u32,
    /// The locked key that the next command waits for.
    pub(crate) awaited_key: Option<AwaitedKey>,
    /// The slot that prevents later commands from starting.
    pub(crate) barrier: Option<u64>,
    pub(crate) output: OutputQueue,
    pub(crate) ready: SocketReadiness,
    pub(crate) queued: WorkListFlags,
    pub(crate) last_active: Nanos,
    pub(crate) last_verb: Option<RespCommand>,
    /// The slow work that the next command needs.
    pub(crate) slow: SlowState,
}

impl RespConnection {
    pub(crate) fn new(index: ClientIndex, identity: ClientIdentity, socket: OwnedFd) -> Self {
        Self {
            index,
            last_active: identity.created,
            identity,
            socket: Some(socket),
            database: 0,
            protocol: RespVersion::Resp2,
            authenticated: false,
            reply_mode: ReplyMode::On,
            life: ConnectionLife::Open,
            no_evict: false,
            input: BytesMut::new(),
            long_input: 0,
            parser: RespParser::default(),
            protocol_error: None,
            pending: ParsedCommands::default(),
            received: None,
            transaction: ConnectionTransaction::default(),
            slots: VecDeque::new(),
            slot_bytes: 0,
            slot_replies: 0,
            replies: ReplyAccount::default(),
            admitted_reply: 0,
            awaits_room: false,
            following_appends: Vec::new(),
            share: TurnShare::default(),
            accounted: 0,
            first_slot: 0,
            in_flight: 0,
            locks_held: 0,
            awaited_key: None,
            barrier: None,
            output: OutputQueue::default(),
            ready: SocketReadiness::default(),
            queued: WorkListFlags::default(),
            last_verb: None,
            slow: SlowState::Idle,
        }
    }

    /// Returns the namespace of the selected database.
    #[inline]
    pub(crate) fn namespace(&self) -> NamespaceId {
        NamespaceId(self.database + 1)
    }

    /// Returns true if no further command may start now.
    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        self.barrier.is_some()
            || self.slots.len() >= SLOTS_MAX
            || self.slot_bytes >= SLOT_BYTES_MAX
            || self.life != ConnectionLife::Open
    }

    /// Returns the bytes that the client makes the front end hold.
    #[inline]
    pub(crate) fn held_bytes(&self) -> usize {
        self.input.capacity() + self.slot_bytes + self.output.pending() + self.transaction.held_bytes()
    }

    /// Returns the bytes of replies that the client has not received, and of those that commands in flight may make.
    #[inline]
    pub(crate) fn reply_bytes(&self) -> usize {
        self.output.pending() + self.slot_replies
    }

    /// Sets the bytes that the reply of a slot takes, unless it has been answered.
    pub(crate) fn set_reply_bytes(&mut self, slot: u64, bytes: usize) {
        let at = slot.checked_sub(self.first_slot).and_then(|at| usize::try_from(at).ok());
        if let Some(slot) = at.and_then(|at| self.slots.get_mut(at))
            && !matches!(slot.state, PipelineSlotState::Ready(_))
        {
            self.slot_replies = self.slot_replies - slot.reply + bytes;
            slot.reply = bytes;
        }
    }

    /// Moves the parts of a reply that are known to the output, if the first slot has an operation that sends its reply
    /// in parts.
    pub(crate) fn send_parts(&mut self, shared: &mut RespState) {
        let Some(slot) = self.slots.front_mut() else { return };
        let PipelineSlotState::Working(operation) = &mut slot.state else { return };
        let Some(part) = operation.take_part(self.protocol) else { return };
        let bytes = part.value_bytes();
        let held = bytes.min(slot.held);
        slot.held -= held;
        self.slot_bytes -= held;
        let left = operation.reply_bytes().unwrap_or(0);
        self.slot_replies = self.slot_replies - slot.reply + left;
        slot.reply = left;
        if !slot.silent {
            self.output.push_reply(part, self.protocol, &mut shared.value_buffers);
        }
    }

    /// Adds bytes of arguments or values to a slot, unless it has been answered.
    pub(crate) fn hold(&mut self, slot: u64, bytes: usize) {
        let at = slot.checked_sub(self.first_slot).and_then(|at| usize::try_from(at).ok());
        if let Some(slot) = at.and_then(|at| self.slots.get_mut(at)) {
            slot.held += bytes;
            self.slot_bytes += bytes;
        }
    }

    /// Releases everything that it holds for a client that is gone.
    pub(crate) fn release_memory(&mut self) {
        self.slots.clear();
        self.slot_bytes = 0;
        self.slot_replies = 0;
        self.pending = ParsedCommands::default();
        self.received = None;
        self.transaction = ConnectionTransaction::default();
        self.input = BytesMut::new();
        self.long_input = 0;
        self.output = OutputQueue::default();
    }

    /// Returns the number of the next slot.
    #[inline]
    pub(crate) fn next_slot(&self) -> u64 {
        self.first_slot + self.slots.len() as u64
    }

    /// Returns the device token of a slot; the low 24 bits are free for the part's number.
    #[inline]
    pub(crate) fn token(&self, slot: u64) -> u64 {
        u64::from(self.index.0) << 48 | (slot & 0xFF_FFFF) << 24
    }

    /// Returns the index in `slots` of a token's slot.
    #[inline]
    pub(crate) fn slot_index(&self, token: u64) -> usize {
        let short = (token >> 24) & 0xFF_FFFF;
        to_usize(short.wrapping_sub(self.first_slot) & 0xFF_FFFF)
    }

    /// Appends a slot.
    #[inline]
    pub(crate) fn open_slot(
        &mut self,
        state: PipelineSlotState,
        verb: RespCommand,
        arguments: usize,
        started: Nanos,
    ) {
        let silent = self.reply_mode != ReplyMode::On;
        let (held, reply) = match &state {
            PipelineSlotState::Ready(reply) => (reply.value_bytes(), reply.value_bytes()),
            PipelineSlotState::Waiting(_) | PipelineSlotState::Working(_) => (0, self.admitted_reply),
        };
        self.slot_bytes += held;
        self.slot_replies += reply;
        self.slots.push_back(PipelineSlot {
            state,
            verb,
            arguments: narrow(arguments),
            silent,
            started,
            held,
            reply,
        });
    }

    /// Stores a slot's reply and moves the replies of all finished slots at the front to the output.
    #[inline]
    pub(crate) fn complete_slot(&mut self, at: usize, reply: RespReply, shared: &mut RespState) {
        let Some(slot) = self.slots.get_mut(at) else {
            unreachable!("a command has a reply and no slot");
        };
        assert!(!matches!(slot.state, PipelineSlotState::Ready(_)), "a command has a reply already");
        let failed = matches!(reply, RespReply::Error(_));
        let took = shared.now.since(slot.started);
        shared.count_command(slot.verb, took, failed);
        if shared.slowlog.is_slow(took) {
            shared.log_slow(slot.verb, slot.arguments, took, &self.identity);
        }
        self.slot_bytes -= std::mem::take(&mut slot.held);
        self.slot_replies -= std::mem::take(&mut slot.reply);
        if at > 0 {
            slot.held = reply.value_bytes();
            slot.reply = slot.held;
            self.slot_bytes += slot.held;
            self.slot_replies += slot.reply;
            slot.state = PipelineSlotState::Ready(reply);
            return;
        }
        if let Some(slot) = self.slots.pop_front() {
            self.first_slot += 1;
            if !slot.silent {
                self.output.push_reply(reply, self.protocol, &mut shared.value_buffers);
            }
        }
        while matches!(self.slots.front(), Some(PipelineSlot { state: PipelineSlotState::Ready(_), .. })) {
            if let Some(PipelineSlot {
                state: PipelineSlotState::Ready(reply),
                silent,
                held,
                reply: bytes,
                ..
            }) = self.slots.pop_front()
            {
                self.first_slot += 1;
                self.slot_bytes -= held;
                self.slot_replies -= bytes;
                if !silent {
                    self.output.push_reply(reply, self.protocol, &mut shared.value_buffers);
                }
            }
        }
        self.send_parts(shared);
    }

    /// Replies to a command that needs no device command, and counts it.
    #[inline]
    pub(crate) fn answer(&mut self, verb: RespCommand, reply: RespReply, shared: &mut RespState) {
        shared.count_command(verb, Nanos::ZERO, matches!(reply, RespReply::Error(_)));
        self.answer_uncounted(reply, shared);
    }

    /// Replies to an unknown or refused command or a protocol error, without counting an execution.
    pub(crate) fn answer_uncounted(&mut self, reply: RespReply, shared: &mut RespState) {
        let silent = self.reply_mode != ReplyMode::On;
        if silent {
            return;
        }
        if self.slots.is_empty() {
            self.output.push_reply(reply, self.protocol, &mut shared.value_buffers);
        } else {
            self.open_slot(PipelineSlotState::Ready(reply), RespCommand::Ping, 0, Nanos::ZERO);
        }
    }

    /// Reads once from the socket. Returns the number of bytes, or `None` if none can be read now.
    pub(crate) fn read(&mut self, scratch: &mut [u8], buffers: &mut ReceiveBuffers) -> Option<usize> {
        self.make_room(buffers);
        let socket = self.socket.as_ref()?;
        let missing = self.missing_bytes();
        let is_direct = missing >= DIRECT_BYTES_MIN || (missing > 0 && self.ready.after_long);
        // Behind a long argument comes probably the header of the next one: the less of that one arrives with it, the
        // less is copied.
        let asked = match (is_direct, self.ready.after_long) {
            (true, _) => {
                let room = self.input.capacity() - self.input.len();
                (missing + HEADER_READ_BYTES).min(DIRECT_READ_BYTES).min(room)
            }
            (false, true) => HEADER_READ_BYTES,
            (false, false) => scratch.len(),
        };
        let received = if is_direct {
            receive_into(socket.as_fd(), &mut self.input, asked)
        } else {
            recv(socket.as_fd(), &mut scratch[..asked], RecvFlags::empty()).map(|(_, count)| count)
        };
        match received {
            Ok(0) => {
                // After end of file, pending replies are still sent.
                self.life = ConnectionLife::Closing;
                self.ready.readable = false;
                None
            }
            Ok(count) => {
                self.ready.readable = count == asked || self.ready.hung_up;
                self.ready.after_long = is_direct;
                if !is_direct {
                    if self.input.capacity() - self.input.len() < count {
                        self.input.reserve(count.max(READ_BYTES / 4));
                    }
                    self.input.extend_from_slice(&scratch[..count]);
                }
                Some(count)
            }
            Err(rustix::io::Errno::AGAIN) => {
                self.ready.readable = false;
                None
            }
            // The socket is read again: its next event may be long in coming.
            Err(rustix::io::Errno::INTR) => Some(0),
            Err(_) => {
                self.life = ConnectionLife::Dead;
                self.ready.readable = false;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests;
