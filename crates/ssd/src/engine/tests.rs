//! Tests of the release of completions.

use super::*;
use headwater_nvme::spec::status::Status;

fn completion(token: u64) -> SsdCompletion {
    SsdCompletion::new(token, Status::SUCCESS)
}

#[test]
fn completions_are_released_once_and_not_before_their_gate() {
    let mut release = ReleaseQueue::default();
    let front_end = FrontEndId(1);
    release.push(front_end, completion(1), Sequence(5), Sequence(3));
    release.push(front_end, completion(2), Sequence(3), Sequence(3));
    release.push(front_end, completion(3), Sequence(5), Sequence(3));
    assert_eq!(release.pop(front_end).unwrap().token, 2);
    assert!(release.pop(front_end).is_none());
    assert!(!release.release_up_to(Sequence(4)));
    assert!(release.pop(front_end).is_none());
    assert!(release.release_up_to(Sequence(5)));
    assert_eq!(release.pop(front_end).unwrap().token, 1);
    assert_eq!(release.pop(front_end).unwrap().token, 3);
    assert!(release.pop(front_end).is_none());
    assert!(release.pop(FrontEndId(9)).is_none());
}
