//! The command INFO: statistics of the server and the device.
//!
//! Input: the names of sections. Output: Redis's format, `name:value` under headings; fields that Redis's tools use
//! have Redis's names, fields of this device begin with `device_`.

use super::command_table::TABLE;
use super::output_queue::ReplyEncoder;
use super::reply::{RespReply, RespVersion};
use super::request::RespRequest;
use super::state::RespState;
use headwater_host::clock::Clock;
use headwater_ssd::engine::{DeviceStats, Durability};
use std::fmt::Write as _;

/// The Redis version whose behaviour and texts this front end reproduces.
pub(crate) const REDIS_VERSION: &str = "7.0.15";

/// The sections in order; the flag is true for sections shown by default.
const SECTIONS: &[(&str, bool)] = &[
    ("Server", true),
    ("Clients", true),
    ("Memory", true),
    ("Persistence", true),
    ("Stats", true),
    ("Replication", true),
    ("CPU", true),
    ("Commandstats", false),
    ("Keyspace", true),
];

/// Executes INFO.
pub(crate) fn answer(
    request: &RespRequest<'_>,
    protocol: RespVersion,
    shared: &RespState,
    stats: &DeviceStats,
    clients: usize,
) -> RespReply {
    let asked: Vec<Vec<u8>> = (1..request.len()).map(|at| request.lower(at)).collect();
    let every = asked.iter().any(|word| matches!(&word[..], b"all" | b"everything"));
    let usual = asked.is_empty() || asked.iter().any(|word| &word[..] == b"default");
    let mut text = String::new();
    for (name, default) in SECTIONS {
        let lower = name.to_ascii_lowercase();
        let named = asked.iter().any(|word| word == lower.as_bytes());
        if named || every || (usual && *default) {
            if !text.is_empty() {
                text.push_str("\r\n");
            }
            line(&mut text, format_args!("# {name}"));
            section(&lower, &mut text, shared, stats, clients);
        }
    }
    let mut out = Vec::new();
    ReplyEncoder::new(&mut out, protocol).verbatim(&text);
    RespReply::Encoded(out)
}

fn line(text: &mut String, content: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = text.write_fmt(content);
    text.push_str("\r\n");
}

fn section(name: &str, text: &mut String, shared: &RespState, stats: &DeviceStats, clients: usize) {
    match name {
        "server" => server(text, shared),
        "clients" => {
            line(text, format_args!("connected_clients:{clients}"));
            line(text, format_args!("maxclients:{}", shared.settings.clients_max));
            line(text, format_args!("blocked_clients:{}", shared.sleepers.len()));
            line(text, format_args!("clients_waiting_for_memory:{}", shared.reply_budget.waiting()));
        }
        "memory" => {
            line(text, format_args!("used_memory:{}", stats.index_bytes));
            line(text, format_args!("mem_clients_normal:{}", shared.client_memory.held()));
            line(text, format_args!("mem_unread_replies:{}", shared.reply_budget.held()));
            line(text, format_args!("maxmemory:0"));
            line(text, format_args!("maxmemory_policy:noeviction"));
            line(text, format_args!("device_index_bytes:{}", stats.index_bytes));
            line(text, format_args!("device_live_bytes:{}", stats.live_bytes));
            line(text, format_args!("device_capacity_bytes:{}", stats.capacity_bytes));
            line(text, format_args!("device_free_blocks:{}", stats.free_blocks));
        }
        "persistence" => persistence(text, shared, stats),
        "stats" => counters(text, shared, stats),
        "replication" => {
            line(text, format_args!("role:master"));
            line(text, format_args!("connected_slaves:0"));
        }
        "cpu" => {
            let seconds = |nanos: u64| std::time::Duration::from_nanos(nanos).as_secs_f64();
            line(text, format_args!("used_cpu_total:{:.6}", seconds(Clock::process_cpu().0)));
            line(text, format_args!("used_cpu_main_thread:{:.6}", seconds(Clock::thread_cpu().0)));
        }
        "commandstats" => commands(text, shared),
        _ => keyspace(text, stats),
    }
}

fn server(text: &mut String, shared: &RespState) {
    let up = shared.now.since(shared.started).0 / 1_000_000_000;
    line(text, format_args!("redis_version:{REDIS_VERSION}"));
    line(text, format_args!("headwater_version:{}", env!("CARGO_PKG_VERSION")));
    line(text, format_args!("redis_mode:standalone"));
    line(text, format_args!("os:{} {}", std::env::consts::OS, std::env::consts::ARCH));
    line(text, format_args!("arch_bits:{}", usize::BITS));
    line(text, format_args!("multiplexing_api:epoll"));
    line(text, format_args!("process_id:{}", std::process::id()));
    line(text, format_args!("tcp_port:{}", shared.settings.port));
    line(text, format_args!("server_time_usec:{}", shared.wall.0.saturating_mul(1_000)));
    line(text, format_args!("uptime_in_seconds:{up}"));
    line(text, format_args!("uptime_in_days:{}", up / 86_400));
}

fn persistence(text: &mut String, shared: &RespState, stats: &DeviceStats) {
    let mode = match shared.settings.durability {
        Durability::Always => "always".to_owned(),
        Durability::Interval(span) => format!("interval={}", span.0 / 1_000_000),
        Durability::OnFlush => "on-flush".to_owned(),
    };
    line(text, format_args!("loading:0"));
    line(text, format_args!("aof_enabled:1"));
    line(text, format_args!("rdb_last_save_time:{}", shared.last_save.0 / 1_000));
    line(text, format_args!("device_durability:{mode}"));
    line(text, format_args!("device_flushes:{}", stats.flushes));
    line(text, format_args!("device_client_bytes:{}", stats.client_bytes));
    line(text, format_args!("device_programmed_bytes:{}", stats.programmed_bytes));
    // Hundredths, so that no floating point is needed; 0 before the first write.
    let amplification =
        stats.programmed_bytes.saturating_mul(100).checked_div(stats.client_bytes).unwrap_or(0);
    line(text, format_args!("device_write_amplification:{}.{:02}", amplification / 100, amplification % 100));
    line(text, format_args!("device_moved_bytes:{}", stats.moved_bytes));
    line(text, format_args!("device_erases:{}", stats.erases));
    line(text, format_args!("device_checkpoints:{}", stats.checkpoints));
    line(text, format_args!("device_checkpoint_pages:{}", stats.checkpoint_pages));
    line(text, format_args!("device_no_room:{}", stats.no_room));
    line(text, format_args!("device_quarantined_blocks:{}", stats.quarantined));
    line(text, format_args!("device_damaged_records:{}", stats.damaged));
    line(text, format_args!("device_damaged_pages:{}", stats.damaged_pages));
    line(text, format_args!("device_lost_pages:{}", stats.lost_pages));
    line(text, format_args!("device_namespaces_in_doubt:{}", stats.namespaces_in_doubt));
}

fn counters(text: &mut String, shared: &RespState, stats: &DeviceStats) {
    let counters = shared.counters.since(&shared.counters_at_reset);
    for (name, value) in [
        ("total_connections_received", counters.connections),
        ("total_commands_processed", counters.commands_done),
        ("total_net_input_bytes", counters.input_bytes),
        ("total_net_output_bytes", counters.output_bytes),
        ("client_output_buffer_limit_disconnections", counters.stalled_closed),
        ("rejected_connections", counters.connections_rejected),
        ("expired_keys", stats.expired - shared.expired_at_reset),
        ("evicted_keys", 0),
        ("keyspace_hits", counters.hits),
        ("keyspace_misses", counters.misses),
        ("total_error_replies", counters.errors),
        ("device_commands", stats.completed),
        ("device_cache_hits", stats.cache_hits),
        ("device_cache_misses", stats.cache_misses),
        ("device_registered_bytes", stats.registered_memory.bytes),
        ("device_registered_transfers", stats.registered_memory.transfers),
        ("device_registered_refused", stats.registered_memory.refused),
    ] {
        line(text, format_args!("{name}:{value}"));
    }
}

fn commands(text: &mut String, shared: &RespState) {
    let counters = shared.counters.since(&shared.counters_at_reset);
    for (entry, command) in TABLE.iter().zip(&counters.commands) {
        if command.calls == 0 && command.rejected == 0 {
            continue;
        }
        let micros = command.nanos / 1_000;
        // Hundredths, so that no floating point is needed.
        let each = command.nanos.checked_div(command.calls.saturating_mul(10)).unwrap_or(0);
        line(
            text,
            format_args!(
                "cmdstat_{}:calls={},usec={micros},usec_per_call={}.{:02},rejected_calls={},failed_calls={}",
                entry.name,
                command.calls,
                each / 100,
                each % 100,
                command.rejected,
                command.failed
            ),
        );
    }
}

fn keyspace(text: &mut String, stats: &DeviceStats) {
    for (database, keys) in stats.keys.iter().enumerate().filter(|(_, keys)| **keys > 0) {
        line(text, format_args!("db{database}:keys={keys},expires=0,avg_ttl=0"));
    }
}
