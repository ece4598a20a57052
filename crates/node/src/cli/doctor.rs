//! `headwater doctor`: prints the findings as a table or JSON.
//!
//! Input: arguments. Output: findings on standard output; exit code 1 when one of them is a problem.

use super::failure::{CommandFailure, write_json, write_line};
use crate::doctor::memory::MemoryReport;
use crate::doctor::mover::MoverReport;
use crate::doctor::{FindingVerdict, examine};
use clap::Args;
use headwater_dma::mover::StreamingBorder;
use headwater_host::calibration::Calibration;
use headwater_host::clock::Clock;
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
    /// Show how fast the CPU and a software channel copy on this machine, and the channels that the mover would use
    #[arg(long, conflicts_with = "memory")]
    mover: bool,
    /// With --mover: show what a mover with N threads chooses, beside the DSA work queues and GPUs that it can open
    #[arg(long, value_name = "N", default_value_t = 0, requires = "mover", value_parser = clap::value_parser!(u8).range(..=16))]
    mover_threads: u8,
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
        let report = MemoryReport::measure();
        if args.json {
            write_json(&report)?;
        } else {
            write_line(&report.to_string())?;
        }
        report.findings
    } else if args.mover {
        // Measured once for a machine, as the node does it, before anything else works.
        let calibration = Calibration::load_or_measure(&Clock::start());
        let border = StreamingBorder::from_bytes(calibration.streaming_copy_from_bytes);
        let report = MoverReport::measure(args.mover_threads, border);
        if args.json {
            write_json(&report)?;
        } else {
            write_line(&report.to_string())?;
        }
        report.findings
    } else {
        let findings = examine(&args.data);
        if args.json {
            write_json(&findings)?;
        } else {
            for finding in &findings {
                write_line(&finding.to_string())?;
            }
        }
        findings
    };
    if findings.iter().any(|finding| finding.verdict == FindingVerdict::Problem) {
        return Err(CommandFailure::negative_result());
    }
    Ok(())
}
