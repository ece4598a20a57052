//! The binary `headwater`: hands its arguments to the command line and its verdict to the shell.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    headwater_node::cli::run()
}
