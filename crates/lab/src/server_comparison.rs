//! Runs one load on several servers, interleaved: a Headwater node, the installed peers, and a server of fixed replies.
//!
//! Input: how the servers are started, and the work of one round.
//! Output: samples of each server; those with the same index are adjacent in time. A server that cannot be started has
//! no samples: the rest are measured, and the claims state why they have no value.

use crate::canned_server::CannedServer;
use crate::cpu_account::CpuAccount;
use crate::experiment::{LabError, RunContext};
use crate::measure::{CompareCase, CorePair, CorePin, SampleSpread, run_interleaved};
use crate::redis_peer::{PeerPersistence, RedisPeer};
use crate::resp_load::{age, fill};
use crate::server::{RespDurability, RespServer};
use headwater_host::clock::{Clock, Nanos};
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::net::SocketAddr;

/// Interval in which servers that have settled use less than [`SETTLED_CPU`]; after [`SETTLE_MAX`] a turn starts anyway.
const SETTLE_INTERVAL: Nanos = Nanos::from_millis(2);
const SETTLED_CPU: Nanos = Nanos(200_000);
const SETTLE_MAX: Nanos = Nanos::from_millis(400);

/// The start of the compared servers: durability, sizes, options.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerSetup<'a> {
    /// The durability of the node.
    pub(crate) durability: RespDurability,
    /// Bytes of the node's flash. All of it is written before the first load: the first write to a place of a file
    /// costs the file system more than every later one.
    pub(crate) capacity_bytes: u64,
    /// More options of the node.
    pub(crate) options: &'a [&'a str],
    /// The persistence of the peers.
    pub(crate) persistence: PeerPersistence,
}

/// The rounds of a comparison, and the time of one round of one server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundPlan {
    /// Recorded rounds.
    pub(crate) rounds: usize,
    /// Duration of each.
    pub(crate) span: Nanos,
}

/// The part that a server plays in a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerRole {
    /// The Headwater node.
    Node,
    /// A server that the node is compared with.
    Peer,
    /// The server of fixed replies, which is the floor of the sockets.
    Canned,
}

/// One of the running servers.
#[derive(Clone, Debug)]
pub(crate) struct ComparedServer {
    /// Its part in the comparison.
    pub(crate) role: ServerRole,
    /// Its name, with the version of a peer.
    pub(crate) name: String,
    /// The address on which it listens.
    pub(crate) address: SocketAddr,
    /// The account of the CPU time that it uses.
    pub(crate) account: CpuAccount,
}

/// The running servers.
#[derive(Debug)]
pub(crate) struct ServerComparison {
    node: Result<RespServer, String>,
    peers: Result<Vec<(String, RespServer)>, String>,
    canned: CannedServer,
    /// Number and length of the values with which the servers were filled.
    filled: Cell<(u64, usize)>,
    /// The folder with the files of the servers.
    scratch: File,
    /// The calling thread is the client, on another core than the servers.
    _client: Option<CorePin>,
}

/// The samples of every server, in the order of [`Self::servers`].
#[derive(Debug)]
pub(crate) struct ComparedSamples<T> {
    /// The servers.
    pub(crate) servers: Vec<ComparedServer>,
    samples: Vec<Vec<T>>,
}

impl ServerComparison {
    /// Starts the servers, and writes all of the node's flash once.
    pub(crate) fn open(context: &RunContext, setup: ServerSetup<'_>) -> Result<Self, LabError> {
        let peers = RedisPeer::installed().and_then(|peers| {
            let start = |peer: &RedisPeer| {
                let server = peer.start(context, setup.persistence).map_err(|error| error.to_string())?;
                Ok((peer.name().to_owned(), server))
            };
            peers.iter().map(start).collect()
        });
        let capacity = setup.capacity_bytes.to_string();
        let mut options = vec!["--capacity", &capacity];
        options.extend(setup.options);
        let node = RespServer::ours_with(context, setup.durability, &options);
        let node = node.map_err(|error| error.to_string());
        if let Ok(node) = &node {
            age(node.address(), setup.capacity_bytes)?;
        }
        let canned = CannedServer::start()?;
        let scratch = File::open(context.scratch())
            .map_err(|source| LabError::Io { what: "open the scratch folder", source })?;
        let mut servers = Self { node, peers, canned, filled: Cell::new((0, 0)), scratch, _client: None };
        if let Some(cores) = CorePair::first() {
            servers.servers().iter().for_each(|server| cores.pin_server(server.account.thread()));
            servers._client = Some(cores.pin_client());
        }
        Ok(servers)
    }

    /// Returns the reason why no ratios can be formed, if there is one.
    pub(crate) fn incomplete_reason(&self) -> Option<String> {
        let node = self.node.as_ref().err();
        node.or(self.peers.as_ref().err()).cloned()
    }

    /// Returns the number of peers that run.
    pub(crate) fn peers(&self) -> usize {
        self.peers.as_ref().map_or(0, Vec::len)
    }

    /// Sets the number of bytes in the fixed reply to every GET.
    pub(crate) fn set_canned_value(&self, value_bytes: usize) {
        self.canned.set_value_bytes(value_bytes);
    }

    /// Runs `work` on every server, interleaved. It receives the index of the server. Before each turn the servers settle.
    pub(crate) fn run<T>(
        &self,
        rounds: usize,
        work: impl FnMut(usize, &ComparedServer) -> Result<T, LabError>,
    ) -> Result<ComparedSamples<T>, LabError> {
        let servers = self.servers();
        let work = RefCell::new(work);
        let mut cases: Vec<_> = servers
            .iter()
            .enumerate()
            .map(|(index, server)| {
                let (work, servers) = (&work, &servers);
                move || {
                    self.settle(servers)?;
                    (work.borrow_mut())(index, server)
                }
            })
            .collect();
        let mut contestants: Vec<CompareCase<'_, T, LabError>> = Vec::new();
        for case in &mut cases {
            contestants.push(case);
        }
        let samples = run_interleaved(rounds, &mut contestants)?;
        drop(cases);
        Ok(ComparedSamples { servers, samples })
    }

    /// Waits until the work of earlier turns has ended. All files are written back: otherwise the kernel writes the file of
    /// one server during the turn of the next, with its CPU. And no server runs: a collector that makes free blocks for
    /// later uses the core of the next server.
    fn settle(&self, servers: &[ComparedServer]) -> Result<(), LabError> {
        rustix::fs::syncfs(&self.scratch)
            .map_err(|errno| LabError::Io { what: "write files back", source: errno.into() })?;
        let used =
            || servers.iter().filter_map(|server| server.account.used()).fold(Nanos::ZERO, Nanos::after);
        let clock = Clock::start();
        while clock.now() < SETTLE_MAX {
            let before = used();
            Clock::sleep(SETTLE_INTERVAL);
            if used().since(before) < SETTLED_CPU {
                break;
            }
        }
        Ok(())
    }

    /// Returns the running servers: the node, the peers, the server of fixed replies.
    pub(crate) fn servers(&self) -> Vec<ComparedServer> {
        let mut running = Vec::new();
        let server = |role, name: &str, server: &RespServer| ComparedServer {
            role,
            name: name.to_owned(),
            address: server.address(),
            account: server.account(),
        };
        running.extend(self.node.iter().map(|node| server(ServerRole::Node, "headwater", node)));
        running.extend(self.peers.iter().flatten().map(|(name, peer)| server(ServerRole::Peer, name, peer)));
        running.push(ComparedServer {
            role: ServerRole::Canned,
            name: "canned replies".to_owned(),
            address: self.canned.address(),
            account: self.canned.account(),
        });
        running
    }

    /// Stores every key with values of a length, unless that was the last fill: a miss would cost less than a hit, and
    /// the first store of a key less than an overwrite.
    pub(crate) fn fill(&self, keys: u64, value_bytes: usize) -> Result<(), LabError> {
        if self.filled.get() != (keys, value_bytes) {
            for server in self.servers() {
                if server.role != ServerRole::Canned {
                    fill(server.address, keys, value_bytes)?;
                }
            }
            self.filled.set((keys, value_bytes));
        }
        Ok(())
    }
}

impl<T> ComparedSamples<T> {
    /// Returns the index of the first server with a role; the first peer is the one that claims compare with.
    pub(crate) fn index_of(&self, role: ServerRole) -> Option<usize> {
        self.servers.iter().position(|server| server.role == role)
    }

    /// Returns a number of every sample of a server.
    pub(crate) fn numbers(&self, server: usize, of: impl Fn(&T) -> f64) -> Vec<f64> {
        self.samples[server].iter().map(of).collect()
    }

    /// Returns the samples of a server.
    pub(crate) fn samples(&self, server: usize) -> &[T] {
        &self.samples[server]
    }

    /// Returns the spread of a number of a server.
    pub(crate) fn spread(&self, server: usize, of: impl Fn(&T) -> f64) -> Option<SampleSpread> {
        SampleSpread::of(&self.numbers(server, of))
    }

    /// Returns the median of a number of the first server with a role.
    pub(crate) fn median(&self, role: ServerRole, of: impl Fn(&T) -> f64) -> f64 {
        let spread = self.index_of(role).and_then(|server| self.spread(server, of));
        spread.map_or(f64::NAN, |spread| spread.median)
    }

    /// Returns a number of the node over that of the first peer, in adjacent runs.
    pub(crate) fn ratio(&self, of: impl Fn(&T) -> f64) -> Option<SampleSpread> {
        let (node, peer) = (self.index_of(ServerRole::Node)?, self.index_of(ServerRole::Peer)?);
        SampleSpread::of_ratios(&self.numbers(node, &of), &self.numbers(peer, &of))
    }

    /// Returns the name and version of every peer with the median of a number, the one that claims compare with first.
    pub(crate) fn peer_medians(&self, of: impl Fn(&T) -> f64) -> Vec<(&str, f64)> {
        let median = |server| self.spread(server, &of).map_or(f64::NAN, |spread| spread.median);
        let servers = self.servers.iter().enumerate();
        let peers = servers.filter(|(_, server)| server.role == ServerRole::Peer);
        peers.map(|(index, server)| (server.name.as_str(), median(index))).collect()
    }

    /// Returns the name and version of the first peer.
    pub(crate) fn peer_name(&self) -> &str {
        self.index_of(ServerRole::Peer).map_or("no peer", |peer| &self.servers[peer].name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(role: ServerRole, name: &str) -> ComparedServer {
        ComparedServer {
            role,
            name: name.to_owned(),
            address: SocketAddr::from(([127, 0, 0, 1], 1)),
            account: CpuAccount::Process(1),
        }
    }

    #[test]
    fn ratio_is_that_of_the_node_and_the_first_peer() {
        let samples = ComparedSamples {
            servers: vec![
                server(ServerRole::Node, "headwater"),
                server(ServerRole::Peer, "redis-server 7"),
                server(ServerRole::Peer, "valkey-server 8"),
                server(ServerRole::Canned, "canned replies"),
            ],
            samples: vec![vec![1.0, 2.0], vec![2.0, 4.0], vec![1.0, 1.0], vec![0.5, 0.5]],
        };
        assert_eq!(samples.ratio(|sample| *sample).map(|ratio| ratio.median), Some(0.5));
        assert_eq!(samples.peer_name(), "redis-server 7");
        assert_eq!(
            samples.peer_medians(|sample| *sample),
            [("redis-server 7", 3.0), ("valkey-server 8", 1.0)]
        );
        assert!((samples.median(ServerRole::Canned, |sample| *sample) - 0.5).abs() < 1e-9);
        assert_eq!(samples.samples(2).len(), 2);
    }

    #[test]
    fn comparison_without_a_node_has_a_reason_and_no_ratio() {
        let samples: ComparedSamples<f64> =
            ComparedSamples { servers: vec![server(ServerRole::Canned, "x")], samples: vec![vec![1.0]] };
        assert_eq!(samples.ratio(|sample| *sample), None);
        assert_eq!(samples.peer_name(), "no peer");
        assert!(samples.median(ServerRole::Node, |sample| *sample).is_nan());
    }
}
