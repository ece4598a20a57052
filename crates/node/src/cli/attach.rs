//! `headwater attach`: lists and changes the grants and limits of clients that attach to a live node.
//!
//! Input: arguments. Output: a table or JSON, or one line that names the change. A change applies from the next command
//! of every client, and persists over a restart.

use super::failure::{CommandFailure, write_json, write_line};
use crate::config::ByteSize;
use clap::{Args, Subcommand};
use headwater_io::attach::admin::{
    AccessGrant, AdminAnswer, AdminRequest, GrantSubject, MEMORY_DEFAULT, QUEUES_DEFAULT,
};
use headwater_io::attach::connection::AttachConnection;
use headwater_io::attach::protocol::{AttachReply, AttachRequest};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Arguments of `headwater attach`.
#[derive(Debug, Args)]
#[command(after_help = "\
The node's own user and root have all rights, administration included. Other users need a grant, by user or by their
primary group; the grant of the user takes precedence. The device checks every command against the grant. Changes
persist over a restart, and override the grants of the same user or group in the configuration file:
  [[grant]]
  uid = 1001
  namespaces = [2]
  access = \"read\"

Examples:
  headwater attach list
  headwater attach grant --uid 1001 --namespace 2 --read-only
  headwater attach grant --gid 50 --namespace 3 --blocks 0..1000000 --queues 4 --memory 64MiB
  headwater attach quota --uid 1001 --memory 256MiB
  headwater attach revoke --uid 1001")]
pub struct AttachArgs {
    #[command(flatten)]
    socket: SocketArgs,
    #[command(subcommand)]
    op: AttachOp,
}

/// The socket of a live node for administration.
#[derive(Debug, Args)]
pub struct SocketArgs {
    /// Attach socket of the node
    #[arg(long, global = true, value_name = "PATH", default_value = "data/attach.sock")]
    socket: PathBuf,
}

impl SocketArgs {
    /// Sends a request to the node and returns its reply.
    ///
    /// # Errors
    /// When no node listens, or the node refuses.
    pub fn call(&self, request: AdminRequest) -> Result<AdminAnswer, CommandFailure> {
        call(&self.socket, request)
    }
}

fn call(socket: &Path, request: AdminRequest) -> Result<AdminAnswer, CommandFailure> {
    match AttachConnection::open(socket)?.call(&AttachRequest::Admin(request), &[])?.0 {
        AttachReply::Admin(answer) => Ok(answer),
        _ => Err(CommandFailure::failed("unexpected reply of the node; it may run another version")),
    }
}

/// The user or group that a change is for.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct SubjectArgs {
    /// User
    #[arg(long, value_name = "N")]
    uid: Option<u32>,
    /// Group
    #[arg(long, value_name = "N")]
    gid: Option<u32>,
}

impl SubjectArgs {
    fn subject(&self) -> Result<GrantSubject, CommandFailure> {
        let user = self.uid.map(GrantSubject::Uid);
        user.or(self.gid.map(GrantSubject::Gid))
            .ok_or_else(|| CommandFailure::usage("name a user or a group"))
    }
}

#[derive(Debug, Subcommand)]
enum AttachOp {
    /// Print grants and connected clients
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Grant rights; they replace those that the user or group had
    Grant {
        #[command(flatten)]
        who: SubjectArgs,
        /// Namespace, 1 to 16; repeat for several; all when none is named
        #[arg(long = "namespace", value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16))]
        namespaces: Vec<u8>,
        /// Allow only commands that change nothing
        #[arg(long)]
        read_only: bool,
        /// Only these blocks of block namespaces: FIRST..END, the end not included
        #[arg(long, value_name = "FIRST..END", value_parser = parse_blocks)]
        blocks: Option<(u64, u64)>,
        /// Maximum queues of one client
        #[arg(long, value_name = "N", default_value_t = QUEUES_DEFAULT)]
        queues: u32,
        /// Maximum memory of one client [default: 1GiB]
        #[arg(long, value_name = "SIZE")]
        memory: Option<ByteSize>,
        /// Allow queues of the SSD itself (attach:PATH?direct=1): the client can then access every block
        #[arg(long, conflicts_with_all = ["namespaces", "read_only", "blocks"])]
        direct: bool,
    },
    /// Revoke all rights; clients are disconnected at once
    Revoke {
        #[command(flatten)]
        who: SubjectArgs,
    },
    /// Change the limits of a grant; a client keeps what it already holds
    Quota {
        #[command(flatten)]
        who: SubjectArgs,
        /// Maximum queues of one client
        #[arg(long, value_name = "N")]
        queues: Option<u32>,
        /// Maximum memory of one client
        #[arg(long, value_name = "SIZE")]
        memory: Option<ByteSize>,
    },
}

fn parse_blocks(text: &str) -> Result<(u64, u64), String> {
    let whole = text.split_once("..").and_then(|(first, end)| Some((first.parse().ok()?, end.parse().ok()?)));
    whole.filter(|(first, end)| first < end).ok_or_else(|| "write FIRST..END, as 0..1000".to_owned())
}

/// Runs `headwater attach`.
///
/// # Errors
/// When no node answers, or it refuses.
pub fn run(args: AttachArgs) -> Result<(), CommandFailure> {
    let request = match &args.op {
        AttachOp::List { .. } => AdminRequest::List,
        AttachOp::Grant { who, namespaces, read_only, blocks, queues, memory, direct } => {
            AdminRequest::Grant(AccessGrant {
                who: who.subject()?,
                namespaces: namespaces.clone(),
                read_only: *read_only,
                blocks: *blocks,
                queues: *queues,
                memory: memory.map_or(MEMORY_DEFAULT, |bytes| bytes.0),
                direct: *direct,
            })
        }
        AttachOp::Revoke { who } => AdminRequest::Revoke(who.subject()?),
        AttachOp::Quota { who, queues, memory } => {
            AdminRequest::Quota { who: who.subject()?, queues: *queues, memory: memory.map(|bytes| bytes.0) }
        }
    };
    match (args.socket.call(request)?, &args.op) {
        (AdminAnswer::List { grants, clients }, AttachOp::List { json: true }) => {
            #[derive(Serialize)]
            struct AttachListing<G, C> {
                grants: G,
                clients: C,
            }
            write_json(&AttachListing { grants, clients })
        }
        (AdminAnswer::List { grants, clients }, _) => {
            let mut lines = vec!["grants:".to_owned()];
            lines.extend(grants.iter().map(grant_line));
            lines.push(format!("clients: {}", clients.len()));
            lines.extend(clients.iter().map(|client| {
                format!(
                    "  process {}, uid {}, gid {}: {} queues, {}",
                    client.pid,
                    client.uid,
                    client.gid,
                    client.queues,
                    ByteSize(client.memory)
                )
            }));
            write_line(&lines.join("\n"))
        }
        (AdminAnswer::Reached(clients), _) => {
            write_line(&format!("done; {clients} connected clients changed"))
        }
        _ => Err(CommandFailure::failed("unexpected reply of the node; it may run another version")),
    }
}

fn grant_line(grant: &AccessGrant) -> String {
    let numbers: Vec<String> = grant.namespaces.iter().map(u8::to_string).collect();
    let namespaces = if numbers.is_empty() { "all".to_owned() } else { numbers.join(", ") };
    let access = if grant.read_only { "read" } else { "write" };
    let direct = if grant.direct { ", direct" } else { "" };
    let blocks = grant.blocks.map(|(first, end)| format!(", blocks {first}..{end}")).unwrap_or_default();
    format!(
        "  {}: {access}{direct}, namespaces {namespaces}{blocks}, {} queues, {}",
        grant.who,
        grant.queues,
        ByteSize(grant.memory)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_or_malformed_block_ranges_are_refused() {
        assert_eq!(parse_blocks("0..1000"), Ok((0, 1_000)));
        for text in ["", "7", "7..7", "8..7", "a..b", "..5"] {
            assert!(parse_blocks(text).is_err(), "{text}");
        }
    }
}
