//! The repository's own checks: what rustfmt, clippy and rustdoc cannot see.
//!
//! Input: the files of the checkout. Output: one line for every broken rule, `path:line: what, why, what to do`, and exit
//! status 1 if there was any; with `--report` counts instead. Nothing is changed on disk. It needs only the standard
//! library, so it runs on a fresh machine before any dependency is compiled.
#![forbid(unsafe_code)]

mod checks;
mod imports;
mod report;
mod rust_text;
mod tree;
mod violation;

use std::path::Path;
use std::process::ExitCode;
use tree::Tree;

const HELP: &str = "cargo xtask VERB\n\n  tidy            check the house rules that no compiler checks (STYLE.md names them)\n  tidy --report   print the counts behind them, a `name value` a line\n";

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
    if std::env::args().nth(2).as_deref() == Some("--report") {
        println!("{}", report::report(&tree, &root));
        return ExitCode::SUCCESS;
    }
    let violations = checks::all(&tree);
    for violation in &violations {
        println!("{violation}");
    }
    if violations.is_empty() {
        println!("tidy: {} files, no rule is broken", tree.len());
        return ExitCode::SUCCESS;
    }
    println!("tidy: {} rules are broken", violations.len());
    ExitCode::FAILURE
}
