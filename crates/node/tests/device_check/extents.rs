//! Damage to a long value: the check names its key by the place of the record, and the damaged page; the key is answered with
//! an error, and no other one is.

use crate::directory::{FlashBytes, StoppedDirectory, headwater};
use crate::faults::agreed;
use crate::host::{LONG_KEYS, long_page};
use headwater_ssd::media::PAGE_DATA_BYTES;
use serde_json::Value;
use std::ops::Range;

/// Place of the key in a record (`docs/formats/medium-2.md`).
const KEY_AT: usize = 48;

/// Asserts that the report names one record, that of this key, and this page among the damaged ones.
fn assert_names(file: &FlashBytes, report: &Value, key: &str, slot: &Range<usize>) {
    let page = file.page_at(slot.start);
    assert_eq!((&report["faults"], &report["effect"]), (&1.into(), &"errors".into()), "{report:#}");
    let found = &report["first_faults"][0];
    assert_eq!((&found["fault"], &found["namespace"]), (&"damaged".into(), &1.into()), "{report:#}");
    let number = |name: &str| found[name].as_u64().unwrap();
    let start = usize::try_from(number("offset")).unwrap() + KEY_AT;
    let named = file.block_data(u32::try_from(number("block")).unwrap(), start..start + key.len());
    assert_eq!(String::from_utf8_lossy(&named), key, "{report:#}");
    let damaged = &report["first_damaged_pages"][0];
    let place = (damaged["block"].as_u64().unwrap(), damaged["page"].as_u64().unwrap());
    assert_eq!(place, (u64::from(page.block.0), u64::from(page.page)), "{report:#}");
    assert_eq!(report["damaged_pages"], 1, "{report:#}");
}

/// Changes a long value at a place of the page that holds a text, and checks the report.
fn damage(key: &str, text: &str, what: &str, rot: impl Fn(&mut [u8])) {
    let stopped = StoppedDirectory::with_long_values();
    let mut slot = 0..0;
    stopped.change(|file| {
        slot = file.slot(file.text(text));
        rot(&mut file.bytes[slot.clone()]);
    });
    let (report, answers) = agreed(&stopped, &format!("{what} of the page with {text}"));
    assert_eq!(answers.errors, 1, "{answers:?} {report:#}");
    let table = headwater(&["device", "check", stopped.data().to_str().unwrap()]);
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    let found = &report["first_faults"][0];
    let record = format!(
        "a damaged record: namespace 1 hash {} at block {} page {} byte {}",
        found["hash"].as_str().unwrap(),
        found["block"],
        found["page"],
        found["offset"]
    );
    // The key is in the file, at the place that the check names.
    let whole = StoppedDirectory::with_long_values();
    whole.change(|file| {
        let page = file.page_at(slot.start);
        let line = format!("a damaged page: block {} page {}", page.block.0, page.page);
        assert!(table.contains(&record) && table.contains(&line), "{what}: {table}");
        assert_names(file, &report, key, &slot);
    });
    assert!(!table.contains(key), "the check prints a key: {table}");
}

#[test]
fn damaged_page_of_an_extent_is_named_with_the_record_of_its_key() {
    for (key, number) in [(LONG_KEYS[0], 0), (LONG_KEYS[0], 70), (LONG_KEYS[1], 127)] {
        let text = long_page(key, number);
        damage(key, &text, "bit", |slot| slot[PAGE_DATA_BYTES - 1] ^= 4);
        damage(key, &text, "bit in the spare", |slot| slot[PAGE_DATA_BYTES + 24] ^= 4);
        damage(key, &text, "zeroes", |slot| slot.fill(0));
    }
}

#[test]
fn damaged_rest_of_a_long_value_is_named_with_its_record() {
    for key in LONG_KEYS {
        // The page behind the extents, in the record.
        damage(key, &long_page(key, 128), "bit", |slot| slot[PAGE_DATA_BYTES - 1] ^= 4);
    }
}
