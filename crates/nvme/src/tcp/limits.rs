//! Limits of one connection.

/// In-capsule data of an admin queue, before and after Connect (section 3.2: 8,192 bytes at most).
pub const ADMIN_IN_CAPSULE_BYTES: u32 = 8_192;
/// MAXH2CDATA: maximum data in one H2CData PDU.
pub const HOST_DATA_BYTES_MAX: u32 = 1 << 20;
/// Maximum data that this end sends in one PDU. The other end may allow more, up to 4 GiB, which the length of a whole
/// PDU could not express.
pub const PDU_DATA_BYTES_MAX: u32 = 1 << 30;
/// The minimum MAXH2CDATA of a controller (section 3.6.2.3).
pub const HOST_DATA_BYTES_MIN: u32 = 4_096;
/// Maximum bytes that one R2T requests.
pub const R2T_BYTES_MAX: u32 = 1 << 20;
/// Maximum bytes of unanswered writes that a controller has requested by R2T on a connection; a larger write is
/// requested alone.
pub const WRITE_BYTES_MAX: usize = 8 << 20;
/// Commands allowed on a connection before Connect sets its queue size: the Connect itself.
pub const SLOTS_BEFORE_CONNECT: u16 = 1;
/// Maximum entries of a queue (MQES + 1).
pub const QUEUE_ENTRIES_MAX: u16 = 1_024;
/// Data up to this size is copied after its header instead of being sent from its own buffer.
pub const COPIED_BYTES_MAX: usize = 512;
/// Maximum bytes of the header in error that a termination request carries (section 3.6.2.4).
pub const TERM_HEADER_BYTES_MAX: usize = 128;
