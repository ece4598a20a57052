//! Replays the fuzz corpus of PSKs in interchange format.

use crate::replay;
use headwater_fuzz_bodies::psk_interchange as body;

#[test]
fn corpus_of_psk_interchange_stays_clean() {
    replay::replay("psk_interchange", body::body);
}
