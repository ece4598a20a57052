//! Entries of attached clients, carried out by the device of this node.
//!
//! In: entries in rings. Out: commands to the device by its own ring face. Invariant: the two faces that the device knows
//! are this executor's alone.

use super::executor::{Changed, Executor};
use headwater::namespace_wish::{change_of, facts_of, table};
use headwater_dma::iova::Iova;
use headwater_host::clock::Nanos;
use headwater_host::foreign::Foreign;
use headwater_host::ring_memory::ForeignWords;
use headwater_host::wake::WakeError;
use headwater_io::attach::admin::{NamespaceText, NamespaceWish};
use headwater_io::facts::NamespaceFacts;
use headwater_ssd::command::{Command, FaceId, NamespaceId};
use headwater_ssd::engine::Device;
use headwater_ssd::limits::NAMESPACES;
use headwater_ssd::media::Media;
use headwater_ssd::namespace::Namespace;
use headwater_ssd::nvme::rings::{ClientId, ClientRings, RingFace};
use std::marker::PhantomData;

/// How the face is known to the device.
#[derive(Clone, Copy, Debug)]
pub struct AttachFaces {
    /// Commands of clients.
    pub rings: FaceId,
    /// Changes of the table of namespaces.
    pub control: FaceId,
}

/// The rings of a converged device on a medium `M`.
#[derive(Debug)]
pub struct ConvergedExecutor<M> {
    face: RingFace<ForeignWords>,
    control: FaceId,
    next_token: u64,
    medium: PhantomData<fn(M)>,
}

impl<M: Media> ConvergedExecutor<M> {
    /// No clients yet.
    ///
    /// # Errors
    /// [`WakeError`] when the system has no descriptor left.
    pub fn new(faces: AttachFaces) -> Result<Self, WakeError> {
        let face = RingFace::new(faces.rings)?;
        Ok(Self { face, control: faces.control, next_token: 0, medium: PhantomData })
    }
}

impl<M: Media> Executor for ConvergedExecutor<M> {
    type Device = Device<M>;

    fn rings(&self) -> &ClientRings<ForeignWords> {
        &self.face.rings
    }

    fn rings_mut(&mut self) -> &mut ClientRings<ForeignWords> {
        &mut self.face.rings
    }

    fn poll(&mut self, device: &mut Device<M>, _now: Nanos) -> bool {
        self.face.poll(device)
    }

    fn register(&mut self, client: ClientId, start: Iova, region: Foreign) -> Result<(), String> {
        let memory = self.face.rings.memory(client).ok_or("the client is gone")?;
        memory.register(start, region).map_err(|error| error.to_string())
    }

    fn namespaces(&self, device: &Device<M>) -> Vec<NamespaceFacts> {
        let all = (1..=NAMESPACES).filter_map(|number| u8::try_from(number).ok()).map(NamespaceId);
        all.map(|id| facts_of(id, &device.namespace(id).unwrap_or(Namespace::IMPLICIT))).collect()
    }

    fn table(&self, device: &Device<M>) -> Vec<(u8, NamespaceText)> {
        table(device)
    }

    fn change(&mut self, device: &mut Device<M>, id: u8, wish: &NamespaceWish) -> Result<u64, String> {
        let (namespace, change) = change_of(id, wish)?;
        let token = self.next_token;
        self.next_token += 1;
        device
            .submit(self.control, namespace, token, Command::Namespace(change))
            .map_err(|error| error.to_string())?;
        Ok(token)
    }

    fn next_changed(&mut self, device: &mut Device<M>) -> Option<Changed> {
        let completion = device.next_completion(self.control)?;
        let made = u8::try_from(completion.position).unwrap_or(0);
        let status = completion.status;
        Some(Changed {
            token: completion.token,
            made: if status.is_success() { Ok(made) } else { Err(status) },
        })
    }
}
