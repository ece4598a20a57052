//! The lines of CLIENT LIST that are made so far.
//!
//! Input: lines. Output: one reply, once all are there. Invariant: the slots below the next one were listed.

use super::operation_step::DriveResult;
use super::output_queue::ReplyEncoder;
use super::reply::{RespReply, RespVersion};
use std::collections::BTreeSet;

/// A list of clients that is being made.
#[derive(Debug)]
pub(crate) struct ClientLines {
    /// The clients to list; `None` for all.
    pub(super) wanted: Option<BTreeSet<u64>>,
    pub(super) text: String,
    /// The line of the client that asked, which the table of connections lacks while it runs.
    pub(super) own: String,
    /// The next slot of the table.
    pub(super) next: usize,
    /// True if no slot is left.
    pub(super) is_whole: bool,
}

impl ClientLines {
    /// Returns true if a client is to be listed.
    pub(super) fn wants(&self, id: u64) -> bool {
        self.wanted.as_ref().is_none_or(|wanted| wanted.contains(&id))
    }

    /// Returns the reply if it is whole.
    pub(crate) fn drive(&mut self, protocol: RespVersion) -> DriveResult {
        if self.is_whole { DriveResult::Done(self.take_reply(protocol)) } else { DriveResult::Again }
    }

    /// Returns the bytes of the lines so far.
    pub(crate) fn reply_bytes(&self) -> usize {
        self.text.len()
    }

    /// Takes the reply.
    pub(super) fn take_reply(&mut self, protocol: RespVersion) -> RespReply {
        self.text.push_str(&self.own);
        verbatim_reply(&std::mem::take(&mut self.text), protocol)
    }
}

/// Makes a reply of text.
pub(super) fn verbatim_reply(text: &str, protocol: RespVersion) -> RespReply {
    let mut out = Vec::new();
    ReplyEncoder::new(&mut out, protocol).verbatim(text);
    RespReply::Encoded(out)
}
