//! Tests of the stream of commands: its seeds, its kinds of commands, and the lengths of its batches.

use super::*;
use headwater_ssd::command::ReadCaching;

fn config() -> WorkloadConfig {
    WorkloadConfig {
        namespaces: 3,
        keys: 40,
        value_bytes_max: 12_000,
        lengths: ValueLengths::Drawn,
        chained_every: 16,
        chained_bytes: CHAINED_BYTES,
        shares: CommandShares::MIXED,
        expiry: FeatureUse::Some,
        conditions: FeatureUse::Some,
        checks: FeatureUse::Never,
        parts: FeatureUse::Never,
        across: FeatureUse::Never,
        batch_clears: FeatureUse::Never,
        batch_writes_max: BATCH_WRITES,
    }
}

fn stream(seed: u64, length: usize) -> Vec<String> {
    let mut workload = CommandStream::new(seed, config(), usize::MAX);
    (0..length)
        .map(|_| format!("{:?}", workload.next(UnixMillis(1_000), &|_, _| Some(Sequence(7)))))
        .collect()
}

#[test]
fn the_same_seed_gives_the_same_stream() {
    assert_eq!(stream(5, 500), stream(5, 500));
    assert_ne!(stream(5, 50), stream(6, 50));
}

#[test]
fn the_stream_holds_every_kind_of_command() {
    let asked = stream(9, 5_000).join("\n");
    for kind in ["Store", "Retrieve", "Exist", "Delete", "Batch", "List", "Flush", "Fence", "Clear"] {
        assert!(asked.contains(&format!("command: {kind}")), "{kind}");
    }
    for detail in ["IfExists", "IfAbsent", "IfSequence", "Speculative", "Keep", "At("] {
        assert!(asked.contains(detail), "{detail}");
    }
}

#[test]
fn keys_are_distinct_and_no_batch_names_one_twice() {
    let keys: std::collections::BTreeSet<_> = (0..200).map(key_bytes).collect();
    assert_eq!(keys.len(), 200);
    let mut workload = CommandStream::new(3, config(), usize::MAX);
    for _ in 0..2_000 {
        if let SsdCommand::Batch { writes } = workload.next(UnixMillis(1), &|_, _| None).command {
            let keys: std::collections::BTreeSet<_> =
                writes.iter().map(|write| write.key().clone()).collect();
            assert_eq!(keys.len(), writes.len());
        }
    }
}

#[test]
fn no_batch_is_longer_than_the_device_takes() {
    let bytes_max = 320_000;
    let mut workload = CommandStream::new(4, config(), bytes_max);
    let mut longest = 0;
    for _ in 0..20_000 {
        if let SsdCommand::Batch { writes } = workload.next(UnixMillis(1), &|_, _| None).command {
            longest = longest.max(writes.iter().map(BatchWrite::bytes).sum());
        }
    }
    assert_eq!(longest, bytes_max, "at least one batch was shortened, and none is longer");
}

#[test]
fn reads_of_parts_change_no_other_command() {
    let described = |parts: FeatureUse| {
        let config = WorkloadConfig { parts, ..config() };
        let mut workload = CommandStream::new(7, config, usize::MAX);
        let mut described = Vec::new();
        for _ in 0..3_000 {
            let request = workload.next(UnixMillis(1_000), &|_, _| Some(Sequence(7)));
            described.push(match request.command {
                SsdCommand::Retrieve { key, release, .. } => format!("{key:?} {release:?}"),
                SsdCommand::Store { key, value, condition, expiry } => {
                    format!("{key:?} {} {condition:?} {expiry:?}", value.len())
                }
                other => format!("{:?}", std::mem::discriminant(&other)),
            });
        }
        described
    };
    assert_eq!(described(FeatureUse::Some), described(FeatureUse::Never));
}

#[test]
fn parts_lie_in_values_and_behind_them_and_some_reads_keep_their_pages() {
    let config = WorkloadConfig { parts: FeatureUse::Some, ..config() };
    let mut workload = CommandStream::new(8, config, usize::MAX);
    let (mut inside, mut behind, mut kept, mut whole) = (0, 0, 0, 0);
    for _ in 0..5_000 {
        let request = workload.next(UnixMillis(1_000), &|_, _| None);
        if let SsdCommand::Retrieve { offset, bytes_max, caching, .. } = request.command {
            inside += u32::from((1..200_000).contains(&offset));
            behind += u32::from(offset > 1 << 30);
            kept += u32::from(caching == ReadCaching::Keep);
            whole += u32::from((offset, bytes_max) == (0, u32::MAX));
        }
    }
    assert!(inside > 50 && behind > 20 && kept > 100 && whole > 100, "{inside} {behind} {kept} {whole}");
}

#[test]
fn values_have_patterns_wherever_parts_of_them_are_read() {
    for (parts, has_pattern) in
        [(FeatureUse::Never, false), (FeatureUse::Some, true), (FeatureUse::Most, true)]
    {
        let mut workload = CommandStream::new(9, WorkloadConfig { parts, ..config() }, usize::MAX);
        let values: Vec<Bytes> = (0..200).map(|_| workload.value(5)).collect();
        // A shorter one has the pattern of its bytes.
        for value in values.iter().filter(|value| value.len() >= 16) {
            assert_eq!(ValuePattern::of(value).is_some(), has_pattern, "{parts:?}");
        }
    }
}
