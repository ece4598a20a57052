//! The real device with a mover whose channels are models: jobs that move values are in flight while the power is cut.
//!
//! Input: what every device of a world gets. Output: the same. Invariant: channels, their faults and their times are drawn from
//! the world's own seed and the time of the boot; jobs end by the time of the world, and by that of the looks at them, so that a
//! device that only looks goes on.

use super::{BootTime, DeviceActivity, SimulatedDevice};
use crate::media::SimMedia;
use crate::move_model::machine::AffineTime;
use crate::move_model::policy_run::channel_traits;
use crate::move_model::{
    BandwidthSharing, ChannelFaults, ChannelModel, JobCosts, ModelledMachine, MoveMachine, TakeBack,
};
use fastrand::Rng;
use headwater_dma::mover::policy::PolicyConfig;
use headwater_dma::mover::{MoveStep, Mover, VirtualTime};
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_ssd::command::{
    NamespaceId, ReceiptStep, SsdCommand, SsdCompletion, SubmitError, ValueReceipt,
};
use headwater_ssd::engine::{DeviceConfig, SsdDevice};
use headwater_ssd::namespace::Namespace;
use std::io::{self, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The time of a look at the clock of the mover, in nanoseconds.
const LOOK_NS: f64 = 20.0;
/// A factor of the CPU's time by which channels get every job that they have room for.
const ALWAYS: f64 = 1e9;

/// A device whose mover has modelled channels.
#[derive(Debug)]
pub struct MovingDevice {
    device: SsdDevice<SimMedia>,
    /// The time of the world, for the machine.
    now: Arc<AtomicU64>,
}

/// The time of the world, in which the machine works.
#[derive(Debug)]
struct WorldTime {
    machine: ModelledMachine,
    now: Arc<AtomicU64>,
}

impl VirtualTime for WorldTime {
    fn now(&self) -> Nanos {
        self.machine.follow(Nanos(self.now.load(Ordering::Relaxed)), LOOK_NS)
    }

    fn cpu_did(&self, steps: &[MoveStep]) {
        self.machine.cpu_did(steps);
    }

    fn wait(&self) {
        self.machine.wait();
    }
}

/// Draws a mover with one to three channels.
fn draw_mover(rng: &mut Rng, now: &Arc<AtomicU64>) -> Mover {
    let channel = |rng: &mut Rng| {
        let time = ChannelModel::affine(
            [200.0, 2_000.0, 30_000.0][rng.usize(0..3)],
            [1.0, 4.0, 30.0][rng.usize(0..3)],
        );
        ChannelModel { engines: rng.usize(1..=2), depth: [1, 2, 8][rng.usize(0..3)], ..time }
    };
    let model = MoveMachine {
        cpu: AffineTime { fixed_ns: 0.0, bytes_per_ns: [2.0, 10.0][rng.usize(0..2)] },
        submit_ns: 100.0,
        channels: (0..rng.usize(1..=3)).map(|_| channel(rng)).collect(),
        ceiling_bytes_per_ns: 40.0,
        sharing: BandwidthSharing::Proportional,
    };
    let faults = ChannelFaults {
        refused_share: [0.0, 0.0, 0.2, 0.7][rng.usize(0..4)],
        shared_share: [0.0, 0.3][rng.usize(0..2)],
        dies_after: rng.bool().then(|| rng.u64(0..60)),
        takes_back: if rng.bool() { TakeBack::Never } else { TakeBack::BeforeBegin },
    };
    let config = PolicyConfig {
        threshold_bytes: [[1, 16_384][rng.usize(0..2)]; 4],
        part_min_bytes: 4_096,
        busy_cpu_factor: [2.0, ALWAYS, ALWAYS][rng.usize(0..3)],
        ..PolicyConfig::default()
    };
    let costs = JobCosts { noise: 0.3, ..JobCosts::default() };
    let machine = ModelledMachine::new(model.clone(), costs, rng.u64(..));
    let channels = machine.channels(|channel| channel_traits(&model.channels[channel]), faults, rng.u64(..));
    let time = WorldTime { machine, now: Arc::clone(now) };
    Mover::with_virtual_time(channels, config, Box::new(time))
}

impl SimulatedDevice for MovingDevice {
    fn open(media: SimMedia, config: &DeviceConfig, at: BootTime) -> Result<Self, String> {
        let mut device = <SsdDevice<SimMedia> as SimulatedDevice>::open(media, config, at)?;
        let mut rng = Rng::with_seed(config.hash_seed ^ at.now.0 ^ 0x6D6F_7665_7300);
        let now = Arc::new(AtomicU64::new(at.now.0));
        device.set_mover(draw_mover(&mut rng, &now));
        Ok(Self { device, now })
    }

    fn inspect(media: SimMedia, config: &DeviceConfig, at: BootTime) -> Result<(), String> {
        <SsdDevice<SimMedia> as SimulatedDevice>::inspect(media, config, at)
    }

    fn submit(&mut self, namespace: NamespaceId, token: u64, command: SsdCommand) -> Result<(), SubmitError> {
        SimulatedDevice::submit(&mut self.device, namespace, token, command)
    }

    fn begin_receipt(&mut self, namespace: NamespaceId, value_bytes: usize) -> Option<ValueReceipt> {
        SimulatedDevice::begin_receipt(&mut self.device, namespace, value_bytes)
    }

    fn receive(
        &mut self,
        receipt: &ValueReceipt,
        source: &mut dyn FnMut(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
    ) -> io::Result<ReceiptStep> {
        SimulatedDevice::receive(&mut self.device, receipt, source)
    }

    fn poll(&mut self, now: Nanos, wall: UnixMillis) -> bool {
        self.now.store(now.0, Ordering::Relaxed);
        SimulatedDevice::poll(&mut self.device, now, wall)
    }

    fn next_completion(&mut self) -> Option<SsdCompletion> {
        SimulatedDevice::next_completion(&mut self.device)
    }

    fn namespace(&self, namespace: NamespaceId) -> Option<Namespace> {
        SimulatedDevice::namespace(&self.device, namespace)
    }

    fn is_attached(&self, namespace: NamespaceId, controller: u16) -> bool {
        SimulatedDevice::is_attached(&self.device, namespace, controller)
    }

    fn activity(&self) -> DeviceActivity {
        SimulatedDevice::activity(&self.device)
    }

    fn request_maintenance(&mut self) {
        SimulatedDevice::request_maintenance(&mut self.device);
    }

    fn shut_down(&mut self, at: BootTime) -> Option<Nanos> {
        SimulatedDevice::shut_down(&mut self.device, at)
    }

    fn next_deadline(&self) -> Option<Nanos> {
        SimulatedDevice::next_deadline(&self.device)
    }
}
