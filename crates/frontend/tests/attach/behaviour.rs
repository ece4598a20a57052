//! The behaviour of every device, over attach.

#[path = "../../../headwater/tests/behaviour/suite.rs"]
mod suite;

use crate::host::{Host, media};
use headwater_frontend::attach::policy::Policy;

#[test]
fn keys_blocks_and_queues_behave_as_everywhere() {
    let folder = tempfile::tempdir().unwrap();
    let host = Host::start(folder.path(), Policy::new([]), media());
    let mut client = host.client();
    suite::keys(&mut client);
    suite::queues(&mut client);
    suite::blocks(&mut client);
    drop(host.end());
}
