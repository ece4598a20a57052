//! `headwater doctor`: the findings as a table or JSON.
//!
//! In: arguments. Out: findings on standard output; exit code 1 when one of them will get in the way.

use super::failure::{Failure, answer_json, answer_line};
use crate::doctor::memory::MemoryReport;
use crate::doctor::{Verdict, examine};
use clap::Args;
use std::path::PathBuf;

/// Arguments of `headwater doctor`.
#[derive(Debug, Args)]
#[command(after_help = "\
active: there and used. stand-in: not there, something slower does its work. note: for information. PROBLEM: will get in
the way. Nothing is changed and nothing needs root.")]
pub struct DoctorArgs {
    /// Data directory to look at
    #[arg(long, value_name = "DIR", default_value = "data")]
    data: PathBuf,
    /// Say what pinning memory costs here beside copying it, and which size goes to which tier
    #[arg(long)]
    memory: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `headwater doctor`.
///
/// # Errors
/// When something will get in the way of a node.
pub fn run(args: &DoctorArgs) -> Result<(), Failure> {
    let findings = if args.memory {
        let report = MemoryReport::make();
        if args.json {
            answer_json(&report)?;
        } else {
            answer_line(&report.to_string())?;
        }
        report.findings
    } else {
        let findings = examine(&args.data);
        if args.json {
            answer_json(&findings)?;
        } else {
            for finding in &findings {
                answer_line(&finding.to_string())?;
            }
        }
        findings
    };
    if findings.iter().any(|finding| finding.verdict == Verdict::Problem) {
        return Err(Failure::answered());
    }
    Ok(())
}
