//! Requests against a device: the commands they submit, and the answers they end with.

use super::*;
use crate::command::{Lba, LbaRange, SsdCompletion};
use crate::config::DeviceConfig;
use crate::engine::StartTime;
use crate::media::FlashGeometry;
use crate::media::memory::MemoryMedia;
use crate::nvme::decoder::{BlockOperation, MissingKey};
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::spec::kv::InlineKey;

fn device() -> SsdDevice<MemoryMedia> {
    let media = MemoryMedia::erased(FlashGeometry::with_blocks(64)).unwrap();
    let start = StartTime { now: Nanos::ZERO, wall: UnixMillis(1) };
    SsdDevice::open(media, DeviceConfig::default(), start, &mut |_| {}).unwrap()
}

fn request(
    device: &SsdDevice<MemoryMedia>,
    operation: IoOperation,
    data: RequestData,
) -> Result<DeviceRequest, Status> {
    let io = IoCommand { namespace: NamespaceId::FIRST, operation };
    DeviceRequest::new(&io, data, &mut KeyBuffer::default(), device)
}

fn key() -> InlineKey {
    InlineKey::new(b"key").unwrap()
}

fn done(status: Status) -> SsdCompletion {
    SsdCompletion::new(0, status)
}

/// Executes a request, as a transport does.
fn run(device: &mut SsdDevice<MemoryMedia>, request: DeviceRequest) -> NvmeResult {
    let face = crate::command::FrontEndId(1);
    let DeviceRequest { namespace, mut command, mut answer } = request;
    loop {
        device.submit(face, namespace, 0, command).unwrap();
        let completion = loop {
            device.poll(Nanos::ZERO, UnixMillis(1));
            if let Some(completion) = device.next_completion(face) {
                break completion;
            }
        };
        if !answer.wants_more_than(&completion) {
            return answer.close(completion);
        }
        command = answer.next_command().unwrap().1;
    }
}

#[test]
fn data_sent_with_a_command_is_stored_and_returned_with_the_answer() {
    let mut device = device();
    let store = IoOperation::Store { key: key(), bytes: 5, condition: WriteCondition::Always };
    let stored = request(&device, store, RequestData::Bytes(Bytes::from_static(b"value"))).unwrap();
    assert_eq!(run(&mut device, stored).status, Status::SUCCESS);
    for (bytes, front) in [(9, &b"value"[..]), (5, b"value"), (2, b"va"), (0, b"")] {
        let retrieve =
            request(&device, IoOperation::Retrieve { key: key(), bytes }, RequestData::Room).unwrap();
        let closed = run(&mut device, retrieve);
        assert_eq!((closed.status, closed.result), (Status::SUCCESS, 5));
        assert_eq!(closed.data, front);
    }
    let list = request(&device, IoOperation::List { from: None, bytes: 64 }, RequestData::Room).unwrap();
    assert_eq!(run(&mut device, list).data, b"\x01\0\0\0\x03\0key\0\0\0");
}

#[test]
fn delete_of_a_missing_key_fails_only_if_the_namespace_reports_it() {
    let mut device = device();
    for (missing, status) in
        [(MissingKey::Ignored, Status::SUCCESS), (MissingKey::Told, Status::KEY_DOES_NOT_EXIST)]
    {
        let delete =
            request(&device, IoOperation::Delete { key: key(), missing }, RequestData::None).unwrap();
        assert_eq!(run(&mut device, delete).status, status);
    }
}

#[test]
fn values_of_another_length_than_the_command_are_refused() {
    let device = device();
    let store = IoOperation::Store { key: key(), bytes: 5, condition: WriteCondition::Always };
    for data in [RequestData::None, RequestData::Room, RequestData::Bytes(Bytes::from_static(b"values"))] {
        assert_eq!(request(&device, store, data).err(), Some(Status::DATA_SGL_LENGTH_INVALID));
    }
    let retrieve = IoOperation::Retrieve { key: key(), bytes: 5 };
    assert_eq!(request(&device, retrieve, RequestData::None).err(), Some(Status::DATA_SGL_LENGTH_INVALID));
}

#[test]
fn forced_read_flushes_first_unless_the_namespace_is_always_durable() {
    let mut device = device();
    let range = LbaRange { start: Lba(3), blocks: 1 };
    let read = |fua| IoOperation::Block(BlockOperation::Read { range, bytes: 512, fua });
    let plain = request(&device, read(Fua::Yes), RequestData::Room).unwrap();
    assert!(matches!(plain.command, SsdCommand::Read { .. }), "always durable, and flushed anyway");
    device.set_durability(NamespaceId::FIRST, Durability::OnFlush);
    let plain = request(&device, read(Fua::No), RequestData::Room).unwrap();
    assert!(matches!(plain.command, SsdCommand::Read { .. }));
    let mut forced = request(&device, read(Fua::Yes), RequestData::Room).unwrap();
    assert!(matches!(forced.command, SsdCommand::Flush));
    assert!(matches!(forced.judged(), SsdCommand::Read { .. }), "rights are not checked for the read");
    assert!(forced.answer.wants_more_than(&done(Status::SUCCESS)));
    for _ in 0..2 {
        let next = forced.answer.next_command().unwrap();
        assert!(
            matches!(next, (NamespaceId::FIRST, SsdCommand::Read { .. })),
            "the command cannot be submitted again"
        );
    }
    let read = SsdCompletion { sink: vec![7; 512], ..done(Status::SUCCESS) };
    assert!(!forced.answer.wants_more_than(&read));
    assert_eq!(forced.answer.close(read).data, [7; 512]);
}

#[test]
fn failed_flush_is_the_answer_to_its_read() {
    let mut device = device();
    device.set_durability(NamespaceId::FIRST, Durability::OnFlush);
    let verify = BlockOperation::Verify { range: LbaRange { start: Lba(0), blocks: 1 }, fua: Fua::Yes };
    let mut forced = request(&device, IoOperation::Block(verify), RequestData::None).unwrap();
    let failed = done(Status::INTERNAL_ERROR);
    assert!(!forced.answer.wants_more_than(&failed));
    assert_eq!(forced.answer.close(failed).status, Status::INTERNAL_ERROR);
}
