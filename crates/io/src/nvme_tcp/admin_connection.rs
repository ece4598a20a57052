//! The admin queue of a controller: Connect, enable and identify.
//!
//! Input: a target. Output: an enabled controller, its limits and namespaces. Everything here blocks.

use super::NvmeTcpTarget;
use super::link::TcpLink;
use crate::buffer::Buffer;
use crate::client_namespace::ClientNamespace;
use crate::error::IoError;
use crate::identify::{
    CNS_DESCRIPTORS, CNS_NAMESPACE, CNS_NAMESPACE_OF_SET, IDENTIFY_BYTES, KEY_VALUE_COMMAND_SET,
    block_namespace, command_set, key_space, word_at,
};
use crate::namespace_request::{NamespaceRequest, NamespaceSpec};
use headwater_dma::iova::Iova;
use headwater_host::clock::{Clock, Nanos};
use headwater_host::shared_memory::SharedMemory;
use headwater_host::width::{narrow, to_usize};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::fabrics::{
    CONTROLLER_DYNAMIC, ConnectData, ConnectFields, PropertyFields, connect_status, parse_name,
};
use headwater_nvme::spec::register::{ControllerRegister, status_bit};
use headwater_nvme::spec::status::Status;
use headwater_nvme::tcp::limits::ADMIN_IN_CAPSULE_BYTES;
use headwater_nvme::tcp::{CommandTransfer, LentBytes as _};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

/// Entries of the admin queue.
const ADMIN_ENTRIES: u16 = 32;
/// Entries of a namespace list.
const LIST_NUMBERS: usize = 1_024;
/// CC: all command sets, entries of 64 and 16 bytes, enabled.
const ENABLE: u32 = 1 | 0b110 << 4 | 6 << 16 | 4 << 20;
/// Number of I/O queues to request.
const QUEUES_WANTED: u32 = 64;
/// Bytes of an entry in a capsule.
const ENTRY_BYTES: u32 = 64;

/// Admin opcodes and features used here (NVMe Base 2.0 figures 138 and 317).
mod number {
    pub(super) const GET_LOG_PAGE: u8 = 0x02;
    pub(super) const IDENTIFY: u8 = 0x06;
    pub(super) const SET_FEATURES: u8 = 0x09;
    pub(super) const NAMESPACE_MANAGEMENT: u8 = 0x0D;
    pub(super) const NAMESPACE_ATTACHMENT: u8 = 0x15;
    pub(super) const KEEP_ALIVE: u8 = 0x18;
    pub(super) const FORMAT: u8 = 0x80;
    pub(super) const NUMBER_OF_QUEUES: u32 = 0x07;
    pub(super) const DISCOVERY_LOG: u32 = 0x70;
}

/// An enabled controller.
#[derive(Debug)]
pub(super) struct AdminConnection {
    link: TcpLink,
    page: Buffer,
    /// CNTLID.
    pub(super) controller: u16,
    /// Maximum bytes of in-capsule data on an I/O queue.
    pub(super) in_capsule_max: u32,
    /// Maximum entries of a queue.
    pub(super) entries_max: u32,
    /// Maximum number of I/O queues.
    pub(super) queues_max: u16,
    /// OFCS bit 0: true if Disconnect is supported.
    pub(super) supports_disconnect: bool,
}

impl AdminConnection {
    pub(super) fn open(target: &NvmeTcpTarget) -> Result<Self, IoError> {
        let mut control = Self::connect(target)?;
        let queues = (QUEUES_WANTED - 1) | (QUEUES_WANTED - 1) << 16;
        let granted = control
            .call(admin(number::SET_FEATURES, 0, number::NUMBER_OF_QUEUES, queues), CommandTransfer::None)?;
        // NSQA and NCQA, 0's based.
        let [a, b, c, d] = granted.to_le_bytes();
        control.queues_max = u16::from_le_bytes([a, b]).min(u16::from_le_bytes([c, d])).saturating_add(1);
        let page = control.identify(0, 0x01, 0)?;
        let units = u32::from_le_bytes([page[1_792], page[1_793], page[1_794], page[1_795]]);
        control.in_capsule_max = units.saturating_mul(16).saturating_sub(ENTRY_BYTES);
        control.supports_disconnect = page[1_804] & 1 == 1;
        Ok(control)
    }

    /// Connects the admin queue and enables the controller.
    fn connect(target: &NvmeTcpTarget) -> Result<Self, IoError> {
        let mut link = TcpLink::open(target, ADMIN_ENTRIES - 1, ADMIN_IN_CAPSULE_BYTES)?;
        let (entry, data) = connect_command(target, 0, ADMIN_ENTRIES, CONTROLLER_DYNAMIC)?;
        let done = link.call(entry, data)?;
        if !done.status().is_success() {
            return Err(refused(target, done.status()));
        }
        let [a, b, _, _] = done.result.to_bytes();
        let page = Buffer::from_region(SharedMemory::anonymous(IDENTIFY_BYTES)?, Iova(0));
        let controller = u16::from_le_bytes([a, b]);
        let mut control = Self {
            link,
            page,
            controller,
            in_capsule_max: 0,
            entries_max: 0,
            queues_max: 0,
            supports_disconnect: false,
        };
        let capabilities = control.property(ControllerRegister::Capabilities)?;
        control.entries_max = narrow::<u64, u32>(capabilities & 0xFFFF) + 1;
        let set = PropertyFields::set(ControllerRegister::Configuration.offset(), ENABLE);
        control.call(set, CommandTransfer::None)?;
        let clock = Clock::start();
        // CAP.TO, in 500 ms.
        let within = Nanos::from_millis(500 * (capabilities >> 24 & 0xFF).max(1));
        while control.property(ControllerRegister::Status)? & u64::from(status_bit::READY) == 0 {
            if clock.now() > within {
                let reason = format!("{}: the controller did not become ready in {within}", target.address);
                return Err(IoError::Device { reason });
            }
            Clock::sleep(Nanos::from_millis(1));
        }
        Ok(control)
    }

    /// Sends a Keep Alive.
    pub(super) fn keep_alive(&mut self) -> Result<(), IoError> {
        self.call(admin(number::KEEP_ALIVE, 0, 0, 0), CommandTransfer::None).map(drop)
    }

    pub(super) fn namespaces(&mut self) -> Result<Vec<ClientNamespace>, IoError> {
        let mut found = Vec::new();
        loop {
            let after = found.last().map_or(0, |last: &ClientNamespace| last.id);
            let list = self.identify(after, 0x02, 0)?;
            let numbers: Vec<u32> = list
                .chunks_exact(4)
                .map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
                .take_while(|&id| id > after)
                .collect();
            for &id in &numbers {
                found.push(self.namespace(id)?);
            }
            if numbers.len() < LIST_NUMBERS {
                return Ok(found);
            }
        }
    }

    fn namespace(&mut self, id: u32) -> Result<ClientNamespace, IoError> {
        let descriptors = self.identify(id, CNS_DESCRIPTORS, 0)?;
        if command_set(&descriptors) == KEY_VALUE_COMMAND_SET {
            return Ok(key_space(id, &self.identify(id, CNS_NAMESPACE_OF_SET, KEY_VALUE_COMMAND_SET)?));
        }
        block_namespace(id, &self.identify(id, CNS_NAMESPACE, 0)?).map(|(facts, _)| facts)
    }

    /// Changes a namespace by Namespace Management, Namespace Attachment and Format NVM, which carry sizes and formats
    /// only.
    pub(super) fn change_namespace(&mut self, id: u8, request: &NamespaceRequest) -> Result<u8, IoError> {
        match request {
            NamespaceRequest::Create(text) if *text == expressible_part(text) => {
                let nsid = self.create(text.block_bytes, text.size)?;
                self.attach(nsid)?;
                u8::try_from(nsid).map_err(|_| IoError::Protocol { reason: format!("namespace {nsid}") })
            }
            NamespaceRequest::Delete => {
                let delete = admin(number::NAMESPACE_MANAGEMENT, u32::from(id), 1, 0);
                self.call(delete, CommandTransfer::None).map(|_| id)
            }
            NamespaceRequest::Format(block_bytes) => {
                let (_, format) = format_of(*block_bytes);
                let command = admin(number::FORMAT, u32::from(id), u32::from(format), 0);
                self.call(command, CommandTransfer::None).map(|_| id)
            }
            _ => Err(IoError::Unsupported {
                reason: format!(
                    "NVMe has no command for this change of namespace {id} (0: a new one); make it on the device's \
                     own host (headwater namespace)"
                ),
            }),
        }
    }

    fn create(&mut self, block_bytes: u32, size: u64) -> Result<u32, IoError> {
        let (set, format) = format_of(block_bytes);
        let mut wanted = [0; IDENTIFY_BYTES];
        wanted[..8].copy_from_slice(&size.to_le_bytes());
        wanted[8..16].copy_from_slice(&size.to_le_bytes());
        wanted[26] = format;
        self.page.write(0, &wanted)?;
        let command = admin(number::NAMESPACE_MANAGEMENT, 0, 0, u32::from(set) << 24);
        self.call(command, CommandTransfer::Out(self.page.clone()))
    }

    fn attach(&mut self, nsid: u32) -> Result<u32, IoError> {
        let mut list = [0; IDENTIFY_BYTES];
        list[0] = 1;
        list[2..4].copy_from_slice(&self.controller.to_le_bytes());
        self.page.write(0, &list)?;
        self.call(admin(number::NAMESPACE_ATTACHMENT, nsid, 0, 0), CommandTransfer::Out(self.page.clone()))
    }

    fn property(&mut self, register: ControllerRegister) -> Result<u64, IoError> {
        let entry = PropertyFields::get(register.offset(), register.bytes());
        let done = self.link.call(entry, CommandTransfer::None)?;
        if !done.status().is_success() {
            return Err(IoError::Status(done.status()));
        }
        Ok(u64::from(done.reserved.get()) << 32 | u64::from(done.result.get()))
    }

    fn identify(&mut self, namespace: u32, view: u8, set: u8) -> Result<Vec<u8>, IoError> {
        let entry = admin(number::IDENTIFY, namespace, u32::from(view), u32::from(set) << 24);
        self.read(entry, IDENTIFY_BYTES)
    }

    fn read(&mut self, entry: SubmissionEntry, bytes: usize) -> Result<Vec<u8>, IoError> {
        let page = self.page.slice(0, bytes)?;
        self.call(entry, CommandTransfer::In(page.clone()))?;
        let mut copy = Vec::new();
        page.append_to(0..bytes, &mut copy);
        Ok(copy)
    }

    /// Sends a command, and returns dword 0 of its completion if it succeeded.
    fn call(&mut self, entry: SubmissionEntry, transfer: CommandTransfer<Buffer>) -> Result<u32, IoError> {
        let done = self.link.call(entry, transfer)?;
        let status = done.status();
        if status.is_success() { Ok(done.result.get()) } else { Err(IoError::Status(status)) }
    }
}

/// Reads the discovery log; see [`NvmeTcp::discover`](super::NvmeTcp::discover).
pub(super) fn discover(target: &NvmeTcpTarget) -> Result<Vec<String>, IoError> {
    const RECORD_BYTES: usize = 1_024;
    let mut control = AdminConnection::connect(target)?;
    let bytes = 4 * RECORD_BYTES;
    let dwords = narrow::<usize, u32>(bytes / 4 - 1);
    let page =
        control.read(admin(number::GET_LOG_PAGE, 0, number::DISCOVERY_LOG | dwords << 16, 0), bytes)?;
    let records = to_usize(word_at(&page, 8));
    let names = page.chunks_exact(RECORD_BYTES).skip(1).take(records).filter_map(|record| {
        <&[u8; 256]>::try_from(&record[256..512]).ok().and_then(parse_name).map(str::to_owned)
    });
    Ok(names.collect())
}

/// Returns the Connect command of a queue, and its data.
pub(super) fn connect_command(
    target: &NvmeTcpTarget,
    queue: u16,
    entries: u16,
    controller: u16,
) -> Result<(SubmissionEntry, CommandTransfer<Buffer>), IoError> {
    // Longer than 49 days is reported as that.
    let keep_alive_ms = u32::try_from(target.keep_alive.0 / 1_000_000).unwrap_or(u32::MAX);
    let fields = ConnectFields {
        format: 0,
        queue,
        size: entries - 1,
        attributes: ConnectFields::FLOW_CONTROL_DISABLED,
        // KATO belongs to the controller, which the Connect of the admin queue creates.
        keep_alive_ms: if queue == 0 { keep_alive_ms } else { 0 },
    };
    let host = (target.host_name.as_str(), target.host_identifier);
    let data = ConnectData::new(host, &target.subsystem_name, controller);
    let bytes = data.as_bytes();
    let buffer = Buffer::from_region(SharedMemory::anonymous(bytes.len())?, Iova(0));
    buffer.write(0, bytes)?;
    Ok((fields.to_entry(), CommandTransfer::Out(buffer)))
}

/// Returns the error for a refused Connect.
pub(super) fn refused(target: &NvmeTcpTarget, status: Status) -> IoError {
    let because = |advice: &str| {
        format!(
            "{} at {} refused Connect of host {} with status type {}, code {:02x}h; {advice}",
            target.subsystem_name, target.address, target.host_name, status.code_type, status.code
        )
    };
    let is = |known: Status| (known.code_type, known.code) == (status.code_type, status.code);
    if is(connect_status::CONTROLLER_BUSY) {
        return IoError::Limit {
            reason: because("none of its controllers is free: disconnect another host"),
        };
    }
    if is(connect_status::INCOMPATIBLE_FORMAT) {
        return IoError::Unsupported {
            reason: because("it implements another version of NVMe over Fabrics"),
        };
    }
    let advice = if is(connect_status::INVALID_PARAMETERS) {
        "check the subsystem's name and the depth"
    } else if is(connect_status::INVALID_HOST) {
        "permit this host name there"
    } else {
        "its log tells the reason"
    };
    IoError::Denied { reason: because(advice) }
}

fn admin(opcode: u8, namespace: u32, cdw10: u32, cdw11: u32) -> SubmissionEntry {
    SubmissionEntry {
        opcode,
        namespace: U32::new(namespace),
        cdw10: U32::new(cdw10),
        cdw11: U32::new(cdw11),
        ..SubmissionEntry::default()
    }
}

/// Returns the request reduced to the fields that NVMe can express.
fn expressible_part(text: &NamespaceSpec) -> NamespaceSpec {
    NamespaceSpec { block_bytes: text.block_bytes, size: text.size, ..NamespaceSpec::keys() }
}

/// Returns the command set and format index for a block size in bytes, 0 for keys.
fn format_of(block_bytes: u32) -> (u8, u8) {
    match block_bytes {
        0 => (KEY_VALUE_COMMAND_SET, 0),
        4_096 => (0, 1),
        _ => (0, 0),
    }
}
