//! How much of everything one connection may have.

/// In-capsule data that an I/O queue takes beside its 64-byte entry: IOCCSZ is this and the entry in units of 16 bytes.
pub const IN_CAPSULE_BYTES_MAX: u32 = 8_192;
/// In-capsule data of an admin queue, before and after Connect (section 3.2: 8,192 bytes at most).
pub const ADMIN_IN_CAPSULE_BYTES: u32 = 8_192;
/// MAXH2CDATA: most data in one H2CData PDU.
pub const HOST_DATA_BYTES_MAX: u32 = 1 << 20;
/// The least MAXH2CDATA that a controller may name (section 3.6.2.3).
pub const HOST_DATA_BYTES_LEAST: u32 = 4_096;
/// Bytes that one R2T asks for at most.
pub const R2T_BYTES_MAX: u32 = 1 << 20;
/// Bytes of writes that a controller has asked a connection for and not yet answered; a single larger one goes alone.
pub const WRITE_BYTES_MAX: usize = 8 << 20;
/// Commands a connection may have before Connect told its queue's size: the Connect itself, and no more.
pub const SLOTS_BEFORE_CONNECT: u16 = 1;
/// Most entries of a queue (MQES + 1).
pub const QUEUE_ENTRIES_MAX: u16 = 1_024;
/// Data up to this size is copied behind its header instead of being sent from where it lies.
pub const COPIED_BYTES_MAX: usize = 512;
/// Most bytes of an erroneous header that a termination request carries back (section 3.6.2.4).
pub const TERM_HEADER_BYTES_MAX: usize = 128;
