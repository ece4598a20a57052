//! The limits of the RESP front end.

use headwater_host::clock::Nanos;

/// Connected clients, unless `CONFIG SET maxclients` changes the limit.
pub const CLIENTS_MAX: usize = 10_000;
/// Upper bound of `maxclients`: a connection's index is 16 bits of a device token.
pub const CLIENTS_CEILING: usize = 60_000;
/// Bytes of one client's unparsed input; a client with more is closed.
pub const QUERY_BUFFER_BYTES_MAX: usize = 384 << 20;
/// Bytes of one client's unread replies above which its commands wait, unless `CONFIG SET client-output-buffer-limit`
/// changes the limit. A single reply may be longer.
pub const REPLY_BYTES_MAX: usize = 64 << 20;
/// Bytes of unread replies up to which a client's commands never wait for other clients, unless the same setting changes
/// it.
pub const REPLY_SHARE_BYTES: usize = 64 << 10;
/// Seconds without progress after which a client above its share is closed if other clients wait for memory, unless the same
/// setting changes it.
pub const REPLY_PATIENCE_SECONDS: u64 = 5;
/// Bytes of unread replies of all clients together, without their shares.
pub const REPLY_MEMORY_BYTES_MAX: usize = 256 << 20;
/// Bytes of the values of one MGET from which they are sent as they arrive.
pub const STREAMED_BYTES_MIN: usize = 1 << 20;
/// Bytes of a value that are read at a time while the value is sent; a longer one is sent in such parts.
pub const STREAM_PART_BYTES: usize = 256 << 10;
const _: () = assert!(STREAM_PART_BYTES.is_multiple_of(headwater_ssd::limits::EXTENT_BYTES));
/// Long values of one MGET whose readers are open at a time.
pub const LONG_VALUES_OPEN_MAX: usize = 64;
/// Bytes that all clients together may make the front end hold: input, values and unsent replies. A client above its
/// allowance gets an error instead of more.
pub const CLIENT_MEMORY_BYTES_MAX: usize = 1 << 30;
/// Bytes that one client may hold whatever the other clients hold.
pub const CLIENT_ALLOWANCE_BYTES: usize = 1 << 20;
/// Bytes of arguments and values of one connection's unanswered commands above which further commands stay in its input.
pub const SLOT_BYTES_MAX: usize = 64 << 20;
/// Bytes of parsed commands from which their arguments count as memory of the client.
pub const COUNTED_CHUNK_BYTES_MIN: usize = 64 << 10;
/// Bytes of one inline command, and of one line of a multibulk header.
pub const INLINE_BYTES_MAX: usize = 64 << 10;
/// Arguments of one command.
pub const ARGUMENTS_MAX: usize = 1_048_576;
/// Bytes of one argument. Exceeds the limit of a value, so that a client with a too long value gets an error, not a
/// disconnect.
pub const BULK_BYTES_MAX: usize = 320 << 20;
const _: () = assert!(BULK_BYTES_MAX > headwater_ssd::limits::VALUE_BYTES_MAX);
const _: () = assert!(QUERY_BUFFER_BYTES_MAX > BULK_BYTES_MAX);
/// Arguments of one command before the client has authenticated.
pub const UNAUTHENTICATED_ARGUMENTS_MAX: usize = 10;
/// Bytes of one argument before the client has authenticated.
pub const UNAUTHENTICATED_BULK_BYTES_MAX: usize = 16_384;
/// Unanswered commands of one connection; further commands stay in its input.
pub const SLOTS_MAX: usize = 1_024;
/// Commands parsed in one call of the parser.
pub const BATCH_COMMANDS_MAX: usize = 512;
/// Bytes read from one connection in one turn, so that no client starves another.
pub const TURN_BYTES_MAX: usize = 256 << 10;
/// Commands of one connection executed in one turn; the rest waits for the next one.
pub const TURN_COMMANDS_MAX: u32 = 128;
/// Device commands completed in one turn after which sockets are served again.
pub const TURN_COMPLETIONS_MAX: usize = 256;
/// Bytes of values read in one turn after which sockets are served again.
pub const TURN_VALUE_BYTES_MAX: usize = 1 << 20;
/// Bytes of output that count as much as a command.
pub const TURN_OUTPUT_BYTES_EACH: usize = 256;
/// Bytes requested in one read.
pub const READ_BYTES: usize = 64 << 10;
/// Missing bytes of an argument from which they are received where the argument stays, without a copy in between.
pub const DIRECT_BYTES_MIN: usize = 16 << 10;
/// Bytes requested in one read of such an argument.
pub const DIRECT_READ_BYTES: usize = 256 << 10;
/// Bytes requested in the first read behind such an argument.
pub const HEADER_READ_BYTES: usize = 4 << 10;
/// Bytes of receive buffers of long arguments kept for reuse, for all clients together.
pub const RECEIVE_BUFFERS_BYTES_MAX: usize = 64 << 20;
/// Receive buffers of long arguments kept for reuse.
pub const RECEIVE_BUFFERS_MAX: usize = 64;
/// Buffers for parts of values that are sent while they are read, kept for reuse: 16 MiB.
pub const PART_BUFFERS_MAX: usize = 64;
/// Bytes sent to one client in one turn.
pub const TURN_SENT_BYTES_EACH: usize = 256 << 10;
/// Bytes sent to all clients in one turn.
pub const TURN_SENT_BYTES_MAX: usize = 1 << 20;
/// Connections accepted from one listener in one turn.
pub const TURN_ACCEPTS_MAX: usize = 256;
/// Events taken from the kernel in one turn.
pub const TURN_EVENTS_MAX: usize = 512;
/// Device commands of this front end in flight; half of the device's limit, so that other front ends find room.
pub const IN_FLIGHT_MAX: usize = 4_096;
/// Device commands in flight for one client command.
pub const GATHER_IN_FLIGHT_MAX: usize = 256;
/// APPEND commands of a pipeline that are executed together with the one before them.
pub const APPENDS_TOGETHER_MAX: usize = 255;
/// Retries of a read-modify-write whose key another front end changed between its read and its write.
pub const RETRIES_MAX: u32 = 64;
/// The longest time for which a transaction keeps the commands of other clients from starting.
pub const GATE_MAX: Nanos = Nanos::from_millis(5);
/// Length from which a value is sent from its own buffer; shorter values are copied behind their header.
pub const SEGMENT_BYTES_MIN: usize = 2_048;
/// Value buffers kept for reuse.
pub const VALUE_BUFFERS_MAX: usize = 1_024;
/// Largest value buffer kept for reuse.
pub const VALUE_BUFFER_BYTES_MAX: usize = 64 << 10;
/// Databases of SELECT.
pub const DATABASES: usize = headwater_ssd::limits::NAMESPACES;
/// Upper bound of the slow log's configured number of entries.
pub const SLOWLOG_ENTRIES_MAX: usize = 10_000;
/// Longest `DEBUG SLEEP`, in seconds.
pub const DEBUG_SLEEP_SECONDS_MAX: f64 = 60.0;
/// Steps of a long computation in one turn, well below a millisecond.
pub const LONG_STEPS_MAX: usize = 64 << 10;
/// Clients that CLIENT LIST lists in one turn.
pub const LISTED_CLIENTS_MAX: usize = 128;
/// Cells of the table of LCS: 64 Mi, about one second of one core.
pub const LCS_CELLS_MAX: usize = 64 << 20;
/// Commands of one transaction.
pub const TRANSACTION_COMMANDS_MAX: usize = 65_536;
/// Bytes of the queued commands of one transaction.
pub const TRANSACTION_BYTES_MAX: usize = 32 << 20;
/// Bytes of values that the commands of one transaction read.
pub const TRANSACTION_READ_BYTES_MAX: usize = 64 << 20;
/// Bytes of the replies of one transaction.
pub const TRANSACTION_REPLY_BYTES_MAX: usize = 64 << 20;
/// Commands of one transaction that are run in one turn.
pub const TRANSACTION_SLICE_COMMANDS: usize = 64;
/// Bytes of values that the commands of one transaction copy in one turn, before the rest waits for the next turn.
pub const TRANSACTION_SLICE_BYTES: usize = 256 << 10;
/// Bytes of the watched keys of one connection.
pub const WATCHED_BYTES_MAX: usize = 4 << 20;
