//! The table of experiments. A new experiment needs a file in `experiments/` and a line here.

mod attach;
mod bounds;
mod cold;
mod copy;
mod device;
mod idle;
mod index;
mod io;
mod large;
mod memory;
mod mixed;
mod move_model;
mod move_study;
mod mover;
mod persist;
mod pool;
mod recovery;
mod resp;
mod rocksdb;
mod source;
mod tamper;
mod tcp;
mod tight;
mod udma;
mod waf;
mod worlds;
mod yields;

use crate::experiment::LabExperiment;

/// All experiments, in the order of the list.
pub(crate) const TABLE: &[LabExperiment] = &[
    copy::EXPERIMENT,
    persist::EXPERIMENT,
    mover::EXPERIMENT,
    move_model::EXPERIMENT,
    move_study::EXPERIMENT,
    move_study::cross::EXPERIMENT,
    device::EXPERIMENT,
    resp::EXPERIMENT,
    pool::EXPERIMENT,
    udma::EXPERIMENT,
    io::EXPERIMENT,
    attach::EXPERIMENT,
    tcp::EXPERIMENT,
    idle::EXPERIMENT,
    waf::EXPERIMENT,
    index::EXPERIMENT,
    recovery::EXPERIMENT,
    tamper::EXPERIMENT,
    worlds::EXPERIMENT,
    source::EXPERIMENT,
    yields::EXPERIMENT,
    bounds::EXPERIMENT,
    memory::EXPERIMENT,
    large::EXPERIMENT,
    mixed::EXPERIMENT,
    cold::EXPERIMENT,
    tight::EXPERIMENT,
    rocksdb::EXPERIMENT,
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_every_experiment_evaluates_a_claim() {
        let names: BTreeSet<&str> = TABLE.iter().map(|experiment| experiment.name).collect();
        assert_eq!(names.len(), TABLE.len());
        for experiment in TABLE {
            assert!(!experiment.claims.is_empty(), "{}", experiment.name);
            assert!(experiment.claims.iter().all(|claim| claim.starts_with('p')));
        }
    }
}
