//! Registers and admin commands: for any write of a host, in any state, the controller continues, and each admin
//! command has exactly one completion.
//!
//! Input: a stream of actions, each one byte that selects it and the bytes it takes. They include owners of queues that
//! are late, early, or fail.

use headwater_host::clock::Nanos;
use headwater_nvme::controller::admin::{AsyncEvent, ControllerKind, SanitizeState};
use headwater_nvme::controller::{AdminData, AdminStep, ControllerConfig, DeviceController, RegisterEffect};
use headwater_nvme::spec::command::{SUBMISSION_WORDS, SubmissionEntry};
use headwater_testkit::fake_subsystem::FakeSubsystem;
use std::collections::BTreeMap;
use zerocopy::little_endian::U16;

/// The rest of the input: actions and their operands.
struct ActionStream<'a>(&'a [u8]);

impl ActionStream<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    /// Takes `bytes` bytes as a number; missing bytes are zero.
    fn number(&mut self, bytes: usize) -> u64 {
        (0..bytes).fold(0, |number, index| number | u64::from(self.byte().unwrap_or(0)) << (8 * index))
    }
}

/// A host, and its record of its commands.
struct FuzzedHost {
    controller: DeviceController,
    subsystem: FakeSubsystem,
    now: Nanos,
    next_id: u16,
    /// Waiting event requests, by identifier.
    held: BTreeMap<u16, ()>,
}

/// Runs actions of a host on a controller.
///
/// # Panics
/// If a command has no completion or two, or if a refused command is executed.
pub fn body(bytes: &[u8]) {
    let mut actions = ActionStream(bytes);
    let config = match actions.byte() {
        None => return,
        Some(0..=127) => ControllerConfig::pcie(1),
        Some(128..=223) => ControllerConfig::fabrics(1),
        Some(_) => ControllerConfig::discovery(1),
    };
    let controller = DeviceController::new(config);
    let mut host = FuzzedHost {
        controller,
        subsystem: FakeSubsystem::new(),
        now: Nanos::ZERO,
        next_id: 0,
        held: BTreeMap::new(),
    };
    while let Some(action) = actions.byte() {
        host.run_action(action, &mut actions);
        host.reap();
    }
}

impl FuzzedHost {
    fn run_action(&mut self, action: u8, actions: &mut ActionStream<'_>) {
        match action % 16 {
            0 => {
                let (offset, bytes) = (actions.number(4), actions.number(1));
                let (offset, bytes) = (low_half(offset), low_half(bytes));
                let value = self.controller.read_register(offset, bytes);
                assert!(bytes >= 8 || value >> (8 * bytes) == 0, "a read returned more than its width");
            }
            1 | 2 => {
                let offset = low_half(actions.number(2));
                let bytes = low_half(actions.number(1) % 9);
                let value = actions.number(8);
                self.write(offset, bytes, value);
            }
            3 => self.write(0x14, 4, 0x0046_0061 ^ actions.number(1) << (8 * (action >> 6))),
            4 => self.write(0x24, 4, 0x001F_001F),
            5 => self.controller.complete_enable(),
            6 => self.controller.complete_disable(),
            7 => self.controller.complete_shutdown(),
            8 if action > 0xF0 => self.controller.fail(),
            8 | 9 => self.change(actions),
            10 => {
                self.now = self.now.after(Nanos::from_millis(actions.number(2)));
                let _ = self.controller.poll(&self.subsystem, self.now);
            }
            _ => self.submit(actions),
        }
    }

    fn write(&mut self, offset: u32, bytes: u32, value: u64) {
        match self.controller.write_register(offset, bytes, value, self.now) {
            RegisterEffect::Disable => {
                assert!(!self.controller.is_ready());
                self.held.clear();
            }
            RegisterEffect::SubsystemReset => {
                self.controller.reset_with_subsystem(self.now);
                self.held.clear();
            }
            RegisterEffect::Enable(_) => {
                assert!(!self.controller.is_ready(), "ready before the queues exist");
            }
            _ => {}
        }
    }

    fn change(&mut self, actions: &mut ActionStream<'_>) {
        let nsid = low_half(actions.number(1)) % 18;
        match actions.byte().unwrap_or(0) % 8 {
            0 => {
                self.subsystem.namespaces.remove(&nsid);
            }
            1 => {
                self.subsystem.detached.insert((nsid, 1));
            }
            2 => self.subsystem.detached.clear(),
            3 => self.subsystem.write_cache = !self.subsystem.write_cache,
            4 => self.subsystem.sanitize.state = SanitizeState::Running(7),
            5 => self.subsystem.sanitize.state = SanitizeState::Failed,
            6 => self.subsystem.health.spare_is_low = !self.subsystem.health.spare_is_low,
            _ => self.controller.notify(AsyncEvent::InvalidDoorbell),
        }
        self.subsystem.generation += 1;
    }

    fn submit(&mut self, actions: &mut ActionStream<'_>) {
        let mut words = [0; SUBMISSION_WORDS];
        // Opcode, namespace and the low dwords select the command: they come first and are small.
        words[0] = actions.number(1) | actions.number(1) << 32;
        words[5] = actions.number(8);
        let more = actions.number(1);
        for (index, word) in words.iter_mut().enumerate().filter(|(index, _)| more >> index & 1 == 1) {
            *word ^= actions.number(8).rotate_left(u32::try_from(index).unwrap_or(0));
        }
        let mut entry = SubmissionEntry::from_words(words);
        // The queue refuses an identifier that is in use, before the command arrives here.
        entry.command_id = U16::new(self.next_id);
        self.next_id = self.next_id.wrapping_add(1);
        let need = self.controller.admin_data(&entry);
        let data = match need {
            Ok(AdminData::FromHost(bytes)) => vec![actions.byte().unwrap_or(0); bytes as usize],
            _ => Vec::new(),
        };
        let step = self.controller.admin(&entry, &data, &self.subsystem, self.now);
        match step {
            AdminStep::Done(answer) => {
                let room = match need {
                    Ok(AdminData::ToHost(bytes)) => bytes as usize,
                    _ => 0,
                };
                assert!(answer.data.len() <= room, "more data than the command requested");
                assert!(
                    answer.status.is_success() || answer.data.is_empty(),
                    "a failed command returned data"
                );
                if let Err(status) = need {
                    assert_eq!(answer.status, status, "refused with two different statuses");
                }
            }
            AdminStep::Held => {
                assert!(self.held.insert(entry.command_id.get(), ()).is_none());
                assert!(self.held.len() <= 4, "more event requests than the announced limit");
            }
            other => {
                assert!(need.is_ok(), "executed although refused: {other:?}");
                let may = self.controller.config().kind == ControllerKind::Io
                    || matches!(other, AdminStep::Abort { .. });
                assert!(may, "a discovery controller has neither queues nor namespaces: {other:?}");
            }
        }
    }

    /// Takes events and checks that each answers one waiting request.
    fn reap(&mut self) {
        while let Some(answer) = self.controller.take_async_event() {
            assert!(self.held.remove(&answer.command_id).is_some(), "an answer without its request");
        }
    }
}

fn low_half(number: u64) -> u32 {
    u32::try_from(number & 0xFFFF_FFFF).unwrap_or(0)
}
