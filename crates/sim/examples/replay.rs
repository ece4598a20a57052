//! Replays one seed and prints every event: `cargo run -p headwater-sim --example replay -- SEED`.

use headwater_sim::replay::replay;
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut out = std::io::stdout().lock();
    let Some(seed) = std::env::args().nth(1).and_then(|text| text.parse().ok()) else {
        let _ = writeln!(out, "usage: replay SEED");
        return ExitCode::FAILURE;
    };
    let mut lines = |line: &str| drop(writeln!(out, "{line}"));
    match replay(seed, Some(&mut lines)) {
        Ok(report) => {
            lines(&format!("{report:?}"));
            ExitCode::SUCCESS
        }
        Err(failure) => {
            lines(&failure.to_string());
            ExitCode::FAILURE
        }
    }
}
