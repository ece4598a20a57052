//! Replays the fuzz corpus of the NVMe over TCP initiator.

#[path = "../../../fuzz/bodies/tcp_initiator.rs"]
mod body;
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[test]
fn corpus_of_tcp_initiator_stays_clean() {
    replay::replay("tcp_initiator", body::body);
}
