//! What client and daemon say over the attach socket: one JSON text a datagram, descriptors beside it.
//!
//! In: bytes of one datagram, from whoever connected. Out: a [`Request`] or a [`Reply`], or why it is none. Drawn in
//! `docs/formats/attach.md`. Invariant: decoding allocates no more than the datagram's own length in proportion.

use crate::attach::admin::{AdminAnswer, AdminRequest, is_false};
use crate::facts::NamespaceFacts;
use serde::{Deserialize, Serialize};

/// The version of this page. A daemon refuses a version that it does not know and says which it does.
pub const VERSION: u32 = 1;
/// Most bytes of a datagram.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Most descriptors beside a datagram.
pub const DESCRIPTORS_MAX: usize = 3;

/// What a client asks. The first is [`Request::Hello`]; each has one [`Reply`], in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// Who speaks, and which version.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// Whether every queue is to be one of the hardware's, which this client drives itself.
        #[serde(default, skip_serializing_if = "is_false")]
        direct: bool,
    },
    /// The namespaces that this client may use.
    Namespaces,
    /// Make memory known to the device; the sealed memfd comes beside it.
    Region {
        /// Its first address in the client's numbering.
        start: u64,
        /// Its length.
        bytes: u64,
        /// Where in the memfd it begins, on a page.
        #[serde(default, skip_serializing_if = "is_zero")]
        offset: u64,
    },
    /// Forget a region; answered when nothing in flight names it.
    Release {
        /// Where it starts.
        start: u64,
    },
    /// A queue pair.
    Queue {
        /// Most commands in flight.
        depth: u32,
    },
    /// Delete a queue pair; answered when every command has its completion.
    DeleteQueue {
        /// Its number.
        id: u16,
    },
    /// Let the completions of a queue of the hardware's ring an eventfd, which comes beside it.
    Interrupts {
        /// Its number.
        queue: u16,
    },
    /// A queue of the hardware's is in trouble.
    Trouble {
        /// Its number.
        queue: u16,
        /// What is wrong.
        trouble: QueueTrouble,
    },
    /// Administration, for the daemon's own user.
    Admin(AdminRequest),
}

/// What a client finds wrong with a queue of the hardware's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueueTrouble {
    /// This command takes too long, or is not wanted any more: abort it.
    Late(u16),
    /// It was aborted and there is still no answer: reset the controller.
    Stuck(u16),
    /// The controller answers what nobody asked: reset it.
    Broken,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What the data of one command must be like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct DataRules {
    /// Most bytes.
    pub transfer: u64,
    /// What its address is a multiple of.
    pub align: u32,
}

/// How a client drives queues of the hardware's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct DirectRules {
    /// Bytes of the controller's page.
    pub page: u32,
    /// Whether the controller takes SGLs.
    pub sgl: bool,
    /// Most bytes of one command.
    pub transfer: u64,
    /// How long a command may take.
    pub timeout_ms: u64,
}

/// Where the parts of a queue of the hardware's are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LentText {
    /// The controller's address of the memory's first byte, where the submission ring begins.
    pub address: u64,
    /// Where in the memory the completion ring begins.
    pub completions: u64,
    /// Where in the memory pages for lists of addresses begin.
    pub lists: u64,
    /// Where in the device's file the page with the doorbells begins.
    pub page_at: u64,
    /// Its bytes.
    pub page_bytes: u64,
    /// Where in the page the doorbells are: of the submission tail, and of the completion head.
    pub doorbells: [u64; 2],
    /// Whether its completions can ring an eventfd.
    pub interrupts: bool,
}

/// What the daemon answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// To a hello.
    Welcome {
        /// The version that is spoken from now on.
        version: u32,
        /// Most queues of this client.
        queues: u32,
        /// Most bytes of regions of this client.
        memory: u64,
        /// What the data of a command must be like, where the device is particular about it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        data: Option<DataRules>,
        /// To a hello that asks for queues of the hardware's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        direct: Option<DirectRules>,
    },
    /// Done.
    Done,
    /// A region that the hardware reaches, of a client that drives queues of its own.
    Region {
        /// The hardware's address of its first byte.
        address: u64,
    },
    /// The namespaces.
    Namespaces(Vec<NamespaceFacts>),
    /// A queue; beside it the memfd of its rings and this client's end of its wake line, and the device's file if it is one
    /// of the hardware's.
    Queue {
        /// Its number.
        id: u16,
        /// Bytes of ring memory.
        bytes: u64,
        /// Where it is, if it is one of the hardware's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lent: Option<LentText>,
    },
    /// An answer to administration.
    Admin(AdminAnswer),
    /// Not done, and why.
    Refused {
        /// The reason, for a person.
        reason: String,
    },
    /// The daemon ends this connection; answers no request.
    Gone {
        /// The reason, for a person.
        reason: String,
    },
}

/// Bytes that are no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct NoMessage {
    /// Why.
    pub reason: String,
}

/// Reads a request.
///
/// # Errors
/// [`NoMessage`] for anything else.
pub fn decode_request(bytes: &[u8]) -> Result<Request, NoMessage> {
    decode(bytes)
}

/// Reads a reply.
///
/// # Errors
/// [`NoMessage`] for anything else.
pub fn decode_reply(bytes: &[u8]) -> Result<Reply, NoMessage> {
    decode(bytes)
}

fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, NoMessage> {
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(NoMessage { reason: format!("{} bytes are too long for a message", bytes.len()) });
    }
    // The parser's own text can quote what was sent: only where it stands is told on.
    serde_json::from_slice(bytes).map_err(|error| NoMessage {
        reason: format!(
            "no message of version {VERSION}: {:?} at column {}",
            error.classify(),
            error.column()
        ),
    })
}

/// Writes a message.
///
/// # Errors
/// [`NoMessage`] for one that is too long to be sent.
pub fn encode(message: &impl Serialize) -> Result<Vec<u8>, NoMessage> {
    let bytes = serde_json::to_vec(message).map_err(|error| NoMessage { reason: error.to_string() })?;
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(NoMessage { reason: format!("{} bytes are too long for a message", bytes.len()) });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_look_as_the_page_draws_them() {
        let text = |request: &Request| String::from_utf8(encode(request).unwrap()).unwrap();
        assert_eq!(text(&Request::Hello { version: 1, direct: false }), r#"{"hello":{"version":1}}"#);
        assert_eq!(
            text(&Request::Hello { version: 1, direct: true }),
            r#"{"hello":{"version":1,"direct":true}}"#
        );
        assert_eq!(
            text(&Request::Trouble { queue: 3, trouble: QueueTrouble::Late(17) }),
            r#"{"trouble":{"queue":3,"trouble":{"late":17}}}"#
        );
        assert_eq!(text(&Request::Namespaces), r#""namespaces""#);
        assert_eq!(
            text(&Request::Region { start: 65_536, bytes: 4_096, offset: 0 }),
            r#"{"region":{"start":65536,"bytes":4096}}"#
        );
        assert_eq!(text(&Request::DeleteQueue { id: 3 }), r#"{"delete-queue":{"id":3}}"#);
        let reply = |data| {
            let welcome = Reply::Welcome { version: 1, queues: 16, memory: 4_096, data, direct: None };
            String::from_utf8(encode(&welcome).unwrap()).unwrap()
        };
        assert_eq!(reply(None), r#"{"welcome":{"version":1,"queues":16,"memory":4096}}"#);
        let rules = DataRules { transfer: 524_288, align: 4 };
        let told =
            r#"{"welcome":{"version":1,"queues":16,"memory":4096,"data":{"transfer":524288,"align":4}}}"#;
        assert_eq!(reply(Some(rules)), told);
    }

    #[test]
    fn what_is_no_message_is_refused_without_quoting_it() {
        for bytes in [&b""[..], b"{", b"secret", b"{\"region\":{}}", &[0xFF; 10], b"\"secret\""] {
            let error = decode_request(bytes).unwrap_err();
            assert!(!error.reason.contains("secret"), "{error}");
        }
        assert!(decode_request(&vec![b' '; MESSAGE_BYTES_MAX + 1]).is_err());
    }
}
