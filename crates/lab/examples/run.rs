//! Runs one experiment and prints its table, as `headwater lab run` does, without the daemon program.
//!
//! Input: a name, and `--quick`. Output: the table on standard output.

use headwater_lab::{LabError, RunOptions, render_table, run};

#[expect(clippy::print_stdout, reason = "an example's output is its purpose")]
fn main() -> Result<(), LabError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let name = arguments.iter().find(|argument| !argument.starts_with('-'));
    let options =
        RunOptions { quick: arguments.iter().any(|argument| argument == "--quick"), ..RunOptions::default() };
    let outcome = run(name.map_or("copy", String::as_str), options)?;
    println!("{}", render_table(&outcome));
    Ok(())
}
