//! What kind of controller one is.
//!
//! In: the choices of whoever makes it. Out: values that registers and Identify report, so that what a host is told and what
//! is enforced come from one place.

use crate::spec::register::Capabilities;

/// How hosts reach the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Memory and registers: queues are created by admin commands.
    Pcie,
    /// Capsules: queues are created by Connect, registers are properties.
    Fabrics,
}

/// What the controller is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControllerKind {
    /// It has namespaces (CNTRLTYPE 1).
    Io,
    /// It tells where others are (CNTRLTYPE 2).
    Discovery,
}

/// Whether hosts may reach the same namespaces by other controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// As far as this host is told, no: CMIC and NMIC are 0.
    Alone,
    /// Yes, and Asymmetric Namespace Access says how well.
    Shared,
}

/// What a controller is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerConfig {
    /// CNTLID, unique in the subsystem.
    pub id: u16,
    /// How hosts reach it.
    pub transport: Transport,
    /// What it is for.
    pub kind: ControllerKind,
    /// Whether hosts combine it with others.
    pub sharing: Sharing,
    /// Most slots of a queue, 2 to 65,536.
    pub queue_slots_max: u32,
    /// Most I/O submission queues, and as many completion queues.
    pub io_queues_max: u16,
    /// Interrupt vectors of a PCIe function.
    pub interrupt_vectors: u16,
    /// MDTS: a command moves at most `4096 << this` bytes.
    pub transfer_pages_shift: u8,
    /// Fabrics: bytes of data that a command capsule may carry.
    pub in_capsule_bytes: u32,
    /// Whether data may be described by SGLs; fabrics always do.
    pub sgl: bool,
}

impl ControllerConfig {
    /// A PCIe function.
    #[must_use]
    pub const fn pcie(id: u16) -> Self {
        Self {
            id,
            transport: Transport::Pcie,
            kind: ControllerKind::Io,
            sharing: Sharing::Alone,
            queue_slots_max: 1_024,
            io_queues_max: 32,
            interrupt_vectors: 33,
            transfer_pages_shift: 8,
            in_capsule_bytes: 0,
            sgl: true,
        }
    }

    /// A controller that one host connected to.
    #[must_use]
    pub const fn fabrics(id: u16) -> Self {
        Self {
            transport: Transport::Fabrics,
            sharing: Sharing::Shared,
            interrupt_vectors: 0,
            in_capsule_bytes: 8_192,
            ..Self::pcie(id)
        }
    }

    /// A discovery controller.
    #[must_use]
    pub const fn discovery(id: u16) -> Self {
        Self {
            kind: ControllerKind::Discovery,
            sharing: Sharing::Alone,
            io_queues_max: 0,
            in_capsule_bytes: 0,
            ..Self::fabrics(id)
        }
    }

    /// Most bytes that a command moves.
    #[must_use]
    pub const fn transfer_bytes_max(&self) -> u32 {
        // Above this the number would not fit; nobody configures gigabytes a command.
        let shift = if self.transfer_pages_shift > 18 { 18 } else { self.transfer_pages_shift };
        4_096 << shift
    }

    /// CAP.
    #[must_use]
    pub const fn capabilities(&self) -> u64 {
        Capabilities {
            queue_slots_max: self.queue_slots_max,
            ready_timeout_500ms: 30,
            weighted_round_robin: matches!(self.transport, Transport::Pcie),
        }
        .to_register()
    }
}
