//! The binary `headwater`: runs the command line and returns its exit code.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    headwater_node::cli::run()
}
