//! Replays the fuzz corpus of the NVMe over TCP initiator.

use crate::replay;
use headwater_fuzz_bodies::tcp_initiator as body;

#[test]
fn corpus_of_tcp_initiator_stays_clean() {
    replay::replay("tcp_initiator", body::body);
}
