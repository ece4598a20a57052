//! A datagram of the attach socket: a message that survives its own way out and in again, or refused; either way no byte
//! of it is quoted.

use headwater_io::attach::protocol::{decode_reply, decode_request, encode};

/// One run.
pub(crate) fn body(bytes: &[u8]) {
    if let Ok(request) = decode_request(bytes) {
        let text = encode(&request).expect("what was read is no longer than what was sent");
        assert_eq!(decode_request(&text).as_ref(), Ok(&request), "a request changed on its way");
    }
    if let Ok(reply) = decode_reply(bytes)
        && let Ok(text) = encode(&reply)
    {
        assert_eq!(decode_reply(&text).as_ref(), Ok(&reply), "a reply changed on its way");
    }
    if let Err(error) = decode_request(bytes) {
        assert!(error.reason.len() < 200, "a refusal is short");
    }
}
