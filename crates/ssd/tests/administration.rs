//! Tests of a controller with its device: namespace management by NVMe hosts, and sanitize, which leaves no data.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use bytes::Bytes;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::controller::admin::{
    AsyncEventCompletion, NamespaceFormat, NamespaceProperties, SanitizeState,
};
use headwater_nvme::controller::{
    AdminCompletion, AdminStep, ControllerConfig, DeviceController, NvmSubsystem, RegisterEffect,
};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::opcode::AdminOpcode;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    FrontEndId, NamespaceId, ReceiptStep, RecordExpiry, SsdCommand, SsdCompletion, SubmitError, ValueSource,
    WriteCondition,
};
use headwater_ssd::engine::administration::{AdminTicket, identity};
use headwater_ssd::engine::snapshot::{SnapshotLoss, SnapshotStatus};
use headwater_ssd::engine::{DeviceConfig, SsdDevice, StartTime};
use headwater_ssd::media::memory::MemoryMedia;
use headwater_ssd::media::{BlockId, FlashGeometry, Media, PageAddress};
use headwater_ssd::namespace::{BlockFormat, MissingKey, NamespaceKind};
use zerocopy::little_endian::U32;

const FRONT_END: FrontEndId = FrontEndId(1);
const ADMIN: FrontEndId = FrontEndId(2);
const WALL: UnixMillis = UnixMillis(1_000_000);

struct SubsystemHost {
    device: SsdDevice<MemoryMedia>,
    controller: DeviceController,
    token: u64,
}

fn enabled(id: u16) -> DeviceController {
    let mut controller = DeviceController::new(ControllerConfig::pcie(id));
    assert_eq!(controller.write_register(0x24, 4, 0x001F_001F, Nanos::ZERO), RegisterEffect::None);
    let effect = controller.write_register(0x14, 4, 0x0046_0061, Nanos::ZERO);
    assert!(matches!(effect, RegisterEffect::Enable(_)));
    controller.complete_enable();
    controller
}

impl SubsystemHost {
    fn new() -> Self {
        let media = MemoryMedia::erased(FlashGeometry::with_blocks(32)).unwrap();
        let start = StartTime { now: Nanos::ZERO, wall: WALL };
        let mut device = SsdDevice::open(media, DeviceConfig::default(), start, &mut |_| {}).unwrap();
        device.set_identity(identity([5; 16]));
        assert!(device.add_controller(1));
        assert!(device.add_controller(2));
        Self { device, controller: enabled(1), token: 0 }
    }

    /// Shuts the device down, and opens the medium again.
    fn restarted(mut self) -> Self {
        self.device.shutdown(Nanos::ZERO, WALL).unwrap();
        self.reopened()
    }

    /// Opens the medium as after a power cut.
    fn reopened(self) -> Self {
        let media = self.device.into_media().after_power_cut();
        let start = StartTime { now: Nanos::ZERO, wall: WALL };
        let mut device = SsdDevice::open(media, DeviceConfig::default(), start, &mut |_| {}).unwrap();
        assert!(device.add_controller(1));
        assert!(device.add_controller(2));
        Self { device, controller: enabled(1), token: 0 }
    }

    fn admin(&mut self, opcode: AdminOpcode, nsid: u32, dwords: [u32; 2], data: &[u8]) -> AdminCompletion {
        let entry = SubmissionEntry {
            opcode: opcode.number(),
            namespace: U32::new(nsid),
            cdw10: U32::new(dwords[0]),
            cdw11: U32::new(dwords[1]),
            ..SubmissionEntry::default()
        };
        match self.controller.admin(&entry, data, &self.device, Nanos::ZERO) {
            AdminStep::Done(answer) => answer,
            AdminStep::Namespace(action) => {
                self.token += 1;
                self.device.administer(AdminTicket { front_end: ADMIN, token: self.token }, action);
                for _ in 0..100_000 {
                    self.device.poll(Nanos::ZERO, WALL);
                    if let Some((token, answer)) = self.device.next_admin_completion(ADMIN) {
                        assert_eq!(token, self.token);
                        assert!(
                            self.device.next_admin_completion(ADMIN).is_none(),
                            "an action has a second answer"
                        );
                        return answer;
                    }
                }
                panic!("action {} has no answer", self.token);
            }
            other => panic!("the controller gave no answer: {other:?}"),
        }
    }

    fn create(&mut self, size: u64, format: u8, command_set: u32) -> AdminCompletion {
        let mut data = vec![0; 4096];
        data[..8].copy_from_slice(&size.to_le_bytes());
        data[8..16].copy_from_slice(&size.to_le_bytes());
        data[26] = format;
        self.admin(AdminOpcode::NamespaceManagement, 0, [0, command_set << 24], &data)
    }

    fn attach(&mut self, nsid: u32, select: u32, controllers: &[u16]) -> Status {
        let mut data = vec![0; 4096];
        data[0] = u8::try_from(controllers.len()).unwrap();
        for (index, id) in controllers.iter().enumerate() {
            data[2 + 2 * index..4 + 2 * index].copy_from_slice(&id.to_le_bytes());
        }
        self.admin(AdminOpcode::NamespaceAttachment, nsid, [select, 0], &data).status
    }

    /// Returns the active namespaces that Identify CNS 02h lists.
    fn active(&mut self) -> Vec<u32> {
        let page = self.admin(AdminOpcode::Identify, 0, [0x02, 0], &[]).data;
        let words = page.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
        words.take_while(|&nsid| nsid != 0).collect()
    }

    fn run(&mut self, namespace: NamespaceId, command: SsdCommand) -> SsdCompletion {
        self.device.submit(FRONT_END, namespace, 7, command).unwrap();
        for _ in 0..100_000 {
            self.device.poll(Nanos::ZERO, WALL);
            if let Some(completion) = self.device.next_completion(FRONT_END) {
                return completion;
            }
        }
        panic!("a command of {namespace} has no completion");
    }

    fn set(&mut self, namespace: NamespaceId, key: &[u8], value: &[u8]) {
        let command = SsdCommand::Store {
            key: Bytes::copy_from_slice(key),
            value: Bytes::copy_from_slice(value).into(),
            condition: WriteCondition::Always,
            expiry: RecordExpiry::Never,
        };
        assert_eq!(self.run(namespace, command).status, Status::SUCCESS);
    }

    fn properties(&self, nsid: u32) -> Option<NamespaceProperties> {
        NvmSubsystem::namespace(&self.device, nsid)
    }

    /// Returns true if the medium holds these bytes anywhere.
    fn medium_holds(&mut self, needle: &[u8]) -> bool {
        let pages: Vec<Vec<u8>> = self.pages();
        pages.iter().any(|page| page.windows(needle.len()).any(|window| window == needle))
    }

    fn pages(&mut self) -> Vec<Vec<u8>> {
        let media = self.device.media();
        let geometry = media.geometry();
        let blocks = (0..geometry.blocks).map(BlockId);
        let pages = blocks.flat_map(|block| (0..64).map(move |page| PageAddress { block, page }));
        pages.filter_map(|page| media.view(page).map(<[u8]>::to_vec)).collect()
    }

    fn next_event(&mut self) -> Option<AsyncEventCompletion> {
        self.controller.poll(&self.device, Nanos::ZERO);
        self.controller.take_async_event()
    }
}

#[test]
fn created_namespace_is_active_only_for_controllers_it_is_attached_to() {
    let mut host = SubsystemHost::new();
    assert_eq!(host.active(), [1]);
    let created = host.create(64, 1, 0);
    assert_eq!((created.status, created.result), (Status::SUCCESS, 2));
    assert_eq!(host.active(), [1], "a created namespace is attached");
    assert_eq!(host.properties(2).unwrap().format, NamespaceFormat::Block { index: 1 });
    assert_eq!(host.attach(2, 1, &[1]), Status::NAMESPACE_NOT_ATTACHED);
    assert_eq!(host.attach(2, 0, &[1]), Status::SUCCESS);
    assert_eq!(host.attach(2, 0, &[1]), Status::NAMESPACE_ALREADY_ATTACHED);
    assert_eq!(host.active(), [1, 2]);
    assert!(!host.device.is_attached(NamespaceId(2), 2));
    assert_eq!(host.attach(2, 0, &[3]), Status::CONTROLLER_LIST_INVALID);
    assert_eq!(host.attach(2, 1, &[1]), Status::SUCCESS);
    assert_eq!(host.active(), [1]);
    let deleted = host.admin(AdminOpcode::NamespaceManagement, 2, [1, 0], &[]);
    assert_eq!(deleted.status, Status::SUCCESS);
    assert_eq!(host.properties(2), None);
}

#[test]
fn attachments_survive_a_power_cut_and_a_restart() {
    let mut host = SubsystemHost::new();
    for nsid in 2..=4 {
        assert_eq!(host.create(64, 1, 0).result, nsid);
    }
    assert_eq!(host.attach(2, 0, &[1]), Status::SUCCESS);
    assert_eq!(host.attach(3, 0, &[1, 2]), Status::SUCCESS);
    assert_eq!(host.attach(3, 1, &[1]), Status::SUCCESS);
    assert_eq!(host.attach(1, 1, &[2]), Status::SUCCESS, "the implicit namespace cannot be detached");
    for round in 0..4 {
        host = if round % 2 == 0 { host.reopened() } else { host.restarted() };
        let seen = |host: &SubsystemHost, controller| {
            let numbers = (1..=4).filter(|&nsid| NvmSubsystem::is_attached(&host.device, nsid, controller));
            numbers.collect::<Vec<u32>>()
        };
        assert_eq!(host.active(), [1, 2], "round {round}");
        assert_eq!(seen(&host, 2), [3], "round {round}");
        assert_eq!(seen(&host, 3), [1], "a controller not added yet, round {round}");
        assert_eq!(
            host.properties(4).unwrap().format,
            NamespaceFormat::Block { index: 1 },
            "the detached namespace is lost"
        );
    }
    assert_eq!(host.attach(1, 0, &[2]), Status::SUCCESS);
    assert_eq!(host.admin(AdminOpcode::NamespaceManagement, 2, [1, 0], &[]).status, Status::SUCCESS);
    let mut host = host.reopened();
    assert!(host.device.is_attached(NamespaceId::FIRST, 2));
    assert_eq!((host.active(), host.properties(2)), (vec![1], None));
}

#[test]
fn deleted_first_namespace_stays_hidden_until_it_is_attached_again() {
    let mut host = SubsystemHost::new();
    host.set(NamespaceId::FIRST, b"key", b"value");
    assert_eq!(host.admin(AdminOpcode::NamespaceManagement, 1, [1, 0], &[]).status, Status::SUCCESS);
    for _ in 0..2 {
        assert_eq!(host.active(), [0; 0]);
        assert_eq!(host.device.keys(NamespaceId::FIRST), 0);
        host = host.reopened();
    }
    assert_eq!(host.attach(1, 0, &[1]), Status::SUCCESS);
    let mut host = host.restarted();
    assert_eq!(host.active(), [1]);
    assert!(!host.device.is_attached(NamespaceId::FIRST, 2));
}

#[test]
fn attachments_of_dynamic_controllers_end_with_a_restart() {
    let mut host = SubsystemHost::new();
    let dynamic = headwater_nvme::fabrics::DYNAMIC_CONTROLLERS;
    assert!(host.device.add_controller(dynamic));
    assert_eq!(host.create(64, 1, 0).result, 2);
    assert_eq!(host.create(64, 1, 0).result, 3);
    assert_eq!(host.attach(2, 0, &[dynamic]), Status::SUCCESS);
    assert_eq!(host.attach(3, 0, &[1, dynamic]), Status::SUCCESS);
    assert_eq!(host.active(), [1, 3]);
    let mut host = host.reopened();
    assert_eq!(host.active(), [1, 2, 3], "a namespace without controllers is not active");
    assert!(!host.device.is_attached(NamespaceId(3), dynamic));
}

#[test]
fn namespace_that_does_not_fit_is_refused_and_changes_nothing() {
    let mut host = SubsystemHost::new();
    let generation = host.device.generation();
    assert_eq!(host.create(1 << 30, 0, 0).status, Status::NAMESPACE_INSUFFICIENT_CAPACITY);
    assert_eq!(host.create(64, 2, 0).status, Status::INVALID_FORMAT);
    assert_eq!(host.create(64, 0, 2).status, Status::COMMAND_SET_NOT_SUPPORTED);
    assert_eq!(host.device.generation(), generation);
    assert_eq!(host.active(), [1]);
}

#[test]
fn format_empties_a_namespace_and_keeps_its_size_in_bytes() {
    let mut host = SubsystemHost::new();
    assert_eq!(host.create(64, 1, 0).status, Status::SUCCESS);
    assert_eq!(host.attach(2, 0, &[1]), Status::SUCCESS);
    assert_eq!(host.admin(AdminOpcode::FormatNvm, 2, [0, 0], &[]).status, Status::SUCCESS);
    let facts = host.properties(2).unwrap();
    assert_eq!((facts.format, facts.size), (NamespaceFormat::Block { index: 0 }, 512));
    assert_eq!(host.device.namespace(NamespaceId(2)).unwrap().kind, NamespaceKind::Block(BlockFormat::B512));
    host.set(NamespaceId::FIRST, b"key", b"value");
    assert_eq!(host.admin(AdminOpcode::FormatNvm, 1, [0, 0], &[]).status, Status::SUCCESS);
    assert_eq!(host.device.keys(NamespaceId::FIRST), 0);
    assert_eq!(host.admin(AdminOpcode::FormatNvm, 1, [1, 0], &[]).status, Status::INVALID_FORMAT);
}

#[test]
fn missing_key_setting_survives_a_power_cut() {
    let mut host = SubsystemHost::new();
    let set = host.admin(AdminOpcode::SetFeatures, 1, [0x20, 1], &[]);
    assert_eq!(set.status, Status::SUCCESS);
    let mut host = host.reopened();
    assert_eq!(host.admin(AdminOpcode::GetFeatures, 1, [0x20, 0], &[]).result, 1);
    let namespace = host.device.namespace(NamespaceId::FIRST).unwrap();
    assert_eq!(namespace.missing_key, MissingKey::Reported);
}

#[test]
fn namespace_change_event_is_sent_once_until_the_log_page_is_read() {
    let mut host = SubsystemHost::new();
    assert_eq!(host.admin(AdminOpcode::SetFeatures, 0, [0x0B, 0x100], &[]).status, Status::SUCCESS);
    for command_id in [40, 41] {
        let request = SubmissionEntry {
            opcode: AdminOpcode::AsyncEventRequest.number(),
            command_id: command_id.into(),
            ..SubmissionEntry::default()
        };
        assert_eq!(host.controller.admin(&request, &[], &host.device, Nanos::ZERO), AdminStep::Held);
    }
    assert_eq!(host.next_event(), None);
    host.set(NamespaceId(5), b"key", b"value");
    let event = host.next_event().unwrap();
    assert_eq!((event.command_id, event.result), (40, 0x0004_0002));
    host.set(NamespaceId(6), b"key", b"value");
    assert_eq!(host.next_event(), None, "masked until the log page is read");
    let changed = host.admin(AdminOpcode::GetLogPage, 0, [0x0003_0004, 0], &[]).data;
    assert_eq!(changed[..12], [5, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(host.next_event().unwrap().command_id, 41);
}

#[test]
fn sanitize_leaves_no_byte_of_any_namespace_on_the_medium() {
    let mut host = SubsystemHost::new();
    let secret = b"never to be read again";
    for round in 0..300_u32 {
        host.set(NamespaceId(1 + u8::try_from(round % 3).unwrap()), &round.to_le_bytes(), secret);
    }
    assert!(host.medium_holds(secret));
    let started = host.admin(AdminOpcode::Sanitize, 0, [2, 0], &[]);
    assert_eq!(started, AdminCompletion::SUCCESS);
    for _ in 0..100_000 {
        host.device.poll(Nanos::ZERO, WALL);
        if !host.device.is_sanitizing() {
            break;
        }
    }
    assert_eq!(NvmSubsystem::sanitize(&host.device).state, SanitizeState::Completed);
    assert!(!host.medium_holds(secret));
    let log = host.admin(AdminOpcode::GetLogPage, 0, [0x0007_0081, 0], &[]).data;
    assert_eq!(
        log[..8],
        [0xFF, 0xFF, 1, 1, 2, 0, 0, 0],
        "not idle, completed, all erased, with the command's dword"
    );
    let mut host = host.reopened();
    assert_eq!(host.device.keys(NamespaceId::FIRST), 0);
    assert!(!host.medium_holds(secret));
    host.set(NamespaceId::FIRST, b"key", b"value");
}

#[test]
fn sanitize_erases_what_receipts_hold() {
    const EXTENT: usize = 262_144;
    let mut host = SubsystemHost::new();
    let secret = b"a value on its way that is sanitized";
    let value: Vec<u8> = secret.iter().copied().cycle().take(2 * EXTENT).collect();
    let receipt = host.device.begin_receipt(NamespaceId::FIRST, value.len()).expect("a receipt");
    let mut done = 0;
    let mut give = |device: &mut SsdDevice<MemoryMedia>, up_to: usize| {
        for _ in 0..10_000 {
            let left = &value[done..up_to];
            let step = device.receive(&receipt, &mut |slices| {
                let part = slices[0].len().min(left.len());
                slices[0][..part].copy_from_slice(&left[..part]);
                Ok(part)
            });
            match step.unwrap() {
                ReceiptStep::Received(bytes) => done += bytes,
                ReceiptStep::NoRoom => _ = device.poll(Nanos::ZERO, WALL),
            }
        }
        assert_eq!(done, up_to);
    };
    give(&mut host.device, EXTENT + 5_000);
    while host.device.poll(Nanos::ZERO, WALL) {}
    assert!(host.medium_holds(secret));
    let started = host.admin(AdminOpcode::Sanitize, 0, [2, 0], &[]);
    assert_eq!(started, AdminCompletion::SUCCESS);
    assert_eq!(host.run_sanitize(), SanitizeState::Completed);
    assert!(!host.medium_holds(secret), "the client that sent it is still there");
    give(&mut host.device, 2 * EXTENT);
    let value = ValueSource::Received { receipt: receipt.clone(), rest: Bytes::new() };
    let (key, condition) = (Bytes::from_static(b"key"), WriteCondition::Always);
    let store = SsdCommand::Store { key, value, condition, expiry: RecordExpiry::Never };
    let refused = host.device.submit(FrontEndId(1), NamespaceId::FIRST, 1, store);
    assert_eq!(refused, Err(SubmitError::Refused(Status::ABORT_REQUESTED)));
    assert!(!host.medium_holds(secret));
}

#[test]
fn sanitize_ends_a_snapshot_that_would_keep_what_it_erases() {
    let mut host = SubsystemHost::new();
    host.set(NamespaceId::FIRST, b"key", b"never to be read again");
    host.device.request_snapshot(Vec::new()).unwrap();
    while !matches!(host.device.snapshot(), SnapshotStatus::Held(_)) {
        host.device.poll(Nanos::ZERO, WALL);
    }
    assert_eq!(host.admin(AdminOpcode::Sanitize, 0, [2, 0], &[]), AdminCompletion::SUCCESS);
    assert_eq!(host.run_sanitize(), SanitizeState::Completed);
    assert_eq!(host.device.snapshot(), SnapshotStatus::Lost(SnapshotLoss::Sanitized));
    assert!(!host.medium_holds(b"never to be read again"));
}

impl SubsystemHost {
    /// Polls until no sanitize operation runs, and returns its state.
    fn run_sanitize(&mut self) -> SanitizeState {
        for _ in 0..100_000 {
            if !self.device.is_sanitizing() {
                break;
            }
            self.device.poll(Nanos::ZERO, WALL);
        }
        NvmSubsystem::sanitize(&self.device).state
    }
}

#[test]
fn interrupted_sanitize_resumes_after_a_power_cut_and_completes() {
    let secret = b"never to be read again";
    let (mut cuts, mut resumed) = (0, 0);
    for turns in 0.. {
        let mut host = SubsystemHost::new();
        for round in 0..300_u32 {
            host.set(NamespaceId(1 + u8::try_from(round % 3).unwrap()), &round.to_le_bytes(), secret);
        }
        assert_eq!(host.admin(AdminOpcode::Sanitize, 0, [2, 0], &[]), AdminCompletion::SUCCESS);
        for _ in 0..turns {
            host.device.poll(Nanos::ZERO, WALL);
        }
        let was_over = !host.device.is_sanitizing();
        let mut host = if turns % 2 == 0 { host.reopened() } else { host.reopened().reopened() };
        cuts += 1;
        resumed += usize::from(host.device.is_sanitizing());
        assert!(!(was_over && host.device.is_sanitizing()), "a completed sanitize runs again, {turns} turns");
        assert_eq!(host.run_sanitize(), SanitizeState::Completed, "cut after {turns} turns");
        assert!(!host.medium_holds(secret), "cut after {turns} turns");
        let log = host.admin(AdminOpcode::GetLogPage, 0, [0x0007_0081, 0], &[]).data;
        assert_eq!(
            (&log[..3], &log[4..8]),
            (&[0xFF, 0xFF, 1][..], &[2, 0, 0, 0][..]),
            "not completed, with the command's dword"
        );
        if was_over {
            break;
        }
    }
    assert!(resumed > 2, "{resumed} of {cuts} cuts came before the end");
}

#[test]
fn sanitize_result_and_later_writes_are_reported_after_a_restart() {
    let mut host = SubsystemHost::new();
    host.set(NamespaceId::FIRST, b"key", b"value");
    assert_eq!(host.admin(AdminOpcode::Sanitize, 0, [2, 0], &[]), AdminCompletion::SUCCESS);
    assert_eq!(host.run_sanitize(), SanitizeState::Completed);
    let mut host = host.restarted();
    let facts = NvmSubsystem::sanitize(&host.device);
    assert_eq!((facts.state, facts.command, facts.written_since), (SanitizeState::Completed, 2, false));
    host.set(NamespaceId::FIRST, b"key", b"value");
    assert!(NvmSubsystem::sanitize(&host.device).written_since);
    let host = host.restarted();
    let facts = NvmSubsystem::sanitize(&host.device);
    assert_eq!((facts.state, facts.written_since), (SanitizeState::Completed, true));
}

#[test]
fn health_and_media_pages_count_host_and_media_writes() {
    let mut host = SubsystemHost::new();
    let value = vec![7; 10_000];
    for round in 0..600_u32 {
        // A few keys are overwritten many times, with lasting keys between them, so that collection must move records.
        let key = if round % 8 == 0 { 1_000 + round } else { round % 20 };
        host.set(NamespaceId::FIRST, &key.to_le_bytes(), &value);
    }
    let health = host.admin(AdminOpcode::GetLogPage, 0, [0x007F_0002, 0], &[]).data;
    let count = |page: &[u8], at: usize| u64::from_le_bytes(page[at..at + 8].try_into().unwrap());
    assert_eq!(count(&health, 48), (600 * 10_000_u64).div_ceil(512_000), "data units written");
    assert_eq!(count(&health, 80), 600, "host write commands");
    let media = host.admin(AdminOpcode::GetLogPage, 0, [0x007F_00C0, 0], &[]).data;
    let stats = host.device.stats();
    let (client, programmed) = (count(&media, 8), count(&media, 16));
    assert_eq!((client, programmed), (stats.client_bytes, stats.programmed_bytes));
    assert!(client > 6_000_000 && programmed > client, "{client} bytes became {programmed}");
    assert!(count(&media, 24) > 0 && count(&media, 32) > 0, "collection moved or erased nothing");
    let amplification = u32::from_le_bytes(media[4..8].try_into().unwrap());
    assert_eq!(u64::from(amplification), programmed * 1_000 / client);
}

#[test]
fn namespace_changes_are_refused_during_a_sanitize() {
    let mut host = SubsystemHost::new();
    host.set(NamespaceId::FIRST, b"key", b"value");
    assert_eq!(host.admin(AdminOpcode::Sanitize, 0, [2, 0], &[]).status, Status::SUCCESS);
    if host.device.is_sanitizing() {
        assert_eq!(host.create(64, 1, 0).status, Status::SANITIZE_IN_PROGRESS);
        let again = host.admin(AdminOpcode::Sanitize, 0, [2, 0], &[]);
        assert_eq!(again.status, Status::SANITIZE_IN_PROGRESS);
    }
}
