//! `headwater namespace`: lists and changes the namespaces of a live node or of a stopped node's data directory.
//!
//! Input: arguments. Output: a table or JSON, or one line that names the change; the change is durable when the line is
//! printed.

use super::attach::SocketArgs;
use super::embedded::{StoppedNode, open_stopped};
use super::failure::{CommandFailure, write_json, write_line};
use crate::config::{ByteSize, DurabilityMode};
use crate::kv::pipeline::execute_all;
use clap::{Args, Subcommand};
use headwater::namespace_request::{durability_spec, namespace_change, table};
use headwater_frontend::core_device::CoreWork;
use headwater_host::width::narrow;
use headwater_io::attach::admin::{AdminAnswer, AdminRequest};
use headwater_io::namespace_request::{DurabilitySpec, NamespaceRequest, NamespaceSpec};
use headwater_ssd::command::SsdCommand;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Arguments of `headwater namespace`.
#[derive(Debug, Args)]
#[command(after_help = "\
A namespace that was not created is a key space without limits; number 1 always exists. Numbers are the databases of
Redis clients (SELECT 0 is namespace 1), the NSIDs of NVMe hosts and `ns=` of URLs.

Examples:
  headwater namespace create --blocks 4096 --size 1GiB
  headwater namespace create --quota 10GiB --iops 5000
  headwater namespace list
  headwater namespace limits 2 --iops 20000 --bytes-per-second 100MiB --burst 32
  headwater namespace durability 2 interval=50
  headwater namespace --data ./data delete 2         for a stopped node")]
pub struct NamespaceArgs {
    #[command(flatten)]
    socket: SocketArgs,
    /// Data directory of a stopped node, instead of a live one
    #[arg(long, global = true, value_name = "DIR")]
    data: Option<PathBuf>,
    #[command(subcommand)]
    op: NamespaceOp,
}

/// The rate limits of a namespace.
#[derive(Debug, Args)]
struct LimitArgs {
    /// Maximum commands a second; 0 for no limit
    #[arg(long, value_name = "N", default_value_t = 0)]
    iops: u32,
    /// Maximum bytes a second [default: no limit]
    #[arg(long, value_name = "SIZE")]
    bytes_per_second: Option<ByteSize>,
    /// Commands that may start at once after a pause
    #[arg(long, value_name = "N", default_value_t = 0)]
    burst: u32,
}

/// The argument that names a namespace.
#[derive(Debug, Args)]
struct NamespaceNumber {
    /// Number of the namespace, 1 to 16
    #[arg(value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16))]
    id: u8,
}

#[derive(Debug, Subcommand)]
enum NamespaceOp {
    /// Print the namespaces that hosts see
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Create a namespace and print its number
    Create {
        /// Bytes of a block, 512 or 4096; without it the namespace holds keys
        #[arg(long, value_name = "BYTES", requires = "size")]
        blocks: Option<u32>,
        /// Bytes of the block namespace
        #[arg(long, value_name = "SIZE", requires = "blocks")]
        size: Option<ByteSize>,
        /// Maximum bytes of the records of keys [default: no quota]
        #[arg(long, value_name = "SIZE", conflicts_with = "blocks")]
        quota: Option<ByteSize>,
        /// always, interval=MS or on-flush [default: the mode of the node's configuration]
        #[arg(long, value_name = "MODE")]
        durability: Option<DurabilityMode>,
        #[command(flatten)]
        limits: LimitArgs,
    },
    /// Delete a namespace with all its contents
    Delete {
        #[command(flatten)]
        number: NamespaceNumber,
    },
    /// Change the size of a block namespace, or the quota of a key space; shrinking removes blocks
    Resize {
        #[command(flatten)]
        number: NamespaceNumber,
        /// New size in bytes; a multiple of the block for a block namespace
        #[arg(value_name = "SIZE")]
        size: ByteSize,
    },
    /// Remove all contents of a namespace
    Format {
        #[command(flatten)]
        number: NamespaceNumber,
        /// New bytes of a block, 512 or 4096; without it the namespace holds keys
        #[arg(long, value_name = "BYTES")]
        blocks: Option<u32>,
    },
    /// Change the rate limits of a namespace; all its clients share them
    Limits {
        #[command(flatten)]
        number: NamespaceNumber,
        #[command(flatten)]
        limits: LimitArgs,
    },
    /// Change the durability mode of a namespace
    Durability {
        #[command(flatten)]
        number: NamespaceNumber,
        /// always, interval=MS or on-flush [default: the mode of the node's configuration]
        #[arg(value_name = "MODE")]
        mode: Option<DurabilityMode>,
    },
}

/// Runs `headwater namespace`.
///
/// # Errors
/// When no node answers, the directory cannot be opened, or the device refuses.
pub fn run(args: NamespaceArgs) -> Result<(), CommandFailure> {
    let ask = |request| match &args.data {
        None => args.socket.call(request),
        Some(data) => execute_offline(data, request),
    };
    let rows = || match ask(AdminRequest::Namespaces)? {
        AdminAnswer::Namespaces(table) => Ok(table),
        _ => Err(CommandFailure::failed("unexpected reply of the node; it may run another version")),
    };
    if let NamespaceOp::List { json } = args.op {
        return print(&rows()?, json);
    }
    let block_bytes = |id: u8| -> Result<u64, CommandFailure> {
        let row = rows()?.into_iter().find(|(number, _)| *number == id);
        Ok(row.map_or(0, |(_, text)| text.block_bytes.into()))
    };
    let (id, request) = request_of(&args.op, block_bytes)?;
    match ask(AdminRequest::Namespace { id, request })? {
        AdminAnswer::Namespace(1) if matches!(args.op, NamespaceOp::Delete { .. }) => {
            write_line("namespace 1: emptied; it always exists, and is a key space without limits again")
        }
        AdminAnswer::Namespace(id) => write_line(&format!("namespace {id}: done")),
        _ => Err(CommandFailure::failed("unexpected reply of the node; it may run another version")),
    }
}

fn request_of(
    op: &NamespaceOp,
    block_bytes: impl Fn(u8) -> Result<u64, CommandFailure>,
) -> Result<(u8, NamespaceRequest), CommandFailure> {
    let text = |mode: &DurabilityMode| durability_spec(mode.0);
    Ok(match op {
        NamespaceOp::List { .. } => return Err(CommandFailure::usage("a list changes nothing")),
        NamespaceOp::Create { blocks, size, quota, durability, limits } => {
            let block_bytes = blocks.unwrap_or(0);
            let size = match size {
                Some(size) => whole_blocks(*size, block_bytes.into())?,
                None => quota.map_or(0, |quota| quota.0),
            };
            let text = NamespaceSpec {
                block_bytes,
                size,
                durability: durability.as_ref().map(text),
                iops: limits.iops,
                bytes_per_second: limits.bytes_per_second.map_or(0, |bytes| bytes.0),
                burst: limits.burst,
            };
            (0, NamespaceRequest::Create(text))
        }
        NamespaceOp::Delete { number } => (number.id, NamespaceRequest::Delete),
        NamespaceOp::Resize { number, size } => {
            let size = match block_bytes(number.id)? {
                0 => size.0,
                bytes => whole_blocks(*size, bytes)?,
            };
            (number.id, NamespaceRequest::Resize(size))
        }
        NamespaceOp::Format { number, blocks } => (number.id, NamespaceRequest::Format(blocks.unwrap_or(0))),
        NamespaceOp::Limits { number, limits } => {
            let bytes_per_second = limits.bytes_per_second.map_or(0, |bytes| bytes.0);
            let request =
                NamespaceRequest::Limits { iops: limits.iops, bytes_per_second, burst: limits.burst };
            (number.id, request)
        }
        NamespaceOp::Durability { number, mode } => {
            (number.id, NamespaceRequest::Durability(mode.as_ref().map(text)))
        }
    })
}

fn whole_blocks(size: ByteSize, block_bytes: u64) -> Result<u64, CommandFailure> {
    if block_bytes == 0 || !size.0.is_multiple_of(block_bytes) || size.0 == 0 {
        return Err(CommandFailure::usage(format!(
            "{size} is not a whole number of blocks of {block_bytes} bytes"
        )));
    }
    Ok(size.0 / block_bytes)
}

/// Executes a request on the device of a stopped node.
fn execute_offline(data: &Path, request: AdminRequest) -> Result<AdminAnswer, CommandFailure> {
    // The directory stays locked until the device is shut down.
    let StoppedNode { mut device, clock, directory: _held } = open_stopped(data)?;
    let AdminRequest::Namespace { id, request } = request else {
        return Ok(AdminAnswer::Namespaces(table(&device)));
    };
    let (namespace, change) = namespace_change(id, &request).map_err(CommandFailure::usage)?;
    let commands = std::iter::once(SsdCommand::Namespace(change));
    let done = execute_all(&mut device, &clock, namespace, commands)?;
    CoreWork::shutdown(&mut device, &clock).map_err(CommandFailure::failed)?;
    let completion =
        done.into_iter().next().ok_or_else(|| CommandFailure::failed("the device returned no completion"))?;
    if !completion.status.is_success() {
        return Err(CommandFailure::failed(completion.status.to_string()));
    }
    // The position is the identifier of the namespace that was created.
    let is_new = matches!(request, NamespaceRequest::Create(_));
    Ok(AdminAnswer::Namespace(if is_new { narrow(completion.position) } else { id }))
}

fn print(table: &[(u8, NamespaceSpec)], json: bool) -> Result<(), CommandFailure> {
    #[derive(Serialize)]
    struct NamespaceRow<'a> {
        namespace: u8,
        #[serde(flatten)]
        text: &'a NamespaceSpec,
    }
    if json {
        let rows: Vec<_> =
            table.iter().map(|(namespace, text)| NamespaceRow { namespace: *namespace, text }).collect();
        return write_json(&rows);
    }
    let lines: Vec<String> = table.iter().map(|(id, text)| line_of(*id, text)).collect();
    write_line(&lines.join("\n"))
}

fn line_of(id: u8, text: &NamespaceSpec) -> String {
    let mut line = match (text.block_bytes, text.size) {
        (0, 0) => format!("{id}: keys"),
        (0, quota) => format!("{id}: keys, quota {}", ByteSize(quota)),
        (bytes, blocks) => {
            let size = ByteSize(u64::from(bytes).saturating_mul(blocks));
            format!("{id}: {blocks} blocks of {bytes} bytes, {size}")
        }
    };
    match text.durability {
        None => {}
        Some(DurabilitySpec::Always) => line.push_str(", durable always"),
        Some(DurabilitySpec::IntervalMs(ms)) => line.push_str(&format!(", durable interval={ms}")),
        Some(DurabilitySpec::OnFlush) => line.push_str(", durable on-flush"),
    }
    if text.iops > 0 {
        line.push_str(&format!(", at most {} commands a second", text.iops));
    }
    if text.bytes_per_second > 0 {
        line.push_str(&format!(", at most {} a second", ByteSize(text.bytes_per_second)));
    }
    if text.burst > 0 {
        line.push_str(&format!(", burst {}", text.burst));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_become_whole_blocks_without_rounding() {
        assert_eq!(whole_blocks(ByteSize(1 << 20), 4_096).unwrap(), 256);
        assert!(whole_blocks(ByteSize(1_000), 512).is_err());
        assert!(whole_blocks(ByteSize(0), 512).is_err());
        let resize = NamespaceOp::Resize { number: NamespaceNumber { id: 3 }, size: ByteSize(8_192) };
        assert_eq!(request_of(&resize, |_| Ok(512)).unwrap(), (3, NamespaceRequest::Resize(16)));
        assert_eq!(request_of(&resize, |_| Ok(0)).unwrap(), (3, NamespaceRequest::Resize(8_192)));
    }

    #[test]
    fn line_shows_only_settings_that_differ_from_the_default() {
        assert_eq!(line_of(1, &NamespaceSpec::keys()), "1: keys");
        let text = NamespaceSpec {
            block_bytes: 512,
            size: 2_048,
            durability: Some(DurabilitySpec::IntervalMs(5)),
            iops: 7,
            bytes_per_second: 1 << 20,
            burst: 3,
        };
        assert_eq!(
            line_of(2, &text),
            "2: 2048 blocks of 512 bytes, 1 MiB, durable interval=5, at most 7 commands a second, at most 1 MiB a \
             second, burst 3"
        );
    }
}
