//! Tests of Connect, properties, Keep Alive and the life of an association, by rule.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod subsystem;

use headwater_host::clock::Nanos;
use headwater_nvme::controller::AdminStep;
use headwater_nvme::fabrics::{
    AssociationTable, ConnectRefusal, ConnectionId, ControllerId, FabricsConfig, JoinedQueue, PropertyAction,
    QueueRole,
};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::fabrics::{
    CONTROLLER_DYNAMIC, ConnectData, ConnectFields, DISCOVERY_NAME, PropertyFields, connect_status,
};
use headwater_nvme::spec::register::ControllerRegister;
use headwater_nvme::spec::status::Status;
use headwater_nvme::tcp::target::FlowControl;
use subsystem::EmptySubsystem;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

const NAME: &str = "nqn.2026-01.test:device";
const HOST: (&str, [u8; 16]) = ("nqn.2014-08.org.nvmexpress:uuid:host", [7; 16]);
/// CC: enabled, entries of 64 and 16 bytes.
const ENABLE: u32 = 1 | 6 << 16 | 4 << 20;
/// Dword 0 for a parameter in the data.
const IN_DATA: u32 = 1 << 16;

fn associations() -> AssociationTable {
    AssociationTable::new(FabricsConfig {
        subsystem_name: NAME.to_owned(),
        controllers_max: 3,
        ..FabricsConfig::default()
    })
}

fn fields(queue: u16) -> ConnectFields {
    ConnectFields { format: 0, queue, size: 31, attributes: 0, keep_alive_ms: 0 }
}

fn connect(
    to: &mut AssociationTable,
    connection: u64,
    fields: ConnectFields,
    data: &ConnectData,
) -> Result<JoinedQueue, ConnectRefusal> {
    to.connect(&fields.to_entry(), data.as_bytes(), ConnectionId(connection), Nanos::ZERO)
}

fn admin(to: &mut AssociationTable, connection: u64) -> ControllerId {
    let data = ConnectData::new(HOST, NAME, CONTROLLER_DYNAMIC);
    connect(to, connection, fields(0), &data).unwrap().controller
}

fn enable(to: &mut AssociationTable, id: ControllerId) {
    let set = PropertyFields::set(ControllerRegister::Configuration.offset(), ENABLE);
    assert_eq!(to.property_set(id, &set, Nanos::ZERO).unwrap().action, PropertyAction::Nothing);
    let status = to.property_get(id, &PropertyFields::get(ControllerRegister::Status.offset(), 4)).unwrap();
    assert_eq!(status.result & 1, 1, "CSTS.RDY");
}

fn invalid(result: u32) -> ConnectRefusal {
    ConnectRefusal { result, status: connect_status::INVALID_PARAMETERS }
}

#[test]
fn connect_to_queue_0_creates_a_controller_per_association() {
    let mut all = associations();
    let data = ConnectData::new(HOST, NAME, CONTROLLER_DYNAMIC);
    let flow = ConnectFields { attributes: ConnectFields::FLOW_CONTROL_DISABLED, ..fields(0) };
    let first = connect(&mut all, 1, flow, &data).unwrap();
    assert_eq!((first.role, first.entries, first.flow), (QueueRole::Admin, 32, FlowControl::Disabled));
    let second = connect(&mut all, 2, fields(0), &data).unwrap();
    assert_ne!(first.controller, second.controller, "one host may connect twice");
    assert_eq!(all.controllers().count(), 2);
}

#[test]
fn refused_parameter_is_reported_by_its_offset() {
    let mut all = associations();
    let right = || ConnectData::new(HOST, NAME, CONTROLLER_DYNAMIC);
    let mut try_data = |change: &dyn Fn(&mut ConnectData)| {
        let mut data = right();
        change(&mut data);
        connect(&mut all, 1, fields(0), &data).unwrap_err()
    };
    assert_eq!(try_data(&|data| data.subsystem_name[0] = b'x'), invalid(IN_DATA | 256));
    assert_eq!(try_data(&|data| data.subsystem_name = [b'n'; 256]), invalid(IN_DATA | 256), "no terminator");
    assert_eq!(try_data(&|data| data.host_name[..4].fill(b'x')), invalid(IN_DATA | 512), "no qualified name");
    assert_eq!(try_data(&|data| data.host_name = [b'n'; 256]), invalid(IN_DATA | 512), "no terminator");
    assert_eq!(try_data(&|data| data.controller = 1.into()), invalid(IN_DATA | 16), "only the dynamic model");
    for size in [0, u16::MAX] {
        let refused = connect(&mut all, 1, ConnectFields { size, ..fields(0) }, &right()).unwrap_err();
        assert_eq!(refused, invalid(44));
    }
    let format = ConnectFields { format: 1, ..fields(0) };
    let refused = connect(&mut all, 1, format, &right()).unwrap_err();
    assert_eq!(refused, ConnectRefusal { result: 0, status: connect_status::INCOMPATIBLE_FORMAT });
    assert!(all.is_empty(), "a refused Connect creates no association");
}

/// Checks for a former defect: SPDK's `perf` names no host, and was refused.
#[test]
fn host_without_a_name_is_accepted() {
    let mut to = associations();
    let data = ConnectData::new(("", HOST.1), NAME, CONTROLLER_DYNAMIC);
    let joined = to.connect(&fields(0).to_entry(), data.as_bytes(), ConnectionId(1), Nanos::ZERO).unwrap();
    enable(&mut to, joined.controller);
    let io = |name: &str| ConnectData::new((name, HOST.1), NAME, joined.controller.0);
    let mut queue =
        |data: ConnectData| to.connect(&fields(1).to_entry(), data.as_bytes(), ConnectionId(2), Nanos::ZERO);
    assert_eq!(queue(io(HOST.0)).unwrap_err(), invalid(IN_DATA | 512), "another host");
    assert_eq!(queue(io("")).unwrap().controller, joined.controller);
}

#[test]
fn full_subsystem_is_busy_until_a_host_leaves() {
    let mut all = associations();
    let ids: Vec<ControllerId> = (1..=3).map(|connection| admin(&mut all, connection)).collect();
    let data = ConnectData::new(HOST, NAME, CONTROLLER_DYNAMIC);
    let refused = connect(&mut all, 4, fields(0), &data).unwrap_err();
    assert_eq!(refused.status, connect_status::CONTROLLER_BUSY);
    assert!(!refused.status.do_not_retry, "there may be room later");
    assert_eq!(all.remove_connection(ids[0], ConnectionId(1)), []);
    assert!(!ids.contains(&admin(&mut all, 5)), "a controller identifier is not reused soon");
}

#[test]
fn io_queue_joins_only_the_controller_of_its_own_host() {
    let mut all = associations();
    let id = admin(&mut all, 1);
    let data = ConnectData::new(HOST, NAME, id.0);
    let early = connect(&mut all, 2, fields(1), &data).unwrap_err();
    assert_eq!(early.status, Status::COMMAND_SEQUENCE_ERROR, "the controller is not enabled");
    enable(&mut all, id);
    let joined = connect(&mut all, 2, fields(1), &data).unwrap();
    assert_eq!((joined.controller, joined.role), (id, QueueRole::Io));
    let again = connect(&mut all, 3, fields(1), &data).unwrap_err();
    assert_eq!(again.status, Status::COMMAND_SEQUENCE_ERROR, "the queue has a connection");
    let refused = connect(&mut all, 3, fields(17), &data).unwrap_err();
    assert_eq!(refused, invalid(42), "more queues than the controller has");
    let unknown = ConnectData::new(HOST, NAME, 77);
    assert_eq!(connect(&mut all, 3, fields(2), &unknown).unwrap_err(), invalid(IN_DATA | 16));
    let other = ConnectData::new(("nqn.2026-01.test:other", HOST.1), NAME, id.0);
    assert_eq!(connect(&mut all, 3, fields(2), &other).unwrap_err(), invalid(IN_DATA | 512));
    let other = ConnectData::new((HOST.0, [8; 16]), NAME, id.0);
    assert_eq!(connect(&mut all, 3, fields(2), &other).unwrap_err(), invalid(IN_DATA));
}

#[test]
fn losing_the_admin_queue_closes_every_queue() {
    let mut all = associations();
    let id = admin(&mut all, 1);
    enable(&mut all, id);
    for queue in 1..=3 {
        connect(&mut all, u64::from(queue) + 1, fields(queue), &ConnectData::new(HOST, NAME, id.0)).unwrap();
    }
    assert_eq!(all.remove_connection(id, ConnectionId(3)), [], "an I/O queue leaves alone");
    connect(&mut all, 9, fields(2), &ConnectData::new(HOST, NAME, id.0)).unwrap();
    assert_eq!(
        all.remove_connection(id, ConnectionId(1)),
        [ConnectionId(2), ConnectionId(9), ConnectionId(4)]
    );
    assert!(all.is_empty());
}

#[test]
fn properties_are_accessed_in_their_own_width() {
    let mut all = associations();
    let id = admin(&mut all, 1);
    let capabilities = all.property_get(id, &PropertyFields::get(0, 8)).unwrap().result;
    assert_eq!(capabilities & 0xFFFF, 127, "MQES");
    for (offset, bytes) in
        [(0, 4), (8, 8), (0x14, 8), (0x1C, 8), (0x24, 4), (0x28, 8), (0x0C, 4), (0x1000, 4), (2, 4)]
    {
        let refused = all.property_get(id, &PropertyFields::get(offset, bytes)).unwrap_err();
        assert_eq!(refused, Status::INVALID_FIELD, "{offset:#x} in {bytes} bytes");
    }
    for offset in [0, 8, 0x1C, 0x24, 0x28, 0x1000] {
        let set = PropertyFields::set(offset, 1);
        assert_eq!(all.property_set(id, &set, Nanos::ZERO).unwrap_err(), Status::INVALID_FIELD);
    }
}

#[test]
fn disabling_closes_io_queues_and_shutdown_completes_when_done() {
    let mut all = associations();
    let id = admin(&mut all, 1);
    enable(&mut all, id);
    connect(&mut all, 2, fields(1), &ConnectData::new(HOST, NAME, id.0)).unwrap();
    let set = |all: &mut AssociationTable, value| {
        let entry = PropertyFields::set(ControllerRegister::Configuration.offset(), value);
        all.property_set(id, &entry, Nanos::ZERO).unwrap().action
    };
    assert_eq!(set(&mut all, ENABLE | 1 << 14), PropertyAction::Shutdown);
    let shutdown = |all: &AssociationTable| {
        all.property_get(id, &PropertyFields::get(ControllerRegister::Status.offset(), 4)).unwrap().result
            >> 2
            & 0b11
    };
    assert_eq!(shutdown(&all), 0b01, "the shutdown is in progress");
    all.get_mut(id).unwrap().controller.complete_shutdown();
    assert_eq!(shutdown(&all), 0b10, "the shutdown is complete");
    assert_eq!(set(&mut all, 0), PropertyAction::Close(vec![ConnectionId(2)]));
    enable(&mut all, id);
    connect(&mut all, 3, fields(1), &ConnectData::new(HOST, NAME, id.0)).unwrap();
}

#[test]
fn keep_alive_timeout_ends_the_association_of_a_silent_host_only() {
    let mut all = associations();
    let data = ConnectData::new(HOST, NAME, CONTROLLER_DYNAMIC);
    let with_timer = ConnectFields { keep_alive_ms: 1_000, ..fields(0) };
    let id = connect(&mut all, 1, with_timer, &data).unwrap().controller;
    enable(&mut all, id);
    connect(&mut all, 2, fields(1), &ConnectData::new(HOST, NAME, id.0)).unwrap();
    let device = EmptySubsystem::new(NAME);
    let alive = SubmissionEntry { opcode: 0x18, ..SubmissionEntry::default() };
    for second in 1..5 {
        let now = Nanos::from_millis(second * 900);
        assert_eq!(all.poll(&device, now).expired, []);
        let step = all.get_mut(id).unwrap().controller.admin(&alive, &[], &device, now);
        assert!(matches!(step, AdminStep::Done(answer) if answer.status.is_success()));
    }
    assert_eq!(all.next_deadline(), Some(Nanos::from_millis(4 * 900 + 1_000)));
    let expired = all.poll(&device, Nanos::from_millis(4 * 900 + 1_001)).expired;
    assert_eq!(expired, [ConnectionId(1), ConnectionId(2)]);
    assert!(all.is_empty());
}

#[test]
fn discovery_controller_reports_the_subsystem_and_has_no_io_queue() {
    let mut all = associations();
    let data = ConnectData::new(HOST, DISCOVERY_NAME, CONTROLLER_DYNAMIC);
    let id = connect(&mut all, 1, fields(0), &data).unwrap().controller;
    assert_eq!(all.controllers().count(), 0, "a discovery controller does not count as an I/O controller");
    enable(&mut all, id);
    let io = connect(&mut all, 2, fields(1), &ConnectData::new(HOST, DISCOVERY_NAME, id.0)).unwrap_err();
    assert_eq!(io, invalid(42));
    let device = EmptySubsystem::new(NAME);
    // Get Log Page 70h, 2,048 bytes.
    let entry =
        SubmissionEntry { opcode: 0x02, cdw10: U32::new(0x70 | 511 << 16), ..SubmissionEntry::default() };
    let step = all.get_mut(id).unwrap().controller.admin(&entry, &[], &device, Nanos::ZERO);
    let AdminStep::Done(answer) = step else { panic!("not done") };
    assert_eq!((answer.status, answer.data.len()), (Status::SUCCESS, 2_048));
    assert_eq!(&answer.data[1_280..1_280 + NAME.len()], NAME.as_bytes());
    // Identify Controller: the well-known name, or hosts would search for another discovery subsystem.
    let entry = SubmissionEntry { opcode: 0x06, cdw10: U32::new(1), ..SubmissionEntry::default() };
    let step = all.get_mut(id).unwrap().controller.admin(&entry, &[], &device, Nanos::ZERO);
    let AdminStep::Done(answer) = step else { panic!("not done") };
    assert_eq!(&answer.data[768..768 + DISCOVERY_NAME.len()], DISCOVERY_NAME.as_bytes());
    // Its host set no Keep Alive timeout, but a default timeout applies.
    assert!(all.next_deadline().is_some());
}

#[test]
fn a_subsystem_reset_ends_every_association() {
    let mut all = associations();
    let first = admin(&mut all, 1);
    enable(&mut all, first);
    let second = admin(&mut all, 2);
    enable(&mut all, second);
    let reset = PropertyFields::set(ControllerRegister::SubsystemReset.offset(), 0x4E56_4D65);
    let answer = all.property_set(first, &reset, Nanos::ZERO).unwrap();
    assert_eq!(answer.action, PropertyAction::Close(vec![ConnectionId(1), ConnectionId(2)]));
    assert!(all.is_empty());
}
