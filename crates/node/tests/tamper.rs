//! Damages to the flash files of nodes, for a bounded time: no answer may be wrong, and the check must find every error.

use std::process::Command;

#[test]
fn no_damage_of_a_flash_file_is_silent() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_headwater"));
    let output = command.args(["lab", "run", "tamper", "--quick", "--json"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let found: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|error| {
        panic!("{error}: {text}\n{}", String::from_utf8_lossy(&output.stderr));
    });
    let rows = found["rows"].as_array().unwrap();
    let all = rows.iter().find(|row| row["damage"] == "all").expect("the last row counts all damages");
    let count = |column: &str| all[column].as_u64().unwrap();
    // A machine under load makes few; without any the nodes never served.
    assert!(count("made") > 0, "{text}");
    let failures: u64 = ["unseen", "wrong", "crashed", "hung"].into_iter().map(count).sum();
    assert_eq!(failures, 0, "{text}");
}
