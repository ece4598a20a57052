//! Replays the corpus of the fuzz target `attach_message`; needs no nightly toolchain.

use crate::replay;
use headwater_fuzz_bodies::attach_message as body;

#[test]
fn every_datagram_is_decoded_or_refused() {
    replay::replay("attach_message", body::body);
}
