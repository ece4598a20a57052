//! The move jobs that C holds.
//!
//! Input: memories and steps. Output: jobs for the mover; results. Invariant: a job that runs is not changed, not read and
//! not destroyed; memory of the program is lent from the begin of a run to its end, and at no other time.

use crate::call_error::CallError;
use crate::handle_table::HandleTable;
use crate::job_memory::JobMemory;
use crate::move_error::MoveCallError;
use crate::move_step::HwMoveStep;
use headwater_dma::mover::{
    CacheIntent, MemoryNodes, MoveDurability, MoveJob, MoveStep, SourceKind, StepResult,
};
use headwater_host::clock::{Clock, Nanos};
use headwater_host::copy::persist::DrainPromise;
use std::ptr;

/// Maximum number of jobs that C can have at a time.
pub(crate) const JOBS_MAX: usize = 4_096;
/// Maximum number of memories of a job.
pub(crate) const MEMORIES_MAX: usize = 4_096;
/// Maximum number of steps of a job.
pub(crate) const STEPS_MAX: usize = 65_536;

/// A move job: steps over memories.
#[derive(Debug)]
pub struct MoveJobHandle {
    _opaque: (),
}

/// The jobs, by their numbers.
pub(crate) static JOBS: HandleTable<Box<OpenJob>, JOBS_MAX> = HandleTable::new("move job");

/// The object behind the handle of a job.
#[derive(Debug)]
pub(crate) struct OpenJob {
    memories: Vec<JobMemory>,
    steps: Vec<MoveStep>,
    durability: MoveDurability,
    cache_intent: CacheIntent,
    /// The kind of memory that it reads.
    pub(crate) source_kind: SourceKind,
    pub(crate) nodes: MemoryNodes,
    /// The time from the begin of each run within which it should end.
    pub(crate) time_limit: Option<Nanos>,
    /// The results of the last run.
    results: Vec<StepResult>,
    promise: Option<DrainPromise>,
    is_running: bool,
    /// An empty job, whose allocations the next run uses.
    spare: MoveJob,
}

impl OpenJob {
    pub(crate) fn new(durability: MoveDurability, cache_intent: CacheIntent) -> Self {
        Self {
            memories: Vec::new(),
            steps: Vec::new(),
            durability,
            cache_intent,
            source_kind: SourceKind::default(),
            nodes: MemoryNodes::default(),
            time_limit: None,
            results: Vec::new(),
            promise: None,
            is_running: false,
            spare: MoveJob::new(),
        }
    }

    /// Refuses a job that runs.
    pub(crate) fn check_idle(&self) -> Result<(), CallError> {
        if self.is_running { Err(MoveCallError::JobRuns.into()) } else { Ok(()) }
    }

    /// Returns the job unless it runs.
    pub(crate) fn idle(&mut self) -> Result<&mut Self, CallError> {
        self.check_idle()?;
        Ok(self)
    }

    /// Adds a memory and returns its number.
    pub(crate) fn add_memory(&mut self, memory: JobMemory) -> Result<usize, CallError> {
        if self.memories.len() >= MEMORIES_MAX {
            return Err(MoveCallError::JobFull { what: "memories", most: MEMORIES_MAX }.into());
        }
        if let Some(at) = self.memories.iter().position(|held| held.conflicts_with(&memory)) {
            return Err(MoveCallError::MemoryOverlap { memory: at }.into());
        }
        self.memories.push(memory);
        Ok(self.memories.len() - 1)
    }

    /// Adds a step and returns its number. The results of an earlier run stay.
    pub(crate) fn add_step(&mut self, step: &HwMoveStep) -> Result<usize, CallError> {
        let number = self.steps.len();
        if number >= STEPS_MAX {
            return Err(MoveCallError::JobFull { what: "steps", most: STEPS_MAX }.into());
        }
        self.steps.push(step.check(&self.memories, number)?);
        Ok(number)
    }

    /// Removes memories with their nodes, steps, results and the time limit.
    pub(crate) fn clear(&mut self) {
        (self.nodes, self.time_limit) = (MemoryNodes::default(), None);
        self.memories.clear();
        self.steps.clear();
        self.results.clear();
        self.promise = None;
    }

    /// Returns the result of a step, as the last run left it.
    pub(crate) fn result(&self, step: usize) -> Result<StepResult, MoveCallError> {
        if step >= self.steps.len() {
            return Err(MoveCallError::NoStep { step, steps: self.steps.len() });
        }
        self.results.get(step).copied().ok_or(MoveCallError::NotRun { step })
    }

    pub(crate) fn promise(&self) -> Option<DrainPromise> {
        self.promise
    }

    /// Returns a job for the mover, to which the memories are lent. `clock` is that of the mover.
    fn begin(&mut self, clock: &Clock) -> MoveJob {
        self.results.clear();
        self.promise = None;
        let mut job = std::mem::take(&mut self.spare)
            .with_durability(self.durability)
            .with_cache_intent(self.cache_intent)
            .with_source_kind(self.source_kind)
            .with_nodes(self.nodes)
            .with_deadline(self.time_limit.map(|limit| clock.now().after(limit)));
        for memory in &self.memories {
            job.add_memory(memory.lend());
        }
        self.steps.iter().for_each(|step| job.add_step(*step));
        self.is_running = true;
        job
    }

    /// Takes the results of a job that has ended.
    fn take_results(&mut self, mut job: MoveJob) {
        self.results.extend_from_slice(job.results());
        self.promise = job.promise();
        job.drain_memories().for_each(drop);
        self.spare = job;
    }
}

/// A job that runs, until the value is dropped.
#[derive(Debug)]
pub(crate) struct RunningJob {
    /// The number of its handle.
    number: usize,
}

impl RunningJob {
    /// Begins a run. One thread begins it: a second one gets an error, until the run has ended.
    pub(crate) fn begin(job: *const MoveJobHandle, clock: &Clock) -> Result<(Self, MoveJob), CallError> {
        let lent = JOBS.with(job, |open| Ok(open.idle()?.begin(clock)))?;
        Ok((Self { number: job.addr() }, lent))
    }

    /// Ends the run with the results of the job that the mover returned. The memories return to the program.
    pub(crate) fn finish(self, job: MoveJob) -> *mut MoveJobHandle {
        let handle = ptr::without_provenance_mut::<MoveJobHandle>(self.number);
        // A running job is not destroyed, so that its handle is open.
        let kept = JOBS.with_waiting(handle, |open| {
            open.take_results(job);
            Ok(())
        });
        debug_assert!(kept.is_ok(), "a running job was destroyed");
        handle
    }
}

impl Drop for RunningJob {
    fn drop(&mut self) {
        let handle = ptr::without_provenance::<MoveJobHandle>(self.number);
        // As in `finish`; a run that was refused, or that panicked, leaves no results.
        let _ = JOBS.with_waiting(handle, |open| {
            open.is_running = false;
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::ResultCode;
    use crate::move_job::{
        hw_move_job_clear, hw_move_job_create, hw_move_job_set_nodes, hw_move_job_set_time_limit,
    };
    use headwater_host::numa::NodeId;

    #[test]
    fn run_has_the_nodes_of_its_job_and_a_deadline_from_its_own_begin() {
        let (clock, mut job) = (Clock::start(), ptr::null_mut());
        // SAFETY: `job` can be written.
        assert_eq!(unsafe { hw_move_job_create(0, &raw mut job) }, ResultCode::Ok);
        let begin = || {
            let (running, lent) = RunningJob::begin(job, &clock).unwrap();
            drop(running);
            lent
        };
        assert_eq!((begin().deadline(), begin().nodes()), (None, MemoryNodes::default()));
        assert_eq!(hw_move_job_set_nodes(job, 3, -1), ResultCode::Ok);
        assert_eq!(hw_move_job_set_time_limit(job, 1_000_000), ResultCode::Ok);
        let nodes = MemoryNodes { source: Some(NodeId(3)), target: None };
        for _ in 0..2 {
            let before = clock.now();
            let lent = begin();
            let limit = Nanos(1_000_000);
            let earliest = before.after(limit)..=clock.now().after(limit);
            assert!(lent.deadline().is_some_and(|deadline| earliest.contains(&deadline)), "{lent:?}");
            assert_eq!(lent.nodes(), nodes);
        }
        assert_eq!(hw_move_job_clear(job), ResultCode::Ok);
        assert_eq!((begin().deadline(), begin().nodes()), (None, MemoryNodes::default()));
        JOBS.remove_if(job, |_| Ok(())).unwrap();
    }
}
