//! A host that enables one controller and sends admin commands to it.

use headwater_host::clock::Nanos;
use headwater_nvme::controller::{
    AdminCompletion, AdminData, AdminStep, ControllerConfig, DeviceController, RegisterEffect,
};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::opcode::AdminOpcode;
use headwater_nvme::spec::status::Status;
use headwater_testkit::fake_subsystem::FakeSubsystem;
use zerocopy::little_endian::{U16, U32};

/// The value of CC that Linux writes: IOCQES 4, IOSQES 6, CSS 110b, EN.
pub(crate) const ENABLE_ALL_SETS: u64 = 0x0046_0061;
/// The same with CSS 000b.
pub(crate) const ENABLE_NVM: u64 = 0x0046_0001;

pub(crate) struct AdminHost {
    pub(crate) controller: DeviceController,
    pub(crate) subsystem: FakeSubsystem,
    pub(crate) now: Nanos,
}

impl AdminHost {
    /// Creates a PCIe function that serves all command sets, and enables it.
    pub(crate) fn new() -> Self {
        Self::with(ControllerConfig::pcie(1), ENABLE_ALL_SETS)
    }

    pub(crate) fn with(config: ControllerConfig, configuration: u64) -> Self {
        let mut controller = DeviceController::new(config);
        assert_eq!(controller.write_register(0x24, 4, 0x001F_001F, Nanos::ZERO), RegisterEffect::None);
        let effect = controller.write_register(0x14, 4, configuration, Nanos::ZERO);
        assert!(matches!(effect, RegisterEffect::Enable(_)), "{effect:?}");
        controller.complete_enable();
        Self { controller, subsystem: FakeSubsystem::new(), now: Nanos::ZERO }
    }

    /// Disables the controller, and enables it again.
    pub(crate) fn reset(&mut self) {
        let effect = self.controller.write_register(0x14, 4, 0, self.now);
        assert_eq!(effect, RegisterEffect::Disable);
        self.controller.complete_disable();
        let effect = self.controller.write_register(0x14, 4, ENABLE_ALL_SETS, self.now);
        assert!(matches!(effect, RegisterEffect::Enable(_)), "{effect:?}");
        self.controller.complete_enable();
    }

    pub(crate) fn step(&mut self, entry: &SubmissionEntry, data: &[u8]) -> AdminStep {
        self.controller.admin(entry, data, &self.subsystem, self.now)
    }

    pub(crate) fn execute(&mut self, entry: &SubmissionEntry, data: &[u8]) -> AdminCompletion {
        let room = match self.controller.admin_data(entry) {
            Ok(AdminData::ToHost(bytes)) => bytes as usize,
            _ => 0,
        };
        match self.step(entry, data) {
            AdminStep::Done(answer) => {
                assert!(answer.data.len() <= room, "the command returned more data than announced");
                answer
            }
            other => panic!("the command is not done: {other:?}"),
        }
    }

    pub(crate) fn status(&mut self, entry: &SubmissionEntry, data: &[u8]) -> Status {
        self.execute(entry, data).status
    }

    pub(crate) fn identify(&mut self, cns: u32, nsid: u32, csi: u32) -> Result<Vec<u8>, Status> {
        let answer = self.execute(&command(AdminOpcode::Identify, nsid, [cns, csi << 24]), &[]);
        if answer.status.is_success() { Ok(answer.data) } else { Err(answer.status) }
    }

    pub(crate) fn log(&mut self, page: u32, bytes: u32) -> Result<Vec<u8>, Status> {
        let entry = command(AdminOpcode::GetLogPage, 0, [(bytes / 4 - 1) << 16 | page, 0]);
        let answer = self.execute(&entry, &[]);
        if answer.status.is_success() { Ok(answer.data) } else { Err(answer.status) }
    }

    pub(crate) fn get(&mut self, feature: u32, nsid: u32, value: u32) -> Result<u32, Status> {
        let answer = self.execute(&command(AdminOpcode::GetFeatures, nsid, [feature, value]), &[]);
        if answer.status.is_success() { Ok(answer.result) } else { Err(answer.status) }
    }

    pub(crate) fn set(&mut self, feature: u32, nsid: u32, value: u32) -> Result<u32, Status> {
        let answer = self.execute(&command(AdminOpcode::SetFeatures, nsid, [feature, value]), &[]);
        if answer.status.is_success() { Ok(answer.result) } else { Err(answer.status) }
    }
}

pub(crate) fn command(opcode: AdminOpcode, nsid: u32, dwords: [u32; 2]) -> SubmissionEntry {
    SubmissionEntry {
        opcode: opcode.number(),
        command_id: U16::new(7),
        namespace: U32::new(nsid),
        cdw10: U32::new(dwords[0]),
        cdw11: U32::new(dwords[1]),
        ..SubmissionEntry::default()
    }
}

pub(crate) fn u32_at(page: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(page[offset..offset + 4].try_into().expect("four bytes"))
}

pub(crate) fn u64_at(page: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(page[offset..offset + 8].try_into().expect("eight bytes"))
}
