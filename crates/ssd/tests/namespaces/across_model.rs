//! A seeded run of batches over several namespaces against a naive model, with power cuts between.

use super::across::{BatchParts, put, removal};
use super::across_clears::clearing;
use super::host::NamespaceHost;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{BatchWrite, NamespaceId, SsdCommand, WriteCondition};
use headwater_ssd::engine::DeviceConfig;
use std::collections::{BTreeMap, BTreeSet};

const KEYS: u32 = 30;
const STEPS: u32 = 300;

type SpacesModel = BTreeMap<(NamespaceId, String), Vec<u8>>;

/// A batch: the namespaces that it clears, and its writes.
type DrawnBatch = (Vec<NamespaceId>, BatchParts);

/// Draws a batch with its effect on a model, or with the index of the condition that refuses it.
fn draw(rng: &mut fastrand::Rng, model: &SpacesModel) -> (DrawnBatch, Result<SpacesModel, u32>) {
    let (mut parts, mut used) = (Vec::new(), BTreeSet::new());
    let clears = if rng.u8(0..6) == 0 { rng.usize(1..=3) } else { 0 };
    let mut cleared: Vec<NamespaceId> = (1..=4).map(NamespaceId).collect();
    rng.shuffle(&mut cleared);
    cleared.truncate(clears);
    let (mut after, mut refused, mut index) = (model.clone(), None, 0);
    after.retain(|(namespace, _), _| !cleared.contains(namespace));
    for _ in 0..rng.usize(1..=6) {
        let namespace = NamespaceId(rng.u8(1..=4));
        let mut writes = Vec::new();
        for _ in 0..rng.usize(1..=12) {
            let key = (namespace, format!("key-{}", rng.u32(..KEYS)));
            if !used.insert(key.clone()) {
                continue;
            }
            let name = key.1.clone();
            writes.push(match rng.u8(0..12) {
                0..=7 => {
                    let value = vec![rng.u8(..); rng.usize(0..3_000)];
                    after.insert(key, value.clone());
                    put(name, value)
                }
                8..=10 => {
                    after.remove(&key);
                    removal(name)
                }
                _ => {
                    let exists = model.contains_key(&key);
                    let holds = rng.u8(0..8) > 0;
                    if !holds && refused.is_none() {
                        refused = Some(index);
                    }
                    let condition =
                        if exists == holds { WriteCondition::IfExists } else { WriteCondition::IfAbsent };
                    BatchWrite::Check { key: name.into(), condition }
                }
            });
            index += 1;
        }
        if !writes.is_empty() {
            parts.push((namespace, writes));
        }
    }
    ((cleared, parts), refused.map_or(Ok(after), Err))
}

#[test]
fn batches_over_namespaces_do_what_a_naive_model_does() {
    for seed in 0..12 {
        let mut rng = fastrand::Rng::with_seed(seed);
        // In some runs keys share a hash, and in some a batch takes many turns.
        let hash_bits = [6, 10, 60][rng.usize(0..3)];
        let batch_part_writes = [1, 3, 512][rng.usize(0..3)];
        let config = DeviceConfig { hash_bits, batch_part_writes, ..DeviceConfig::default() };
        let mut host = NamespaceHost::new(32, config);
        let mut model = SpacesModel::new();
        for step in 0..STEPS {
            let context = format!("seed {seed} step {step}");
            if rng.u8(0..40) == 0 {
                host = if rng.bool() { host.reopened() } else { host.restarted() };
            }
            if rng.u8(0..30) == 0 {
                let cleared = NamespaceId(rng.u8(1..=4));
                assert_eq!(host.run(cleared, SsdCommand::Clear).status, Status::SUCCESS, "{context}");
                model.retain(|(namespace, _), _| *namespace != cleared);
            }
            let ((cleared, parts), outcome) = draw(&mut rng, &model);
            let (first, command) = clearing(&cleared, parts);
            let completion = host.run(first, command);
            match outcome {
                Ok(after) => {
                    assert_eq!(completion.status, Status::SUCCESS, "{context}");
                    model = after;
                }
                Err(index) => {
                    assert!(!completion.status.is_success(), "{context}");
                    assert_eq!(completion.position, index, "{context}");
                }
            }
            for number in 1..=4 {
                let keys = model.keys().filter(|(namespace, _)| *namespace == NamespaceId(number)).count();
                assert_eq!(host.device.stats().keys[usize::from(number) - 1], keys as u64, "{context}");
            }
        }
        let mut host = host.reopened();
        for number in 1..=4 {
            for key in (0..KEYS).map(|key| format!("key-{key}")) {
                let found = host.get(NamespaceId(number), key.as_bytes()).ok();
                assert_eq!(found.as_ref(), model.get(&(NamespaceId(number), key)), "seed {seed}");
            }
        }
    }
}
