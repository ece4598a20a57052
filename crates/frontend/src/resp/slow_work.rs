//! Work that would hold the core: salted hashes of passwords, and the file of kept settings.
//!
//! Input: one task at a time, for the front end or for a client. Output: its result, some turns later; a thread of its
//! own works on it. Invariant: while a task runs no other starts, and every command that needs one waits: passwords of
//! many clients take one thread, and CONFIG sees no half of a change.

use super::kept_settings::{self, KeptSettingsError, KeptValues};
use super::locks::ClientIndex;
use super::password_hash::{SALT_BYTES, SaltedHash};
use headwater_host::clock::Nanos;
use std::path::PathBuf;
use std::thread::JoinHandle;
use zeroize::Zeroizing;

/// Time between two looks at whether the task is finished.
pub(crate) const LOOK_INTERVAL: Nanos = Nanos::from_millis(1);

/// A task.
#[derive(Debug)]
pub(crate) enum SlowTask {
    /// Hash the password that the front end has taken over.
    Hash { password: Zeroizing<Vec<u8>>, salt: [u8; SALT_BYTES] },
    /// Check the password of a client.
    Check { password: Zeroizing<Vec<u8>>, salted: SaltedHash },
    /// Write the kept settings.
    Keep { path: PathBuf, settings: KeptValues },
}

/// The result of a task.
#[derive(Debug)]
pub(crate) enum SlowResult {
    /// The hash of the password.
    Hashed(SaltedHash),
    /// The client's password, if it is right.
    Checked(Option<Zeroizing<Vec<u8>>>),
    /// The settings are kept, or not.
    Kept(Result<(), KeptSettingsError>),
}

/// The result of slow work for one client's command.
#[derive(Debug)]
pub(crate) enum SlowAnswer {
    /// Its password was checked, and is right or not.
    Password(bool),
    /// The settings are kept, or not.
    Kept(Result<(), KeptSettingsError>),
    /// No thread could be started.
    NoThread,
}

/// The relation of a connection to slow work.
#[derive(Debug, Default)]
pub(crate) enum SlowState {
    /// Its next command needs none.
    #[default]
    Idle,
    /// Its next command waits until no task runs.
    Waiting,
    /// The task of its next command is finished.
    Answered(SlowAnswer),
}

impl SlowState {
    /// Returns the result of the task, which is then used up.
    pub(crate) fn take(&mut self) -> Option<SlowAnswer> {
        match std::mem::take(self) {
            Self::Answered(answer) => Some(answer),
            Self::Idle | Self::Waiting => None,
        }
    }
}

/// The point in time at which a command can be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlowReadiness {
    /// Now.
    Ready,
    /// At a later run of the connection.
    Later,
}

impl SlowTask {
    fn run(self) -> SlowResult {
        match self {
            Self::Hash { password, salt } => SlowResult::Hashed(SaltedHash::of(&password, &salt)),
            Self::Check { password, salted } => {
                SlowResult::Checked(salted.is_of(&password).then_some(password))
            }
            Self::Keep { path, settings } => SlowResult::Kept(kept_settings::write(&path, settings)),
        }
    }
}

/// The client that a task runs for.
#[derive(Clone, Debug)]
pub(crate) struct SlowWorkClient {
    pub(crate) index: ClientIndex,
    /// Its number, which no other client gets.
    pub(crate) id: u64,
    pub(crate) address: String,
}

/// The task that runs, and the clients that wait.
#[derive(Debug, Default)]
pub(crate) struct SlowWork {
    running: Option<(Option<SlowWorkClient>, JoinHandle<SlowResult>)>,
    /// Clients whose next command waits until no task runs, in the order in which they came.
    waiting: Vec<ClientIndex>,
}

impl SlowWork {
    /// Returns true while a task runs.
    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Starts a task for a client, or for the front end itself.
    ///
    /// # Errors
    /// The system's if there can be no thread; the task is then lost.
    pub(crate) fn start(&mut self, task: SlowTask, client: Option<SlowWorkClient>) -> std::io::Result<()> {
        assert!(self.running.is_none(), "two slow tasks of the front end run at once");
        let thread = std::thread::Builder::new().name("resp-slow".to_owned()).spawn(|| task.run())?;
        self.running = Some((client, thread));
        Ok(())
    }

    /// Queues a client to be run when the present task is finished.
    pub(crate) fn wait(&mut self, client: ClientIndex) {
        self.waiting.push(client);
    }

    /// Returns the result of the task if it is finished, and the client that it was for.
    pub(crate) fn take_finished(&mut self) -> Option<(Option<SlowWorkClient>, SlowResult)> {
        let (client, thread) = self.running.take_if(|(_, thread)| thread.is_finished())?;
        match thread.join() {
            Ok(result) => Some((client, result)),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Returns the clients that wait, and forgets them.
    pub(crate) fn take_waiting(&mut self) -> Vec<ClientIndex> {
        std::mem::take(&mut self.waiting)
    }
}
