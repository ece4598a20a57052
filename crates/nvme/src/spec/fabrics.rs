//! The layout of Fabrics commands (NVMe Base 2.0 section 6; NVMe over Fabrics 1.1 section 3) and the discovery log
//! page.
//!
//! Input: an entry whose opcode is 7Fh, and the data of a Connect. Output: fields by name.
//! [`fabrics`](crate::fabrics) validates the values.

use crate::spec::command::SubmissionEntry;
use crate::spec::status::Status;
use std::mem::{offset_of, size_of};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The opcode of all Fabrics commands.
pub const FABRICS_OPCODE: u8 = 0x7F;

/// Bytes of a qualified name field, its terminating zero included.
pub const NAME_BYTES: usize = 256;

/// The well-known name of the discovery subsystem.
pub const DISCOVERY_NAME: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// The CNTLID that requests any controller.
pub const CONTROLLER_DYNAMIC: u16 = 0xFFFF;

/// FCTYPE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FabricsKind {
    /// 00h.
    PropertySet,
    /// 01h.
    Connect,
    /// 04h.
    PropertyGet,
    /// 05h.
    AuthenticationSend,
    /// 06h.
    AuthenticationReceive,
    /// 08h.
    Disconnect,
}

impl FabricsKind {
    /// Returns the kind of an entry, or `None` if it is no known Fabrics command.
    #[must_use]
    pub fn from_entry(entry: &SubmissionEntry) -> Option<Self> {
        let [number, ..] = entry.namespace.to_bytes();
        if entry.opcode != FABRICS_OPCODE {
            return None;
        }
        Some(match number {
            0x00 => Self::PropertySet,
            0x01 => Self::Connect,
            0x04 => Self::PropertyGet,
            0x05 => Self::AuthenticationSend,
            0x06 => Self::AuthenticationReceive,
            0x08 => Self::Disconnect,
            _ => return None,
        })
    }

    /// Returns the FCTYPE.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::PropertySet => 0x00,
            Self::Connect => 0x01,
            Self::PropertyGet => 0x04,
            Self::AuthenticationSend => 0x05,
            Self::AuthenticationReceive => 0x06,
            Self::Disconnect => 0x08,
        }
    }
}

/// Connect: the entry's bytes 40 to 51 (figure 420).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectFields {
    /// RECFMT: 0.
    pub format: u16,
    /// QID: 0 is the admin queue.
    pub queue: u16,
    /// SQSIZE: entries, less one.
    pub size: u16,
    /// CATTR.
    pub attributes: u8,
    /// KATO, in milliseconds.
    pub keep_alive_ms: u32,
}

impl ConnectFields {
    /// CATTR bit 2: SQ flow control is disabled.
    pub const FLOW_CONTROL_DISABLED: u8 = 1 << 2;

    /// Decodes the fields of an entry.
    #[must_use]
    pub fn from_entry(entry: &SubmissionEntry) -> Self {
        let [a, b, c, d] = entry.cdw10.to_bytes();
        let [e, f, attributes, _] = entry.cdw11.to_bytes();
        Self {
            format: u16::from_le_bytes([a, b]),
            queue: u16::from_le_bytes([c, d]),
            size: u16::from_le_bytes([e, f]),
            attributes,
            keep_alive_ms: entry.cdw12.get(),
        }
    }

    /// Encodes the fields as a Connect entry.
    #[must_use]
    pub fn to_entry(self) -> SubmissionEntry {
        let [a, b] = self.format.to_le_bytes();
        let [c, d] = self.queue.to_le_bytes();
        let [e, f] = self.size.to_le_bytes();
        SubmissionEntry {
            cdw10: U32::from_bytes([a, b, c, d]),
            cdw11: U32::from_bytes([e, f, self.attributes, 0]),
            cdw12: U32::new(self.keep_alive_ms),
            ..fabrics_entry(FabricsKind::Connect)
        }
    }
}

/// Property Get and Set: the entry's bytes 40 to 55 (figures 423 and 425).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PropertyFields {
    /// ATTRIB bits 2:0: 4 or 8 bytes; `None` if reserved.
    pub bytes: Option<u32>,
    /// OFST.
    pub offset: u32,
    /// VALUE of a Property Set.
    pub value: u64,
}

impl PropertyFields {
    /// Decodes the fields of an entry.
    #[must_use]
    pub fn from_entry(entry: &SubmissionEntry) -> Self {
        let [attributes, ..] = entry.cdw10.to_bytes();
        let bytes = match attributes & 0b111 {
            0 => Some(4),
            1 => Some(8),
            _ => None,
        };
        let value = u64::from(entry.cdw13.get()) << 32 | u64::from(entry.cdw12.get());
        Self { bytes, offset: entry.cdw11.get(), value }
    }

    /// Builds a Property Get of the register at `offset`.
    #[must_use]
    pub fn get(offset: u32, bytes: u32) -> SubmissionEntry {
        SubmissionEntry {
            cdw10: U32::new(u32::from(bytes == 8)),
            cdw11: U32::new(offset),
            ..fabrics_entry(FabricsKind::PropertyGet)
        }
    }

    /// Builds a Property Set of the 4-byte register at `offset`.
    #[must_use]
    pub fn set(offset: u32, value: u32) -> SubmissionEntry {
        SubmissionEntry {
            cdw11: U32::new(offset),
            cdw12: U32::new(value),
            ..fabrics_entry(FabricsKind::PropertySet)
        }
    }
}

/// Builds a Disconnect (section 6.4): RECFMT 0.
#[must_use]
pub fn disconnect_entry() -> SubmissionEntry {
    fabrics_entry(FabricsKind::Disconnect)
}

/// Returns the RECFMT of a Disconnect.
#[must_use]
pub fn disconnect_format(entry: &SubmissionEntry) -> u16 {
    let [a, b, _, _] = entry.cdw10.to_bytes();
    u16::from_le_bytes([a, b])
}

fn fabrics_entry(kind: FabricsKind) -> SubmissionEntry {
    SubmissionEntry {
        opcode: FABRICS_OPCODE,
        namespace: U32::new(u32::from(kind.number())),
        ..SubmissionEntry::default()
    }
}

/// The data of a Connect (figure 421).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ConnectData {
    /// HOSTID.
    pub host_identifier: [u8; 16],
    /// CNTLID.
    pub controller: U16,
    reserved_18: [u8; 238],
    /// SUBNQN.
    pub subsystem_name: [u8; NAME_BYTES],
    /// HOSTNQN.
    pub host_name: [u8; NAME_BYTES],
    reserved_768: [u8; 256],
}

/// Bytes of the data of a Connect.
pub const CONNECT_BYTES: u32 = 1_024;
const _: () = assert!(size_of::<ConnectData>() == CONNECT_BYTES as usize);
const _: () = assert!(offset_of!(ConnectData, controller) == 16);
const _: () = assert!(offset_of!(ConnectData, subsystem_name) == 256);
const _: () = assert!(offset_of!(ConnectData, host_name) == 512);

impl ConnectData {
    /// Creates the data of a Connect from a host's name and identifier, the subsystem's name and the controller
    /// identifier. A name that does not fit is truncated; the subsystem then refuses it.
    #[must_use]
    pub fn new(host: (&str, [u8; 16]), subsystem: &str, controller: u16) -> Self {
        let mut data = Self::new_zeroed();
        data.host_identifier = host.1;
        data.controller = U16::new(controller);
        put_text(&mut data.subsystem_name, subsystem);
        put_text(&mut data.host_name, host.0);
        data
    }
}

/// Copies text into a zeroed field; the last byte stays zero.
fn put_text(field: &mut [u8], text: &str) {
    let bytes = text.len().min(field.len() - 1);
    field[..bytes].copy_from_slice(&text.as_bytes()[..bytes]);
}

/// Returns the name in a field: the bytes before its first zero, or `None` if there is no zero or the bytes are no
/// UTF-8.
#[must_use]
pub fn parse_name(field: &[u8; NAME_BYTES]) -> Option<&str> {
    let end = field.iter().position(|&byte| byte == 0)?;
    std::str::from_utf8(&field[..end]).ok()
}

/// Dword 0 of a Connect refused for a parameter: its byte offset (IPO), in the entry or in the data (IATTR).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidParameter {
    /// Byte offset in the entry.
    Entry(u16),
    /// Byte offset in the data.
    Data(u16),
}

impl InvalidParameter {
    /// Returns dword 0 of the completion.
    #[must_use]
    pub const fn to_result(self) -> u32 {
        match self {
            Self::Entry(offset) => offset as u32,
            Self::Data(offset) => offset as u32 | 1 << 16,
        }
    }
}

/// Statuses of Fabrics commands. The NVM command set uses the same numbers for other statuses.
pub mod connect_status {
    use super::Status;

    const fn specific(code: u8) -> Status {
        Status { code_type: 1, code, do_not_retry: true }
    }

    /// RECFMT is unknown.
    pub const INCOMPATIBLE_FORMAT: Status = specific(0x80);
    /// No controller is free; a retry may succeed.
    pub const CONTROLLER_BUSY: Status = Status { code_type: 1, code: 0x81, do_not_retry: false };
    /// A parameter is not allowed; dword 0 identifies it.
    pub const INVALID_PARAMETERS: Status = specific(0x82);
    /// A Disconnect on a queue that does not support it: the admin queue.
    pub const INVALID_QUEUE_TYPE: Status = specific(0x83);
    /// This host may not connect.
    pub const INVALID_HOST: Status = specific(0x84);

    /// Returns the text of a status of Connect or Disconnect. Its numbers mean something else for other commands.
    #[must_use]
    pub fn text(status: Status) -> String {
        let text = match (status.code_type, status.code) {
            (1, 0x80) => "incompatible format",
            (1, 0x81) => "controller busy",
            (1, 0x82) => "invalid parameters",
            (1, 0x83) => "invalid queue type",
            (1, 0x84) => "invalid host",
            _ => return status.to_string(),
        };
        format!("{text} (type 1, code {:02x}h)", status.code)
    }
}

/// The discovery log page's header (figure 265).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiscoveryHeader {
    /// GENCTR.
    pub generation: U64,
    /// NUMREC.
    pub records: U64,
    /// RECFMT: 0.
    pub format: U16,
    reserved: [u8; 1006],
}

const _: () = assert!(size_of::<DiscoveryHeader>() == 1_024);

/// One entry of the discovery log page (figure 265).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiscoveryEntry {
    /// TRTYPE: 3 is TCP.
    pub transport: u8,
    /// ADRFAM: 1 IPv4, 2 IPv6.
    pub address_family: u8,
    /// SUBTYPE: 2 is a subsystem with namespaces.
    pub subsystem_kind: u8,
    /// TREQ: secure channel in 1:0, SQ flow control disable in 2.
    pub requirements: u8,
    /// PORTID.
    pub port: U16,
    /// CNTLID.
    pub controller: U16,
    /// ASQSZ.
    pub admin_queue_max: U16,
    /// EFLAGS.
    pub flags: U16,
    reserved_12: [u8; 20],
    /// TRSVCID: the TCP port, ASCII.
    pub service: [u8; 32],
    reserved_64: [u8; 192],
    /// SUBNQN.
    pub subsystem_name: [u8; NAME_BYTES],
    /// TRADDR, ASCII.
    pub address: [u8; NAME_BYTES],
    /// TSAS: for TCP, the first byte is SECTYPE, 0 without TLS.
    pub transport_specific: [u8; NAME_BYTES],
}

const _: () = assert!(size_of::<DiscoveryEntry>() == 1_024);
const _: () = assert!(offset_of!(DiscoveryEntry, service) == 32);
const _: () = assert!(offset_of!(DiscoveryEntry, subsystem_name) == 256);
const _: () = assert!(offset_of!(DiscoveryEntry, address) == 512);
const _: () = assert!(offset_of!(DiscoveryEntry, transport_specific) == 768);

/// The security that a subsystem's address requires of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecureChannel {
    /// None: the address does not support TLS.
    None,
    /// TLS 1.3, with a pre-shared key.
    Tls13,
}

impl SecureChannel {
    /// Returns TREQ bits 1:0: 01b if a secure channel is required, 00b if nothing is said of it. Hosts take 10b, "not required",
    /// for an offer of TLS.
    const fn requirement(self) -> u8 {
        match self {
            Self::None => 0b00,
            Self::Tls13 => 0b01,
        }
    }

    /// Returns the SECTYPE of a TCP address (TCP transport specification 1.1, section 3.6.1.1): 2 is TLS 1.3.
    const fn security_type(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Tls13 => 2,
        }
    }
}

/// Builds the discovery log page of one subsystem at one TCP address.
#[must_use]
pub fn discovery_page(
    generation: u64,
    subsystem: &str,
    address: std::net::SocketAddr,
    secure: SecureChannel,
) -> Vec<u8> {
    const TCP: u8 = 3;
    const WITH_NAMESPACES: u8 = 2;
    const FLOW_CONTROL_DISABLE: u8 = 1 << 2;
    const ADMIN_QUEUE_MAX: u16 = 128;
    let mut header = DiscoveryHeader::new_zeroed();
    header.generation = U64::new(generation);
    header.records = U64::new(1);
    let mut entry = DiscoveryEntry::new_zeroed();
    entry.transport = TCP;
    entry.address_family = if address.is_ipv4() { 1 } else { 2 };
    entry.subsystem_kind = WITH_NAMESPACES;
    entry.requirements = secure.requirement() | FLOW_CONTROL_DISABLE;
    entry.transport_specific[0] = secure.security_type();
    entry.port = U16::new(1);
    entry.controller = U16::new(CONTROLLER_DYNAMIC);
    entry.admin_queue_max = U16::new(ADMIN_QUEUE_MAX);
    // TRSVCID and TRADDR are ASCII strings padded with spaces (Base 2.0 section 1.4.2).
    entry.service = [b' '; 32];
    entry.address = [b' '; NAME_BYTES];
    put_ascii(&mut entry.service, &address.port().to_string());
    put_ascii(&mut entry.address, &address.ip().to_string());
    put_text(&mut entry.subsystem_name, subsystem);
    let mut page = header.as_bytes().to_vec();
    page.extend_from_slice(entry.as_bytes());
    page
}

fn put_ascii(field: &mut [u8], text: &str) {
    let bytes = text.len().min(field.len());
    field[..bytes].copy_from_slice(&text.as_bytes()[..bytes]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connect_fields_have_the_specified_offsets() {
        let fields = ConnectFields {
            format: 0x0201,
            queue: 0x0403,
            size: 0x0605,
            attributes: 0x07,
            keep_alive_ms: 0x0C0B_0A09,
        };
        let entry = fields.to_entry();
        assert_eq!(&entry.as_bytes()[40..52], [1, 2, 3, 4, 5, 6, 7, 0, 9, 10, 11, 12]);
        assert_eq!((entry.opcode, entry.as_bytes()[4]), (0x7F, 1));
        assert_eq!(ConnectFields::from_entry(&entry), fields);
    }

    #[test]
    fn property_fields_have_the_specified_offsets() {
        let get = PropertyFields::get(0x1C, 8);
        assert_eq!((get.as_bytes()[4], get.as_bytes()[40], get.as_bytes()[44]), (4, 1, 0x1C));
        let set = PropertyFields::set(0x14, 0x0046_0001);
        assert_eq!(&set.as_bytes()[44..56], [0x14, 0, 0, 0, 1, 0, 0x46, 0, 0, 0, 0, 0]);
        let fields = PropertyFields::from_entry(&set);
        assert_eq!((fields.bytes, fields.offset, fields.value), (Some(4), 0x14, 0x0046_0001));
    }

    #[test]
    fn names_without_terminator_or_utf8_are_rejected() {
        let mut field = [0_u8; NAME_BYTES];
        put_text(&mut field, "nqn.x");
        assert_eq!(parse_name(&field), Some("nqn.x"));
        assert_eq!(parse_name(&[b'x'; NAME_BYTES]), None);
        field[0] = 0xFF;
        assert_eq!(parse_name(&field), None);
    }

    #[test]
    fn refused_connect_has_the_text_of_a_connect() {
        assert_eq!(
            connect_status::text(connect_status::INVALID_PARAMETERS),
            "invalid parameters (type 1, code 82h)"
        );
        assert_eq!(connect_status::text(Status::INVALID_FIELD), Status::INVALID_FIELD.to_string());
    }

    #[test]
    fn discovery_page_lists_one_subsystem_and_its_address() {
        let page = discovery_page(
            7,
            "nqn.x",
            std::net::SocketAddr::from(([127, 0, 0, 1], 4420)),
            SecureChannel::None,
        );
        assert_eq!(page.len(), 2_048);
        assert_eq!((page[0], page[8], page[1_024], page[1_025], page[1_026]), (7, 1, 3, 1, 2));
        assert_eq!(&page[1_056..1_062], b"4420  ");
        assert_eq!(&page[1_280..1_286], b"nqn.x\0");
        assert_eq!(&page[1_536..1_547], b"127.0.0.1  ");
    }

    #[test]
    fn discovery_page_states_whether_tls_is_required() {
        // TREQ with SQ flow control disable, and SECTYPE.
        for (secure, requirements, security) in
            [(SecureChannel::None, 0b100, 0), (SecureChannel::Tls13, 0b101, 2)]
        {
            let page = discovery_page(1, "nqn.x", ([192, 0, 2, 1], 4420).into(), secure);
            assert_eq!((page[1_024 + 3], page[1_024 + 768]), (requirements, security), "{secure:?}");
        }
    }
}
