//! The interface of executors, which execute the entries of attached clients.
//!
//! Input: clients, their regions and their rings, as the control plane creates them. Output: completions in the rings,
//! and information about namespaces. Invariant: each entry has one completion; a region stays mapped until no command
//! in flight uses it.

use super::lending::QueueLender;
use headwater_dma::iova::Iova;
use headwater_host::clock::Nanos;
use headwater_host::ring_memory::SharedMemoryWords;
use headwater_host::shared_memory::SharedMemory;
use headwater_io::attach::protocol::DataRules;
use headwater_io::client_namespace::ClientNamespace;
use headwater_io::namespace_request::{NamespaceRequest, NamespaceSpec};
use headwater_nvme::spec::status::Status;
use headwater_ssd::nvme::rings::{ClientId, ClientRings};

/// The result of a change of namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletedChange {
    /// The token of the change.
    pub token: u64,
    /// The number of a created namespace, or the status of a refused change, which had no effect.
    pub result: Result<u8, Status>,
}

/// An executor of entries.
pub trait EntryExecutor {
    /// The device that executes the commands.
    type Device;

    /// Returns the clients and their queues.
    fn rings(&self) -> &ClientRings<SharedMemoryWords>;

    /// Returns the clients and their queues, mutable.
    fn rings_mut(&mut self) -> &mut ClientRings<SharedMemoryWords>;

    /// Fetches entries, posts completions and wakes clients. Never blocks. Returns true if there was progress.
    fn poll(&mut self, device: &mut Self::Device, now: Nanos) -> bool;

    /// Registers a region at the client's addresses from `start` on.
    ///
    /// # Errors
    /// The reason of the refusal; nothing changed.
    fn register(&mut self, client: ClientId, start: Iova, region: SharedMemory) -> Result<(), String>;

    /// Returns the limits on the data of a command, where the device has any.
    fn data_rules(&self, device: &Self::Device) -> Option<DataRules> {
        let _ = device;
        None
    }

    /// Returns the most buffers that a command may name, above 1 as an SGL.
    fn segments_max(&self) -> u32 {
        1
    }

    /// Returns the lender of hardware queues, where the device has one.
    fn queue_lender(&mut self) -> Option<&mut dyn QueueLender<Self::Device>> {
        None
    }

    /// Returns the time of the next work that neither a client nor the device announces.
    fn next_deadline(&self) -> Option<Nanos> {
        None
    }

    /// Stops fetching commands, and reclaims lent queues.
    fn drain(&mut self) {
        self.rings_mut().drain();
    }

    /// Returns true if, after [`drain`](Self::drain), every command is completed and no queue is lent.
    fn is_drained(&self) -> bool {
        self.rings().is_drained()
    }

    /// Returns the namespaces, as a client with all rights sees them.
    fn namespaces(&self, device: &Self::Device) -> Vec<ClientNamespace>;

    /// Returns the namespaces, as an administrator sees them.
    fn namespace_table(&self, device: &Self::Device) -> Vec<(u8, NamespaceSpec)>;

    /// Begins a change of the namespaces. Returns its token.
    ///
    /// # Errors
    /// The reason of the refusal.
    fn begin_change(
        &mut self,
        device: &mut Self::Device,
        id: u8,
        request: &NamespaceRequest,
    ) -> Result<u64, String>;

    /// Returns the next completed change.
    fn next_completed_change(&mut self, device: &mut Self::Device) -> Option<CompletedChange>;
}
