//! Runs one experiment and prints its table, as `headwater lab run` does, without the daemon program.
//!
//! Input: a name, `--quick`, and `--json`. Output: the table or the JSON object on standard output.

use headwater_lab::{LabError, RunOptions, render_table, run};

#[expect(clippy::print_stdout, reason = "an example's output is its purpose")]
fn main() -> Result<(), LabError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let name = arguments.iter().find(|argument| !argument.starts_with('-'));
    let options =
        RunOptions { quick: arguments.iter().any(|argument| argument == "--quick"), ..RunOptions::default() };
    let outcome = run(name.map_or("copy", String::as_str), options)?;
    if arguments.iter().any(|argument| argument == "--json") {
        println!("{}", serde_json::to_string_pretty(&outcome).expect("an outcome is JSON"));
    } else {
        println!("{}", render_table(&outcome));
    }
    Ok(())
}
