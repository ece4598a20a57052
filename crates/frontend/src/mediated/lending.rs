//! Lending of the controller's queues by the mediating executor.
//!
//! Input: requests of the attach front end. Output: calls to [`LentQueues`](super::LentQueues). Invariant: the queues
//! of a client can access only regions that the client has registered.

use super::device::HardwareDevice;
use super::executor::MediatedExecutor;
use crate::attach::lending::{LendResult, QueueLender};
use headwater_dma::iova::{Iova, IovaRange};
use headwater_host::wake::WakeDescriptor;
use headwater_host::wake_line::WakeLine;
use headwater_io::attach::protocol::{DirectRules, QueueTrouble};
use headwater_nvme::driver::{HostMemory, PciFunction, QueueRules, SglUse};
use headwater_ssd::nvme::rings::ClientId;

impl<F: PciFunction, H: HostMemory> QueueLender<HardwareDevice<F, H>> for MediatedExecutor<F, H> {
    fn rules(&self, device: &HardwareDevice<F, H>) -> Result<DirectRules, String> {
        let rules = device.driver().queue_rules().ok_or("the controller is not ready")?;
        let QueueRules { page, sgl, transfer_bytes_max, timeout } = rules;
        Ok(DirectRules {
            page: page.get(),
            sgl: sgl != SglUse::Never,
            transfer: transfer_bytes_max,
            timeout_ms: timeout.0 / 1_000_000,
        })
    }

    fn lend_region(&mut self, client: ClientId, start: Iova, bytes: u64) -> Result<u64, String> {
        let memory = self.rings.memory(client).ok_or("the client is gone")?;
        let region = memory.resolve(start, bytes).map_err(|error| error.to_string())?;
        let mut runs = Vec::new();
        region.device_ranges(&mut runs).map_err(|error| error.to_string())?;
        let [IovaRange { start: address, .. }, ..] = runs[..] else {
            return Err("the region is empty; register one with at least one page".to_owned());
        };
        self.lent.keep_region(client, start.0, region);
        Ok(address.0)
    }

    fn return_region(&mut self, client: ClientId, start: Iova) {
        self.lent.end_region(client, start.0);
    }

    fn queue_bytes(&self, device: &HardwareDevice<F, H>, depth: u32) -> Result<u64, String> {
        let layout = device.driver().lent_layout(depth).map_err(|error| error.to_string())?;
        Ok(layout.bytes as u64)
    }

    fn lend_queue(
        &mut self,
        device: &mut HardwareDevice<F, H>,
        client: ClientId,
        depth: u32,
        line: WakeLine,
    ) -> Result<u64, String> {
        let layout = device.driver().lent_layout(depth).map_err(|error| error.to_string())?;
        self.lent.request_queue(client, depth, layout, line, self.mapper.as_ref())
    }

    fn next_lend_result(&mut self) -> Option<LendResult> {
        self.lent.next_lend_result()
    }

    fn reclaim_queue(&mut self, queue: u16) {
        self.lent.reclaim_queue(queue);
    }

    fn has_queue(&self, queue: u16) -> bool {
        self.lent.has_queue(queue)
    }

    fn next_lost_queue(&mut self) -> Option<u16> {
        self.lent.next_lost_queue()
    }

    fn connect_interrupt(&mut self, queue: u16, eventfd: WakeDescriptor) -> Result<(), String> {
        self.lent.connect_interrupt(queue, &eventfd)
    }

    fn correct_fault(
        &mut self,
        device: &mut HardwareDevice<F, H>,
        queue: u16,
        trouble: QueueTrouble,
    ) -> Result<(), String> {
        self.lent.correct_fault(device, queue, trouble)
    }

    fn remove_client(&mut self, client: ClientId) {
        self.lent.remove_client(client);
    }
}
