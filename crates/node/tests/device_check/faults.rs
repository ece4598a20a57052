//! One damage for each row of the table of faults (`docs/formats/medium-2.md`) that can be made on a file: the check exits
//! with 1 and names it, and what it says of the keys is what a device answers.

use crate::directory::{FlashBytes, StoppedDirectory};
use crate::host::Answers;
use headwater_host::copy::crc32c;
use headwater_ssd::log::page::PageSpare;
use headwater_ssd::media::{PAGE_DATA_BYTES, PAGE_SPARE_BYTES};
use serde_json::Value;

/// Text of a record in the window, and of one in front of it.
const IN_WINDOW: &str = "<key 0005 version 2>";
const BEFORE_WINDOW: &str = "<key 0050 version 1>";
const DISK_SECTOR: usize = 4_096;

/// Checks a damaged directory, and asserts that a device answers as the check says: never wrongly, with as many errors, and
/// with none if the damage is called harmless. Returns the report and the answers.
pub(crate) fn agreed(stopped: &StoppedDirectory, what: &str) -> (Value, Answers) {
    let (code, report) = stopped.check();
    let what = format!("{what}: {report:#}");
    assert_eq!(code, Some(1), "{what}");
    assert_eq!(report["is_whole"], false, "{what}");
    let answers = stopped.answers().unwrap_or_else(|refusal| panic!("refused: {refusal}; {what}"));
    assert_eq!(answers.wrong, 0, "{answers:?} {what}");
    let number = |name: &str| report[name].as_u64().unwrap();
    let counted = report["namespaces"][0]["counted"].as_u64().unwrap();
    let named = number("faults") + number("doubtful_records");
    if report["namespaces_in_doubt"].as_array().unwrap().is_empty() {
        assert_eq!(answers.errors, named, "{answers:?} {what}");
    } else {
        // A key without a record is answered with an error unless it was removed behind the loss.
        let absent = answers.asked - counted;
        let range = named + 1..=named + absent;
        assert!(range.contains(&answers.errors), "{answers:?} not in {range:?} {what}");
    }
    let effect = if answers.errors > 0 { "errors" } else { "fewer_copies" };
    assert_eq!(report["effect"], effect, "{answers:?} {what}");
    (report, answers)
}

/// Asserts that the check is refused with the words with which a start is.
fn assert_refused(stopped: &StoppedDirectory, what: &str, words: &str) {
    let output = stopped.run_check();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{what}: {complaint}");
    assert!(complaint.contains(words), "{what}: {complaint}");
    let refusal = stopped.answers().unwrap_err();
    assert!(complaint.contains(&refusal), "{what}: the check says {complaint}, a start {refusal}");
}

/// A damage of some bytes.
type Rot = fn(&mut [u8]);

/// Returns the three ways in which the bytes of one place rot.
fn rots() -> [(&'static str, Rot); 3] {
    [("bit", |bytes| bytes[100] ^= 4), ("zeroes", |bytes| bytes.fill(0)), ("ones", |bytes| bytes.fill(0xFF))]
}

#[test]
fn damaged_superblock_copy_is_harmless_and_named() {
    for copy in 0..4 {
        for (kind, rot) in rots() {
            let stopped = StoppedDirectory::killed();
            stopped.change(|file| {
                let range = file.superblock(copy);
                rot(&mut file.bytes[range]);
            });
            let (report, _) = agreed(&stopped, &format!("{kind} in copy {copy}"));
            let named = report["damaged_superblocks"][0].as_str().unwrap();
            assert!(named.starts_with(&format!("copy {copy} ")), "{named}");
        }
    }
}

#[test]
fn damaged_cell_is_harmless_and_counted() {
    for cell in [0, 1, 31, 32, 63] {
        let stopped = StoppedDirectory::killed();
        stopped.change(|file| {
            let range = file.cell(cell);
            file.bytes[range][200] ^= 1;
        });
        let (report, _) = agreed(&stopped, &format!("cell {cell}"));
        assert_eq!((&report["damaged_cells"], &report["stale_cells"]), (&1.into(), &0.into()), "{report}");
    }
}

#[test]
fn cells_of_one_side_that_are_lost_or_stale_are_harmless_and_counted() {
    for side in [0..32, 32..64] {
        for is_lost in [true, false] {
            let stopped = StoppedDirectory::killed();
            let earlier = stopped.earlier().to_vec();
            stopped.change(|file| {
                for cell in side.clone() {
                    let range = file.cell(cell);
                    let bytes = &mut file.bytes[range.clone()];
                    if is_lost { bytes.fill(0) } else { bytes.copy_from_slice(&earlier[range]) }
                }
            });
            let (report, _) = agreed(&stopped, &format!("cells {side:?}, lost: {is_lost}"));
            assert!(report["stale_cells"].as_u64().unwrap() >= 20, "{report}");
        }
    }
}

#[test]
fn damaged_page_of_the_window_puts_keys_in_doubt() {
    for (kind, rot) in rots() {
        let stopped = StoppedDirectory::killed();
        stopped.change(|file| {
            let slot = file.slot(file.text(IN_WINDOW));
            rot(&mut file.bytes[slot]);
        });
        let (report, answers) = agreed(&stopped, kind);
        assert_eq!((&report["lost_log_pages"], &report["damaged_pages"]), (&1.into(), &1.into()), "{report}");
        assert_eq!(report["namespaces_in_doubt"][0]["namespace"], 1, "{report}");
        assert!(answers.errors > 1, "{answers:?}");
    }
}

#[test]
fn damaged_page_before_the_window_costs_only_its_own_keys() {
    for (kind, rot) in rots() {
        let stopped = StoppedDirectory::killed();
        stopped.change(|file| {
            let slot = file.slot(file.text(BEFORE_WINDOW));
            rot(&mut file.bytes[slot]);
        });
        let (report, answers) = agreed(&stopped, kind);
        assert_eq!((&report["lost_log_pages"], &report["damaged_pages"]), (&0.into(), &1.into()), "{report}");
        assert_eq!((&report["faults"], answers.errors), (&1.into(), 1), "{report}");
    }
}

#[test]
fn damaged_removal_before_the_window_is_harmless_and_named() {
    let stopped = StoppedDirectory::killed();
    stopped.change(|file| {
        let slot = file.slot(file.text("key-0125"));
        file.bytes[slot][100] ^= 1;
    });
    let (report, _) = agreed(&stopped, "removal");
    assert_eq!(report["damaged_pages"], 1, "{report}");
}

#[test]
fn damaged_or_lost_removal_in_the_window_never_shows_the_removed_value() {
    for (kind, rot) in rots() {
        let stopped = StoppedDirectory::killed();
        stopped.change(|file| {
            let slot = file.slot(file.text("key-0105"));
            assert_ne!(slot, file.slot(file.text("<key 0105 version 1>")));
            rot(&mut file.bytes[slot]);
        });
        let (report, _) = agreed(&stopped, kind);
        assert_eq!(report["lost_log_pages"], 1, "{report}");
    }
}

#[test]
fn sector_that_two_pages_share_loses_both() {
    let stopped = StoppedDirectory::killed();
    stopped.change(|file| {
        let slot = file.slot(file.text("<key 0006 version 2>"));
        let sector = slot.end / DISK_SECTOR * DISK_SECTOR;
        assert!(sector < slot.end && slot.end < sector + DISK_SECTOR, "the slots share no sector");
        file.bytes[sector..sector + DISK_SECTOR].fill(0xFF);
    });
    let (report, _) = agreed(&stopped, "sector");
    let damaged = (report["damaged_pages"].as_u64().unwrap(), report["lost_log_pages"].as_u64().unwrap());
    assert_eq!(damaged, (2, 1), "the second page is a guard: {report}");
}

#[test]
fn lost_write_and_stale_region_are_missed() {
    for whole_block in [false, true] {
        let stopped = StoppedDirectory::killed();
        let earlier = stopped.earlier().to_vec();
        stopped.change(|file| {
            let mut range = file.slot(file.text(IN_WINDOW));
            if whole_block {
                range.end += 20 * range.len();
            }
            file.bytes[range.clone()].copy_from_slice(&earlier[range]);
        });
        let (report, _) = agreed(&stopped, &format!("stale, whole block: {whole_block}"));
        assert!(report["lost_log_pages"].as_u64().unwrap() >= if whole_block { 5 } else { 1 }, "{report}");
    }
}

#[test]
fn misdirected_write_and_swapped_pages_are_noticed_in_both_places() {
    for is_swap in [false, true] {
        let stopped = StoppedDirectory::killed();
        stopped.change(|file| {
            let (from, to) = (file.slot(file.text(IN_WINDOW)), file.slot(file.text("<key 0008 version 2>")));
            let [moved, other] = [from.clone(), to.clone()].map(|slot| file.bytes[slot].to_vec());
            file.bytes[to].copy_from_slice(&moved);
            if is_swap {
                file.bytes[from].copy_from_slice(&other);
            } else {
                file.bytes[from].fill(0);
            }
        });
        let (report, _) = agreed(&stopped, &format!("swap: {is_swap}"));
        assert_eq!(report["lost_log_pages"], 2, "{report}");
    }
}

fn rot_checkpoint_page(file: &mut FlashBytes, number: u32) {
    let slots = file.checkpoint_pages(number);
    assert!(!slots.is_empty(), "no page of a checkpoint has the number {number}");
    slots.into_iter().for_each(|slot| file.bytes[slot][100] ^= 1);
}

/// Returns the numbers of the pages with which the copies of the map begin.
fn map_pages(file: &FlashBytes) -> Vec<u32> {
    let heads = file.texts("HWCK").into_iter().map(|at| file.slot(at).start + PAGE_DATA_BYTES + 80);
    heads.map(|at| u32::from_le_bytes(file.bytes[at..at + 4].try_into().unwrap())).collect()
}

#[test]
fn damaged_page_of_one_map_or_of_the_index_is_harmless_and_named() {
    for part in ["first_map", "second_map", "index"] {
        let stopped = StoppedDirectory::killed();
        stopped.change(|file| {
            let mut maps = map_pages(file);
            maps.sort_unstable();
            assert_eq!((maps.len(), maps[0]), (2, 0), "{maps:?}");
            let number = match part {
                "first_map" => 0,
                "second_map" => maps[1],
                _ => maps[1] + 1,
            };
            rot_checkpoint_page(file, number);
        });
        let (report, _) = agreed(&stopped, part);
        assert_eq!(report["damaged_checkpoint_pages"][part], 1, "{part}: {report}");
        assert_eq!(report["checkpoint"], if part == "index" { "damaged" } else { "whole" }, "{report}");
    }
}

#[test]
fn medium_that_proves_too_little_is_refused_by_check_and_start_alike() {
    type Damage = fn(&mut FlashBytes);
    let damages: [(&str, &str, Damage); 5] = [
        ("both maps", "in neither copy of its map", |file| {
            for number in map_pages(file) {
                rot_checkpoint_page(file, number);
            }
        }),
        ("all cells", "no commit cell holds an intact record", |file| {
            (0..64).for_each(|cell| {
                let range = file.cell(cell);
                file.bytes[range].fill(0);
            });
        }),
        ("three superblocks", "the superblock of ", |file| {
            (0..3).for_each(|copy| {
                let range = file.superblock(copy);
                file.bytes[range].fill(0);
            });
        }),
        ("shorter file", " instead of ", |file| file.bytes.truncate(file.bytes.len() - DISK_SECTOR)),
        ("longer file", " instead of ", |file| file.bytes.extend([0; DISK_SECTOR])),
    ];
    for (what, words, damage) in damages {
        let stopped = StoppedDirectory::killed();
        stopped.change(damage);
        assert_refused(&stopped, what, words);
    }
}

#[test]
fn torn_last_commit_is_no_damage_and_is_mentioned() {
    let stopped = StoppedDirectory::killed_at_once();
    stopped.change(|file| {
        let slot = file.slot(file.text("<key 0209 version 1>"));
        file.bytes[slot].fill(0);
    });
    let (code, report) = stopped.check();
    assert_eq!((code, &report["last_commit_discarded"]), (Some(0), &true.into()), "{report}");
    // It was acknowledged: the table of faults says that nothing notices this one.
    assert_eq!(
        stopped.answers().unwrap(),
        Answers { errors: 0, wrong: 1, asked: stopped.model().len() as u64 + 5 }
    );
}

#[test]
fn record_that_was_damaged_before_it_was_written_is_counted_a_removal_too() {
    for text in [IN_WINDOW, "key-0105", BEFORE_WINDOW, "key-0125"] {
        let stopped = StoppedDirectory::killed();
        stopped.change(|file| {
            let at = file.text(text);
            let slot = file.slot(at);
            file.bytes[at] ^= 1;
            let page = &mut file.bytes[slot][..PAGE_DATA_BYTES + PAGE_SPARE_BYTES];
            PageSpare::set_checksums(page, crc32c(0, &[7; 16]));
        });
        let (code, report) = stopped.check();
        assert_eq!(code, Some(1), "{text}: {report}");
        assert_eq!(report["damaged_records"], 1, "{text}: {report}");
        assert_ne!(report["effect"], "fewer_copies", "{text}: {report}");
    }
}
