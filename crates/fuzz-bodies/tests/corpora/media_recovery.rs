//! Replays the corpus of the fuzz target `media_recovery` without a nightly toolchain.

use crate::replay;
use headwater_fuzz_bodies::media_recovery as body;

#[test]
fn every_corpus_medium_opens_or_fails_with_a_reason() {
    replay::replay("media_recovery", body::body);
}
