//! The mover of a node, and its channels.
//!
//! Input: the configuration, and the thresholds of this machine. Output: a mover with a channel for each thread, each work queue
//! of a DSA device and each GPU.
//! Invariant: a node that was told to use work queues starts only if it has one.

use crate::config::NodeConfig;
use crate::daemon::node_gpus::NodeGpus;
use headwater_dma::mover::policy::{CHANNELS_MAX, MoveDirection, PolicyConfig};
use headwater_dma::mover::{
    DsaChannel, DsaConfig, LARGE_JOB_BYTES, MoveChannel, Mover, SoftwareChannel, StreamingBorder,
};
use headwater_host::calibration::Calibration;
use headwater_host::clock::Clock;
use headwater_host::dsa::{DsaInstructions, DsaRoots, NOT_RUN_ON_SILICON, discover};
use std::path::Path;

/// The variable that names another root than `/` for the folders of DSA devices, for tests.
pub const DSA_ROOT_VARIABLE: &str = "HEADWATER_DSA_ROOT";

/// Returns the folders of DSA devices.
#[must_use]
pub fn dsa_roots() -> DsaRoots {
    std::env::var_os(DSA_ROOT_VARIABLE)
        .map_or_else(DsaRoots::default, |root| DsaRoots::below(Path::new(&root)))
}

/// Opens the channels of a mover: threads, work queues if they are wanted, and GPUs.
///
/// # Errors
/// The system has no thread, or no work queue or not every GPU can be used; the text says what to do.
pub(super) fn open_mover(
    config: &NodeConfig,
    gpus: Option<&NodeGpus>,
    clock: Clock,
    calibration: &Calibration,
) -> Result<Mover, String> {
    let spin = calibration.spin_before_sleep;
    let start =
        |_| SoftwareChannel::start(clock, spin).map(|channel| Box::new(channel) as Box<dyn MoveChannel>);
    let channels = (0..config.mover_threads).map(start).collect::<Result<Vec<_>, _>>();
    let mut channels = channels.map_err(|error| error.to_string())?;
    if config.mover_dsa {
        open_work_queues(&mut channels)?;
    }
    if let Some(gpus) = gpus {
        gpus.open_channels(&mut channels)?;
    }
    let policy = policy_config(config.mover_threads, config.mover_dsa, gpus.is_some());
    let border = StreamingBorder::from_bytes(calibration.streaming_copy_from_bytes);
    Ok(Mover::with_channels(channels, policy, clock).with_streaming_border(border))
}

/// Returns the settings of the policy for so many threads, and for work queues and GPUs if there are some.
#[must_use]
pub(crate) fn policy_config(threads: u8, has_work_queues: bool, has_gpus: bool) -> PolicyConfig {
    let start = if threads == 0 && !has_work_queues && has_gpus {
        PolicyConfig::of_gpus()
    } else {
        PolicyConfig::of_channels(threads.into(), has_work_queues)
    };
    PolicyConfig {
        threshold_bytes: [LARGE_JOB_BYTES as u64; MoveDirection::ALL.len()],
        // While a channel moves a job, the core moves the next one.
        busy_cpu_factor: 2.0,
        ..start
    }
}

/// Opens a channel to each work queue that this process may use, as many as a mover has channels. Returns the names of the
/// queues, in the order of their channels.
///
/// # Errors
/// No work queue can be used; the text says why.
pub(crate) fn open_work_queues(channels: &mut Vec<Box<dyn MoveChannel>>) -> Result<Vec<String>, String> {
    let queues = discover(&dsa_roots()).map_err(|error| format!("mover-dsa: {error}"))?;
    let instructions = DsaInstructions::detect();
    let (mut opened, mut reasons) = (Vec::new(), Vec::new());
    for queue in &queues {
        if channels.len() >= CHANNELS_MAX {
            tracing::warn!(queue = %queue.id, "not used: a mover has at most {CHANNELS_MAX} channels");
            continue;
        }
        match DsaChannel::open(queue, instructions, DsaConfig::default()) {
            Ok(channel) => {
                tracing::info!(
                    queue = %queue.id,
                    mode = queue.mode.name(),
                    way = channel.way().name(),
                    "DSA work queue is open; {NOT_RUN_ON_SILICON}"
                );
                opened.push(queue.id.to_string());
                channels.push(Box::new(channel));
            }
            Err(error) => {
                tracing::warn!(queue = %queue.id, "DSA work queue is not used: {error}");
                reasons.push(error.to_string());
            }
        }
    }
    if opened.is_empty() {
        return Err(format!("mover-dsa: no work queue can be used: {}", reasons.join("; ")));
    }
    Ok(opened)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigOverrides;
    use headwater_host::calibration::{CalibrationOrigin, SpinOverride};
    use headwater_host::clock::Nanos;

    #[test]
    fn mover_of_a_node_has_the_calibrated_border() {
        let config = NodeConfig::assemble(None, ConfigOverrides::default()).unwrap();
        for bytes in [12_345, u64::MAX] {
            let calibration = Calibration {
                spin_before_sleep: Nanos::ZERO,
                wake_round_trip: Nanos(1),
                streaming_copy_from_bytes: bytes,
                origin: CalibrationOrigin::Cached,
                spin_override: SpinOverride::Unset,
            };
            let mover = open_mover(&config, None, Clock::start(), &calibration).unwrap();
            assert_eq!(mover.streaming_border(), StreamingBorder::from_bytes(bytes));
        }
    }
}
