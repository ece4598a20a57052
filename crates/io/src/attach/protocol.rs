//! The messages of the attach socket: one JSON text per datagram, with descriptors.
//!
//! Input: bytes of one datagram from an untrusted peer. Output: a [`AttachRequest`] or a [`AttachReply`], or an error. Specified in
//! `docs/formats/attach.md`. Invariant: decoding allocates memory at most in proportion to the datagram's length.

use crate::attach::admin::{AdminAnswer, AdminRequest, is_false};
use crate::client_namespace::ClientNamespace;
use serde::{Deserialize, Serialize};

/// The protocol version. A daemon refuses a version that it does not support and names the one it supports.
pub const VERSION: u32 = 1;
/// Maximum bytes of a datagram.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Maximum descriptors of a datagram.
pub const DESCRIPTORS_MAX: usize = 3;

/// A request of a client. The first is [`AttachRequest::Hello`]; each has one [`AttachReply`], in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AttachRequest {
    /// Opens the connection.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// True to get hardware queues only, which this client drives itself.
        #[serde(default, skip_serializing_if = "is_false")]
        direct: bool,
    },
    /// List the namespaces that this client may use.
    Namespaces,
    /// Register memory with the device; the message carries its file.
    Region {
        /// Its first address in the client's address space.
        start: u64,
        /// Its length.
        bytes: u64,
        /// Its page-aligned offset in the file.
        #[serde(default, skip_serializing_if = "is_zero")]
        offset: u64,
    },
    /// Make memory and register it; the reply carries its descriptor.
    Memory {
        /// Its first address in the client's address space.
        start: u64,
        /// Its length.
        bytes: u64,
    },
    /// Release a region; answered when no command in flight uses it.
    Release {
        /// Its first address.
        start: u64,
    },
    /// Create a queue pair.
    Queue {
        /// Maximum commands in flight.
        depth: u32,
    },
    /// Delete a queue pair; answered when every command has its completion.
    DeleteQueue {
        /// Its number.
        id: u16,
    },
    /// Signal an eventfd, which the message carries, for each completion of a hardware queue.
    Interrupts {
        /// Its number.
        queue: u16,
    },
    /// Report a fault of a hardware queue.
    Trouble {
        /// Its number.
        queue: u16,
        /// The fault.
        trouble: QueueTrouble,
    },
    /// Administration, for the daemon's own user.
    Admin(AdminRequest),
}

/// A fault of a hardware queue, as its client reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueueTrouble {
    /// This command is overdue or cancelled: abort it.
    Late(u16),
    /// This command was aborted and still has no completion: reset the controller.
    Stuck(u16),
    /// The controller posted an invalid completion: reset it.
    Broken,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde requires this signature")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The limits on the data of one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct DataRules {
    /// Maximum bytes.
    pub transfer: u64,
    /// Alignment of its address, in bytes.
    pub align: u32,
}

/// The rules by which a client drives hardware queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct DirectRules {
    /// Bytes of the controller's page.
    pub page: u32,
    /// True if the controller supports SGLs.
    pub sgl: bool,
    /// Maximum bytes of one command.
    pub transfer: u64,
    /// Command timeout, in milliseconds.
    pub timeout_ms: u64,
}

/// The memory layout of a hardware queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LentQueueLayout {
    /// The controller's address of the memory's first byte, where the submission ring begins.
    pub address: u64,
    /// Offset of the completion ring in the memory.
    pub completions: u64,
    /// Offset of the pages for PRP lists and SGLs in the memory.
    pub lists: u64,
    /// Offset of the doorbell page in the device file.
    pub page_at: u64,
    /// Bytes of the doorbell page.
    pub page_bytes: u64,
    /// Offsets of the doorbells in that page: submission tail, completion head.
    pub doorbells: [u64; 2],
    /// True if its completions can signal an eventfd.
    pub interrupts: bool,
}

const fn one_segment() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_one_segment(segments: &u32) -> bool {
    *segments <= 1
}

/// A reply of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AttachReply {
    /// Answers a hello.
    Welcome {
        /// The version of this connection.
        version: u32,
        /// Maximum queues of this client.
        queues: u32,
        /// Maximum bytes of this client's regions.
        memory: u64,
        /// The limits on a command's data, where the device has any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        data: Option<DataRules>,
        /// Maximum buffers of a command, above 1 as an SGL.
        #[serde(default = "one_segment", skip_serializing_if = "is_one_segment")]
        segments: u32,
        /// Present if the hello requested hardware queues.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        direct: Option<DirectRules>,
    },
    /// Success without a result.
    Done,
    /// A region registered by a client that drives hardware queues.
    Region {
        /// The controller's address of its first byte.
        address: u64,
    },
    /// Memory that the daemon made and registered; the message carries its sealed memfd.
    Memory {
        /// Its length, whole pages.
        bytes: u64,
    },
    /// The namespaces.
    Namespaces(Vec<ClientNamespace>),
    /// A queue; the message carries the memfd of its rings, this client's end of its wake line, and for a hardware
    /// queue the device file.
    Queue {
        /// Its number.
        id: u16,
        /// Bytes of ring memory.
        bytes: u64,
        /// Its memory layout, if it is a hardware queue.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lent: Option<LentQueueLayout>,
    },
    /// The answer to an administration request.
    Admin(AdminAnswer),
    /// A refusal; the request had no effect.
    Refused {
        /// The reason, in human-readable form.
        reason: String,
    },
    /// A notice that the daemon ends this connection; answers no request.
    Gone {
        /// The reason, in human-readable form.
        reason: String,
    },
}

/// The error for bytes that are not a valid message, or a message that is too long.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct MessageError {
    /// The reason.
    pub reason: String,
}

/// Decodes a request.
///
/// # Errors
/// [`MessageError`] for anything else.
pub fn decode_request(bytes: &[u8]) -> Result<AttachRequest, MessageError> {
    decode(bytes)
}

/// Decodes a reply.
///
/// # Errors
/// [`MessageError`] for anything else.
pub fn decode_reply(bytes: &[u8]) -> Result<AttachReply, MessageError> {
    decode(bytes)
}

fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, MessageError> {
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(MessageError { reason: format!("{} bytes are too long for a message", bytes.len()) });
    }
    // The parser's own text can quote the input: report only the position.
    serde_json::from_slice(bytes).map_err(|error| MessageError {
        reason: format!(
            "not a message of version {VERSION}: {:?} at column {}",
            error.classify(),
            error.column()
        ),
    })
}

/// Encodes a message.
///
/// # Errors
/// [`MessageError`] for a message that is too long to be sent.
pub fn encode(message: &impl Serialize) -> Result<Vec<u8>, MessageError> {
    let bytes = serde_json::to_vec(message).map_err(|error| MessageError { reason: error.to_string() })?;
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(MessageError { reason: format!("{} bytes are too long for a message", bytes.len()) });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_encode_as_documented() {
        let text = |request: &AttachRequest| String::from_utf8(encode(request).unwrap()).unwrap();
        assert_eq!(text(&AttachRequest::Hello { version: 1, direct: false }), r#"{"hello":{"version":1}}"#);
        assert_eq!(
            text(&AttachRequest::Hello { version: 1, direct: true }),
            r#"{"hello":{"version":1,"direct":true}}"#
        );
        assert_eq!(
            text(&AttachRequest::Trouble { queue: 3, trouble: QueueTrouble::Late(17) }),
            r#"{"trouble":{"queue":3,"trouble":{"late":17}}}"#
        );
        assert_eq!(text(&AttachRequest::Namespaces), r#""namespaces""#);
        assert_eq!(
            text(&AttachRequest::Region { start: 65_536, bytes: 4_096, offset: 0 }),
            r#"{"region":{"start":65536,"bytes":4096}}"#
        );
        assert_eq!(
            text(&AttachRequest::Memory { start: 65_536, bytes: 4_096 }),
            r#"{"memory":{"start":65536,"bytes":4096}}"#
        );
        assert_eq!(text(&AttachRequest::DeleteQueue { id: 3 }), r#"{"delete-queue":{"id":3}}"#);
        let reply = |data, segments| {
            let (version, queues, memory, direct) = (1, 16, 4_096, None);
            let welcome = AttachReply::Welcome { version, queues, memory, data, segments, direct };
            String::from_utf8(encode(&welcome).unwrap()).unwrap()
        };
        assert_eq!(reply(None, 1), r#"{"welcome":{"version":1,"queues":16,"memory":4096}}"#);
        let rules = DataRules { transfer: 524_288, align: 4 };
        let expected =
            r#"{"welcome":{"version":1,"queues":16,"memory":4096,"data":{"transfer":524288,"align":4}}}"#;
        assert_eq!(reply(Some(rules), 1), expected);
        let expected = r#"{"welcome":{"version":1,"queues":16,"memory":4096,"segments":64}}"#;
        assert_eq!(reply(None, 64), expected);
        let older = decode_reply(br#"{"welcome":{"version":1,"queues":16,"memory":4096}}"#);
        assert!(matches!(older, Ok(AttachReply::Welcome { segments: 1, .. })), "{older:?}");
    }

    #[test]
    fn invalid_messages_are_refused_without_quoting_them() {
        for bytes in [&b""[..], b"{", b"secret", b"{\"region\":{}}", &[0xFF; 10], b"\"secret\""] {
            let error = decode_request(bytes).unwrap_err();
            assert!(!error.reason.contains("secret"), "{error}");
        }
        assert!(decode_request(&vec![b' '; MESSAGE_BYTES_MAX + 1]).is_err());
    }
}
