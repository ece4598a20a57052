//! Replays the fuzz corpus of the NVMe over TCP target.

#[path = "../../../fuzz/bodies/tcp_target.rs"]
mod body;
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[test]
fn corpus_of_tcp_target_stays_clean() {
    replay::replay("tcp_target", body::body);
}
