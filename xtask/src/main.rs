//! The repository's own checks: what rustfmt, clippy and rustdoc cannot see.
//!
//! In: the files of the checkout. Out: one line for every broken rule, `path:line: what, why, what to do`, and exit
//! status 1 if there was any. Nothing is changed on disk. It needs nothing but the standard library, so it runs on a
//! fresh machine before any dependency has been compiled.
#![forbid(unsafe_code)]

mod checks;
mod tree;
mod violation;

use std::path::Path;
use std::process::ExitCode;
use tree::Tree;

const HELP: &str =
    "cargo xtask VERB\n\n  tidy   check the house rules that no compiler checks (STYLE.md names them)\n";

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool speaks by printing")]
fn main() -> ExitCode {
    let verb = std::env::args().nth(1);
    match verb.as_deref() {
        Some("tidy") => {}
        Some("help" | "--help" | "-h") => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("{HELP}");
            return ExitCode::from(2);
        }
    }
    // The manifest's folder is xtask; the checkout is the one around it.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let tree = match Tree::read(&root) {
        Ok(tree) => tree,
        Err(error) => {
            eprintln!("tidy cannot read the checkout at {}: {error}", root.display());
            return ExitCode::from(2);
        }
    };
    let violations = checks::all(&tree);
    for violation in &violations {
        println!("{violation}");
    }
    if violations.is_empty() {
        println!("tidy: {} files, nothing to say", tree.len());
        return ExitCode::SUCCESS;
    }
    println!("tidy: {} to put right", violations.len());
    ExitCode::FAILURE
}
