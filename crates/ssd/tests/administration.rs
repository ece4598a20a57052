//! What a controller and its device do together: namespaces made and taken away by NVMe hosts, and a sanitize that leaves
//! nothing on the medium.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use bytes::Bytes;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::controller::admin::{AsyncAnswer, NamespaceFacts, NamespaceFormat, SanitizeState};
use headwater_nvme::controller::{
    AdminAnswer, AdminStep, Controller, ControllerConfig, RegisterEffect, Subsystem,
};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::opcode::AdminOpcode;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{Command, Completion, Condition, Expiry, FaceId, NamespaceId};
use headwater_ssd::engine::administration::{AdminTicket, identity};
use headwater_ssd::engine::{Device, DeviceConfig, Start};
use headwater_ssd::media::memory::MemoryMedia;
use headwater_ssd::media::{BlockId, Geometry, Media, PageAddress};
use headwater_ssd::namespace::{BlockFormat, MissingKey, NamespaceKind};
use zerocopy::little_endian::U32;

const FACE: FaceId = FaceId(1);
const ADMIN: FaceId = FaceId(2);
const WALL: UnixMillis = UnixMillis(1_000_000);

struct Host {
    device: Device<MemoryMedia>,
    controller: Controller,
    token: u64,
}

fn enabled(id: u16) -> Controller {
    let mut controller = Controller::new(ControllerConfig::pcie(id));
    assert_eq!(controller.write_register(0x24, 4, 0x001F_001F, Nanos::ZERO), RegisterEffect::None);
    let effect = controller.write_register(0x14, 4, 0x0046_0061, Nanos::ZERO);
    assert!(matches!(effect, RegisterEffect::Enable(_)));
    controller.enabled();
    controller
}

impl Host {
    fn new() -> Self {
        let media = MemoryMedia::erased(Geometry::with_blocks(32)).unwrap();
        let start = Start { now: Nanos::ZERO, wall: WALL };
        let mut device = Device::open(media, DeviceConfig::default(), start, &mut |_| {}).unwrap();
        device.set_identity(identity([5; 16]));
        assert!(device.add_controller(1));
        assert!(device.add_controller(2));
        Self { device, controller: enabled(1), token: 0 }
    }

    /// Stops in good order, and opens again.
    fn restarted(mut self) -> Self {
        self.device.shutdown(Nanos::ZERO, WALL).unwrap();
        self.reopened()
    }

    /// Opens what a power cut would leave.
    fn reopened(self) -> Self {
        let media = self.device.into_media().reopened();
        let start = Start { now: Nanos::ZERO, wall: WALL };
        let mut device = Device::open(media, DeviceConfig::default(), start, &mut |_| {}).unwrap();
        assert!(device.add_controller(1));
        assert!(device.add_controller(2));
        Self { device, controller: enabled(1), token: 0 }
    }

    fn admin(&mut self, opcode: AdminOpcode, nsid: u32, dwords: [u32; 2], data: &[u8]) -> AdminAnswer {
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
                self.device.administer(AdminTicket { face: ADMIN, token: self.token }, action);
                for _ in 0..100_000 {
                    self.device.poll(Nanos::ZERO, WALL);
                    if let Some((token, answer)) = self.device.next_administered(ADMIN) {
                        assert_eq!(token, self.token);
                        assert!(self.device.next_administered(ADMIN).is_none(), "one answer an action");
                        return answer;
                    }
                }
                panic!("no answer came");
            }
            other => panic!("not an answer: {other:?}"),
        }
    }

    fn create(&mut self, size: u64, format: u8, command_set: u32) -> AdminAnswer {
        let mut data = vec![0; 4096];
        data[..8].copy_from_slice(&size.to_le_bytes());
        data[8..16].copy_from_slice(&size.to_le_bytes());
        data[26] = format;
        self.admin(AdminOpcode::NamespaceManagement, 0, [0, command_set << 24], &data)
    }

    fn attach(&mut self, nsid: u32, select: u32, controllers: &[u16]) -> Status {
        let mut data = vec![0; 4096];
        data[0] = u8::try_from(controllers.len()).unwrap();
        for (place, id) in controllers.iter().enumerate() {
            data[2 + 2 * place..4 + 2 * place].copy_from_slice(&id.to_le_bytes());
        }
        self.admin(AdminOpcode::NamespaceAttachment, nsid, [select, 0], &data).status
    }

    /// The active namespaces as Identify CNS 02h lists them.
    fn active(&mut self) -> Vec<u32> {
        let page = self.admin(AdminOpcode::Identify, 0, [0x02, 0], &[]).data;
        let words = page.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
        words.take_while(|&nsid| nsid != 0).collect()
    }

    fn run(&mut self, namespace: NamespaceId, command: Command) -> Completion {
        self.device.submit(FACE, namespace, 7, command).unwrap();
        for _ in 0..100_000 {
            self.device.poll(Nanos::ZERO, WALL);
            if let Some(completion) = self.device.next_completion(FACE) {
                return completion;
            }
        }
        panic!("no completion came");
    }

    fn set(&mut self, namespace: NamespaceId, key: &[u8], value: &[u8]) {
        let command = Command::Store {
            key: Bytes::copy_from_slice(key),
            value: Bytes::copy_from_slice(value).into(),
            condition: Condition::Always,
            expiry: Expiry::Never,
        };
        assert_eq!(self.run(namespace, command).status, Status::SUCCESS);
    }

    fn facts(&self, nsid: u32) -> Option<NamespaceFacts> {
        Subsystem::namespace(&self.device, nsid)
    }

    /// Whether the medium holds these bytes anywhere.
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

    fn next_event(&mut self) -> Option<AsyncAnswer> {
        self.controller.poll(&self.device, Nanos::ZERO);
        self.controller.take_async_event()
    }
}

#[test]
fn a_created_namespace_is_seen_by_the_controllers_it_is_attached_to_and_no_other() {
    let mut host = Host::new();
    assert_eq!(host.active(), [1]);
    let created = host.create(64, 1, 0);
    assert_eq!((created.status, created.result), (Status::SUCCESS, 2));
    assert_eq!(host.active(), [1], "created, and attached to nobody");
    assert_eq!(host.facts(2).unwrap().format, NamespaceFormat::Block { index: 1 });
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
    assert_eq!(host.facts(2), None);
}

#[test]
fn attachments_survive_a_power_cut_and_a_restart() {
    let mut host = Host::new();
    for nsid in 2..=4 {
        assert_eq!(host.create(64, 1, 0).result, nsid);
    }
    assert_eq!(host.attach(2, 0, &[1]), Status::SUCCESS);
    assert_eq!(host.attach(3, 0, &[1, 2]), Status::SUCCESS);
    assert_eq!(host.attach(3, 1, &[1]), Status::SUCCESS);
    assert_eq!(host.attach(1, 1, &[2]), Status::SUCCESS, "of the one that nobody made, too");
    for way in 0..4 {
        host = if way % 2 == 0 { host.reopened() } else { host.restarted() };
        let seen = |host: &Host, controller| {
            let numbers = (1..=4).filter(|&nsid| Subsystem::is_attached(&host.device, nsid, controller));
            numbers.collect::<Vec<u32>>()
        };
        assert_eq!(host.active(), [1, 2], "way {way}");
        assert_eq!(seen(&host, 2), [3], "way {way}");
        assert_eq!(seen(&host, 3), [1], "a controller to come, way {way}");
        assert_eq!(
            host.facts(4).unwrap().format,
            NamespaceFormat::Block { index: 1 },
            "and nobody's is there"
        );
    }
    assert_eq!(host.attach(1, 0, &[2]), Status::SUCCESS);
    assert_eq!(host.admin(AdminOpcode::NamespaceManagement, 2, [1, 0], &[]).status, Status::SUCCESS);
    let mut host = host.reopened();
    assert!(host.device.is_attached(NamespaceId::FIRST, 2));
    assert_eq!((host.active(), host.facts(2)), (vec![1], None));
}

#[test]
fn a_first_namespace_that_a_host_deleted_stays_hidden_until_it_is_attached_again() {
    let mut host = Host::new();
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
fn controllers_of_hosts_that_connect_have_attachments_while_they_are_connected() {
    let mut host = Host::new();
    let dynamic = headwater_nvme::fabrics::DYNAMIC_CONTROLLERS;
    assert!(host.device.add_controller(dynamic));
    assert_eq!(host.create(64, 1, 0).result, 2);
    assert_eq!(host.create(64, 1, 0).result, 3);
    assert_eq!(host.attach(2, 0, &[dynamic]), Status::SUCCESS);
    assert_eq!(host.attach(3, 0, &[1, dynamic]), Status::SUCCESS);
    assert_eq!(host.active(), [1, 3]);
    let mut host = host.reopened();
    assert_eq!(host.active(), [1, 2, 3], "what only it had is found by whoever comes");
    assert!(!host.device.is_attached(NamespaceId(3), dynamic));
}

#[test]
fn a_namespace_that_does_not_fit_is_refused_and_changes_nothing() {
    let mut host = Host::new();
    let generation = host.device.generation();
    assert_eq!(host.create(1 << 30, 0, 0).status, Status::NAMESPACE_INSUFFICIENT_CAPACITY);
    assert_eq!(host.create(64, 2, 0).status, Status::INVALID_FORMAT);
    assert_eq!(host.create(64, 0, 2).status, Status::COMMAND_SET_NOT_SUPPORTED);
    assert_eq!(host.device.generation(), generation);
    assert_eq!(host.active(), [1]);
}

#[test]
fn a_format_empties_a_namespace_and_gives_it_other_blocks_of_the_same_bytes() {
    let mut host = Host::new();
    assert_eq!(host.create(64, 1, 0).status, Status::SUCCESS);
    assert_eq!(host.attach(2, 0, &[1]), Status::SUCCESS);
    assert_eq!(host.admin(AdminOpcode::FormatNvm, 2, [0, 0], &[]).status, Status::SUCCESS);
    let facts = host.facts(2).unwrap();
    assert_eq!((facts.format, facts.size), (NamespaceFormat::Block { index: 0 }, 512));
    assert_eq!(host.device.namespace(NamespaceId(2)).unwrap().kind, NamespaceKind::Block(BlockFormat::B512));
    host.set(NamespaceId::FIRST, b"key", b"value");
    assert_eq!(host.admin(AdminOpcode::FormatNvm, 1, [0, 0], &[]).status, Status::SUCCESS);
    assert_eq!(host.device.keys(NamespaceId::FIRST), 0);
    assert_eq!(host.admin(AdminOpcode::FormatNvm, 1, [1, 0], &[]).status, Status::INVALID_FORMAT);
}

#[test]
fn what_deleting_a_missing_key_means_survives_a_restart() {
    let mut host = Host::new();
    let set = host.admin(AdminOpcode::SetFeatures, 1, [0x20, 1], &[]);
    assert_eq!(set.status, Status::SUCCESS);
    let mut host = host.reopened();
    assert_eq!(host.admin(AdminOpcode::GetFeatures, 1, [0x20, 0], &[]).result, 1);
    let namespace = host.device.namespace(NamespaceId::FIRST).unwrap();
    assert_eq!(namespace.missing_key, MissingKey::Told);
}

#[test]
fn a_host_that_waits_is_told_that_namespaces_changed_once_until_it_looks() {
    let mut host = Host::new();
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
fn a_sanitize_leaves_no_byte_of_any_namespace_on_the_medium() {
    let mut host = Host::new();
    let secret = b"never to be read again";
    for round in 0..300_u32 {
        host.set(NamespaceId(1 + u8::try_from(round % 3).unwrap()), &round.to_le_bytes(), secret);
    }
    assert!(host.medium_holds(secret));
    let started = host.admin(AdminOpcode::Sanitize, 0, [2, 0], &[]);
    assert_eq!(started, AdminAnswer::SUCCESS);
    for _ in 0..100_000 {
        host.device.poll(Nanos::ZERO, WALL);
        if !host.device.is_sanitizing() {
            break;
        }
    }
    assert_eq!(Subsystem::sanitize(&host.device).state, SanitizeState::Completed);
    assert!(!host.medium_holds(secret));
    let log = host.admin(AdminOpcode::GetLogPage, 0, [0x0007_0081, 0], &[]).data;
    assert_eq!(log[..8], [0xFF, 0xFF, 1, 1, 2, 0, 0, 0], "idle, completed, all erased, as commanded");
    let mut host = host.reopened();
    assert_eq!(host.device.keys(NamespaceId::FIRST), 0);
    assert!(!host.medium_holds(secret));
    host.set(NamespaceId::FIRST, b"key", b"value");
}

impl Host {
    /// Turns until no sanitize operation goes on.
    fn sanitized(&mut self) -> SanitizeState {
        for _ in 0..100_000 {
            if !self.device.is_sanitizing() {
                break;
            }
            self.device.poll(Nanos::ZERO, WALL);
        }
        Subsystem::sanitize(&self.device).state
    }
}

#[test]
fn a_sanitize_that_a_power_cut_interrupts_goes_on_by_itself_until_nothing_is_left() {
    let secret = b"never to be read again";
    let (mut cuts, mut resumed) = (0, 0);
    for turns in 0.. {
        let mut host = Host::new();
        for round in 0..300_u32 {
            host.set(NamespaceId(1 + u8::try_from(round % 3).unwrap()), &round.to_le_bytes(), secret);
        }
        assert_eq!(host.admin(AdminOpcode::Sanitize, 0, [2, 0], &[]), AdminAnswer::SUCCESS);
        for _ in 0..turns {
            host.device.poll(Nanos::ZERO, WALL);
        }
        let was_over = !host.device.is_sanitizing();
        let mut host = if turns % 2 == 0 { host.reopened() } else { host.reopened().reopened() };
        cuts += 1;
        resumed += usize::from(host.device.is_sanitizing());
        assert!(!(was_over && host.device.is_sanitizing()), "what was told is not taken back, {turns} turns");
        assert_eq!(host.sanitized(), SanitizeState::Completed, "cut after {turns} turns");
        assert!(!host.medium_holds(secret), "cut after {turns} turns");
        let log = host.admin(AdminOpcode::GetLogPage, 0, [0x0007_0081, 0], &[]).data;
        assert_eq!(
            (&log[..3], &log[4..8]),
            (&[0xFF, 0xFF, 1][..], &[2, 0, 0, 0][..]),
            "completed, as commanded"
        );
        if was_over {
            break;
        }
    }
    assert!(resumed > 2, "{resumed} of {cuts} cuts came before the end");
}

#[test]
fn what_a_sanitize_came_to_is_told_after_a_restart_and_so_is_that_something_was_written_since() {
    let mut host = Host::new();
    host.set(NamespaceId::FIRST, b"key", b"value");
    assert_eq!(host.admin(AdminOpcode::Sanitize, 0, [2, 0], &[]), AdminAnswer::SUCCESS);
    assert_eq!(host.sanitized(), SanitizeState::Completed);
    let mut host = host.restarted();
    let facts = Subsystem::sanitize(&host.device);
    assert_eq!((facts.state, facts.command, facts.written_since), (SanitizeState::Completed, 2, false));
    host.set(NamespaceId::FIRST, b"key", b"value");
    assert!(Subsystem::sanitize(&host.device).written_since);
    let host = host.restarted();
    let facts = Subsystem::sanitize(&host.device);
    assert_eq!((facts.state, facts.written_since), (SanitizeState::Completed, true));
}

#[test]
fn health_and_media_pages_tell_what_hosts_wrote_and_what_the_medium_did_for_it() {
    let mut host = Host::new();
    let value = vec![7; 10_000];
    for round in 0..600_u32 {
        // Few keys over and over, and some that stay between them, so that collection has something to move.
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
    assert!(count(&media, 24) > 0 && count(&media, 32) > 0, "collection moved and erased");
    let amplification = u32::from_le_bytes(media[4..8].try_into().unwrap());
    assert_eq!(u64::from(amplification), programmed * 1_000 / client);
}

#[test]
fn while_a_sanitize_goes_on_nothing_else_changes_namespaces() {
    let mut host = Host::new();
    host.set(NamespaceId::FIRST, b"key", b"value");
    assert_eq!(host.admin(AdminOpcode::Sanitize, 0, [2, 0], &[]).status, Status::SUCCESS);
    if host.device.is_sanitizing() {
        assert_eq!(host.create(64, 1, 0).status, Status::SANITIZE_IN_PROGRESS);
        let again = host.admin(AdminOpcode::Sanitize, 0, [2, 0], &[]);
        assert_eq!(again.status, Status::SANITIZE_IN_PROGRESS);
    }
}
