//! A node that shares a controller, on a separate thread, and its clients.

use crate::harness::{NAMESPACE, TestExecutor, TestMapper, device, machine};
use headwater_frontend::attach::policy::GrantPolicy;
use headwater_frontend::attach::{AttachFrontEnd, AttachHoldings};
use headwater_frontend::core_device::CoreWork as _;
use headwater_frontend::front_end::FrontEnd as _;
use headwater_frontend::mediated::{LentQueues, MediatedExecutor};
use headwater_host::clock::{Clock, Nanos};
use headwater_host::wake::WakeDescriptor;
use headwater_io::attach::admin::{AdminAnswer, AdminRequest};
use headwater_io::attach::connection::AttachConnection;
use headwater_io::attach::protocol::{AttachReply, AttachRequest};
use headwater_io::attach::{AttachBackend, AttachOptions};
use headwater_io::vfio::VectorSource;
use headwater_io::{Device as Client, IoError};
use headwater_testkit::nvme_machine::SharedMachine;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// The interrupt vectors for lent queues.
const VECTORS: std::ops::Range<u16> = 2..4;

/// A node that shares a controller, on a thread.
pub(crate) struct MediatedHost {
    pub(crate) path: PathBuf,
    pub(crate) machine: SharedMachine,
    stop: Arc<AtomicBool>,
    observed: Arc<Mutex<AttachHoldings>>,
    thread: JoinHandle<()>,
    folder: tempfile::TempDir,
}

pub(crate) fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

impl MediatedHost {
    pub(crate) fn start(policy: GrantPolicy) -> Self {
        Self::start_at(tempfile::tempdir().unwrap(), machine(), policy, Nanos::from_millis(30_000))
    }

    pub(crate) fn start_at(
        folder: tempfile::TempDir,
        machine: SharedMachine,
        policy: GrantPolicy,
        command_timeout: Nanos,
    ) -> Self {
        let path = folder.path().join("attach.sock");
        let (stop, observed) =
            (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(AttachHoldings::default())));
        let lent = LentQueues::new(Box::new(TestVectors(machine.clone())), VECTORS);
        let executor = MediatedExecutor::new(Box::new(TestMapper(machine.clone())), lent).unwrap();
        let mut front_end = AttachFrontEnd::bind(&path, policy, executor).unwrap();
        let thread = {
            let (machine, stop, seen) = (machine.clone(), Arc::clone(&stop), Arc::clone(&observed));
            std::thread::spawn(move || run(&mut front_end, &machine, command_timeout, &stop, &seen))
        };
        Self { path, machine, stop, observed, thread, folder }
    }

    pub(crate) fn client(&self) -> Client {
        self.try_client(false).unwrap()
    }

    /// Connects a client that drives queues of the controller.
    pub(crate) fn direct(&self) -> Client {
        self.try_client(true).unwrap()
    }

    pub(crate) fn try_client(&self, direct: bool) -> Result<Client, IoError> {
        let backend =
            AttachBackend::connect(&self.path, AttachOptions { direct, ..AttachOptions::default() })?;
        Client::over(Box::new(backend), NAMESPACE)
    }

    pub(crate) fn observed(&self) -> AttachHoldings {
        *self.observed.lock().unwrap()
    }

    pub(crate) fn admin(&self, request: AdminRequest) -> Result<AdminAnswer, IoError> {
        match AttachConnection::open(&self.path)?.call(&AttachRequest::Admin(request), &[])?.0 {
            AttachReply::Admin(answer) => Ok(answer),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn until(&self, wanted: impl Fn(AttachHoldings) -> bool) {
        let clock = Clock::start();
        while !wanted(self.observed()) {
            assert!(clock.now() < Nanos::from_millis(20_000), "{:?}", self.observed());
            Clock::sleep(Nanos::from_millis(1));
        }
    }

    /// Waits until `wanted` regions and rings of clients are mapped for the controller.
    pub(crate) fn until_lent(&self, wanted: usize) {
        let clock = Clock::start();
        while self.machine.lock().lent.len() != wanted {
            assert!(clock.now() < Nanos::from_millis(20_000), "{:?}", self.machine.lock().lent.keys());
            Clock::sleep(Nanos::from_millis(1));
        }
    }

    /// Stops the node; returns the folder and the machine for the next one.
    pub(crate) fn end(self) -> (tempfile::TempDir, SharedMachine) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        {
            let machine = self.machine.lock();
            let stopped = !machine.mastering && machine.lent.is_empty();
            assert!(stopped, "the controller still runs, or memory of a client is still mapped");
        }
        (self.folder, self.machine)
    }
}

/// The interrupt vectors of the machine.
#[derive(Debug)]
struct TestVectors(SharedMachine);

impl VectorSource for TestVectors {
    fn count(&self) -> u16 {
        VECTORS.end - 1
    }

    fn connect(&self, vector: u16, bell: Option<&WakeDescriptor>) -> std::io::Result<()> {
        let bells = &mut self.0.lock().interrupt_receivers;
        match bell {
            Some(bell) => drop(bells.insert(vector, bell.clone())),
            None => drop(bells.remove(&vector)),
        }
        Ok(())
    }
}

fn run(
    front_end: &mut AttachFrontEnd<TestExecutor>,
    machine: &SharedMachine,
    command_timeout: Nanos,
    stop: &AtomicBool,
    observed: &Mutex<AttachHoldings>,
) {
    let clock = Clock::start();
    let mut device = device(machine, command_timeout);
    let mut draining = false;
    loop {
        let (now, wall) = (clock.now(), clock.wall());
        if stop.load(Ordering::Relaxed) && !draining {
            draining = true;
            front_end.drain();
        }
        let moved = front_end.poll(&mut device, now, wall) | device.poll(now, wall);
        *observed.lock().unwrap() = front_end.holdings();
        if draining && front_end.is_drained() {
            return device.shutdown(&clock).unwrap();
        }
        if !moved {
            Clock::sleep(Nanos::from_micros(50));
        }
    }
}
