//! Replays the fuzz corpus of spares of both versions, which the encoders wrote.

use crate::replay;
use headwater_fuzz_bodies::page_spare as body;
use headwater_ssd::command::Sequence;
use headwater_ssd::log::page::{NO_RECORD, PageKind, PageSpare, PagesBefore};
use headwater_ssd::log::page_version1;
use headwater_ssd::log::prefix::{Prefix, Tick};
use headwater_ssd::media::{BlockId, PAGE_DATA_BYTES, PAGE_SPARE_BYTES, PageAddress};

#[test]
fn corpus_of_spares_stays_clean() {
    replay::replay("page_spare", body::body);
}

#[test]
fn seeds_of_spares_are_what_the_encoders_write() {
    let log = PageSpare {
        kind: PageKind::Log,
        address: PageAddress::new(BlockId(70_000), 5),
        first: 64,
        used: 4_080,
        order: (2 << 40) + 3,
        tick: Tick((2 << 40) + 190),
        open_sequence: Sequence(55),
        durable: Prefix { tick: Tick((2 << 40) + 180), sequence: Sequence(300) },
        accepted: Prefix { tick: Tick((1 << 40) + 9), sequence: Sequence(50) },
        continues: 4_001,
        before: PagesBefore { sequence: Sequence(301), namespaces: 0x1_0002 },
    };
    let blank = PageSpare { first: NO_RECORD, tick: Tick(0), continues: 0, ..log };
    let seeds = [
        ("log", log),
        ("checkpoint", PageSpare { kind: PageKind::Checkpoint, used: 100, continues: 3 << 32 | 17, ..blank }),
        ("guard", PageSpare { kind: PageKind::Guard, used: 0, ..blank }),
    ];
    for (name, spare) in seeds {
        let mut slot = vec![0; PAGE_DATA_BYTES + PAGE_SPARE_BYTES];
        spare.encode(&mut slot, 7);
        replay::assert_seed("page_spare", name, &slot[PAGE_DATA_BYTES..]);
    }
    let version_1 = page_version1::PageSpare {
        kind: PageKind::Log,
        page: 5,
        first: 16,
        used: 4_000,
        order: (1 << 40) + 77,
        open_sequence: Sequence(1),
        durable_sequence: Sequence(2),
        durable_order: 6,
        continues: 3,
        context: 4,
    };
    let mut slot = vec![0; PAGE_DATA_BYTES + PAGE_SPARE_BYTES];
    version_1.encode(&mut slot);
    replay::assert_seed("page_spare", "log_of_version_1", &slot[PAGE_DATA_BYTES..]);
}
