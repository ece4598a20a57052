//! Tests of target and initiator against each other, over a link that splits the stream at any byte.

use crate::raw::{SharedBytes, drain};
use crate::test_target::TestTarget;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::status::Status;
use headwater_nvme::tcp::initiator::{CommandId, InitiatorCompletion};
use headwater_nvme::tcp::target::{FlowControl, TargetParameters};
use headwater_nvme::tcp::{
    CommandTransfer, DigestMode, DigestSettings, InitiatorConnection, InitiatorParameters, InitiatorStep,
    LentBytes as _,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use zerocopy::little_endian::U32;

/// One command of a run: its opcode, the number of its value, and its length.
#[derive(Clone, Copy, Debug)]
struct TestCommand {
    opcode: u8,
    number: u32,
    bytes: u32,
}

#[derive(Clone, Copy, Debug)]
struct ConnectionTerms {
    digests: DigestSettings,
    data_alignment: u8,
    r2ts_max: u32,
    r2t_bytes: u32,
    host_data_max: u32,
    in_capsule_max: u32,
    depth: u16,
    flow: FlowControl,
    part_unit: u32,
}

fn terms() -> impl Strategy<Value = ConnectionTerms> {
    let digest = || prop_oneof![Just(DigestMode::Off), Just(DigestMode::On)];
    let flow = prop_oneof![Just(FlowControl::Enabled), Just(FlowControl::Disabled)];
    let sizes = (1_u32..3_000, 1_024_u32..4_000, prop_oneof![Just(0_u32), Just(512), Just(8_192)]);
    let part_unit = prop_oneof![Just(0_u32), 1_u32..5_000];
    (digest(), digest(), 0_u8..32, 0_u32..4, sizes, 2_u16..9, flow, part_unit).prop_map(
        |(header, data, data_alignment, r2ts_max, (r2t, host, in_capsule_max), depth, flow, part_unit)| {
            ConnectionTerms {
                digests: DigestSettings { header, data },
                data_alignment,
                r2ts_max,
                r2t_bytes: r2t,
                host_data_max: host * 4,
                in_capsule_max,
                depth,
                flow,
                part_unit,
            }
        },
    )
}

fn test_commands() -> impl Strategy<Value = Vec<TestCommand>> {
    let one = (0_u8..3, 0_u32..4, prop_oneof![0_u32..70, 500_u32..9_000, 9_000_u32..40_000]);
    prop::collection::vec(
        one.prop_map(|(opcode, number, bytes)| TestCommand { opcode, number, bytes }),
        1..40,
    )
}

fn pattern(order: &TestCommand, round: usize) -> Vec<u8> {
    let seed = u8::try_from(round % 251).unwrap();
    (0..order.bytes).map(|at| at.to_le_bytes()[0].wrapping_mul(3).wrapping_add(seed)).collect()
}

struct LinkHarness {
    target: TestTarget,
    host: InitiatorConnection<SharedBytes>,
    cut: Vec<usize>,
    cuts: usize,
    direct: bool,
}

impl LinkHarness {
    fn piece(&mut self, left: usize) -> usize {
        self.cuts += 1;
        self.cut[self.cuts % self.cut.len()].clamp(1, left)
    }

    /// Transfers all queued bytes in both directions and releases all responses, until both ends are idle.
    fn run_until_idle(&mut self, done: &mut Vec<InitiatorCompletion<SharedBytes>>) {
        loop {
            let to_target = drain(self.host.outgoing_mut());
            let mut rest = &to_target[..];
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(self.piece(rest.len()));
                assert_eq!(self.target.receive(piece), None);
                rest = after;
            }
            let mut answered = false;
            while self.target.release(self.cuts) {
                answered = true;
                self.cuts += 1;
            }
            let to_host = drain(self.target.target.outgoing_mut());
            if to_target.is_empty() && to_host.is_empty() && !answered {
                return;
            }
            let mut rest = &to_host[..];
            while !rest.is_empty() {
                let bytes = self.piece(rest.len());
                rest = self.receive(rest, bytes, done);
            }
        }
    }

    fn receive<'a>(
        &mut self,
        rest: &'a [u8],
        bytes: usize,
        done: &mut Vec<InitiatorCompletion<SharedBytes>>,
    ) -> &'a [u8] {
        // Receives data directly into its buffer, as a socket would.
        if self.direct
            && let Some((buffer, range)) = self.host.destination()
        {
            let bytes = bytes.min(range.len());
            buffer.write_at(range.start, &rest[..bytes]);
            self.host.note_direct_data(bytes);
            self.take(&mut &[][..], done);
            return &rest[bytes..];
        }
        let (mut piece, after) = rest.split_at(bytes);
        self.take(&mut piece, done);
        after
    }

    fn take(&mut self, piece: &mut &[u8], done: &mut Vec<InitiatorCompletion<SharedBytes>>) {
        loop {
            match self.host.advance(piece) {
                InitiatorStep::NeedInput => return,
                InitiatorStep::Opened => {}
                InitiatorStep::Completed(completed) => done.push(completed),
                InitiatorStep::Closed(ended) => panic!("closed: {ended:?}"),
            }
        }
    }
}

fn run(terms: &ConnectionTerms, orders: &[TestCommand], cut: Vec<usize>, direct: bool) {
    let parameters = TargetParameters {
        in_capsule_max: 8_192,
        host_data_max: terms.host_data_max,
        r2t_bytes: terms.r2t_bytes,
        write_bytes_max: 30_000,
    };
    let host = InitiatorConnection::new(InitiatorParameters {
        digests: terms.digests,
        data_alignment: terms.data_alignment,
        r2ts_max: terms.r2ts_max,
        depth: terms.depth,
        in_capsule_max: terms.in_capsule_max,
    });
    let mut controller = TestTarget::new(parameters, terms.depth, terms.flow);
    controller.part_unit = terms.part_unit;
    let mut world = LinkHarness { target: controller, host, cut, cuts: 0, direct };
    let mut done = Vec::new();
    world.run_until_idle(&mut done);
    let mut model: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
    for (round, order) in orders.iter().enumerate() {
        let entry = SubmissionEntry {
            opcode: order.opcode,
            cdw10: U32::new(order.bytes),
            cdw11: U32::new(order.number),
            cdw12: U32::new(u32::from(order.opcode) * 5 * u32::from(terms.flow == FlowControl::Enabled)),
            ..SubmissionEntry::default()
        };
        let kept =
            model.get(&order.number).filter(|kept| kept.len() <= usize::try_from(order.bytes).unwrap());
        let (transfer, expected) = match order.opcode {
            1 => (CommandTransfer::Out(SharedBytes::of(pattern(order, round))), None),
            2 => (
                CommandTransfer::In(SharedBytes::of(vec![0; usize::try_from(order.bytes).unwrap()])),
                kept.cloned(),
            ),
            _ => (CommandTransfer::None, None),
        };
        if order.opcode == 1 {
            model.insert(order.number, pattern(order, round));
        }
        let id: CommandId = world.host.submit(entry, transfer).unwrap();
        world.run_until_idle(&mut done);
        let completed = done.pop().expect("the command completed");
        assert!(done.is_empty(), "the command completed more than once");
        assert_eq!(completed.id, id);
        match (order.opcode, expected, completed.transfer) {
            (2, Some(expected), CommandTransfer::In(buffer)) => {
                assert_eq!(completed.entry.status(), Status::SUCCESS);
                assert_eq!(usize::try_from(completed.received).unwrap(), expected.len());
                assert!(
                    buffer.to_vec()[..expected.len()] == expected[..],
                    "the bytes read differ from those written"
                );
            }
            (2, None, _) => assert!(!completed.entry.status().is_success()),
            _ => assert_eq!(completed.entry.status(), Status::SUCCESS),
        }
    }
    assert!(world.target.stored == model);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn reads_return_written_data_for_any_stream_split(
        terms in terms(),
        orders in test_commands(),
        cut in prop::collection::vec(prop_oneof![1_usize..40, 1_usize..5_000], 1..12),
        direct in any::<bool>(),
    ) {
        run(&terms, &orders, cut, direct);
    }
}

#[test]
fn commands_at_full_depth_complete_in_any_order() {
    let parameters = TargetParameters { r2t_bytes: 4_096, ..TargetParameters::default() };
    let flows = [FlowControl::Enabled, FlowControl::Disabled];
    for (flow, part_unit) in flows.into_iter().flat_map(|flow| [(flow, 0), (flow, 3_000)]) {
        let host = InitiatorConnection::new(InitiatorParameters {
            digests: DigestSettings { header: DigestMode::On, data: DigestMode::On },
            r2ts_max: 3,
            depth: 32,
            in_capsule_max: 0,
            ..InitiatorParameters::default()
        });
        let mut controller = TestTarget::new(parameters, 32, flow);
        controller.part_unit = part_unit;
        let mut world =
            LinkHarness { target: controller, host, cut: vec![1, 7_000, 33, 4_097], cuts: 0, direct: true };
        let mut done = Vec::new();
        world.run_until_idle(&mut done);
        for opcode in [1, 2] {
            let mut expected = BTreeMap::new();
            for number in 0..32_u32 {
                let order = TestCommand { opcode, number, bytes: 10_000 + number };
                let entry = SubmissionEntry {
                    opcode,
                    cdw10: U32::new(order.bytes),
                    cdw11: U32::new(number),
                    ..SubmissionEntry::default()
                };
                let bytes = pattern(&order, usize::try_from(number).unwrap());
                let transfer = match opcode {
                    1 => CommandTransfer::Out(SharedBytes::of(bytes.clone())),
                    _ => CommandTransfer::In(SharedBytes::of(vec![0; bytes.len()])),
                };
                expected.insert(world.host.submit(entry, transfer).unwrap(), bytes);
            }
            world.run_until_idle(&mut done);
            assert_eq!(done.len(), 32);
            for completed in done.drain(..) {
                assert_eq!(completed.entry.status(), Status::SUCCESS);
                let bytes = expected.remove(&completed.id).expect("each command completes once");
                if let CommandTransfer::In(buffer) = completed.transfer {
                    assert!(buffer.to_vec() == bytes);
                }
            }
        }
    }
}
