//! Tests over a link that loses, repeats, swaps, truncates and corrupts PDUs: nothing panics, no corrupt bytes are
//! accepted while digests are on, and every lent buffer is returned.

use crate::raw::{SharedBytes, drain, pdus};
use crate::test_target::TestTarget;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::tcp::target::{FlowControl, TargetParameters};
use headwater_nvme::tcp::{
    CommandTransfer, DigestMode, DigestSettings, InitiatorConnection, InitiatorParameters, InitiatorStep,
};
use proptest::prelude::*;
use zerocopy::little_endian::U32;

#[derive(Clone, Copy, Debug)]
enum LinkFault {
    None,
    Lose,
    Repeat,
    SwapWithNext,
    Truncate(usize),
    Flip(usize),
}

fn link_fault() -> impl Strategy<Value = LinkFault> {
    prop_oneof![
        12 => Just(LinkFault::None),
        1 => Just(LinkFault::Lose),
        1 => Just(LinkFault::Repeat),
        1 => Just(LinkFault::SwapWithNext),
        1 => (0_usize..10_000).prop_map(LinkFault::Truncate),
        2 => (0_usize..100_000).prop_map(LinkFault::Flip),
    ]
}

/// Applies the link's faults to the PDUs in `sent`; returns the resulting stream.
fn apply_faults(sent: &[u8], next: &mut impl FnMut() -> LinkFault) -> Vec<u8> {
    let mut all = pdus(sent);
    let mut stream = Vec::new();
    let mut at = 0;
    while at < all.len() {
        match next() {
            LinkFault::SwapWithNext if at + 1 < all.len() => all.swap(at, at + 1),
            LinkFault::Lose => {
                at += 1;
                continue;
            }
            LinkFault::Repeat => stream.extend_from_slice(&all[at]),
            LinkFault::Truncate(to) => {
                let bytes = all[at].len();
                all[at].truncate(to % bytes);
            }
            LinkFault::Flip(bit) => {
                let bits = all[at].len() * 8;
                all[at][bit % bits / 8] ^= 1 << (bit % 8);
            }
            LinkFault::None | LinkFault::SwapWithNext => {}
        }
        stream.extend_from_slice(&all[at]);
        at += 1;
    }
    stream
}

fn value(number: u32) -> Vec<u8> {
    (0..3_000 + number * 700).map(|at| (at.wrapping_mul(31) ^ number).to_le_bytes()[0]).collect()
}

fn run(plan: &[LinkFault]) {
    let mut steps = plan.iter().copied().cycle();
    let mut next = || steps.next().unwrap_or(LinkFault::None);
    let digests = DigestSettings { header: DigestMode::On, data: DigestMode::On };
    let mut host = InitiatorConnection::new(InitiatorParameters {
        digests,
        depth: 8,
        in_capsule_max: 4_096,
        ..InitiatorParameters::default()
    });
    let parameters = TargetParameters { r2t_bytes: 2_048, ..TargetParameters::default() };
    let mut controller = TestTarget::new(parameters, 8, FlowControl::Disabled);
    controller.part_unit = if plan.len().is_multiple_of(2) { 0 } else { 1_000 };
    // The link has no faults until the connection is open: no digest protects ICReq and ICResp.
    assert_eq!(controller.receive(&drain(host.outgoing_mut())), None);
    let opened = drain(controller.target.outgoing_mut());
    assert!(matches!(host.advance(&mut &opened[..]), InitiatorStep::Opened));
    let mut returned = 0;
    let mut submitted = 0;
    'rounds: for round in 0..12_u32 {
        let number = round / 2 % 3;
        let opcode = if round % 2 == 0 { 1 } else { 2 };
        let bytes = value(number);
        let entry = SubmissionEntry {
            opcode,
            cdw10: U32::new(u32::try_from(bytes.len()).unwrap()),
            cdw11: U32::new(number),
            ..SubmissionEntry::default()
        };
        let transfer = match opcode {
            1 => CommandTransfer::Out(SharedBytes::of(bytes)),
            _ => CommandTransfer::In(SharedBytes::of(vec![0; bytes.len()])),
        };
        if host.submit(entry, transfer).is_err() {
            break;
        }
        submitted += 1;
        for _ in 0..8 {
            let stream = apply_faults(&drain(host.outgoing_mut()), &mut next);
            let _ended = controller.receive(&stream);
            while controller.release(0) {}
            for (number, kept) in &controller.stored {
                assert!(*kept == value(*number), "corrupt bytes were stored");
            }
            let stream = apply_faults(&drain(controller.target.outgoing_mut()), &mut next);
            let mut input = &stream[..];
            loop {
                match host.advance(&mut input) {
                    InitiatorStep::NeedInput => break,
                    InitiatorStep::Opened => {}
                    InitiatorStep::Closed(_) => break 'rounds,
                    InitiatorStep::Completed(done) => {
                        returned += 1;
                        if let (CommandTransfer::In(buffer), true) =
                            (done.transfer, done.entry.status().is_success())
                        {
                            let buffer = buffer.to_vec();
                            let whole = usize::try_from(done.received).unwrap() == buffer.len();
                            let right = (0..3).any(|number| buffer == value(number));
                            assert!(!whole || right, "corrupt bytes were accepted");
                        }
                    }
                }
            }
        }
    }
    returned += host.abandon().len();
    assert_eq!(returned, submitted, "each command is returned once");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn faulty_link_ends_connections_and_never_corrupts_data(plan in prop::collection::vec(link_fault(), 1..60)) {
        run(&plan);
    }
}
