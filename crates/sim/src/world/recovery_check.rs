//! The check of everything after a recovery, before any new command is submitted.
//!
//! Input: a device that was just opened. Output: nothing, or the promise that an answer breaks. Invariant: once the
//! medium lied, an explicit error is no wrong answer; every other answer is checked as ever.

use super::config::BLOCK_NAMESPACE;
use super::{FailureCause, SimPower, SimWorld};
use crate::checker::WallSpan;
use crate::media::CrashImage;
use crate::simulated_device::SimulatedDevice;
use bytes::Bytes;
use headwater_ssd::command::{ListPosition, NamespaceId, ReadRelease, SsdCommand};
use headwater_ssd::limits::LIST_KEYS_MAX;

/// The keys of a namespace.
#[derive(Debug)]
enum ListedKeys {
    All(Vec<Bytes>),
    /// The medium lied, and the device said that it cannot list the keys.
    Failed,
    PowerLost,
}

impl<E: SimulatedDevice> SimWorld<'_, E> {
    /// Checks every key that was ever used and the listings, before any new command is submitted.
    pub(super) fn check_after_recovery(
        &mut self,
        engine: &mut E,
        image: &CrashImage,
    ) -> Result<SimPower, FailureCause> {
        if self.check_damaged_namespace(engine, image)? == SimPower::PowerLost {
            return Ok(SimPower::PowerLost);
        }
        self.check_table(engine)?;
        for (namespace, key) in self.checker.keys() {
            if self.disk.is_some() && namespace == BLOCK_NAMESPACE {
                if self.check_block(engine, image, &key)? == SimPower::PowerLost {
                    return Ok(SimPower::PowerLost);
                }
                continue;
            }
            let retrieve =
                SsdCommand::retrieve_whole(key.clone(), Vec::new().into(), ReadRelease::WhenDurable);
            let asked = self.wall();
            let Some((completion, answered)) = self.submit_and_wait(engine, image, namespace, retrieve)?
            else {
                return Ok(SimPower::PowerLost);
            };
            if self.is_excused(&completion) {
                continue;
            }
            let wall = WallSpan { asked, answered };
            self.checker.check_recovered_key(namespace, &key, &completion, wall)?;
        }
        for namespace in (1..=self.config.workload.namespaces).map(NamespaceId) {
            let asked = self.wall();
            let listed = match self.list_all(engine, image, namespace)? {
                ListedKeys::All(listed) => listed,
                ListedKeys::Failed => continue,
                ListedKeys::PowerLost => return Ok(SimPower::PowerLost),
            };
            self.checker.check_listing(namespace, &listed, WallSpan { asked, answered: self.wall() })?;
        }
        self.checker.finish_recovery_check();
        Ok(SimPower::On)
    }

    fn list_all(
        &mut self,
        engine: &mut E,
        image: &CrashImage,
        namespace: NamespaceId,
    ) -> Result<ListedKeys, FailureCause> {
        let mut listed = Vec::new();
        let mut from = Some(ListPosition::START);
        while let Some(position) = from {
            let list = SsdCommand::List { position, keys_max: self.rng.u32(1..=LIST_KEYS_MAX) };
            let Some((completion, _)) = self.submit_and_wait(engine, image, namespace, list)? else {
                return Ok(ListedKeys::PowerLost);
            };
            if self.is_excused(&completion) {
                return Ok(ListedKeys::Failed);
            }
            listed.extend(completion.keys.iter().map(|listed| listed.key.clone()));
            from = completion.next_position;
        }
        Ok(ListedKeys::All(listed))
    }
}
