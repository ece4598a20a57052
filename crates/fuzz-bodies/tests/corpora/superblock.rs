//! Replays the fuzz corpus of superblocks.

use crate::replay;
use headwater_fuzz_bodies::superblock as body;

#[test]
fn corpus_of_superblock_stays_clean() {
    replay::replay("superblock", body::body);
}
