//! Tests of application errors: each is reported with its numbers before anything reaches a device.

use super::*;
use crate::error::RequestError;

fn refused_with(handle: &mut Handle, request: IoRequest) -> RequestError {
    let Err(RefusedRequest { error, .. }) = handle.submit(request, 0) else {
        panic!("an invalid request was accepted")
    };
    error
}

#[test]
fn invalid_requests_are_refused_with_numbers_and_reach_no_device() {
    let mut model =
        ModelDevice::new(ModelSettings { block_bytes: 4_096, ..ModelSettings::null_device(SIZE) }).unwrap();
    let own = model_queue(&mut model, 4);
    let mut handle = Handle::builder(model.facts()).queue(own).build().unwrap();
    let mut buffer = |bytes| model.region(bytes).unwrap();
    let block_bytes = 4_096;
    assert_eq!(
        refused_with(&mut handle, IoRequest::read(512, buffer(4_096))),
        RequestError::Misaligned { offset: 512, bytes: 4_096, block_bytes }
    );
    assert_eq!(
        refused_with(&mut handle, IoRequest::write(4_096, buffer(100), WriteDurability::Immediate)),
        RequestError::Misaligned { offset: 4_096, bytes: 100, block_bytes }
    );
    assert_eq!(
        refused_with(&mut handle, IoRequest::write_zeroes(0, 0, WriteDurability::Immediate)),
        RequestError::Empty { offset: 0 }
    );
    let beyond = RequestError::OutOfRange { offset: SIZE - 4_096, bytes: 8_192, end: SIZE };
    assert_eq!(refused_with(&mut handle, IoRequest::read(SIZE - 4_096, buffer(8_192))), beyond);
    let last = u64::MAX - 4_095;
    assert_eq!(
        refused_with(&mut handle, IoRequest::write_zeroes(last, 4_096, WriteDurability::Immediate)),
        RequestError::OutOfRange { offset: last, bytes: 4_096, end: SIZE }
    );
    let list = buffer(4_096).slice(0, 8).unwrap();
    assert_eq!(
        refused_with(&mut handle, IoRequest::discard(0, 4_096, list)),
        RequestError::BufferTooShort { given: 8, needed: 16 }
    );
    let odd = buffer(8_192).slice(1, 4_096).unwrap();
    assert!(matches!(
        refused_with(&mut handle, IoRequest::read(0, odd)),
        RequestError::Unreachable { align: 4, .. }
    ));
    let uneven = vec![buffer(4_096), buffer(1_024)];
    assert!(matches!(
        refused_with(&mut handle, IoRequest::read_scattered(0, uneven)),
        RequestError::Misaligned { bytes: 5_120, .. }
    ));
    assert_eq!(handle.outstanding(), 0);
    assert!(handle.poll().unwrap().is_none());
}

#[test]
fn block_window_and_read_only_namespace_are_enforced() {
    let mut model = ModelDevice::new(ModelSettings::null_device(SIZE)).unwrap();
    let facts = ClientNamespace { blocks: Some((8, 16)), writable: false, ..model.facts().clone() };
    let own = model_queue(&mut model, 4);
    let mut handle = Handle::builder(&facts).queue(own).build().unwrap();
    let mut read = |block: u64, blocks: usize| {
        let buffer = model.region(blocks * 512).unwrap();
        handle.submit(IoRequest::read(block * 512, buffer), 0)
    };
    assert!(read(8, 8).is_ok());
    assert!(matches!(read(7, 1).unwrap_err().error, RequestError::OutOfRange { .. }));
    assert!(matches!(read(15, 2).unwrap_err().error, RequestError::OutOfRange { .. }));
    let zeroes = IoRequest::write_zeroes(8 * 512, 512, WriteDurability::Immediate);
    assert_eq!(refused_with(&mut handle, zeroes), RequestError::ReadOnly { namespace: 1 });
}

#[test]
fn handle_needs_blocks_and_a_queue() {
    let mut model = ModelDevice::new(ModelSettings::null_device(SIZE)).unwrap();
    let closed = Handle::builder(model.facts()).build().unwrap_err();
    assert!(matches!(closed, IoError::Request(RequestError::NoQueue)));
    let own = model_queue(&mut model, 4);
    let keys = ClientNamespace::key_space(2);
    assert!(matches!(
        Handle::builder(&keys).queue(own).build(),
        Err(IoError::Namespace { namespace: 2, .. })
    ));
}

#[test]
fn handle_without_a_queue_refuses_and_works_again_after_attach() {
    let mut model = ModelDevice::new(ModelSettings::null_device(SIZE)).unwrap();
    let own = model_queue(&mut model, 4);
    let mut handle = Handle::builder(model.facts()).queue(own).build().unwrap();
    let Some(QueueAttachment::Own(back)) = handle.detach(QueueName(0), None).unwrap() else {
        panic!("detaching an idle queue failed")
    };
    let buffer = model.region(512).unwrap();
    let Err(refused) = handle.submit(IoRequest::read(0, buffer), 7) else {
        panic!("accepted without a queue")
    };
    assert!(matches!(refused.error, RequestError::NoQueue | RequestError::Full { .. }), "{}", refused.error);
    assert!(handle.detach(QueueName(0), None).is_err());
    assert_eq!(handle.attach(back), QueueName(1));
    handle.submit(refused.request, 7).unwrap();
    assert_eq!(drain(&mut handle).len(), 1);
}
