//! A node that shares a controller, on a thread, and its clients.

use crate::desk::{Lender, NAMESPACE, TestExecutor, device, machine};
use headwater_testkit::nvme_machine::Shared;
use headwater_frontend::attach::policy::Policy;
use headwater_frontend::attach::{AttachFace, Holdings};
use headwater_frontend::core_device::CoreWork as _;
use headwater_frontend::front_end::Face as _;
use headwater_frontend::mediated::{ForwardingExecutor, LentQueues};
use headwater_host::clock::{Clock, Nanos};
use headwater_host::wake::WakeDescriptor;
use headwater_io::attach::admin::{AdminAnswer, AdminRequest};
use headwater_io::attach::connection::Connection;
use headwater_io::attach::protocol::{Reply, Request};
use headwater_io::attach::{AttachBackend, AttachOptions};
use headwater_io::vfio::VectorSource;
use headwater_io::{Device as Client, IoError};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Vectors that lent queues can have.
const VECTORS: std::ops::Range<u16> = 2..4;

/// A node that shares a controller, on a thread.
pub(crate) struct Host {
    pub(crate) path: PathBuf,
    pub(crate) machine: Shared,
    stop: Arc<AtomicBool>,
    seen: Arc<Mutex<Holdings>>,
    thread: JoinHandle<()>,
    folder: tempfile::TempDir,
}

pub(crate) fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

impl Host {
    pub(crate) fn start(policy: Policy) -> Self {
        Self::start_at(tempfile::tempdir().unwrap(), machine(), policy, Nanos::from_millis(30_000))
    }

    pub(crate) fn start_at(
        folder: tempfile::TempDir,
        machine: Shared,
        policy: Policy,
        command_timeout: Nanos,
    ) -> Self {
        let path = folder.path().join("attach.sock");
        let (stop, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Holdings::default())));
        let lent = LentQueues::new(Box::new(Vectors(machine.clone())), VECTORS);
        let executor = ForwardingExecutor::new(Box::new(Lender(machine.clone())), lent).unwrap();
        let mut face = AttachFace::bind(&path, policy, executor).unwrap();
        let thread = {
            let (machine, stop, seen) = (machine.clone(), Arc::clone(&stop), Arc::clone(&seen));
            std::thread::spawn(move || run(&mut face, &machine, command_timeout, &stop, &seen))
        };
        Self { path, machine, stop, seen, thread, folder }
    }

    pub(crate) fn client(&self) -> Client {
        self.try_client(false).unwrap()
    }

    /// A client that drives queues of the controller.
    pub(crate) fn direct(&self) -> Client {
        self.try_client(true).unwrap()
    }

    pub(crate) fn try_client(&self, direct: bool) -> Result<Client, IoError> {
        let backend =
            AttachBackend::connect(&self.path, AttachOptions { direct, ..AttachOptions::default() })?;
        Client::over(Box::new(backend), NAMESPACE)
    }

    pub(crate) fn seen(&self) -> Holdings {
        *self.seen.lock().unwrap()
    }

    pub(crate) fn admin(&self, request: AdminRequest) -> Result<AdminAnswer, IoError> {
        match Connection::open(&self.path)?.call(&Request::Admin(request), &[])?.0 {
            Reply::Admin(answer) => Ok(answer),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn until(&self, wanted: impl Fn(Holdings) -> bool) {
        let clock = Clock::start();
        while !wanted(self.seen()) {
            assert!(clock.now() < Nanos::from_millis(20_000), "{:?}", self.seen());
            Clock::sleep(Nanos::from_millis(1));
        }
    }

    /// Regions and rings of clients that the controller reaches, once they are so many.
    pub(crate) fn until_lent(&self, wanted: usize) {
        let clock = Clock::start();
        while self.machine.lock().lent.len() != wanted {
            assert!(clock.now() < Nanos::from_millis(20_000), "{:?}", self.machine.lock().lent.keys());
            Clock::sleep(Nanos::from_millis(1));
        }
    }

    /// The node stops. What is left for another one.
    pub(crate) fn end(self) -> (tempfile::TempDir, Shared) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        {
            let machine = self.machine.lock();
            let stopped = !machine.mastering && machine.lent.is_empty();
            assert!(stopped, "the controller is stopped, and has nobody's memory");
        }
        (self.folder, self.machine)
    }
}

/// Interrupts of the machine.
#[derive(Debug)]
struct Vectors(Shared);

impl VectorSource for Vectors {
    fn count(&self) -> u16 {
        VECTORS.end - 1
    }

    fn connect(&self, vector: u16, bell: Option<&WakeDescriptor>) -> std::io::Result<()> {
        let bells = &mut self.0.lock().bells;
        match bell {
            Some(bell) => drop(bells.insert(vector, bell.clone())),
            None => drop(bells.remove(&vector)),
        }
        Ok(())
    }
}

fn run(
    face: &mut AttachFace<TestExecutor>,
    machine: &Shared,
    command_timeout: Nanos,
    stop: &AtomicBool,
    seen: &Mutex<Holdings>,
) {
    let clock = Clock::start();
    let mut device = device(machine, command_timeout);
    let mut draining = false;
    loop {
        let (now, wall) = (clock.now(), clock.wall());
        if stop.load(Ordering::Relaxed) && !draining {
            draining = true;
            face.drain();
        }
        let moved = face.poll(&mut device, now, wall) | device.poll(now, wall);
        *seen.lock().unwrap() = face.holdings();
        if draining && face.is_drained() {
            return device.shutdown(&clock).unwrap();
        }
        if !moved {
            Clock::sleep(Nanos::from_micros(50));
        }
    }
}
