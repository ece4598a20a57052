//! The corpus of the fuzz target `attach_message`, replayed: no nightly toolchain needed.

#[path = "../../../fuzz/bodies/attach_message.rs"]
mod body;
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[test]
fn every_datagram_is_a_message_or_refused() {
    replay::replay("attach_message", body::body);
}
