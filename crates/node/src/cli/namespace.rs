//! `headwater namespace`: the table of namespaces, of a live node or of a stopped one's data directory.
//!
//! In: arguments. Out: a table or JSON, or one line that says what changed, durable when it is printed.

use super::attach::SocketArgs;
use super::embedded::{StoppedNode, open_stopped};
use super::failure::{Failure, answer_json, answer_line};
use crate::config::{Bytes, DurabilityMode};
use crate::kv::pipeline::carry_out;
use clap::{Args, Subcommand};
use headwater::namespace_wish::{change_of, durability_text, table};
use headwater_frontend::core_device::CoreWork;
use headwater_io::attach::admin::{AdminAnswer, AdminRequest, DurabilityText, NamespaceText, NamespaceWish};
use headwater_ssd::command::Command;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Arguments of `headwater namespace`.
#[derive(Debug, Args)]
#[command(after_help = "\
A namespace that nobody made is a key space without limits; number 1 is always there. Numbers are the databases of Redis
clients (SELECT 0 is namespace 1), the NSIDs of NVMe hosts and `ns=` of URLs.

Examples:
  headwater namespace create --blocks 4096 --size 1GiB
  headwater namespace create --quota 10GiB --iops 5000
  headwater namespace list
  headwater namespace limits 2 --iops 20000 --bytes-per-second 100MiB --burst 32
  headwater namespace durability 2 interval=50
  headwater namespace --data ./data delete 2         the node is stopped")]
pub struct NamespaceArgs {
    #[command(flatten)]
    socket: SocketArgs,
    /// Data directory of a stopped node, instead of a live one
    #[arg(long, global = true, value_name = "DIR")]
    data: Option<PathBuf>,
    #[command(subcommand)]
    op: NamespaceOp,
}

/// How fast a namespace may be used.
#[derive(Debug, Args)]
struct LimitArgs {
    /// Commands a second, 0 without limit
    #[arg(long, value_name = "N", default_value_t = 0)]
    iops: u32,
    /// Bytes a second [default: without limit]
    #[arg(long, value_name = "SIZE")]
    bytes_per_second: Option<Bytes>,
    /// Commands that may come at once after a pause
    #[arg(long, value_name = "N", default_value_t = 0)]
    burst: u32,
}

/// Which namespace.
#[derive(Debug, Args)]
struct Number {
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
    /// Make a namespace; its number is printed
    Create {
        /// Blocks of so many bytes, 512 or 4096; keys when left out
        #[arg(long, value_name = "BYTES", requires = "size")]
        blocks: Option<u32>,
        /// Bytes of the block namespace
        #[arg(long, value_name = "SIZE", requires = "blocks")]
        size: Option<Bytes>,
        /// Most bytes the keys' records may take [default: no quota]
        #[arg(long, value_name = "SIZE", conflicts_with = "blocks")]
        quota: Option<Bytes>,
        /// always, interval=MS or on-flush [default: as the node is configured]
        #[arg(long, value_name = "MODE")]
        durability: Option<DurabilityMode>,
        #[command(flatten)]
        limits: LimitArgs,
    },
    /// Remove a namespace with everything it holds
    Delete {
        #[command(flatten)]
        number: Number,
    },
    /// Change the size of a block namespace, or the quota of a key space; shrinking removes blocks
    Resize {
        #[command(flatten)]
        number: Number,
        /// Bytes; whole blocks of a block namespace
        #[arg(value_name = "SIZE")]
        size: Bytes,
    },
    /// Remove everything a namespace holds
    Format {
        #[command(flatten)]
        number: Number,
        /// Give it blocks of so many bytes, 512 or 4096; keys when left out
        #[arg(long, value_name = "BYTES")]
        blocks: Option<u32>,
    },
    /// Change how fast a namespace may be used, by all its clients together
    Limits {
        #[command(flatten)]
        number: Number,
        #[command(flatten)]
        limits: LimitArgs,
    },
    /// Change when acknowledged writes are safe: always, interval=MS or on-flush; without a mode, as the node is configured
    Durability {
        #[command(flatten)]
        number: Number,
        /// The mode
        #[arg(value_name = "MODE")]
        mode: Option<DurabilityMode>,
    },
}

/// Runs `headwater namespace`.
///
/// # Errors
/// When no node answers, the directory cannot be opened, or the device refuses.
pub fn run(args: NamespaceArgs) -> Result<(), Failure> {
    let ask = |request| match &args.data {
        None => args.socket.ask(request),
        Some(data) => ask_offline(data, request),
    };
    let rows = || match ask(AdminRequest::Namespaces)? {
        AdminAnswer::Namespaces(table) => Ok(table),
        _ => Err(Failure::failed("the node answered something else; it may be of another version")),
    };
    if let NamespaceOp::List { json } = args.op {
        return print(&rows()?, json);
    }
    let block_bytes = |id: u8| -> Result<u64, Failure> {
        let row = rows()?.into_iter().find(|(number, _)| *number == id);
        Ok(row.map_or(0, |(_, text)| text.block_bytes.into()))
    };
    let (id, wish) = wish_of(&args.op, block_bytes)?;
    match ask(AdminRequest::Namespace { id, wish })? {
        AdminAnswer::Namespace(id) => answer_line(&format!("namespace {id}: done")),
        _ => Err(Failure::failed("the node answered something else; it may be of another version")),
    }
}

fn wish_of(
    op: &NamespaceOp,
    block_bytes: impl Fn(u8) -> Result<u64, Failure>,
) -> Result<(u8, NamespaceWish), Failure> {
    let text = |mode: &DurabilityMode| durability_text(mode.0);
    Ok(match op {
        NamespaceOp::List { .. } => return Err(Failure::usage("a list changes nothing")),
        NamespaceOp::Create { blocks, size, quota, durability, limits } => {
            let block_bytes = blocks.unwrap_or(0);
            let size = match size {
                Some(size) => whole_blocks(*size, block_bytes.into())?,
                None => quota.map_or(0, |quota| quota.0),
            };
            let text = NamespaceText {
                block_bytes,
                size,
                durability: durability.as_ref().map(text),
                iops: limits.iops,
                bytes_per_second: limits.bytes_per_second.map_or(0, |bytes| bytes.0),
                burst: limits.burst,
            };
            (0, NamespaceWish::Create(text))
        }
        NamespaceOp::Delete { number } => (number.id, NamespaceWish::Delete),
        NamespaceOp::Resize { number, size } => {
            let size = match block_bytes(number.id)? {
                0 => size.0,
                bytes => whole_blocks(*size, bytes)?,
            };
            (number.id, NamespaceWish::Resize(size))
        }
        NamespaceOp::Format { number, blocks } => (number.id, NamespaceWish::Format(blocks.unwrap_or(0))),
        NamespaceOp::Limits { number, limits } => {
            let bytes_per_second = limits.bytes_per_second.map_or(0, |bytes| bytes.0);
            let wish = NamespaceWish::Limits { iops: limits.iops, bytes_per_second, burst: limits.burst };
            (number.id, wish)
        }
        NamespaceOp::Durability { number, mode } => {
            (number.id, NamespaceWish::Durability(mode.as_ref().map(text)))
        }
    })
}

fn whole_blocks(size: Bytes, block_bytes: u64) -> Result<u64, Failure> {
    if block_bytes == 0 || !size.0.is_multiple_of(block_bytes) || size.0 == 0 {
        return Err(Failure::usage(format!("{size} is no whole number of blocks of {block_bytes} bytes")));
    }
    Ok(size.0 / block_bytes)
}

/// Asks the device of a stopped node.
fn ask_offline(data: &Path, request: AdminRequest) -> Result<AdminAnswer, Failure> {
    // The directory is held until the device is shut down.
    let StoppedNode { mut device, clock, directory: _held } = open_stopped(data)?;
    let AdminRequest::Namespace { id, wish } = request else {
        return Ok(AdminAnswer::Namespaces(table(&device)));
    };
    let (namespace, change) = change_of(id, &wish).map_err(Failure::usage)?;
    let commands = std::iter::once(Command::Namespace(change));
    let done = carry_out(&mut device, &clock, namespace, commands)?;
    CoreWork::shutdown(&mut device, &clock).map_err(Failure::failed)?;
    let completion = done.into_iter().next().ok_or_else(|| Failure::failed("the device did not answer"))?;
    if !completion.status.is_success() {
        return Err(Failure::failed(completion.status.to_string()));
    }
    let made = u8::try_from(completion.position).unwrap_or(0);
    Ok(AdminAnswer::Namespace(if matches!(wish, NamespaceWish::Create(_)) { made } else { id }))
}

fn print(table: &[(u8, NamespaceText)], json: bool) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Row<'a> {
        namespace: u8,
        #[serde(flatten)]
        text: &'a NamespaceText,
    }
    if json {
        let rows: Vec<_> =
            table.iter().map(|(namespace, text)| Row { namespace: *namespace, text }).collect();
        return answer_json(&rows);
    }
    let lines: Vec<String> = table.iter().map(|(id, text)| line_of(*id, text)).collect();
    answer_line(&lines.join("\n"))
}

fn line_of(id: u8, text: &NamespaceText) -> String {
    let mut line = match (text.block_bytes, text.size) {
        (0, 0) => format!("{id}: keys"),
        (0, quota) => format!("{id}: keys, quota {}", Bytes(quota)),
        (bytes, blocks) => {
            let size = Bytes(u64::from(bytes).saturating_mul(blocks));
            format!("{id}: {blocks} blocks of {bytes} bytes, {size}")
        }
    };
    match text.durability {
        None => {}
        Some(DurabilityText::Always) => line.push_str(", durable always"),
        Some(DurabilityText::IntervalMs(ms)) => line.push_str(&format!(", durable interval={ms}")),
        Some(DurabilityText::OnFlush) => line.push_str(", durable on-flush"),
    }
    if text.iops > 0 {
        line.push_str(&format!(", at most {} commands a second", text.iops));
    }
    if text.bytes_per_second > 0 {
        line.push_str(&format!(", at most {} a second", Bytes(text.bytes_per_second)));
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
    fn sizes_become_blocks_and_nothing_is_rounded() {
        assert_eq!(whole_blocks(Bytes(1 << 20), 4_096).unwrap(), 256);
        assert!(whole_blocks(Bytes(1_000), 512).is_err());
        assert!(whole_blocks(Bytes(0), 512).is_err());
        let resize = NamespaceOp::Resize { number: Number { id: 3 }, size: Bytes(8_192) };
        assert_eq!(wish_of(&resize, |_| Ok(512)).unwrap(), (3, NamespaceWish::Resize(16)));
        assert_eq!(wish_of(&resize, |_| Ok(0)).unwrap(), (3, NamespaceWish::Resize(8_192)));
    }

    #[test]
    fn a_line_says_what_differs_from_a_plain_key_space() {
        assert_eq!(line_of(1, &NamespaceText::keys()), "1: keys");
        let text = NamespaceText {
            block_bytes: 512,
            size: 2_048,
            durability: Some(DurabilityText::IntervalMs(5)),
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
