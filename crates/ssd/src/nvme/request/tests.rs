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
use std::io::Read as _;

fn device() -> SsdDevice<MemoryMedia> {
    let media = MemoryMedia::erased(FlashGeometry::with_blocks(64)).unwrap();
    let start = StartTime { now: Nanos::ZERO, wall: UnixMillis(1) };
    SsdDevice::open(media, DeviceConfig::default(), start, &mut |_| {}).unwrap()
}

fn request(
    device: &SsdDevice<MemoryMedia>,
    (operation, need): (IoOperation, DataNeed),
    data: RequestData,
) -> Result<DeviceRequest, Status> {
    let io = IoCommand { namespace: NamespaceId::FIRST, operation, data: need };
    DeviceRequest::new(&io, data, &mut KeyBuffer::default(), device)
}

/// Returns a store of a value of 5 bytes.
fn store_of_5() -> (IoOperation, DataNeed) {
    (IoOperation::Store { key: key(), condition: WriteCondition::Always }, DataNeed::FromHost(5))
}

fn retrieve_of(bytes: u32) -> (IoOperation, DataNeed) {
    retrieve_part(0, bytes)
}

fn retrieve_part(offset: u32, bytes: u32) -> (IoOperation, DataNeed) {
    let caching = ReadCaching::ByLength;
    (IoOperation::Retrieve { key: key(), offset, caching }, DataNeed::ToHost(bytes))
}

fn key() -> InlineKey {
    InlineKey::new(b"key").unwrap()
}

fn completion_with(status: Status) -> SsdCompletion {
    SsdCompletion::new(0, status)
}

/// Executes a request, as a transport does.
fn run(device: &mut SsdDevice<MemoryMedia>, request: DeviceRequest) -> NvmeResult {
    let front_end = crate::command::FrontEndId(1);
    let DeviceRequest { namespace, mut command, completion: mut answer } = request;
    loop {
        device.submit(front_end, namespace, 0, command).unwrap();
        let completion = loop {
            device.poll(Nanos::ZERO, UnixMillis(1));
            if let Some(completion) = device.next_completion(front_end) {
                break completion;
            }
        };
        if !answer.needs_more(&completion) {
            return answer.build(completion);
        }
        command = answer.next_command().unwrap().1;
    }
}

#[test]
fn data_sent_with_a_command_is_stored_and_returned_with_the_answer() {
    let mut device = device();
    let stored = request(&device, store_of_5(), RequestData::Bytes(Bytes::from_static(b"value"))).unwrap();
    assert_eq!(run(&mut device, stored).status, Status::SUCCESS);
    for (bytes, front) in [(9, &b"value"[..]), (5, b"value"), (2, b"va"), (0, b"")] {
        let retrieve = request(&device, retrieve_of(bytes), RequestData::Returned).unwrap();
        let closed = run(&mut device, retrieve);
        assert_eq!((closed.status, closed.result), (Status::SUCCESS, 5));
        assert_eq!(closed.data, front);
    }
    // A part never goes beyond the value, and the length is always that of the whole one.
    for (offset, bytes, part) in
        [(0, 9, &b"value"[..]), (1, 9, b"alue"), (1, 3, b"alu"), (4, 1, b"e"), (4, 0, b""), (5, 9, b"")]
    {
        let retrieve = request(&device, retrieve_part(offset, bytes), RequestData::Returned).unwrap();
        let closed = run(&mut device, retrieve);
        assert_eq!((closed.status, closed.result), (Status::SUCCESS, 5));
        assert_eq!(closed.data, part, "{bytes} bytes from {offset} on");
    }
    let beyond = request(&device, retrieve_part(u32::MAX, u32::MAX), RequestData::Returned).unwrap();
    let closed = run(&mut device, beyond);
    assert_eq!((closed.status, closed.result, closed.data), (Status::SUCCESS, 5, Vec::new()));
    let list = (IoOperation::List { from: None }, DataNeed::ToHost(64));
    let list = request(&device, list, RequestData::Returned).unwrap();
    assert_eq!(run(&mut device, list).data, b"\x01\0\0\0\x03\0key\0\0\0");
}

#[test]
fn delete_of_a_missing_key_fails_only_if_the_namespace_reports_it() {
    let mut device = device();
    for (missing, status) in
        [(MissingKey::Ignored, Status::SUCCESS), (MissingKey::Reported, Status::KEY_DOES_NOT_EXIST)]
    {
        let delete = (IoOperation::Delete { key: key(), missing }, DataNeed::None);
        let delete = request(&device, delete, RequestData::None).unwrap();
        assert_eq!(run(&mut device, delete).status, status);
    }
}

#[test]
fn values_of_another_length_than_the_command_are_refused() {
    let device = device();
    for data in [RequestData::None, RequestData::Returned, RequestData::Bytes(Bytes::from_static(b"values"))]
    {
        assert_eq!(request(&device, store_of_5(), data).err(), Some(Status::DATA_SGL_LENGTH_INVALID));
    }
    let refused = request(&device, retrieve_of(5), RequestData::None);
    assert_eq!(refused.err(), Some(Status::DATA_SGL_LENGTH_INVALID));
}

#[test]
fn received_value_is_stored_with_its_rest_if_it_has_the_length_of_the_command() {
    let mut device = device();
    let value: Vec<u8> = (0..=250_u8).cycle().take(300_000).collect();
    let receipt = device.begin_receipt(NamespaceId::FIRST, value.len()).unwrap();
    let mut left = &value[..receipt.bytes()];
    while !left.is_empty() {
        device.receive(&receipt, &mut |slices| left.read_vectored(slices)).unwrap();
        device.poll(Nanos::ZERO, UnixMillis(1));
    }
    let rest = Bytes::copy_from_slice(&value[receipt.bytes()..]);
    let received = || RequestData::Received { receipt: receipt.clone(), rest: rest.clone() };
    let operation = IoOperation::Store { key: key(), condition: WriteCondition::Always };
    for bytes in [0, 299_999, 300_001] {
        let refused = request(&device, (operation, DataNeed::FromHost(bytes)), received());
        assert_eq!(refused.err(), Some(Status::DATA_SGL_LENGTH_INVALID));
    }
    let stored = request(&device, (operation, DataNeed::FromHost(300_000)), received()).unwrap();
    assert_eq!(run(&mut device, stored).status, Status::SUCCESS);
    let retrieve = request(&device, retrieve_of(300_000), RequestData::Returned).unwrap();
    assert!(run(&mut device, retrieve).data == value);
}

#[test]
fn forced_read_flushes_first_unless_the_namespace_is_always_durable() {
    let mut device = device();
    let range = LbaRange { start: Lba(3), blocks: 1 };
    let read = |fua| (IoOperation::Block(BlockOperation::Read { range, fua }), DataNeed::ToHost(512));
    let plain = request(&device, read(Fua::Yes), RequestData::Returned).unwrap();
    assert!(matches!(plain.command, SsdCommand::Read { .. }), "always durable, and flushed anyway");
    device.set_durability(NamespaceId::FIRST, Durability::OnFlush);
    let plain = request(&device, read(Fua::No), RequestData::Returned).unwrap();
    assert!(matches!(plain.command, SsdCommand::Read { .. }));
    let mut forced = request(&device, read(Fua::Yes), RequestData::Returned).unwrap();
    assert!(matches!(forced.command, SsdCommand::Flush));
    assert!(matches!(forced.data_command(), SsdCommand::Read { .. }), "rights are not checked for the read");
    assert!(forced.completion.needs_more(&completion_with(Status::SUCCESS)));
    for _ in 0..2 {
        let next = forced.completion.next_command().unwrap();
        assert!(
            matches!(next, (NamespaceId::FIRST, SsdCommand::Read { .. })),
            "the command cannot be submitted again"
        );
    }
    let read = SsdCompletion { sink: vec![7; 512], ..completion_with(Status::SUCCESS) };
    assert!(!forced.completion.needs_more(&read));
    assert_eq!(forced.completion.build(read).data, [7; 512]);
}

#[test]
fn failed_flush_is_the_answer_to_its_read() {
    let mut device = device();
    device.set_durability(NamespaceId::FIRST, Durability::OnFlush);
    let verify = BlockOperation::Verify { range: LbaRange { start: Lba(0), blocks: 1 }, fua: Fua::Yes };
    let verify = (IoOperation::Block(verify), DataNeed::None);
    let mut forced = request(&device, verify, RequestData::None).unwrap();
    let failed = completion_with(Status::INTERNAL_ERROR);
    assert!(!forced.completion.needs_more(&failed));
    assert_eq!(forced.completion.build(failed).status, Status::INTERNAL_ERROR);
}
