//! The channels of a mover that C opens: threads, work queues of DSA devices, and GPUs.
//!
//! Input: a number of threads, names of work queues, a number of GPUs. Output: channels. Invariant: a mover that was told to use
//! a work queue or a GPU has it, or is not opened.

use crate::move_error::MoveCallError;
use headwater_dma::mover::policy::CHANNELS_MAX;
use headwater_dma::mover::{DsaChannel, DsaConfig, GpuChannel, GpuConfig, MoveChannel, SoftwareChannel};
use headwater_host::clock::{Clock, Nanos};
use headwater_host::dsa::{
    DsaInstructions, DsaOpcodeSet, DsaRoots, NoFaults, PortalKind, SoftwarePortal, WorkQueueInfo,
    WorkQueueMode, discover,
};
use headwater_host::gpu::{GpuDriver, HostRegistrations, OpenGpuError};
use std::path::Path;

/// The portal that stands for a work queue in programs that test without a device.
const SOFTWARE_QUEUE: PortalKind = PortalKind {
    mode: WorkQueueMode::Shared,
    size: 16,
    transfer_bytes_max: 2 << 20,
    batch_max: 32,
    opcodes: DsaOpcodeSet::ALL,
};

/// The work queues that a mover uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WorkQueueChoice {
    /// Every queue that this process may use.
    all: bool,
    /// The queues of these names, each of which must be usable.
    named: Vec<String>,
    /// The number of software portals.
    software: usize,
}

impl WorkQueueChoice {
    /// Reads "all", "software" and names as "wq0.1", with commas between them.
    pub(crate) fn parse(text: &str) -> Result<Self, MoveCallError> {
        let mut choice = Self::default();
        for name in text.split(',') {
            match name {
                "all" => choice.all = true,
                "software" => choice.software += 1,
                name if is_queue_name(name) && !choice.named.iter().any(|named| named == name) => {
                    choice.named.push(name.to_owned());
                }
                _ => return Err(MoveCallError::QueueNames(format!("{text:?}"))),
            }
        }
        Ok(choice)
    }

    /// Returns true if the choice names no queue.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

fn is_queue_name(name: &str) -> bool {
    let numbers = name.strip_prefix("wq").and_then(|numbers| numbers.split_once('.'));
    numbers.is_some_and(|(device, queue)| device.parse::<u32>().is_ok() && queue.parse::<u32>().is_ok())
}

/// Opens the channels of a mover: `threads` threads that poll for `spin` before they sleep, and the work queues of devices
/// in the folders of `roots`.
pub(crate) fn open_channels(
    (threads, spin): (usize, Nanos),
    queues: &WorkQueueChoice,
    roots: &DsaRoots,
    clock: Clock,
) -> Result<Vec<Box<dyn MoveChannel>>, MoveCallError> {
    let asked = threads.saturating_add(queues.software).saturating_add(queues.named.len());
    if asked > CHANNELS_MAX {
        return Err(MoveCallError::TooManyChannels { asked, most: CHANNELS_MAX });
    }
    let mut channels: Vec<Box<dyn MoveChannel>> = Vec::new();
    for _ in 0..threads {
        channels.push(Box::new(SoftwareChannel::start(clock, spin)?));
    }
    for _ in 0..queues.software {
        let portal = SoftwarePortal::start(SOFTWARE_QUEUE, NoFaults)
            .map_err(headwater_dma::mover::ChannelStartError::Thread)?;
        let channel = DsaChannel::software(portal, DsaConfig::default());
        channels.push(Box::new(channel.map_err(|error| MoveCallError::WorkQueue(error.to_string()))?));
    }
    if queues.all || !queues.named.is_empty() {
        open_work_queues(queues, roots, &mut channels)?;
    }
    Ok(channels)
}

/// Opens a channel to each of the first `count` GPUs of a driver. Returns the memory that they can reach; `None` for no GPUs.
pub(crate) fn open_gpus(
    count: usize,
    library: &Path,
    channels: &mut Vec<Box<dyn MoveChannel>>,
) -> Result<Option<HostRegistrations>, MoveCallError> {
    let asked = channels.len().saturating_add(count);
    if asked > CHANNELS_MAX {
        return Err(MoveCallError::TooManyChannels { asked, most: CHANNELS_MAX });
    }
    if count == 0 {
        return Ok(None);
    }
    let driver = GpuDriver::open(library)?;
    if count > driver.gpus().len() {
        return Err(OpenGpuError::NoSuchGpu { asked: count - 1, found: driver.gpus().len() }.into());
    }
    let registrations = HostRegistrations::open(&driver)?;
    for gpu in 0..count {
        let channel = GpuChannel::open(&driver, gpu, registrations.clone(), GpuConfig::default());
        channels.push(Box::new(channel.map_err(|error| MoveCallError::Gpu(error.to_string()))?));
    }
    Ok(Some(registrations))
}

/// Opens the named queues, and as many of all as a mover has channels.
fn open_work_queues(
    queues: &WorkQueueChoice,
    roots: &DsaRoots,
    channels: &mut Vec<Box<dyn MoveChannel>>,
) -> Result<(), MoveCallError> {
    let found = discover(roots).map_err(|error| MoveCallError::WorkQueue(error.to_string()))?;
    let instructions = DsaInstructions::detect();
    let open = |queue: &WorkQueueInfo| {
        DsaChannel::open(queue, instructions, DsaConfig::default())
            .map_err(|error| format!("work queue {}: {error}", queue.id))
    };
    for name in &queues.named {
        let queue = found.iter().find(|queue| queue.id.to_string() == *name);
        let queue = queue.ok_or_else(|| {
            MoveCallError::WorkQueue(format!(
                "work queue {name} is not an enabled queue of type user: see `headwater doctor --mover`"
            ))
        })?;
        channels.push(Box::new(open(queue).map_err(MoveCallError::WorkQueue)?));
    }
    if !queues.all {
        return Ok(());
    }
    let (mut opened, mut reasons) = (0, Vec::new());
    let rest = found.iter().filter(|queue| !queues.named.contains(&queue.id.to_string()));
    for queue in rest.take(CHANNELS_MAX - channels.len()) {
        match open(queue) {
            Ok(channel) => {
                opened += 1;
                channels.push(Box::new(channel));
            }
            Err(reason) => reasons.push(reason),
        }
    }
    if opened == 0 && queues.named.is_empty() {
        let reasons = reasons.join("; ");
        return Err(MoveCallError::WorkQueue(format!("no work queue can be used: {reasons}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_testkit::software_gpu::SoftwareGpu;
    use headwater_testkit::work_queue_folders::make_work_queue;

    #[test]
    fn gpus_are_channels_up_to_those_of_the_driver_and_the_most_of_a_mover() {
        let library = SoftwareGpu::with_faults("devices 2");
        let open = |count| {
            let mut channels = Vec::new();
            open_gpus(count, &library.library(), &mut channels)
                .map(|registrations| (channels.len(), registrations.is_some()))
        };
        assert_eq!(open(0).unwrap(), (0, false));
        assert_eq!(open(2).unwrap(), (2, true));
        let few = open(3).unwrap_err();
        assert!(few.to_string().contains("there is no GPU 2: the driver knows 2"), "{few}");
        for many in [CHANNELS_MAX + 1, usize::MAX] {
            assert!(matches!(open(many), Err(MoveCallError::TooManyChannels { .. })), "{many}");
        }
        let missing = open_gpus(1, Path::new("/nowhere/libcuda.so.1"), &mut Vec::new()).unwrap_err();
        assert!(missing.to_string().contains("install the driver"), "{missing}");
        let broken = SoftwareGpu::with_faults("fail cuStreamCreate 2 2");
        let error = open_gpus(1, &broken.library(), &mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("CUDA_ERROR_OUT_OF_MEMORY"), "{error}");
        assert_eq!(broken.misuses(), [""; 0]);
    }

    #[test]
    fn names_of_work_queues_are_read_and_everything_else_is_refused() {
        let choice = WorkQueueChoice::parse("wq0.1,software,wq12.0,all,software").unwrap();
        let named = vec!["wq0.1".to_owned(), "wq12.0".to_owned()];
        assert_eq!(choice, WorkQueueChoice { all: true, named, software: 2 });
        assert!(!choice.is_empty() && WorkQueueChoice::default().is_empty());
        for text in
            ["", "wq", "wq0", "wq0.", "wq.0", "wq0.0,", "wq0.0 ,all", "ALL", "wq0.0,wq0.0", "dsa0/wq0.0"]
        {
            let refused = WorkQueueChoice::parse(text);
            assert!(matches!(refused, Err(MoveCallError::QueueNames(_))), "{text:?}");
        }
    }

    fn refused(text: &str, roots: &DsaRoots) -> String {
        let choice = WorkQueueChoice::parse(text).unwrap();
        match open_channels((1, Nanos(1)), &choice, roots, Clock::start()) {
            Err(MoveCallError::WorkQueue(reason)) => reason,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn a_queue_that_is_missing_or_cannot_be_used_is_an_error_that_says_what_to_do() {
        let root = tempfile::tempdir().unwrap();
        let roots = DsaRoots::below(root.path());
        for text in ["all", "wq0.0", "software,all"] {
            assert!(refused(text, &roots).contains("modprobe idxd"), "{text}");
        }
        make_work_queue(root.path(), "wq0.0");
        assert!(refused("wq0.1", &roots).contains("work queue wq0.1 is not an enabled queue"));
        // The processor lacks the instruction, or the file is missing.
        assert!(refused("wq0.0", &roots).starts_with("work queue wq0.0: "));
        assert!(refused("all", &roots).starts_with("no work queue can be used: work queue wq0.0: "));
    }

    #[test]
    fn threads_and_software_queues_are_channels_up_to_the_most() {
        let open = |threads, text: &str| {
            let choice = WorkQueueChoice::parse(text).unwrap();
            open_channels((threads, Nanos(1)), &choice, &DsaRoots::default(), Clock::start())
        };
        assert_eq!(open(2, "software,software").unwrap().len(), 4);
        for (threads, text) in
            [(CHANNELS_MAX, "software"), (CHANNELS_MAX - 1, "software,wq0.0"), (usize::MAX, "all")]
        {
            let refused = open(threads, text);
            assert!(matches!(refused, Err(MoveCallError::TooManyChannels { .. })), "{threads} {text}");
        }
    }
}
