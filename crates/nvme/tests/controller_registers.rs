//! Tests of the registers (NVMe Base 2.0 sections 3.1.3, 3.5 to 3.7), with hosts that follow the handshakes and hosts
//! that do not.
#![cfg(not(loom))]

use headwater_host::clock::Nanos;
use headwater_nvme::controller::{AdminQueueAddresses, ControllerConfig, DeviceController, RegisterEffect};
use headwater_nvme::spec::register::ShutdownKind;

const ENABLE: u64 = 0x0046_0061;
const INTMS: u32 = 0x0C;
const INTMC: u32 = 0x10;
const CC: u32 = 0x14;
const CSTS: u32 = 0x1C;
const NSSR: u32 = 0x20;
const AQA: u32 = 0x24;
const ASQ: u32 = 0x28;
const ACQ: u32 = 0x30;
const READY: u64 = 1;
const FATAL: u64 = 2;

fn controller() -> DeviceController {
    let mut controller = DeviceController::new(ControllerConfig::pcie(1));
    write(&mut controller, AQA, 0x001F_000F);
    controller
}

fn write(controller: &mut DeviceController, offset: u32, value: u64) -> RegisterEffect {
    controller.write_register(offset, 4, value, Nanos::ZERO)
}

fn status(controller: &DeviceController) -> u64 {
    controller.read_register(CSTS, 4)
}

fn ready() -> DeviceController {
    let mut controller = controller();
    assert!(matches!(write(&mut controller, CC, ENABLE), RegisterEffect::Enable(_)));
    controller.complete_enable();
    controller
}

#[test]
fn capabilities_and_version_satisfy_linux() {
    let controller = controller();
    let capabilities = controller.read_register(0, 8);
    assert_eq!(capabilities & 0xFFFF, 1_023);
    assert_eq!((capabilities >> 37) & (1 << 6), 1 << 6, "CSS: I/O command sets");
    assert_eq!((capabilities >> 32) & 0xF, 0, "doorbell stride is four bytes");
    assert_eq!(controller.read_register(0, 4), capabilities & 0xFFFF_FFFF);
    assert_eq!(controller.read_register(4, 4), capabilities >> 32);
    assert_eq!(controller.read_register(8, 4), 0x0002_0000);
    let wait = controller.read_register(0x68, 4) & 0xFFFF;
    assert_eq!(wait, (capabilities >> 24) & 0xFF, "CRTO.CRWMT is no shorter than CAP.TO");
}

#[test]
fn ready_is_set_with_the_admin_queues_and_cleared_after_all_queues_are_gone() {
    let mut controller = controller();
    write(&mut controller, ASQ, 0x1234_5000);
    write(&mut controller, ASQ + 4, 0x9);
    let _ = controller.write_register(ACQ, 8, 0x8_7654_3000, Nanos::ZERO);
    let effect = write(&mut controller, CC, ENABLE);
    assert_eq!(
        effect,
        RegisterEffect::Enable(AdminQueueAddresses {
            submission_base: 0x9_1234_5000,
            completion_base: 0x8_7654_3000,
            submission_slots: 16,
            completion_slots: 32,
        })
    );
    assert_eq!(status(&controller), 0);
    controller.complete_enable();
    assert_eq!(status(&controller), READY);
    assert!(controller.is_ready());
    assert_eq!(write(&mut controller, CC, ENABLE & !1), RegisterEffect::Disable);
    assert_eq!(status(&controller), READY, "queues still exist");
    assert!(!controller.is_ready(), "but no command is accepted");
    controller.complete_disable();
    assert_eq!(status(&controller), 0);
    assert_eq!(
        controller.read_register(ASQ, 8),
        0x9_1234_5000,
        "a controller reset keeps the admin queue addresses"
    );
    assert_eq!(controller.read_register(AQA, 4), 0x001F_000F);
}

#[test]
fn enabling_unsupported_settings_is_fatal_until_the_next_reset() {
    let page_of_8_kib = ENABLE | 1 << 7;
    let vendor_arbitration = ENABLE | 7 << 11;
    let reserved_command_set = ENABLE & !(7 << 4) | 3 << 4;
    let entries_of_32_bytes = ENABLE & !(0xF << 16) | 5 << 16;
    for unsupported in [page_of_8_kib, vendor_arbitration, reserved_command_set, entries_of_32_bytes] {
        let mut controller = controller();
        assert_eq!(write(&mut controller, CC, unsupported), RegisterEffect::None);
        assert_eq!(status(&controller), FATAL, "{unsupported:x}");
        assert_eq!(write(&mut controller, CC, 0), RegisterEffect::Disable);
        controller.complete_disable();
        assert_eq!(status(&controller), 0);
        assert!(matches!(write(&mut controller, CC, ENABLE), RegisterEffect::Enable(_)));
    }
}

#[test]
fn an_admin_queue_of_one_slot_is_fatal() {
    for attributes in [0, 0x001F_0000, 0x0000_001F] {
        let mut controller = DeviceController::new(ControllerConfig::pcie(1));
        write(&mut controller, AQA, attributes);
        assert_eq!(write(&mut controller, CC, ENABLE), RegisterEffect::None);
        assert_eq!(status(&controller), FATAL);
    }
}

#[test]
fn failure_to_create_admin_queues_is_fatal() {
    let mut controller = controller();
    write(&mut controller, CC, ENABLE);
    controller.fail();
    assert_eq!(status(&controller), FATAL);
    assert!(controller.has_failed());
}

#[test]
fn admin_queue_registers_and_fixed_fields_do_not_change_while_enabled() {
    let mut controller = ready();
    write(&mut controller, AQA, 0x0003_0003);
    let _ = controller.write_register(ASQ, 8, 0xFFFF_F000, Nanos::ZERO);
    write(&mut controller, CC, ENABLE & !(7 << 4) | 1 << 11);
    assert_eq!(controller.read_register(AQA, 4), 0x001F_000F);
    assert_eq!(controller.read_register(ASQ, 8), 0);
    assert_eq!(controller.read_register(CC, 4), ENABLE, "CSS and AMS stay");
    assert_eq!(status(&controller), READY);
}

#[test]
fn read_only_reserved_and_misaligned_writes_change_nothing() {
    let mut controller = ready();
    let before: Vec<u64> = (0..0x1000).step_by(4).map(|offset| controller.read_register(offset, 4)).collect();
    for offset in [0x00, 0x04, 0x08, 0x18, 0x38, 0x44, 0x58, 0x68, 0x100, 0xFFC] {
        assert_eq!(write(&mut controller, offset, u64::MAX), RegisterEffect::None);
    }
    for (offset, bytes) in
        [(0x15, 4), (0x16, 2), (0x14, 1), (0x14, 8), (0x24, 3), (0x2C, 8), (u32::MAX, 4), (u32::MAX - 7, 8)]
    {
        assert_eq!(controller.write_register(offset, bytes, 0, Nanos::ZERO), RegisterEffect::None);
    }
    let after: Vec<u64> = (0..0x1000).step_by(4).map(|offset| controller.read_register(offset, 4)).collect();
    assert_eq!(before, after);
    assert_eq!(controller.read_register(u32::MAX, 8), 0);
}

#[test]
fn shutdown_lasts_until_writes_are_durable_and_a_reset_ends_it() {
    for (bits, kind) in [(1 << 14, ShutdownKind::Normal), (2 << 14, ShutdownKind::Abrupt)] {
        let mut controller = ready();
        assert_eq!(write(&mut controller, CC, ENABLE | bits), RegisterEffect::Shutdown(kind));
        assert_eq!(status(&controller), READY | 1 << 2);
        assert!(!controller.is_ready());
        assert_eq!(write(&mut controller, CC, ENABLE | bits), RegisterEffect::None, "a shutdown starts once");
        controller.complete_shutdown();
        assert_eq!(status(&controller), READY | 2 << 2);
        assert_eq!(write(&mut controller, CC, ENABLE & !1), RegisterEffect::Disable);
        controller.complete_disable();
        assert_eq!(status(&controller), 0);
        write(&mut controller, CC, ENABLE);
        controller.complete_enable();
        assert!(controller.is_ready());
    }
}

#[test]
fn disabled_controller_can_shut_down() {
    let mut controller = controller();
    assert_eq!(write(&mut controller, CC, 1 << 14), RegisterEffect::Shutdown(ShutdownKind::Normal));
    controller.complete_shutdown();
    assert_eq!(status(&controller), 2 << 2);
}

#[test]
fn reserved_shutdown_value_has_no_effect() {
    let mut controller = ready();
    assert_eq!(write(&mut controller, CC, ENABLE | 3 << 14), RegisterEffect::None);
    assert_eq!(status(&controller), READY);
}

#[test]
fn subsystem_reset_needs_the_signature_and_sets_nssro_until_cleared() {
    let mut controller = ready();
    assert_eq!(write(&mut controller, NSSR, 0x4E56_4D64), RegisterEffect::None);
    assert_eq!(write(&mut controller, NSSR, 0x4E56_4D65), RegisterEffect::SubsystemReset);
    controller.reset_with_subsystem(Nanos::ZERO);
    assert_eq!(status(&controller), READY | 1 << 4, "queues still exist");
    controller.complete_disable();
    assert_eq!(status(&controller), 1 << 4);
    assert_eq!(controller.read_register(AQA, 4), 0, "a subsystem reset clears the admin queue registers");
    write(&mut controller, CSTS, 1 << 4);
    assert_eq!(status(&controller), 0);
    assert_eq!(controller.read_register(NSSR, 4), 0);
}

#[test]
fn interrupt_mask_bits_are_set_and_cleared_separately() {
    let mut controller = ready();
    assert_eq!(write(&mut controller, INTMS, 0b101), RegisterEffect::InterruptMask);
    assert_eq!(write(&mut controller, INTMC, 0b001), RegisterEffect::InterruptMask);
    assert_eq!((controller.read_register(INTMS, 4), controller.read_register(INTMC, 4)), (0b100, 0b100));
    assert_eq!(controller.interrupt_mask(), 0b100);
}

#[test]
fn eight_byte_write_covers_two_registers() {
    let mut controller = controller();
    write(&mut controller, INTMS, 0xFF);
    let both = ENABLE << 32 | 0x0F;
    let effect = controller.write_register(INTMC, 8, both, Nanos::ZERO);
    assert!(matches!(effect, RegisterEffect::Enable(_)));
    assert_eq!(controller.interrupt_mask(), 0xF0);
}

#[test]
fn fabrics_controller_has_no_admin_queue_registers_and_no_interrupt_mask() {
    let mut controller = DeviceController::new(ControllerConfig::fabrics(9));
    for offset in [INTMS, AQA, ASQ, ACQ] {
        assert_eq!(write(&mut controller, offset, 0x00FF_00FF), RegisterEffect::None);
        assert_eq!(controller.read_register(offset, 4), 0);
    }
    assert_eq!(write(&mut controller, CC, ENABLE), RegisterEffect::Enable(AdminQueueAddresses::default()));
    controller.complete_enable();
    assert_eq!(status(&controller), READY);
}

#[test]
fn late_handshake_calls_change_nothing() {
    let mut controller = controller();
    controller.complete_enable();
    controller.complete_disable();
    controller.complete_shutdown();
    controller.fail();
    assert_eq!(status(&controller), 0);
    write(&mut controller, CC, ENABLE);
    write(&mut controller, CC, 0);
    controller.complete_enable();
    assert_eq!(status(&controller), 0, "the host disabled the controller before the queues existed");
    assert_eq!(write(&mut controller, CC, ENABLE), RegisterEffect::None, "the host must wait for the reset");
    controller.complete_disable();
    assert_eq!(status(&controller), 0);
}
