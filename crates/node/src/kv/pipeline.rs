//! Executes many commands on a device in this process and blocks until all have completed.
//!
//! Input: commands. Output: their completions, in the same order. Invariant: no command is in flight on return, unless
//! the wait fails.

use headwater_frontend::core_device::{CoreDevice, wait_for};
use headwater_host::clock::Clock;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{FrontEndId, NamespaceId, SsdCommand, SsdCompletion, SubmitError};

/// Number of this process as a front end of its own device.
const FRONT_END: FrontEndId = FrontEndId(0);

/// The error of commands that could not be executed.
#[derive(Debug, thiserror::Error)]
pub enum PipelineError {
    /// The device refused a command that can never succeed.
    #[error("the device refused the command: {0}")]
    Refused(Status),
    /// The system refused to wait.
    #[error("cannot wait for the medium: {0}")]
    Wait(#[from] std::io::Error),
}

/// Executes commands of one namespace, pipelined.
///
/// # Errors
/// [`PipelineError`] when a command can never succeed, or the wait fails. Commands submitted before it may have been
/// executed.
pub fn execute_all<D: CoreDevice>(
    device: &mut D,
    clock: &Clock,
    namespace: NamespaceId,
    commands: impl Iterator<Item = SsdCommand>,
) -> Result<Vec<SsdCompletion>, PipelineError> {
    let mut done: Vec<Option<SsdCompletion>> = Vec::new();
    let mut left = 0usize;
    let mut refusal = None;
    'commands: for (index, command) in commands.enumerate() {
        let token = index as u64;
        loop {
            // The bytes of a command are shared, so the clone, needed if the device is busy, costs little.
            match device.submit(FRONT_END, namespace, token, command.clone()) {
                Ok(()) => break,
                Err(SubmitError::Refused(status)) => {
                    refusal = Some(status);
                    break 'commands;
                }
                Err(SubmitError::Busy(_)) => left -= collect(device, clock, &mut done)?,
            }
        }
        done.push(None);
        left += 1;
    }
    while left > 0 {
        left -= collect(device, clock, &mut done)?;
    }
    match refusal {
        Some(status) => Err(PipelineError::Refused(status)),
        None => Ok(done.into_iter().flatten().collect()),
    }
}

/// Polls the device and collects completions. Waits if there was no progress. Returns the number of completions.
fn collect<D: CoreDevice>(
    device: &mut D,
    clock: &Clock,
    done: &mut [Option<SsdCompletion>],
) -> Result<usize, PipelineError> {
    let (now, wall) = (clock.now(), clock.wall());
    let moved = device.poll(now, wall);
    let mut count = 0;
    while let Some(completion) = device.next_completion(FRONT_END) {
        let slot = usize::try_from(completion.token).ok().and_then(|index| done.get_mut(index));
        if let Some(slot) = slot {
            *slot = Some(completion);
            count += 1;
        }
    }
    if count == 0 && !moved {
        wait_for(device, now, wall)?;
    }
    Ok(count)
}
