//! Replays the corpus of the fuzz target `attach_message`; needs no nightly toolchain.

#[path = "../../../fuzz/bodies/attach_message.rs"]
mod body;
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[test]
fn every_datagram_is_decoded_or_refused() {
    replay::replay("attach_message", body::body);
}
