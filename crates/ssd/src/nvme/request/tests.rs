//! Requests over a device: what is submitted, and what is told in the end.

use super::*;
use crate::command::{Completion, Lba, LbaRange};
use crate::config::DeviceConfig;
use crate::engine::Start;
use crate::media::Geometry;
use crate::media::memory::MemoryMedia;
use crate::nvme::interpreter::{BlockOperation, MissingKey};
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::spec::kv::InlineKey;

fn device() -> Device<MemoryMedia> {
    let media = MemoryMedia::erased(Geometry::with_blocks(64)).unwrap();
    let start = Start { now: Nanos::ZERO, wall: UnixMillis(1) };
    Device::open(media, DeviceConfig::default(), start, &mut |_| {}).unwrap()
}

fn request(device: &Device<MemoryMedia>, operation: IoOperation, data: Data) -> Result<Request, Status> {
    let io = IoCommand { namespace: NamespaceId::FIRST, operation };
    Request::new(&io, data, &mut Keys::default(), device)
}

fn key() -> InlineKey {
    InlineKey::new(b"key").unwrap()
}

fn done(status: Status) -> Completion {
    Completion::new(0, status)
}

/// Carries a request out, as a transport does.
fn run(device: &mut Device<MemoryMedia>, request: Request) -> Closed {
    let face = crate::command::FaceId(1);
    let Request { namespace, mut command, mut answer } = request;
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
fn data_that_came_with_the_command_is_stored_and_comes_back_with_the_answer() {
    let mut device = device();
    let store = IoOperation::Store { key: key(), bytes: 5, condition: Condition::Always };
    let stored = request(&device, store, Data::Bytes(Bytes::from_static(b"value"))).unwrap();
    assert_eq!(run(&mut device, stored).status, Status::SUCCESS);
    for (bytes, front) in [(9, &b"value"[..]), (5, b"value"), (2, b"va"), (0, b"")] {
        let retrieve = request(&device, IoOperation::Retrieve { key: key(), bytes }, Data::Room).unwrap();
        let closed = run(&mut device, retrieve);
        assert_eq!((closed.status, closed.result), (Status::SUCCESS, 5));
        assert_eq!(closed.data, front);
    }
    let list = request(&device, IoOperation::List { from: None, bytes: 64 }, Data::Room).unwrap();
    assert_eq!(run(&mut device, list).data, b"\x01\0\0\0\x03\0key\0\0\0");
}

#[test]
fn a_delete_of_nothing_is_told_where_the_namespace_says_so() {
    let mut device = device();
    for (missing, status) in
        [(MissingKey::Ignored, Status::SUCCESS), (MissingKey::Told, Status::KEY_DOES_NOT_EXIST)]
    {
        let delete = request(&device, IoOperation::Delete { key: key(), missing }, Data::None).unwrap();
        assert_eq!(run(&mut device, delete).status, status);
    }
}

#[test]
fn values_of_another_length_than_the_command_says_are_refused() {
    let device = device();
    let store = IoOperation::Store { key: key(), bytes: 5, condition: Condition::Always };
    for data in [Data::None, Data::Room, Data::Bytes(Bytes::from_static(b"values"))] {
        assert_eq!(request(&device, store, data).err(), Some(Status::DATA_SGL_LENGTH_INVALID));
    }
    let retrieve = IoOperation::Retrieve { key: key(), bytes: 5 };
    assert_eq!(request(&device, retrieve, Data::None).err(), Some(Status::DATA_SGL_LENGTH_INVALID));
}

#[test]
fn a_read_with_force_unit_access_flushes_first_where_answers_come_before_durability() {
    let mut device = device();
    let range = LbaRange { start: Lba(3), blocks: 1 };
    let read = |fua| IoOperation::Block(BlockOperation::Read { range, bytes: 512, fua });
    let plain = request(&device, read(Fua::Yes), Data::Room).unwrap();
    assert!(matches!(plain.command, Command::Read { .. }), "durable by itself");
    device.set_durability(NamespaceId::FIRST, Durability::OnFlush);
    let plain = request(&device, read(Fua::No), Data::Room).unwrap();
    assert!(matches!(plain.command, Command::Read { .. }));
    let mut forced = request(&device, read(Fua::Yes), Data::Room).unwrap();
    assert!(matches!(forced.command, Command::Flush));
    assert!(matches!(forced.judged(), Command::Read { .. }), "rights are asked about the read");
    assert!(forced.answer.wants_more_than(&done(Status::SUCCESS)));
    for _ in 0..2 {
        let next = forced.answer.next_command().unwrap();
        assert!(matches!(next, (NamespaceId::FIRST, Command::Read { .. })), "a busy device is asked again");
    }
    let read = Completion { sink: vec![7; 512], ..done(Status::SUCCESS) };
    assert!(!forced.answer.wants_more_than(&read));
    assert_eq!(forced.answer.close(read).data, [7; 512]);
}

#[test]
fn a_failed_flush_is_the_answer_to_the_read_behind_it() {
    let mut device = device();
    device.set_durability(NamespaceId::FIRST, Durability::OnFlush);
    let verify = BlockOperation::Verify { range: LbaRange { start: Lba(0), blocks: 1 }, fua: Fua::Yes };
    let mut forced = request(&device, IoOperation::Block(verify), Data::None).unwrap();
    let failed = done(Status::INTERNAL_ERROR);
    assert!(!forced.answer.wants_more_than(&failed));
    assert_eq!(forced.answer.close(failed).status, Status::INTERNAL_ERROR);
}
