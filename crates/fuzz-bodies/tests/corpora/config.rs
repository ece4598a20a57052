//! Replays the corpus of the fuzz target `config`; needs no nightly toolchain.

use crate::replay;
use headwater_fuzz_bodies::config as body;

#[test]
fn every_refusal_names_its_file() {
    replay::replay("config", body::body);
}
