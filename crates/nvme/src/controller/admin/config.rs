//! The configuration of a controller.
//!
//! Input: the choices of the creator. Output: values that registers and Identify report, so that the reported and the
//! enforced limits come from one place.

use crate::spec::register::CapabilityRegister;

/// The transport by which hosts reach the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControllerTransport {
    /// Memory and registers: admin commands create the queues.
    Pcie,
    /// Capsules: Connect creates the queues, registers are properties.
    Fabrics,
}

/// The controller type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControllerKind {
    /// An I/O controller: it has namespaces (CNTRLTYPE 1).
    Io,
    /// A discovery controller: it returns the addresses of other controllers (CNTRLTYPE 2).
    Discovery,
}

/// The multipath capability that the controller reports to hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MultipathMode {
    /// Reports a single path: CMIC and NMIC are 0.
    SinglePath,
    /// Reports several paths to the same namespaces, rated by Asymmetric Namespace Access.
    Multipath,
}

/// The configuration of one controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerConfig {
    /// CNTLID, unique in the subsystem.
    pub id: u16,
    /// The transport by which hosts reach it.
    pub transport: ControllerTransport,
    /// The controller type.
    pub kind: ControllerKind,
    /// The multipath capability that it reports.
    pub multipath: MultipathMode,
    /// The maximum number of slots of a queue, 2 to 65,536.
    pub queue_slots_max: u32,
    /// The maximum number of I/O submission queues, and of I/O completion queues.
    pub io_queues_max: u16,
    /// The number of interrupt vectors of a PCIe function.
    pub interrupt_vectors: u16,
    /// MDTS: a command transfers at most `4096 << this` bytes.
    pub transfer_pages_shift: u8,
    /// The maximum bytes of data in a command capsule (fabrics).
    pub in_capsule_bytes: u32,
    /// True if SGLs may describe data; fabrics always use SGLs.
    pub sgl: bool,
}

impl ControllerConfig {
    /// Returns the configuration of a PCIe function.
    #[must_use]
    pub const fn pcie(id: u16) -> Self {
        Self {
            id,
            transport: ControllerTransport::Pcie,
            kind: ControllerKind::Io,
            multipath: MultipathMode::SinglePath,
            queue_slots_max: 1_024,
            io_queues_max: 32,
            interrupt_vectors: 33,
            transfer_pages_shift: 8,
            in_capsule_bytes: 0,
            sgl: true,
        }
    }

    /// Returns the configuration of an I/O controller on fabrics.
    #[must_use]
    pub const fn fabrics(id: u16) -> Self {
        Self {
            transport: ControllerTransport::Fabrics,
            multipath: MultipathMode::Multipath,
            interrupt_vectors: 0,
            in_capsule_bytes: 8_192,
            ..Self::pcie(id)
        }
    }

    /// Returns the configuration of a discovery controller.
    #[must_use]
    pub const fn discovery(id: u16) -> Self {
        Self {
            kind: ControllerKind::Discovery,
            multipath: MultipathMode::SinglePath,
            io_queues_max: 0,
            in_capsule_bytes: 0,
            ..Self::fabrics(id)
        }
    }

    /// Returns the maximum number of bytes that a command transfers.
    #[must_use]
    pub const fn transfer_bytes_max(&self) -> u32 {
        // A larger shift would overflow 32 bits; such a transfer size is unrealistic.
        let shift = if self.transfer_pages_shift > 18 { 18 } else { self.transfer_pages_shift };
        4_096 << shift
    }

    /// Returns the value of CAP.
    #[must_use]
    pub const fn capabilities(&self) -> u64 {
        CapabilityRegister {
            queue_slots_max: self.queue_slots_max,
            ready_timeout_500ms: 30,
            weighted_round_robin: matches!(self.transport, ControllerTransport::Pcie),
        }
        .to_register()
    }
}
