//! What carries out the entries of attached clients.
//!
//! In: clients, their regions and their rings, as the control plane makes them. Out: completions in the rings, and what
//! there is to say about namespaces. Invariant: each entry has one completion; a region stays known to whoever moves data
//! until nothing in flight names it.

use super::lending::Lending;
use headwater_dma::iova::Iova;
use headwater_host::clock::Nanos;
use headwater_host::foreign::Foreign;
use headwater_host::ring_memory::ForeignWords;
use headwater_io::attach::admin::{NamespaceText, NamespaceWish};
use headwater_io::attach::protocol::DataRules;
use headwater_io::facts::NamespaceFacts;
use headwater_nvme::spec::status::Status;
use headwater_ssd::nvme::rings::{ClientId, ClientRings};

/// What became of a change of namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed {
    /// Which change, by its token.
    pub token: u64,
    /// The number of a namespace that was made, or why nothing changed.
    pub made: Result<u8, Status>,
}

/// It carries out entries.
pub trait Executor {
    /// What it carries them out on.
    type Device;

    /// Clients and their queues.
    fn rings(&self) -> &ClientRings<ForeignWords>;

    /// The same, to change them.
    fn rings_mut(&mut self) -> &mut ClientRings<ForeignWords>;

    /// Takes entries, posts completions, wakes clients. Never blocks. Returns whether anything moved.
    fn poll(&mut self, device: &mut Self::Device, now: Nanos) -> bool;

    /// Makes a region known under the client's addresses from `start` on.
    ///
    /// # Errors
    /// Says why it cannot be; nothing changed.
    fn register(&mut self, client: ClientId, start: Iova, region: Foreign) -> Result<(), String>;

    /// What the data of a command must be like, if that is particular.
    fn data_rules(&self, device: &Self::Device) -> Option<DataRules> {
        let _ = device;
        None
    }

    /// The device's own queues, where it has some to lend.
    fn lending(&mut self) -> Option<&mut dyn Lending<Self::Device>> {
        None
    }

    /// When it next has work that neither a client nor the device announces.
    fn next_deadline(&self) -> Option<Nanos> {
        None
    }

    /// Takes no more commands, and takes back what is lent.
    fn drain(&mut self) {
        self.rings_mut().drain();
    }

    /// Whether, after [`drain`](Self::drain), every command is answered and nothing is lent.
    fn is_drained(&self) -> bool {
        self.rings().is_drained()
    }

    /// The namespaces, as somebody sees them who may do everything.
    fn namespaces(&self, device: &Self::Device) -> Vec<NamespaceFacts>;

    /// The namespaces, as an administrator sees them.
    fn table(&self, device: &Self::Device) -> Vec<(u8, NamespaceText)>;

    /// Begins a change of the namespaces. Returns its token.
    ///
    /// # Errors
    /// Says why there can be none.
    fn change(&mut self, device: &mut Self::Device, id: u8, wish: &NamespaceWish) -> Result<u64, String>;

    /// The next change that is over.
    fn next_changed(&mut self, device: &mut Self::Device) -> Option<Changed>;
}
