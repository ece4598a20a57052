//! Tests of the release of completions.

use super::*;
use headwater_nvme::spec::status::Status;

fn completion(token: u64) -> SsdCompletion {
    SsdCompletion::new(token, Status::SUCCESS)
}

#[test]
fn completions_are_released_once_and_not_before_their_gate() {
    let mut release = ReleaseQueue::default();
    let face = FrontEndId(1);
    release.push(face, completion(1), Sequence(5), Sequence(3));
    release.push(face, completion(2), Sequence(3), Sequence(3));
    release.push(face, completion(3), Sequence(5), Sequence(3));
    assert_eq!(release.pop(face).unwrap().token, 2);
    assert!(release.pop(face).is_none());
    assert!(!release.release_up_to(Sequence(4)));
    assert!(release.pop(face).is_none());
    assert!(release.release_up_to(Sequence(5)));
    assert_eq!(release.pop(face).unwrap().token, 1);
    assert_eq!(release.pop(face).unwrap().token, 3);
    assert!(release.pop(face).is_none());
    assert!(release.pop(FrontEndId(9)).is_none());
}
