//! Replays the corpus of the fuzz target `command_decode` without a nightly toolchain.

use crate::replay;
use headwater_fuzz_bodies::command_decode as body;

#[test]
fn every_corpus_entry_decodes_or_is_refused_for_good() {
    replay::replay("command_decode", body::body);
}
