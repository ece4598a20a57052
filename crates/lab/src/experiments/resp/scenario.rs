//! The loads on the servers, and the promises for each.
//!
//! A group is one start of the servers with one durability; its scenarios are the loads on them, in order of execution.

use crate::claim::ClaimGoal;
use crate::resp_load::{KEYS, LoadClient, LoadCommand, RespLoad};
use crate::server::RespDurability;

/// A promise for a scenario.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ScenarioPromise {
    /// Headwater's CPU for an operation over Redis's.
    Cpu(ClaimGoal),
    /// Headwater's operations a second over Redis's.
    Throughput(ClaimGoal),
}

impl ScenarioPromise {
    /// Returns the goal.
    pub(super) fn goal(self) -> ClaimGoal {
        match self {
            Self::Cpu(goal) | Self::Throughput(goal) => goal,
        }
    }

    /// Returns the unit of the value.
    pub(super) fn unit(self) -> &'static str {
        match self {
            Self::Cpu(_) => "ratio of CPU an operation",
            Self::Throughput(_) => "ratio of operations a second",
        }
    }
}

/// One start of the servers.
#[derive(Debug)]
pub(super) struct ScenarioGroup {
    /// The durability of both.
    pub(super) mode: RespDurability,
    /// True if a quick run omits the group, which has no claim.
    pub(super) full_only: bool,
    shapes: &'static [LoadShape],
}

/// Loads that differ in verb and value length only.
#[derive(Debug)]
struct LoadShape {
    name: &'static str,
    /// The part after the value length in a claim's name.
    suffix: &'static str,
    verbs: &'static [LoadCommand],
    pipeline: u64,
    clients: u64,
    promises: &'static [ScenarioPromise],
}

/// One load and its promises.
#[derive(Clone, Debug)]
pub(super) struct RespScenario {
    /// The load.
    pub(super) load: RespLoad,
    /// The promises for the load.
    pub(super) promises: &'static [ScenarioPromise],
    name: String,
}

impl RespScenario {
    /// Returns its name without the part's number: `p16.set.100`.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the name of one of its claims. If CPU is promised too, the name of the throughput claim says so.
    pub(super) fn claim(&self, promise: ScenarioPromise) -> String {
        match promise {
            ScenarioPromise::Throughput(_) if self.promises.len() > 1 => {
                format!("p1.resp.{}.throughput", self.name)
            }
            _ => format!("p1.resp.{}", self.name),
        }
    }

    /// Returns the same load sent by redis-benchmark, without a promise, to show that both clients measure the same
    /// cost.
    pub(super) fn by_redis_benchmark(&self) -> Self {
        Self {
            load: RespLoad { client: LoadClient::RedisBenchmark, ..self.load },
            promises: &[],
            name: self.name.clone(),
        }
    }
}

const BOTH: &[LoadCommand] = &[LoadCommand::Set, LoadCommand::Get];
/// The two value lengths, and their names.
const LENGTHS: &[(usize, &str)] = &[(100, "100"), (4_096, "4k")];
const AT_LEAST_AS_FAST: &[ScenarioPromise] = &[ScenarioPromise::Throughput(ClaimGoal::AtLeast(1.0))];

/// The groups, in order. The one that waits for the disk is first, because the later ones leave dirty pages.
pub(super) const GROUPS: &[ScenarioGroup] = &[
    ScenarioGroup {
        mode: RespDurability::Always,
        full_only: false,
        shapes: &[
            LoadShape {
                name: "always",
                suffix: ".c1",
                verbs: &[LoadCommand::Set],
                pipeline: 1,
                clients: 1,
                promises: AT_LEAST_AS_FAST,
            },
            LoadShape {
                name: "always",
                suffix: ".c64",
                verbs: &[LoadCommand::Set],
                pipeline: 1,
                clients: 64,
                promises: AT_LEAST_AS_FAST,
            },
        ],
    },
    ScenarioGroup {
        mode: RespDurability::OnFlush,
        full_only: false,
        shapes: &[
            LoadShape {
                name: "p16",
                suffix: "",
                verbs: BOTH,
                pipeline: 16,
                clients: 50,
                promises: &[
                    ScenarioPromise::Cpu(ClaimGoal::AtMost(0.8)),
                    ScenarioPromise::Throughput(ClaimGoal::AtLeast(1.15)),
                ],
            },
            LoadShape {
                name: "p1",
                suffix: "",
                verbs: BOTH,
                pipeline: 1,
                clients: 50,
                promises: &[ScenarioPromise::Cpu(ClaimGoal::AtMost(1.0))],
            },
        ],
    },
    ScenarioGroup {
        mode: RespDurability::EverySecond,
        full_only: true,
        shapes: &[LoadShape {
            name: "interval.p16",
            suffix: "",
            verbs: BOTH,
            pipeline: 16,
            clients: 50,
            promises: &[],
        }],
    },
];

/// Returns the loads of a group, ordered by value length.
pub(super) fn scenarios(group: &ScenarioGroup) -> Vec<RespScenario> {
    let mut found = Vec::new();
    for (value_bytes, length) in LENGTHS {
        for shape in group.shapes {
            for verb in shape.verbs {
                found.push(RespScenario {
                    load: RespLoad {
                        client: LoadClient::Lab,
                        verb: *verb,
                        keys: KEYS,
                        value_bytes: *value_bytes,
                        pipeline: shape.pipeline,
                        clients: shape.clients,
                    },
                    promises: shape.promises,
                    name: format!("{}.{}.{length}{}", shape.name, verb.name(), shape.suffix),
                });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_of_the_part_has_a_claim_of_its_name() {
        let mut names = Vec::new();
        for group in GROUPS {
            for scenario in scenarios(group) {
                names.extend(scenario.promises.iter().map(|promise| scenario.claim(*promise)));
            }
        }
        for wanted in [
            "p1.resp.p16.get.100",
            "p1.resp.p16.set.100",
            "p1.resp.p16.set.100.throughput",
            "p1.resp.p16.get.4k.throughput",
            "p1.resp.p1.get.4k",
            "p1.resp.p1.set.100",
            "p1.resp.always.set.100.c1",
            "p1.resp.always.set.4k.c64",
        ] {
            assert!(names.iter().any(|name| name == wanted), "{wanted} is missing");
        }
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
