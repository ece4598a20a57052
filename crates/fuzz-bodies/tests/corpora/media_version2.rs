//! Replays the fuzz corpus of media of version 2.

use crate::replay;
use headwater_fuzz_bodies::media_version2 as body;

#[test]
fn every_corpus_medium_of_version_2_opens_or_is_refused_with_a_reason() {
    replay::replay("media_version2", body::body);
}
