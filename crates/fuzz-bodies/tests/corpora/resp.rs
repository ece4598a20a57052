//! A replay of the corpus of the fuzz target `resp`; it needs no nightly toolchain.

use crate::replay;
use headwater_fuzz_bodies::resp as body;

#[test]
fn splitting_a_stream_never_changes_its_commands() {
    replay::replay("resp", body::body);
}
