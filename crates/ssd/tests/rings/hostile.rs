//! Tests of faulty, hostile and vanished clients: none of them affects another client.

use crate::harness::{BASE, MEMORY_BYTES, RingHarness, at, key};
use crate::raw_host::RawHost;
use headwater_dma::iova::Iova;
use headwater_host::shared_memory::SharedMemory;
use headwater_nvme::controller::{QueueKind, QueueState};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::kv::{
    DataPointer, StoreOptions, exist, flush, list, retrieve, store, uio_get, uio_put,
};
use headwater_nvme::spec::sgl::{SglDescriptor, SglKind};
use headwater_nvme::spec::status::Status;
use zerocopy::IntoBytes as _;
use zerocopy::little_endian::{U32, U64};

#[test]
fn malformed_entries_are_answered_and_affect_no_other_client() {
    let mut bench = RingHarness::new();
    let mut bad = bench.client(32, QueueKind::Standard);
    let mut good = bench.client(32, QueueKind::Standard);
    let value = good.write(0, b"v");
    let plain = retrieve(1, key(b"k"), at(0, 8));
    let cases = [
        (SubmissionEntry { opcode: 0x7F, ..plain }, Status::INVALID_OPCODE),
        (SubmissionEntry { flags: 0x80, ..plain }, Status::INVALID_FIELD),
        (SubmissionEntry { flags: 0x40, ..plain }, Status::DATA_SGL_LENGTH_INVALID),
        (SubmissionEntry { prp2: U64::new(1), ..plain }, Status::INVALID_FIELD),
        (SubmissionEntry { cdw11: U32::new(17), ..plain }, Status::INVALID_KEY_SIZE),
        (SubmissionEntry { cdw11: U32::new(0), ..plain }, Status::INVALID_KEY_SIZE),
        (retrieve(0, key(b"k"), at(0, 8)), Status::INVALID_NAMESPACE),
        (retrieve(17, key(b"k"), at(0, 8)), Status::INVALID_NAMESPACE),
        (
            store(1, key(b"k"), DataPointer { address: BASE, bytes: u32::MAX }, StoreOptions::NONE),
            Status::INVALID_VALUE_SIZE,
        ),
        (list(1, None, at(0, 3)), Status::INVALID_FIELD),
        (uio_put(1, at(0, 8), at(0, 8)), Status::INVALID_OPCODE),
    ];
    let ids: Vec<_> = cases.iter().map(|(entry, _)| bad.submit(*entry)).collect();
    let stored = good.submit(store(1, key(b"k"), value, StoreOptions::NONE));
    assert_eq!(bench.all_completions(&mut good)[&stored].0, Status::SUCCESS);
    let answers = bench.all_completions(&mut bad);
    assert_eq!(answers.len(), cases.len());
    for (id, (_, status)) in ids.iter().zip(cases) {
        assert_eq!(answers[id], (status, 0));
    }
    assert_eq!(bench.front_end.rings.stats().refused, cases.len() as u64);
}

#[test]
fn memory_of_other_clients_is_out_of_reach() {
    let mut bench = RingHarness::new();
    let mut client = bench.client(32, QueueKind::Uio);
    let mut other = bench.client(32, QueueKind::Uio);
    // Memory registered only by the other client.
    let secret = SharedMemory::anonymous(4_096).unwrap();
    secret.copy_out(0, b"secret").unwrap();
    let table = bench.front_end.rings.memory(other.id).unwrap();
    table.register(Iova(1 << 40), secret).unwrap();
    let theirs = DataPointer { address: 1 << 40, bytes: 6 };
    let beyond = at(MEMORY_BYTES - 3, 4);
    let around = DataPointer { address: u64::MAX, bytes: 4 };
    for pointer in [theirs, beyond, around, DataPointer { address: 0, bytes: 1 }] {
        for entry in [
            store(1, key(b"k"), pointer, StoreOptions::NONE),
            retrieve(1, key(b"k"), pointer),
            list(1, None, DataPointer { bytes: 4, ..pointer }),
            uio_put(1, pointer, at(0, 1)),
            uio_put(1, at(0, 1), pointer),
            uio_get(1, pointer, at(0, 1)),
            uio_get(1, at(0, 1), pointer),
        ] {
            assert_eq!(bench.run(&mut client, entry), (Status::DATA_TRANSFER_ERROR, 0));
        }
    }
    // A list in memory of the other client, and one in its own that names that memory.
    let descriptor = SglDescriptor::new(SglKind::DataBlock, theirs.address, theirs.bytes);
    let list = client.write(0, descriptor.as_bytes());
    for address in [theirs.address, list.address] {
        let segment = SglDescriptor::new(SglKind::LastSegment, address, 16);
        for entry in [
            store(1, key(b"k"), DataPointer { address, bytes: 6 }, StoreOptions::NONE),
            retrieve(1, key(b"k"), DataPointer { address, bytes: 6 }),
        ] {
            let answer = bench.run(&mut client, entry.with_sgl(segment));
            assert_eq!(answer, (Status::DATA_TRANSFER_ERROR, 0));
        }
    }
    assert_eq!(bench.run(&mut client, exist(1, key(b"k"))).0, Status::KEY_DOES_NOT_EXIST);
    let own = store(1, key(b"k"), theirs, StoreOptions::NONE);
    assert_eq!(bench.run(&mut other, own).0, Status::SUCCESS, "the other client cannot use its own memory");
}

#[test]
fn removed_client_leaves_no_queue_and_no_command_in_flight() {
    let mut bench = RingHarness::new();
    let mut gone = bench.client(8, QueueKind::Standard);
    let mut stays = bench.client(8, QueueKind::Standard);
    for _ in 0..8 {
        gone.submit(store(1, key(b"k"), at(0, 100), StoreOptions::NONE));
    }
    bench.front_end.poll(&mut bench.device);
    bench.front_end.rings.remove_client(gone.id);
    bench.run_until_idle();
    assert_eq!(bench.front_end.rings.queue_state(gone.queue.id), None);
    assert_eq!(bench.front_end.rings.in_flight(), 0);
    assert_eq!(bench.run(&mut stays, exist(1, key(b"k"))).0, Status::SUCCESS);
}

#[test]
fn reused_live_command_id_is_refused_and_the_first_command_completes() {
    let mut bench = RingHarness::new();
    let client = bench.front_end.rings.add_client();
    let mut raw = RawHost::new(&mut bench.front_end, client, 8);
    raw.push(7, exist(1, key(b"k")));
    bench.front_end.poll(&mut bench.device);
    raw.push(7, flush(1));
    bench.run_until_idle();
    let mut answers = raw.reap_all();
    answers.sort_by_key(|(_, status)| status.code);
    assert_eq!(answers, [(7, Status::COMMAND_ID_CONFLICT), (7, Status::KEY_DOES_NOT_EXIST)]);
    raw.push(7, flush(1));
    bench.run_until_idle();
    assert_eq!(raw.reap_all(), [(7, Status::SUCCESS)], "the command id is not free again");
}

#[test]
fn full_completion_queue_blocks_its_client_only() {
    let mut bench = RingHarness::new();
    let client = bench.front_end.rings.add_client();
    let mut raw = RawHost::new(&mut bench.front_end, client, 4);
    let mut good = bench.client(4, QueueKind::Standard);
    // Four completions fill the CQ, one waits for room, and the next four commands stay in the SQ.
    for id in 0..9 {
        raw.push(id, exist(1, key(b"k")));
        bench.run_until_idle();
    }
    assert_eq!(
        bench.front_end.rings.stats().completed,
        5,
        "commands were fetched without room for completions"
    );
    assert_eq!(bench.run(&mut good, flush(1)).0, Status::SUCCESS);
    let mut answered = Vec::new();
    for _ in 0..10 {
        answered.extend(raw.reap_all().into_iter().map(|(id, _)| id));
        bench.run_until_idle();
    }
    answered.sort_unstable();
    assert_eq!(answered, (0..9).collect::<Vec<_>>(), "not each command answered once");
}

#[test]
fn impossible_doorbell_fails_its_queue_only() {
    let mut bench = RingHarness::new();
    let client = bench.front_end.rings.add_client();
    let mut raw = RawHost::new(&mut bench.front_end, client, 4);
    let mut good = bench.client(4, QueueKind::Standard);
    raw.push(1, flush(1));
    bench.front_end.poll(&mut bench.device);
    raw.write_impossible_tail();
    bench.run_until_idle();
    assert!(matches!(bench.front_end.rings.queue_state(raw.id()), Some(QueueState::Failed(_))));
    assert_eq!(raw.reap_all(), [(1, Status::SUCCESS)], "the fetched command is not answered");
    assert_eq!(bench.run(&mut good, flush(1)).0, Status::SUCCESS);
    bench.front_end.rings.delete_queue(raw.id()).unwrap();
    bench.run_until_idle();
    assert_eq!(bench.front_end.rings.queue_state(raw.id()), None);
}

#[test]
#[expect(clippy::print_stdout, reason = "the seed reproduces a failure")]
fn corrupted_rings_affect_only_their_client() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..50 {
        let mut bench = RingHarness::new();
        let client = bench.front_end.rings.add_client();
        let memory = SharedMemory::anonymous(4_096).unwrap();
        bench.front_end.rings.memory(client).unwrap().register(Iova(BASE), memory).unwrap();
        let mut raw = RawHost::new(&mut bench.front_end, client, 8);
        let mut good = bench.client(4, QueueKind::Uio);
        let value = good.write(0, b"mine");
        // In a namespace that random ring words are unlikely to name, and that no entry below names.
        let mine = key(b"mine");
        assert_eq!(bench.run(&mut good, store(9, mine, value, StoreOptions::NONE)).0, Status::SUCCESS);
        for _ in 0..200 {
            match random.u8(..4) {
                0 => raw.set_word(random.usize(..), random.u64(..)),
                1 => raw.set_word(random.usize(..), random.u64(..10)),
                2 => {
                    let mut entry = retrieve(
                        random.u32(..3),
                        key(b"k"),
                        at(random.usize(..8_192), random.usize(..5_000)),
                    );
                    entry.opcode = random.choice([0, 1, 2, 6, 0x10, 0x14, 0x81, 0x82]).unwrap();
                    raw.push(random.u16(..), entry);
                }
                _ => {
                    raw.reap();
                }
            }
            bench.turn();
        }
        bench.run_until_idle();
        assert_eq!(bench.front_end.rings.in_flight(), 0, "commands are still in flight");
        assert_eq!(bench.run(&mut good, retrieve(9, mine, at(100, 10))), (Status::SUCCESS, 4));
        assert_eq!(good.read(100, 5), b"mine\0");
        bench.front_end.rings.remove_client(client);
        bench.run_until_idle();
        assert_eq!(bench.front_end.rings.queue_state(raw.id()), None);
    }
}
