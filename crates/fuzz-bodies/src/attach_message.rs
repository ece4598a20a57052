//! A datagram of the attach socket: a message that encodes and decodes to itself, or refused with a short reason.

use headwater_io::attach::protocol::{decode_reply, decode_request, encode};

/// Decodes a datagram as a request and as a reply.
///
/// # Panics
/// If a decoded message changes by encoding, or if a refusal is long.
pub fn body(bytes: &[u8]) {
    if let Ok(request) = decode_request(bytes) {
        let text = encode(&request).expect("a decoded request is not longer than its datagram");
        assert_eq!(decode_request(&text).as_ref(), Ok(&request), "a request changed by encoding");
    }
    if let Ok(reply) = decode_reply(bytes)
        && let Ok(text) = encode(&reply)
    {
        assert_eq!(decode_reply(&text).as_ref(), Ok(&reply), "a reply changed by encoding");
    }
    if let Err(error) = decode_request(bytes) {
        assert!(error.reason.len() < 200, "a refusal is short");
    }
}
