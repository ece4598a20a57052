//! `headwater attach`: who may attach to a live node, who does, and how much each may hold.
//!
//! In: arguments. Out: a table or JSON, or one line that says what changed. Changes hold from the next command of every
//! client on, and stay after a restart.

use super::failure::{Failure, answer_json, answer_line};
use crate::config::Bytes;
use clap::{Args, Subcommand};
use headwater_io::attach::admin::{AdminAnswer, AdminRequest, Grant, MEMORY_DEFAULT, QUEUES_DEFAULT, Who};
use headwater_io::attach::connection::Connection;
use headwater_io::attach::protocol::{Reply, Request};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Arguments of `headwater attach`.
#[derive(Debug, Args)]
#[command(after_help = "\
The node's own user and root may do everything and administer. Others need a grant, by user or by their first group; the
grant of the user counts before that of the group. The device checks every command against it. Changes
stay after a restart, and count before what the configuration file says of the same user or group:
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

/// Where a live node listens for administration.
#[derive(Debug, Args)]
pub struct SocketArgs {
    /// Attach socket of the node
    #[arg(long, global = true, value_name = "PATH", default_value = "data/attach.sock")]
    socket: PathBuf,
}

impl SocketArgs {
    /// Asks the node.
    ///
    /// # Errors
    /// When nobody answers, or the node refuses.
    pub fn ask(&self, request: AdminRequest) -> Result<AdminAnswer, Failure> {
        ask(&self.socket, request)
    }
}

fn ask(socket: &Path, request: AdminRequest) -> Result<AdminAnswer, Failure> {
    match Connection::open(socket)?.call(&Request::Admin(request), &[])?.0 {
        Reply::Admin(answer) => Ok(answer),
        _ => Err(Failure::failed("the node answered something else; it may be of another version")),
    }
}

/// Whom a change is for.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct WhoArgs {
    /// User
    #[arg(long, value_name = "N")]
    uid: Option<u32>,
    /// Group
    #[arg(long, value_name = "N")]
    gid: Option<u32>,
}

impl WhoArgs {
    fn who(&self) -> Result<Who, Failure> {
        let user = self.uid.map(Who::Uid);
        user.or(self.gid.map(Who::Gid)).ok_or_else(|| Failure::usage("name a user or a group"))
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
    /// Give rights, in place of what the user or group had
    Grant {
        #[command(flatten)]
        who: WhoArgs,
        /// Namespace, 1 to 16; repeat for several; all when none is named
        #[arg(long = "namespace", value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16))]
        namespaces: Vec<u8>,
        /// It may look and change nothing
        #[arg(long)]
        read_only: bool,
        /// Of block namespaces, only these blocks: FIRST..END, the end not included
        #[arg(long, value_name = "FIRST..END", value_parser = parse_blocks)]
        blocks: Option<(u64, u64)>,
        /// Most queues of one client
        #[arg(long, value_name = "N", default_value_t = QUEUES_DEFAULT)]
        queues: u32,
        /// Most memory of one client [default: 1GiB]
        #[arg(long, value_name = "SIZE")]
        memory: Option<Bytes>,
        /// It may drive queues of the SSD's itself (attach:PATH?direct=1): nothing keeps it from any block then
        #[arg(long, conflicts_with_all = ["namespaces", "read_only", "blocks"])]
        direct: bool,
    },
    /// Take every right away; clients are disconnected at once
    Revoke {
        #[command(flatten)]
        who: WhoArgs,
    },
    /// Change the limits of a grant; what a client already holds stays
    Quota {
        #[command(flatten)]
        who: WhoArgs,
        /// Most queues of one client
        #[arg(long, value_name = "N")]
        queues: Option<u32>,
        /// Most memory of one client
        #[arg(long, value_name = "SIZE")]
        memory: Option<Bytes>,
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
pub fn run(args: AttachArgs) -> Result<(), Failure> {
    let request = match &args.op {
        AttachOp::List { .. } => AdminRequest::List,
        AttachOp::Grant { who, namespaces, read_only, blocks, queues, memory, direct } => {
            AdminRequest::Grant(Grant {
                who: who.who()?,
                namespaces: namespaces.clone(),
                read_only: *read_only,
                blocks: *blocks,
                queues: *queues,
                memory: memory.map_or(MEMORY_DEFAULT, |bytes| bytes.0),
                direct: *direct,
            })
        }
        AttachOp::Revoke { who } => AdminRequest::Revoke(who.who()?),
        AttachOp::Quota { who, queues, memory } => {
            AdminRequest::Quota { who: who.who()?, queues: *queues, memory: memory.map(|bytes| bytes.0) }
        }
    };
    match (args.socket.ask(request)?, &args.op) {
        (AdminAnswer::List { grants, clients }, AttachOp::List { json: true }) => {
            #[derive(Serialize)]
            struct Listed<G, C> {
                grants: G,
                clients: C,
            }
            answer_json(&Listed { grants, clients })
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
                    Bytes(client.memory)
                )
            }));
            answer_line(&lines.join("\n"))
        }
        (AdminAnswer::Reached(clients), _) => {
            answer_line(&format!("done; {clients} connected clients changed"))
        }
        _ => Err(Failure::failed("the node answered something else; it may be of another version")),
    }
}

fn grant_line(grant: &Grant) -> String {
    let numbers: Vec<String> = grant.namespaces.iter().map(u8::to_string).collect();
    let namespaces = if numbers.is_empty() { "all".to_owned() } else { numbers.join(", ") };
    let access = if grant.read_only { "read" } else { "write" };
    let direct = if grant.direct { ", direct" } else { "" };
    let blocks = grant.blocks.map(|(first, end)| format!(", blocks {first}..{end}")).unwrap_or_default();
    format!(
        "  {}: {access}{direct}, namespaces {namespaces}{blocks}, {} queues, {}",
        grant.who,
        grant.queues,
        Bytes(grant.memory)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_a_range_that_is_not_empty() {
        assert_eq!(parse_blocks("0..1000"), Ok((0, 1_000)));
        for text in ["", "7", "7..7", "8..7", "a..b", "..5"] {
            assert!(parse_blocks(text).is_err(), "{text}");
        }
    }
}
