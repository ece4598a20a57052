//! Many commands to a device in this process, for callers that have nothing else to do meanwhile.
//!
//! In: commands. Out: their completions, in the same order. Invariant: it ends when the last of them has completed, so
//! nothing of it is in flight afterwards.

use headwater_frontend::core_device::{CoreDevice, wait_for};
use headwater_host::clock::Clock;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{Command, Completion, FaceId, NamespaceId, SubmitError};

/// How this process is known to its own device.
const FACE: FaceId = FaceId(0);

/// Why commands could not be carried out.
#[derive(Debug, thiserror::Error)]
pub enum PipelineError {
    /// The device refused a command for good.
    #[error("the device refused the command: {0}")]
    Refused(Status),
    /// The system refused to wait.
    #[error("cannot wait for the medium: {0}")]
    Wait(#[from] std::io::Error),
}

/// Carries out commands of one namespace together.
///
/// # Errors
/// [`PipelineError`] when a command can never work. What was submitted before it may have been carried out.
pub fn carry_out<D: CoreDevice>(
    device: &mut D,
    clock: &Clock,
    namespace: NamespaceId,
    commands: impl Iterator<Item = Command>,
) -> Result<Vec<Completion>, PipelineError> {
    let mut done: Vec<Option<Completion>> = Vec::new();
    let mut left = 0usize;
    let mut refusal = None;
    'commands: for (index, command) in commands.enumerate() {
        let token = u64::try_from(index).unwrap_or(u64::MAX);
        loop {
            // The bytes of a command are shared, so a copy for the case that the device is busy costs little.
            match device.submit(FACE, namespace, token, command.clone()) {
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

/// Lets the device work and takes what has completed; waits when nothing moves.
fn collect<D: CoreDevice>(
    device: &mut D,
    clock: &Clock,
    done: &mut [Option<Completion>],
) -> Result<usize, PipelineError> {
    let (now, wall) = (clock.now(), clock.wall());
    let moved = device.poll(now, wall);
    let mut count = 0;
    while let Some(completion) = device.next_completion(FACE) {
        let place = usize::try_from(completion.token).ok().and_then(|index| done.get_mut(index));
        if let Some(place) = place {
            *place = Some(completion);
            count += 1;
        }
    }
    if count == 0 && !moved {
        wait_for(device, now, wall)?;
    }
    Ok(count)
}
