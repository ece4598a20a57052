//! `headwater doctor`: prints the findings as a table or JSON.
//!
//! Input: arguments. Output: findings on standard output; exit code 1 when one of them is a problem.

use super::failure::{CommandFailure, answer_json, answer_line};
use crate::doctor::memory::MemoryReport;
use crate::doctor::{Verdict, examine};
use clap::Args;
use std::path::PathBuf;

/// Arguments of `headwater doctor`.
#[derive(Debug, Args)]
#[command(after_help = "\
active: available and used. stand-in: not available, a slower substitute is used. note: for information. PROBLEM: an
invalid setting, or a fault that keeps a node from working. Nothing is changed and nothing needs root.")]
pub struct DoctorArgs {
    /// Data directory to examine
    #[arg(long, value_name = "DIR", default_value = "data")]
    data: PathBuf,
    /// Show the cost of pinning memory and of copying it on this machine, and which sizes go to which tier
    #[arg(long)]
    memory: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `headwater doctor`.
///
/// # Errors
/// When a finding is a problem for a node.
pub fn run(args: &DoctorArgs) -> Result<(), CommandFailure> {
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
        return Err(CommandFailure::answered());
    }
    Ok(())
}
