//! The commands that slow work must precede: AUTH and HELLO with a password of which only the salted hash is known, and
//! CONFIG, whose REWRITE writes a file.
//!
//! Input: a request that is about to be executed. Output: "now", or "not yet": a task was started or one runs, and the
//! connection is run again when it is finished. Its result is then found at the connection.

use super::RespFrontEnd;
use super::command_table::RespCommand;
use super::connection::RespConnection;
use super::dispatch::TurnContext;
use super::password::PasswordVerdict;
use super::request::RespRequest;
use super::settings;
use super::slow_work::{SlowAnswer, SlowReadiness, SlowResult, SlowState, SlowTask, SlowWorkClient};
use super::state::RespState;
use crate::core_device::CoreDevice;
use zeroize::Zeroizing;

/// Returns the user and the password that AUTH or HELLO sends, if it sends one.
fn credentials<'a>(verb: RespCommand, request: &RespRequest<'a>) -> Option<(&'a [u8], &'a [u8])> {
    let mut at = 2;
    match (verb, request.len()) {
        (RespCommand::Auth, 2) => return Some((b"default", request.arg(1))),
        (RespCommand::Auth, 3) => return Some((request.arg(1), request.arg(2))),
        (RespCommand::Hello, _) => {}
        _ => return None,
    }
    while at + 1 < request.len() && request.arg_is(at, "setname") {
        at += 2;
    }
    (at + 2 < request.len() && request.arg_is(at, "auth")).then(|| (request.arg(at + 1), request.arg(at + 2)))
}

impl<S: CoreDevice> TurnContext<'_, S> {
    /// Returns whether a command can be executed now. Starts the slow work that must come first, if none runs.
    pub(crate) fn prepare(
        &mut self,
        connection: &mut RespConnection,
        verb: RespCommand,
        request: &RespRequest<'_>,
    ) -> SlowReadiness {
        if matches!(connection.slow, SlowState::Answered(_)) {
            return SlowReadiness::Ready;
        }
        let Some(needed) = self.needed(connection, verb, request) else {
            return SlowReadiness::Ready;
        };
        if !self.shared.slow_work.is_running() {
            let Some(task) = needed else { return SlowReadiness::Ready };
            let client = SlowWorkClient {
                index: connection.index,
                id: connection.identity.id,
                address: connection.identity.address.clone(),
            };
            if let Err(error) = self.shared.slow_work.start(task, Some(client)) {
                tracing::error!(%error, "a password cannot be checked, or settings not kept: no thread can be started");
                connection.slow = SlowState::Answered(SlowAnswer::NoThread);
                return SlowReadiness::Ready;
            }
        }
        if !matches!(connection.slow, SlowState::Waiting) {
            connection.slow = SlowState::Waiting;
            self.shared.slow_work.wait(connection.index);
        }
        SlowReadiness::Later
    }

    /// Returns whether a command must wait for slow work (`Some`), and the task that it needs itself.
    fn needed(
        &mut self,
        connection: &RespConnection,
        verb: RespCommand,
        request: &RespRequest<'_>,
    ) -> Option<Option<SlowTask>> {
        let shared = &mut *self.shared;
        let settings = &shared.settings;
        if verb == RespCommand::Config {
            let path =
                settings.kept_path.clone().filter(|_| request.len() == 2 && request.arg_is(1, "rewrite"));
            // The values are read when no task runs: the hash of a new password is one of them.
            let task = path.filter(|_| !shared.slow_work.is_running()).map(|path| {
                let settings = settings::kept(settings, &shared.slowlog);
                SlowTask::Keep { path, settings }
            });
            return Some(task);
        }
        let (user, password) = credentials(verb, request)?;
        let expected = settings.password.as_ref()?;
        let is_unknown = expected.verdict(password, &settings.secrets) == PasswordVerdict::Unknown;
        let address = &connection.identity.address;
        if user != b"default" || !is_unknown || !shared.wrong_passwords.may_try(address, shared.now) {
            return None;
        }
        let salted = expected.salted()?.clone();
        Some(Some(SlowTask::Check { password: Zeroizing::new(password.to_vec()), salted }))
    }
}

impl RespFrontEnd {
    /// Applies the result of slow work that is finished, and runs the clients that waited for it. Returns true if there
    /// was one.
    pub(super) fn finish_slow_work(&mut self) -> bool {
        let Some((client, result)) = self.shared.slow_work.take_finished() else {
            return false;
        };
        let RespState { settings, wrong_passwords, now, .. } = &mut self.shared;
        let answer = match result {
            SlowResult::Hashed(salted) => {
                if let Some(password) = &mut settings.password {
                    password.set_salted(salted);
                }
                None
            }
            SlowResult::Checked(right) => {
                match (&right, &mut settings.password, &client) {
                    (Some(right), Some(password), _) => password.prove(right, &settings.secrets),
                    // It counts also if the client has left.
                    (None, _, Some(client)) => wrong_passwords.count(&client.address, *now),
                    _ => {}
                }
                Some(SlowAnswer::Password(right.is_some()))
            }
            SlowResult::Kept(kept) => Some(SlowAnswer::Kept(kept)),
        };
        if let (Some(client), Some(answer)) = (client, answer)
            && let Some(connection) = self.clients.get_mut(client.index)
            && connection.identity.id == client.id
        {
            connection.slow = SlowState::Answered(answer);
        }
        self.wake_waiting();
        true
    }

    /// Runs the clients that waited until no slow work runs: first those with the fewest wrong passwords, so that an
    /// address which guesses delays no other one.
    fn wake_waiting(&mut self) {
        let mut waiting = Vec::new();
        for index in self.shared.slow_work.take_waiting() {
            if let Some(connection) = self.clients.get_mut(index) {
                if matches!(connection.slow, SlowState::Waiting) {
                    connection.slow = SlowState::Idle;
                }
                let address = &connection.identity.address;
                waiting.push((self.shared.wrong_passwords.number(address, self.shared.now), index));
            }
        }
        waiting.sort_by_key(|&(wrong, _)| wrong);
        for (_, index) in waiting {
            if let Some(connection) = self.clients.get_mut(index)
                && !std::mem::replace(&mut connection.queued.dirty, true)
            {
                self.shared.dirty.push_back(index);
            }
        }
    }
}
