//! The loads on the servers, and the promises for each.
//!
//! A group is one start of the servers with one durability; its scenarios are the loads on them, in order of execution.

use crate::claim::Goal;
use crate::load::{Client, Load, Verb};
use crate::server::Mode;

/// A promise for a scenario.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Promise {
    /// Headwater's CPU for an operation over Redis's.
    Cpu(Goal),
    /// Headwater's operations a second over Redis's.
    Throughput(Goal),
}

impl Promise {
    /// Returns the goal.
    pub(super) fn goal(self) -> Goal {
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
pub(super) struct Group {
    /// The durability of both.
    pub(super) mode: Mode,
    /// True if a quick run omits the group, which has no claim.
    pub(super) full_only: bool,
    shapes: &'static [Shape],
}

/// Loads that differ in verb and value length only.
#[derive(Debug)]
struct Shape {
    name: &'static str,
    /// The part after the value length in a claim's name.
    suffix: &'static str,
    verbs: &'static [Verb],
    pipeline: u64,
    clients: u64,
    promises: &'static [Promise],
}

/// One load and its promises.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    /// The load.
    pub(super) load: Load,
    /// The promises for the load.
    pub(super) promises: &'static [Promise],
    name: String,
}

impl Scenario {
    /// Returns its name without the part's number: `p16.set.100`.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the name of one of its claims. If CPU is promised too, the name of the throughput claim says so.
    pub(super) fn claim(&self, promise: Promise) -> String {
        match promise {
            Promise::Throughput(_) if self.promises.len() > 1 => format!("p1.resp.{}.throughput", self.name),
            _ => format!("p1.resp.{}", self.name),
        }
    }

    /// Returns the same load sent by redis-benchmark, without a promise, to show that both clients measure the same
    /// cost.
    pub(super) fn by_redis_benchmark(&self) -> Self {
        Self {
            load: Load { client: Client::RedisBenchmark, ..self.load },
            promises: &[],
            name: self.name.clone(),
        }
    }
}

const BOTH: &[Verb] = &[Verb::Set, Verb::Get];
/// The two value lengths, and their names.
const LENGTHS: &[(usize, &str)] = &[(100, "100"), (4_096, "4k")];
const AT_LEAST_AS_FAST: &[Promise] = &[Promise::Throughput(Goal::AtLeast(1.0))];

/// The groups, in order. The one that waits for the disk is first, because the later ones leave dirty pages.
pub(super) const GROUPS: &[Group] = &[
    Group {
        mode: Mode::Always,
        full_only: false,
        shapes: &[
            Shape {
                name: "always",
                suffix: ".c1",
                verbs: &[Verb::Set],
                pipeline: 1,
                clients: 1,
                promises: AT_LEAST_AS_FAST,
            },
            Shape {
                name: "always",
                suffix: ".c64",
                verbs: &[Verb::Set],
                pipeline: 1,
                clients: 64,
                promises: AT_LEAST_AS_FAST,
            },
        ],
    },
    Group {
        mode: Mode::OnFlush,
        full_only: false,
        shapes: &[
            Shape {
                name: "p16",
                suffix: "",
                verbs: BOTH,
                pipeline: 16,
                clients: 50,
                promises: &[Promise::Cpu(Goal::AtMost(0.8)), Promise::Throughput(Goal::AtLeast(1.15))],
            },
            Shape {
                name: "p1",
                suffix: "",
                verbs: BOTH,
                pipeline: 1,
                clients: 50,
                promises: &[Promise::Cpu(Goal::AtMost(1.0))],
            },
        ],
    },
    Group {
        mode: Mode::EverySecond,
        full_only: true,
        shapes: &[Shape {
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
pub(super) fn scenarios(group: &Group) -> Vec<Scenario> {
    let mut found = Vec::new();
    for (value_bytes, length) in LENGTHS {
        for shape in group.shapes {
            for verb in shape.verbs {
                found.push(Scenario {
                    load: Load {
                        client: Client::Lab,
                        verb: *verb,
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
