//! The limits of the RESP face. Everything has one, and it has a name.

/// Clients at a time, until `CONFIG SET maxclients` says otherwise.
pub const CLIENTS_MAX: usize = 10_000;
/// Most clients that can ever be configured: a connection's place is 16 bits of a device token.
pub const CLIENTS_CEILING: usize = 60_000;
/// Bytes of one client's unread input; a client with more is closed.
pub const QUERY_BUFFER_BYTES_MAX: usize = 64 << 20;
/// Bytes of replies one client has not fetched; a client with more is closed.
pub const OUTPUT_BUFFER_BYTES_MAX: usize = 256 << 20;
/// Bytes of one inline command, and of one line of a multibulk header.
pub const INLINE_BYTES_MAX: usize = 64 << 10;
/// Arguments of one command.
pub const ARGUMENTS_MAX: usize = 1_048_576;
/// Bytes of one argument. More than a value may have, so that one that is too long is answered, not disconnected.
pub const BULK_BYTES_MAX: usize = 32 << 20;
/// Arguments of one command before the client has authenticated.
pub const UNKNOWN_ARGUMENTS_MAX: usize = 10;
/// Bytes of one argument before the client has authenticated.
pub const UNKNOWN_BULK_BYTES_MAX: usize = 16_384;
/// Replies of one connection that are not yet written: what is beyond stays in its input.
pub const SLOTS_MAX: usize = 1_024;
/// Commands parsed ahead in one go.
pub const BATCH_COMMANDS_MAX: usize = 512;
/// Bytes read from one connection in one turn, so that a loud client does not starve the others.
pub const TURN_BYTES_MAX: usize = 256 << 10;
/// Bytes asked of the kernel in one read.
pub const READ_BYTES: usize = 64 << 10;
/// Connections accepted in one turn.
pub const TURN_ACCEPTS_MAX: usize = 256;
/// Events taken from the kernel in one turn.
pub const TURN_EVENTS_MAX: usize = 512;
/// Device commands of this face in flight; half of what a device takes, so that other faces find room.
pub const IN_FLIGHT_MAX: usize = 4_096;
/// Device commands that one client command has in flight.
pub const WINDOW_MAX: usize = 256;
/// How often a read-modify-write begins again because another face changed the key meanwhile.
pub const RETRIES_MAX: u32 = 64;
/// Values from this length on are sent from where they lie; shorter ones are copied behind their header.
pub const SEGMENT_BYTES_MIN: usize = 2_048;
/// Value sinks kept for reuse.
pub const SINKS_MAX: usize = 1_024;
/// Longest sink that is kept.
pub const SINK_BYTES_MAX: usize = 64 << 10;
/// Databases that SELECT knows.
pub const DATABASES: usize = headwater_ssd::limits::NAMESPACES;
/// Entries the slow log keeps at most, whatever it is configured to.
pub const SLOWLOG_ENTRIES_MAX: usize = 10_000;
/// Longest `DEBUG SLEEP`, in seconds.
pub const DEBUG_SLEEP_SECONDS_MAX: f64 = 60.0;
/// Cells of the table that LCS may fill: 64 Mi, a second of one core.
pub const LCS_CELLS_MAX: usize = 64 << 20;
