//! Entries of attached clients, handed to a controller of the node's own.
//!
//! In: entries in rings. Out: entries that were approved, at the controller, and its answers in the rings. Invariant: while
//! a command is in flight its token lies in one place, whose number is the device's token, and the memory that it names
//! stays mapped for the controller, whatever becomes of its client.

use super::admission::{Admission, Admitted};
use super::device::{Answer, HardwareDevice, NotTaken};
use super::lent_queues::LentQueues;
use super::ranges::RangePage;
use super::reach::{Mapper, check_length};
use crate::attach::executor::{Changed, Executor};
use crate::attach::lending::Lending;
use crate::in_flight::Flights;
use headwater_dma::iova::{Iova, Segments};
use headwater_host::clock::Nanos;
use headwater_host::foreign::Foreign;
use headwater_host::ring_memory::ForeignWords;
use headwater_host::wake::WakeError;
use headwater_io::attach::admin::{NamespaceText, NamespaceWish};
use headwater_io::attach::protocol::DataRules;
use headwater_io::facts::NamespaceFacts;
use headwater_nvme::controller::{CommandToken, Fetched};
use headwater_nvme::driver::{Function, HostMemory, Namespace, NamespaceKind};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::status::Status;
use headwater_ssd::nvme::rings::{ClientId, ClientRings};
use std::fmt;
use std::marker::PhantomData;

/// Entries taken in one turn, so that clients who are refused all the time do not keep the controller from its work.
const FETCHES_MAX: usize = 1_024;
/// What PRPs ask of an address.
const ALIGN: u32 = 4;

/// A command at the controller.
#[derive(Debug)]
struct Flight {
    token: CommandToken,
    /// Keeps the client's memory mapped.
    _data: Segments,
    page: Option<RangePage>,
}

/// A command that is ready to be submitted.
struct Ready {
    entry: SubmissionEntry,
    data: Segments,
    page: Option<RangePage>,
}

/// Why a command was not submitted.
enum Unready {
    Later,
    Refused(Status),
}

/// Rings whose entries go to a controller behind `F`.
pub struct ForwardingExecutor<F, H> {
    pub(super) rings: ClientRings<ForeignWords>,
    flights: Flights<Flight>,
    /// Fetched when the controller took nothing.
    held: Option<Fetched>,
    admission: Admission,
    pub(super) mapper: Box<dyn Mapper>,
    pub(super) lent: LentQueues,
    device: PhantomData<fn(F, H)>,
}

impl<F: Function, H: HostMemory> ForwardingExecutor<F, H> {
    /// No clients yet. The controller reaches their memory by `mapper`; who is granted that drives queues of `lent`.
    ///
    /// # Errors
    /// [`WakeError`] when the system has no descriptor left.
    pub fn new(mapper: Box<dyn Mapper>, lent: LentQueues) -> Result<Self, WakeError> {
        Ok(Self {
            rings: ClientRings::new()?,
            flights: Flights::default(),
            held: None,
            admission: Admission::default(),
            mapper,
            lent,
            device: PhantomData,
        })
    }

    /// Posts the controller's answers.
    fn post(&mut self, device: &mut HardwareDevice<F, H>) -> bool {
        let mut moved = false;
        while let Some(Answer { token, result, status }) = device.next_answer() {
            moved = true;
            // The device answers each command that it took once, so it is there.
            let Some(flight) = self.flights.remove(token) else { continue };
            if let Some(page) = flight.page {
                device.give_back(page);
            }
            self.rings.complete(flight.token, result, status);
        }
        moved
    }

    /// Takes entries in turn until there are none, the controller takes none, or it was enough.
    fn fetch(&mut self, device: &mut HardwareDevice<F, H>) -> bool {
        let is_dead = device.death().is_some();
        if !is_dead && !device.is_ready() {
            return false;
        }
        let mut moved = false;
        for _ in 0..FETCHES_MAX {
            let Some(fetched) = self.held.take().or_else(|| self.rings.fetch()) else {
                break;
            };
            if is_dead {
                self.rings.refuse(fetched.token, Status::INTERNAL_ERROR);
            } else if let Err(held) = self.start(device, fetched) {
                self.held = Some(held);
                break;
            }
            moved = true;
        }
        device.ring();
        moved
    }

    /// Hands an entry on, or answers it. Gives it back when the controller takes none.
    fn start(&mut self, device: &mut HardwareDevice<F, H>, fetched: Fetched) -> Result<(), Fetched> {
        let submitted = self.prepare(device, &fetched).and_then(|ready| {
            let token = self.flights.next();
            match device.submit(token, ready.entry, self.admission.runs()) {
                Ok(()) => Ok(ready),
                Err(not_taken) => {
                    if let Some(page) = ready.page {
                        device.give_back(page);
                    }
                    Err(match not_taken {
                        NotTaken::Later => Unready::Later,
                        NotTaken::Refused(status) => Unready::Refused(status),
                    })
                }
            }
        });
        match submitted {
            Ok(Ready { data, page, .. }) => {
                self.flights.insert(Flight { token: fetched.token, _data: data, page });
                Ok(())
            }
            // It is judged anew, from the same copy of the entry, when the controller takes commands.
            Err(Unready::Later) => Err(fetched),
            Err(Unready::Refused(status)) => {
                self.rings.refuse(fetched.token, status);
                Ok(())
            }
        }
    }

    /// Judges an entry. The admission has the controller's addresses of its data then.
    fn prepare(&mut self, device: &mut HardwareDevice<F, H>, fetched: &Fetched) -> Result<Ready, Unready> {
        let client = self.rings.client_of(fetched.token.queue());
        let client = client.ok_or(Unready::Refused(Status::DATA_TRANSFER_ERROR))?;
        let most = device.transfer_bytes_max();
        let judged = self.admission.judge(&fetched.entry, client, device.namespaces(), most);
        let Admitted { entry, data } = judged.map_err(Unready::Refused)?;
        let page = match self.admission.ranges() {
            [] => None,
            ranges => {
                let (page, run) = device.put_ranges(ranges).ok_or(Unready::Later)?;
                self.admission.add_run(run);
                Some(page)
            }
        };
        Ok(Ready { entry, data, page })
    }
}

/// What a client is told of a namespace; `None` for one that is not shared.
fn facts_of(namespace: &Namespace) -> Option<NamespaceFacts> {
    let NamespaceKind::Block { block_shift, blocks } = namespace.kind else { return None };
    Some(NamespaceFacts {
        id: namespace.id,
        block_bytes: 1 << block_shift,
        size: blocks,
        writable: namespace.is_writable,
        blocks: None,
    })
}

impl<F: Function, H: HostMemory> Executor for ForwardingExecutor<F, H> {
    type Device = HardwareDevice<F, H>;

    fn rings(&self) -> &ClientRings<ForeignWords> {
        &self.rings
    }

    fn rings_mut(&mut self) -> &mut ClientRings<ForeignWords> {
        &mut self.rings
    }

    fn poll(&mut self, device: &mut HardwareDevice<F, H>, now: Nanos) -> bool {
        self.rings.awake();
        let mut moved = self.post(device);
        moved |= self.fetch(device);
        moved |= self.lent.poll(device, now);
        moved | self.rings.finish()
    }

    fn lending(&mut self) -> Option<&mut dyn Lending<HardwareDevice<F, H>>> {
        Some(self)
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.lent.next_deadline()
    }

    fn drain(&mut self) {
        self.rings.drain();
        self.lent.take_back_all();
    }

    fn is_drained(&self) -> bool {
        self.rings.is_drained() && self.lent.is_empty()
    }

    fn register(&mut self, client: ClientId, start: Iova, region: Foreign) -> Result<(), String> {
        check_length(&region)?;
        let memory = self.rings.memory(client).ok_or("the client is gone")?;
        let reach = self.mapper.map(&region)?;
        memory.register_with(start, region, reach).map_err(|error| error.to_string())
    }

    fn data_rules(&self, device: &HardwareDevice<F, H>) -> Option<DataRules> {
        Some(DataRules { transfer: device.transfer_bytes_max(), align: ALIGN })
    }

    fn namespaces(&self, device: &HardwareDevice<F, H>) -> Vec<NamespaceFacts> {
        device.namespaces().iter().filter_map(facts_of).collect()
    }

    fn table(&self, device: &HardwareDevice<F, H>) -> Vec<(u8, NamespaceText)> {
        let known = device.namespaces().iter().filter_map(facts_of);
        known
            .filter_map(|facts| {
                let text = NamespaceText {
                    block_bytes: facts.block_bytes,
                    size: facts.size,
                    ..NamespaceText::keys()
                };
                Some((u8::try_from(facts.id).ok()?, text))
            })
            .collect()
    }

    fn change(&mut self, _: &mut HardwareDevice<F, H>, _: u8, _: &NamespaceWish) -> Result<u64, String> {
        Err("namespaces of an SSD are changed by nvme-cli (nvme create-ns, nvme format) while the kernel has it"
            .to_owned())
    }

    fn next_changed(&mut self, _: &mut HardwareDevice<F, H>) -> Option<Changed> {
        None
    }
}

impl<F, H> Drop for ForwardingExecutor<F, H> {
    /// The node goes down: nobody is there to read answers.
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            held.token.abandon();
        }
        self.flights.drain().for_each(|flight| flight.token.abandon());
    }
}

impl<F, H> fmt::Debug for ForwardingExecutor<F, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForwardingExecutor").field("flights", &self.flights.len()).finish_non_exhaustive()
    }
}
