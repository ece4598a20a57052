//! The executor that submits attached clients' entries to the node's controller.
//!
//! Input: entries in rings. Output: approved entries in the controller's queue, and its completions in the rings.
//! Invariant: while a command is in flight, its token is in one slot, whose number is the device's token, and the
//! memory that it names stays mapped for the controller, even if its client is gone.

use super::admission::{AdmittedEntry, EntryAdmission};
use super::client_mapping::{MemoryMapper, validate_length};
use super::device::{ControllerCompletion, ControllerRefusal, HardwareDevice};
use super::lent_queues::LentQueues;
use super::range_pages::RangePage;
use crate::attach::executor::{CompletedChange, EntryExecutor};
use crate::attach::lending::QueueLender;
use crate::in_flight::InFlightTable;
use headwater_dma::iova::{ClientSegments, Iova};
use headwater_host::clock::Nanos;
use headwater_host::ring_memory::SharedMemoryWords;
use headwater_host::shared_memory::SharedMemory;
use headwater_host::wake::WakeError;
use headwater_io::attach::protocol::DataRules;
use headwater_io::client_namespace::ClientNamespace;
use headwater_io::namespace_request::{NamespaceRequest, NamespaceSpec};
use headwater_nvme::controller::{CommandToken, FetchedCommand};
use headwater_nvme::driver::{HostMemory, NamespaceKind, PciFunction, ScannedNamespace};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::status::Status;
use headwater_ssd::nvme::rings::{ClientId, ClientRings};
use std::fmt;
use std::marker::PhantomData;

/// Maximum entries fetched in one poll, so that clients with many refused entries do not delay the controller.
const FETCHES_MAX: usize = 1_024;
/// Alignment of addresses in PRPs.
const ALIGN: u32 = 4;

/// A command in flight at the controller.
#[derive(Debug)]
struct MediatedCommand {
    token: CommandToken,
    /// Keeps the client's memory mapped.
    _data: ClientSegments,
    page: Option<RangePage>,
}

/// A validated command.
struct PreparedCommand {
    entry: SubmissionEntry,
    data: ClientSegments,
    page: Option<RangePage>,
}

/// The reason why a command was not submitted.
enum NotSubmitted {
    Later,
    Refused(Status),
}

/// An executor that forwards entries of rings to a controller behind `F`.
pub struct MediatedExecutor<F, H> {
    pub(super) rings: ClientRings<SharedMemoryWords>,
    in_flight: InFlightTable<MediatedCommand>,
    /// An entry fetched while the controller accepted no command.
    held_entry: Option<FetchedCommand>,
    admission: EntryAdmission,
    pub(super) mapper: Box<dyn MemoryMapper>,
    pub(super) lent: LentQueues,
    device: PhantomData<fn(F, H)>,
}

impl<F: PciFunction, H: HostMemory> MediatedExecutor<F, H> {
    /// Creates an executor without clients. `mapper` maps their memory for the controller; clients with a direct grant
    /// drive queues of `lent`.
    ///
    /// # Errors
    /// [`WakeError`] when the system has no descriptor left.
    pub fn new(mapper: Box<dyn MemoryMapper>, lent: LentQueues) -> Result<Self, WakeError> {
        Ok(Self {
            rings: ClientRings::new()?,
            in_flight: InFlightTable::default(),
            held_entry: None,
            admission: EntryAdmission::default(),
            mapper,
            lent,
            device: PhantomData,
        })
    }

    /// Posts the controller's completions.
    fn post(&mut self, device: &mut HardwareDevice<F, H>) -> bool {
        let mut moved = false;
        while let Some(ControllerCompletion { token, result, status }) = device.next_completion() {
            moved = true;
            let Some(flight) = self.in_flight.remove(token) else {
                unreachable!("the device completed command {token}, which is not in flight");
            };
            if let Some(page) = flight.page {
                device.return_range_page(page);
            }
            self.rings.complete(flight.token, result, status);
        }
        moved
    }

    /// Fetches entries until there are none, the controller accepts none, or the limit is reached.
    fn fetch(&mut self, device: &mut HardwareDevice<F, H>) -> bool {
        let is_dead = device.death().is_some();
        if !is_dead && !device.is_ready() {
            return false;
        }
        let mut moved = false;
        for _ in 0..FETCHES_MAX {
            let Some(fetched) = self.held_entry.take().or_else(|| self.rings.fetch()) else {
                break;
            };
            if is_dead {
                self.rings.complete_refused(fetched.token, Status::INTERNAL_ERROR);
            } else if let Err(held) = self.start(device, fetched) {
                self.held_entry = Some(held);
                break;
            }
            moved = true;
        }
        device.ring();
        moved
    }

    /// Submits an entry, or refuses it. Returns it as the error when the controller accepts no command.
    fn start(
        &mut self,
        device: &mut HardwareDevice<F, H>,
        fetched: FetchedCommand,
    ) -> Result<(), FetchedCommand> {
        let token = self.in_flight.next();
        let submitted = self.prepare(device, &fetched).and_then(|ready| {
            match device.submit(token, ready.entry, self.admission.runs()) {
                Ok(()) => Ok(ready),
                Err(not_taken) => {
                    if let Some(page) = ready.page {
                        device.return_range_page(page);
                    }
                    Err(match not_taken {
                        ControllerRefusal::Later => NotSubmitted::Later,
                        ControllerRefusal::Refused(status) => NotSubmitted::Refused(status),
                    })
                }
            }
        });
        match submitted {
            Ok(PreparedCommand { data, page, .. }) => {
                let slot = self.in_flight.insert(MediatedCommand { token: fetched.token, _data: data, page });
                assert!(slot == token, "a command was submitted as {token} and is recorded as {slot}");
                Ok(())
            }
            // It is validated again, from the same copy of the entry, when the controller accepts commands.
            Err(NotSubmitted::Later) => Err(fetched),
            Err(NotSubmitted::Refused(status)) => {
                self.rings.complete_refused(fetched.token, status);
                Ok(())
            }
        }
    }

    /// Validates an entry. Afterwards the admission holds the controller's addresses of its data.
    fn prepare(
        &mut self,
        device: &mut HardwareDevice<F, H>,
        fetched: &FetchedCommand,
    ) -> Result<PreparedCommand, NotSubmitted> {
        let client = self.rings.client_of(fetched.token.queue());
        let client = client.ok_or(NotSubmitted::Refused(Status::DATA_TRANSFER_ERROR))?;
        let max = device.transfer_bytes_max();
        let admitted = self.admission.validate(&fetched.entry, client, device.namespaces(), max);
        let AdmittedEntry { entry, data } = admitted.map_err(NotSubmitted::Refused)?;
        let page = match self.admission.ranges() {
            [] => None,
            ranges => {
                let (page, run) = device.put_ranges(ranges).ok_or(NotSubmitted::Later)?;
                self.admission.add_run(run);
                Some(page)
            }
        };
        Ok(PreparedCommand { entry, data, page })
    }
}

/// Describes a namespace for clients; `None` for one that is not shared.
fn namespace_info(namespace: &ScannedNamespace) -> Option<ClientNamespace> {
    let NamespaceKind::Block { block_shift, blocks } = namespace.kind else { return None };
    Some(ClientNamespace {
        id: namespace.id,
        block_bytes: 1 << block_shift,
        size: blocks,
        writable: namespace.is_writable,
        blocks: None,
        retrieve_options: false,
    })
}

impl<F: PciFunction, H: HostMemory> EntryExecutor for MediatedExecutor<F, H> {
    type Device = HardwareDevice<F, H>;

    fn rings(&self) -> &ClientRings<SharedMemoryWords> {
        &self.rings
    }

    fn rings_mut(&mut self) -> &mut ClientRings<SharedMemoryWords> {
        &mut self.rings
    }

    fn poll(&mut self, device: &mut HardwareDevice<F, H>, now: Nanos) -> bool {
        self.rings.cancel_sleep();
        let mut moved = self.post(device);
        moved |= self.fetch(device);
        moved |= self.lent.poll(device, now);
        moved | self.rings.finish_turn()
    }

    fn queue_lender(&mut self) -> Option<&mut dyn QueueLender<HardwareDevice<F, H>>> {
        Some(self)
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.lent.next_deadline()
    }

    fn drain(&mut self) {
        self.rings.drain();
        self.lent.reclaim_all();
    }

    fn is_drained(&self) -> bool {
        self.rings.is_drained() && self.lent.is_empty()
    }

    fn register(&mut self, client: ClientId, start: Iova, region: SharedMemory) -> Result<(), String> {
        validate_length(&region)?;
        let memory = self.rings.memory(client).ok_or("the client is gone")?;
        let reach = self.mapper.map(&region)?;
        memory.register_mapped(start, region, reach).map_err(|error| error.to_string())
    }

    fn data_rules(&self, device: &HardwareDevice<F, H>) -> Option<DataRules> {
        Some(DataRules { transfer: device.transfer_bytes_max(), align: ALIGN })
    }

    fn namespaces(&self, device: &HardwareDevice<F, H>) -> Vec<ClientNamespace> {
        device.namespaces().iter().filter_map(namespace_info).collect()
    }

    fn namespace_table(&self, device: &HardwareDevice<F, H>) -> Vec<(u8, NamespaceSpec)> {
        let known = device.namespaces().iter().filter_map(namespace_info);
        known
            .filter_map(|facts| {
                let text = NamespaceSpec {
                    block_bytes: facts.block_bytes,
                    size: facts.size,
                    ..NamespaceSpec::keys()
                };
                Some((u8::try_from(facts.id).ok()?, text))
            })
            .collect()
    }

    fn begin_change(
        &mut self,
        _: &mut HardwareDevice<F, H>,
        _: u8,
        _: &NamespaceRequest,
    ) -> Result<u64, String> {
        Err("namespaces of a shared SSD cannot be changed here; use nvme-cli (nvme create-ns, nvme format) while the \
             kernel drives the SSD"
            .to_owned())
    }

    fn next_completed_change(&mut self, _: &mut HardwareDevice<F, H>) -> Option<CompletedChange> {
        None
    }
}

impl<F, H> Drop for MediatedExecutor<F, H> {
    /// Abandons all tokens: the node shuts down, and no completion is posted.
    fn drop(&mut self) {
        if let Some(held) = self.held_entry.take() {
            held.token.abandon();
        }
        self.in_flight.drain().for_each(|flight| flight.token.abandon());
    }
}

impl<F, H> fmt::Debug for MediatedExecutor<F, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MediatedExecutor").field("flights", &self.in_flight.len()).finish_non_exhaustive()
    }
}
