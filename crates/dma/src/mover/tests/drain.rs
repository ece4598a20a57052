//! Tests of a drain: it waits for all started jobs, and leaves them with the mover.

use super::*;

/// Starts five jobs, drains the mover, and takes the jobs: the odd ones by their tickets.
fn drain_and_take(mut mover: Mover, name: &str) -> ChannelCounters {
    assert!(mover.drain(Nanos::ZERO), "{name}: no job was started");
    let tickets: Vec<MoveTicket> = (1..=5).map(|parts| mover.start(job(parts)).unwrap()).collect();
    assert!(mover.drain(LONG), "{name}");
    assert!(mover.drain(Nanos::ZERO), "{name}: a drain takes no job");
    for (ticket, parts) in tickets.iter().zip(1..).step_by(2) {
        check(mover.poll(ticket).unwrap(), parts);
    }
    let mut rest: Vec<(TicketNumber, MoveJob)> = (0..2).map(|_| mover.poll_any().unwrap()).collect();
    rest.sort_by_key(|(_, job)| job.steps().len());
    for ((number, job), (ticket, parts)) in rest.into_iter().zip([(&tickets[1], 2), (&tickets[3], 4)]) {
        assert_eq!(number, ticket.number(), "{name}");
        check(job, parts);
    }
    assert!(mover.poll_any().is_none() && mover.drain(Nanos::ZERO), "{name}");
    mover.channel_counters()
}

#[test]
fn all_started_jobs_have_ended_behind_a_drain_and_stay_with_the_mover() {
    use ChannelFault::{Abandons, Full, Late, Reordered};
    drain_and_take(Mover::default(), "no channels");
    for faults in [vec![Full], vec![Reordered], vec![Abandons], vec![Late], vec![Abandons, Reordered, Full]] {
        let mover = mover_of(faults.iter().copied().map(FaultyChannel::boxed).collect());
        let counters = drain_and_take(mover, &format!("{faults:?}"));
        assert!(counters.channel_jobs + counters.refused > 0, "{faults:?}: {counters:?}");
    }
}

#[test]
fn a_drain_sleeps_until_the_threads_of_several_channels_have_ended_their_jobs() {
    let slow = |job: &mut MoveJob| {
        Clock::sleep(Nanos::from_millis(2));
        run::run(job);
    };
    for (spin, threads) in [(Nanos::ZERO, 1), (Nanos::ZERO, 3), (SPIN, 3)] {
        let channels = (0..threads).map(|_| {
            let channel = SoftwareChannel::start_with(Clock::start(), spin, slow).unwrap();
            Box::new(channel) as Box<dyn MoveChannel>
        });
        let counters = drain_and_take(mover_of(channels.collect()), "threads");
        assert!(counters.channel_jobs > 0, "{counters:?}");
    }
}

#[test]
fn a_drain_ends_with_the_jobs_of_a_thread_that_dies() {
    for jobs_before_death in [0, 2] {
        let mut jobs = 0;
        let dies = move |job: &mut MoveJob| {
            jobs += 1;
            Clock::sleep(Nanos::from_millis(1));
            if jobs > jobs_before_death {
                std::panic::resume_unwind(Box::new("a planted fault"));
            }
            run::run(job);
        };
        let channel = SoftwareChannel::start_with(Clock::start(), Nanos::ZERO, dies).unwrap();
        let counters = drain_and_take(mover_of(vec![Box::new(channel)]), "a thread that dies");
        assert!(counters.abandoned >= 1, "{counters:?}");
    }
}

#[test]
fn a_drain_ends_with_its_time_and_the_jobs_run_on() {
    let mut mover = mover_of(vec![FaultyChannel::boxed(ChannelFault::Stuck)]);
    let ticket = mover.start(job(1)).unwrap();
    assert!(!mover.drain(Nanos::ZERO));
    assert!(!mover.drain(Nanos::from_micros(100)));
    assert!(mover.poll(&ticket).is_none());
    // One job has ended, and one has not.
    let channels =
        vec![FaultyChannel::boxed(ChannelFault::Stuck), FaultyChannel::boxed(ChannelFault::Reordered)];
    let mut mover = mover_of(channels);
    let tickets: Vec<MoveTicket> = (1..=6).map(|parts| mover.start(job(parts)).unwrap()).collect();
    assert!(!mover.drain(Nanos::from_millis(1)));
    let ended = tickets.iter().zip(1..).filter_map(|(ticket, parts)| Some((mover.poll(ticket)?, parts)));
    let ended: Vec<(MoveJob, u8)> = ended.collect();
    assert!((1..6).contains(&ended.len()), "{} jobs", ended.len());
    ended.into_iter().for_each(|(job, parts)| check(job, parts));
    assert!(!mover.drain(Nanos::ZERO));
}
