//! Replays the fuzz corpus of the driver against a hostile controller.

use crate::replay;
use headwater_fuzz_bodies::nvme_driver as body;

#[test]
fn corpus_of_nvme_driver_stays_clean() {
    replay::replay("nvme_driver", body::body);
}
