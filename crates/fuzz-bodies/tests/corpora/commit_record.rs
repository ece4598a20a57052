//! Replays the fuzz corpus of commit records, which the encoder wrote.

use crate::replay;
use headwater_fuzz_bodies::commit_record as body;
use headwater_ssd::command::Sequence;
use headwater_ssd::log::commit_record::{
    CheckpointRoot, CommitKind, CommitRecord, EPOCH_ENDS_MAX, RECORD_BYTES, StreamExtent,
};
use headwater_ssd::log::prefix::{Prefix, Tick};

#[test]
fn corpus_of_commit_records_stays_clean() {
    replay::replay("commit_record", body::body);
}

fn prefix(epoch: u64, place: u64, sequence: u64) -> Prefix {
    Prefix { tick: Tick(Tick::before_epoch(epoch).0 + place), sequence: Sequence(sequence) }
}

#[test]
fn seeds_of_commit_records_are_what_the_encoder_writes() {
    let commit = CommitRecord {
        kind: CommitKind::Commit,
        number: 9,
        epoch: 1,
        end: prefix(1, 12, 40),
        durable: prefix(1, 10, 38),
        accepted: Prefix::default(),
        namespaces: 6,
        root: CheckpointRoot::default(),
        epoch_ends: Vec::new(),
        health: None,
    };
    let stream = |first, pages| StreamExtent { first, pages, crc: 0xC0DE };
    let root = CheckpointRoot {
        number: 3,
        start_order: (2 << 40) + 5,
        start: prefix(2, 7, 0).tick,
        maps: [stream(0, 2), stream(64, 2)],
        index: stream(66, 70),
    };
    let ends = |count: usize| (1..).map(|epoch| prefix(epoch, 3 * epoch, 5 * epoch)).take(count).collect();
    let opened = CommitRecord {
        kind: CommitKind::Opened,
        number: 10,
        epoch: 2,
        end: commit.end,
        durable: commit.end,
        accepted: commit.end,
        namespaces: 0,
        epoch_ends: ends(1),
        ..commit.clone()
    };
    let seeds = [
        ("opened", opened.clone()),
        ("idle", CommitRecord { kind: CommitKind::Idle, number: 11, ..commit.clone() }),
        ("closed", CommitRecord { kind: CommitKind::Closed, root, epoch: 2, epoch_ends: ends(2), ..opened }),
        ("every_end", CommitRecord { root, epoch: 40, epoch_ends: ends(EPOCH_ENDS_MAX), ..commit.clone() }),
        ("commit", commit),
    ];
    for (name, record) in seeds {
        let mut bytes = [0; RECORD_BYTES];
        record.encode(&mut bytes, 0);
        replay::assert_seed("commit_record", name, &bytes);
    }
}
