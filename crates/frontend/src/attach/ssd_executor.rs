//! The executor of attached clients' entries on the node's own device.
//!
//! Input: entries in rings. Output: commands to the device through its ring front end. Invariant: the two front-end
//! identifiers of the device belong to this executor alone.

use super::executor::{CompletedChange, EntryExecutor};
use headwater::namespace_request::{client_namespace, namespace_change, table};
use headwater_dma::iova::Iova;
use headwater_host::clock::Nanos;
use headwater_host::ring_memory::SharedMemoryWords;
use headwater_host::shared_memory::SharedMemory;
use headwater_host::wake::WakeError;
use headwater_host::width::narrow;
use headwater_io::client_namespace::ClientNamespace;
use headwater_io::namespace_request::{NamespaceRequest, NamespaceSpec};
use headwater_io::ring_queue::RING_SEGMENTS_MAX;
use headwater_ssd::command::{FrontEndId, NamespaceId, SsdCommand};
use headwater_ssd::engine::SsdDevice;
use headwater_ssd::limits::NAMESPACES;
use headwater_ssd::media::Media;
use headwater_ssd::namespace::Namespace;
use headwater_ssd::nvme::rings::{ClientId, ClientRings, RingFrontEnd};
use std::marker::PhantomData;

/// The identifiers of the attach front end in the device.
#[derive(Clone, Copy, Debug)]
pub struct AttachFrontEndIds {
    /// Commands of clients.
    pub rings: FrontEndId,
    /// Changes of the table of namespaces.
    pub control: FrontEndId,
}

/// An executor over the node's SSD on a medium `M`.
#[derive(Debug)]
pub struct SsdExecutor<M> {
    front_end: RingFrontEnd<SharedMemoryWords>,
    control: FrontEndId,
    next_token: u64,
    medium: PhantomData<fn(M)>,
}

impl<M: Media> SsdExecutor<M> {
    /// Creates an executor without clients.
    ///
    /// # Errors
    /// [`WakeError`] when the system has no descriptor left.
    ///
    /// # Panics
    /// If both identifiers are the same: the caller assigns each to one purpose.
    pub fn new(front_ends: AttachFrontEndIds) -> Result<Self, WakeError> {
        assert!(
            front_ends.rings != front_ends.control,
            "entries and changes of namespaces complete separately"
        );
        let front_end = RingFrontEnd::new(front_ends.rings)?;
        Ok(Self { front_end, control: front_ends.control, next_token: 0, medium: PhantomData })
    }
}

impl<M: Media> EntryExecutor for SsdExecutor<M> {
    type Device = SsdDevice<M>;

    fn rings(&self) -> &ClientRings<SharedMemoryWords> {
        &self.front_end.rings
    }

    fn rings_mut(&mut self) -> &mut ClientRings<SharedMemoryWords> {
        &mut self.front_end.rings
    }

    fn segments_max(&self) -> u32 {
        RING_SEGMENTS_MAX
    }

    fn poll(&mut self, device: &mut SsdDevice<M>, _now: Nanos) -> bool {
        self.front_end.poll(device)
    }

    fn register(&mut self, client: ClientId, start: Iova, region: SharedMemory) -> Result<(), String> {
        let memory = self.front_end.rings.memory(client).ok_or("the client is gone")?;
        memory.register(start, region).map_err(|error| error.to_string())
    }

    fn namespaces(&self, device: &SsdDevice<M>) -> Vec<ClientNamespace> {
        let all = (1..=NAMESPACES).filter_map(|number| u8::try_from(number).ok()).map(NamespaceId);
        all.map(|id| client_namespace(id, &device.namespace(id).unwrap_or(Namespace::IMPLICIT))).collect()
    }

    fn namespace_table(&self, device: &SsdDevice<M>) -> Vec<(u8, NamespaceSpec)> {
        table(device)
    }

    fn begin_change(
        &mut self,
        device: &mut SsdDevice<M>,
        id: u8,
        request: &NamespaceRequest,
    ) -> Result<u64, String> {
        let (namespace, change) = namespace_change(id, request)?;
        let token = self.next_token;
        self.next_token += 1;
        device
            .submit(self.control, namespace, token, SsdCommand::Namespace(change))
            .map_err(|error| error.to_string())?;
        Ok(token)
    }

    fn next_completed_change(&mut self, device: &mut SsdDevice<M>) -> Option<CompletedChange> {
        let completion = device.next_completion(self.control)?;
        let status = completion.status;
        Some(CompletedChange {
            token: completion.token,
            // The identifier of a namespace.
            result: if status.is_success() { Ok(narrow(completion.position)) } else { Err(status) },
        })
    }
}
