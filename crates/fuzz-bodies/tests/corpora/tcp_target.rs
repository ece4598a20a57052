//! Replays the fuzz corpus of the NVMe over TCP target.

use crate::replay;
use headwater_fuzz_bodies::tcp_target as body;

#[test]
fn corpus_of_tcp_target_stays_clean() {
    replay::replay("tcp_target", body::body);
}
