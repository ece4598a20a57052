//! Random register accesses and admin commands in random states.

use crate::replay;
use headwater_fuzz_bodies::admin_command as body;

use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, any, proptest};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn random_accesses_cause_no_panic_and_no_second_completion(acts in vec(any::<u8>(), 0..600)) {
        body::body(&acts);
    }
}

#[test]
fn saved_fuzz_inputs_still_pass() {
    replay::replay("admin_command", body::body);
}
