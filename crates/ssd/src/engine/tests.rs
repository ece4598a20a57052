//! Tests of the release of completions.

use super::*;
use headwater_nvme::spec::status::Status;

const FRONT_END: FrontEndId = FrontEndId(1);

fn waiting(token: u64) -> GatedCompletion {
    let completion = SsdCompletion::new(token, Status::SUCCESS);
    GatedCompletion { front_end: FRONT_END, completion, unsure: Status::MEDIUM_FAILED }
}

#[test]
fn completions_are_released_once_and_not_before_their_gate() {
    let mut release = ReleaseQueue::default();
    let front_end = FRONT_END;
    release.push_gated(waiting(1), Sequence(5));
    release.push_ready(front_end, waiting(2).completion);
    release.push_gated(waiting(3), Sequence(5));
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

#[test]
fn failed_completions_carry_nothing_but_their_token_and_their_error() {
    let mut release = ReleaseQueue::default();
    let mut read = waiting(1);
    read.unsure = Status::UNRECOVERED_ERROR;
    read.completion.sink = b"not durable".to_vec();
    read.completion.value_bytes = 11;
    release.push_gated(read, Sequence(5));
    release.push_ready(FRONT_END, waiting(2).completion);
    assert!(release.fail(MediumState::Failed));
    assert_eq!(release.pop(FRONT_END).unwrap().status, Status::SUCCESS, "it was durable");
    let failed = release.pop(FRONT_END).unwrap();
    assert_eq!((failed.token, failed.status), (1, Status::UNRECOVERED_ERROR));
    assert_eq!((failed.sink.len(), failed.value_bytes), (0, 0));
    assert!(!release.fail(MediumState::Failed));
}
