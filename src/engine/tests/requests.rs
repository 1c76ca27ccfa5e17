//! Every accepted request is answered exactly once, at the right moment. The world checks "once" and "the right rows"
//! after every event.

use std::time::Duration;

use super::machine::Misfortune;
use super::world::{LENGTH_MAX, STEP_TOKENS_MAX, Setup, World, id, model};
use crate::admission::{LateAt, Rejection};
use crate::device::Shortfall;
use crate::engine::Failure;
use crate::engine::inbox::Message;
use crate::model::Fault;
use crate::units::{Bytes, Micros};

const A: crate::units::ModelId = id(0);

fn world() -> World {
    World::ready(Setup::of([model("a")]))
}

#[test]
fn a_request_larger_than_a_step_is_split_and_answered_whole_and_in_order() {
    let mut world = world();
    let lengths: Vec<u32> = (0..50).map(|index| 1 + index % LENGTH_MAX).collect();
    let request = world.submit(A, &lengths);
    world.rest();
    let steps = world.assert_success(request).steps.len();
    let tokens: u32 = lengths.iter().sum();
    assert!(steps >= tokens.div_ceil(STEP_TOKENS_MAX) as usize && steps > 1, "{steps} steps");
}

#[test]
fn an_answer_says_when_its_steps_began_and_ended() {
    let mut world = world();
    world.machine().step_time = Micros::millis(3);
    let requests = [world.submit(A, &[4]), world.submit(A, &[5])];
    world.rest();
    let [first, second] = requests.map(|request| world.assert_success(request).clone());
    assert_eq!(first.steps[0].began, first.accepted, "the device was idle");
    assert!(second.steps[0].began >= first.steps[0].ended, "one after the other");
    for step in [first.steps[0], second.steps[0]] {
        assert_eq!(step.ended - step.began, Duration::from(step.compute));
    }
}

#[test]
fn a_cancelled_request_never_reaches_the_device_and_one_that_runs_is_answered_once() {
    let mut world = world();
    let running = world.submit(A, &[4]);
    let queued = world.submit(A, &[4]);
    let other = world.submit(A, &[4]);
    world.tell(Message::Cancel(running));
    world.tell(Message::Cancel(queued));
    world.rest();
    assert_eq!(world.rejection(running), Rejection::Cancelled);
    assert_eq!(world.rejection(queued), Rejection::Cancelled);
    world.assert_success(other);
    let ran: Vec<u32> = world.machine().ran.iter().flat_map(|(_, rows)| rows.clone()).collect();
    let rows_of = |request: crate::units::RequestId| request.get() as u32 * 100;
    assert_eq!(ran, [rows_of(running), rows_of(other)]);
    // Nobody is told twice.
    world.tell(Message::Cancel(other));
}

#[test]
fn deadlines_behind_a_long_step_are_answered_on_time_and_never_run() {
    // Case 19, in virtual time: 200 requests with 5 ms behind a step of 500 ms, and 200 that are cancelled.
    let mut world = world();
    world.machine().step_time = Micros::millis(500);
    let long = world.submit(A, &[1]);
    let start = world.now;
    let late: Vec<_> = (0..200).map(|_| world.submit_until(A, &[2], Some(start + Micros::millis(600)))).collect();
    let hopeless = world.submit_until(A, &[2], Some(start));
    let gone: Vec<_> = (0..200).map(|_| world.submit(A, &[3])).collect();
    for request in gone.iter().copied() {
        world.tell(Message::Cancel(request));
    }
    // The step has not come back.
    world.advance(Micros::millis(700));
    for &request in &late {
        let at = world.answered(request).0;
        assert_eq!(at, start + Micros::millis(600), "answered at the deadline, not after the step");
        let expected = Rejection::Late { at: LateAt::Queue, waited: Micros::millis(600) };
        assert_eq!(world.rejection(request), expected);
    }
    assert_eq!(world.rejection(hopeless), Rejection::Late { at: LateAt::Admission, waited: Micros::ZERO });
    world.rest();
    world.assert_success(long);
    assert_eq!(world.machine().ran.len(), 1, "nothing but the long step has run");
    assert!(gone.iter().all(|&request| world.rejection(request) == Rejection::Cancelled));
}

#[test]
fn a_deadline_in_the_step_is_answered_at_once_and_the_result_is_thrown_away() {
    let mut world = world();
    let deadline = world.now + Micros::millis(50);
    let request = world.submit_until(A, &[2], Some(deadline));
    world.machine().step_time = Micros::millis(500);
    world.rest();
    assert_eq!(world.answered(request).0, deadline);
    assert_eq!(world.rejection(request), Rejection::Late { at: LateAt::Step, waited: Micros::millis(50) });
    let next = world.submit(A, &[2]);
    world.rest();
    world.assert_success(next);
}

#[test]
fn one_bad_row_fails_its_request_and_no_other() {
    // Case 18: the other rows of the bad request are not run any more.
    let mut world = world();
    let blocker = world.submit(A, &[1]);
    let bad = world.submit(A, &[LENGTH_MAX; 20]);
    let good = world.submit(A, &[LENGTH_MAX]);
    world.finish();
    world.assert_success(blocker);
    world.machine().misfortune = Some(Misfortune::BadRow(2));
    world.finish();
    let ran = world.machine().ran[1].1.len();
    assert!(ran < 20);
    assert_eq!(world.answered(bad).1, Err(Failure::Fault(Fault::NotFinite { row: 2 })));
    world.rest();
    world.assert_success(good);
    let rows: usize = world.machine().ran.iter().map(|(_, rows)| rows.len()).sum();
    assert_eq!(rows, 1 + ran + 1, "what is left of the bad request is never run");
}

#[test]
fn a_panic_fails_its_step_and_the_next_one_is_fine() {
    let mut world = world();
    let first = world.submit(A, &[3, 3]);
    world.machine().misfortune = Some(Misfortune::Panic);
    let second = world.submit(A, &[3]);
    world.rest();
    let told = Fault::Panicked { message: "told to".to_owned() };
    assert_eq!(world.answered(first).1, Err(Failure::Fault(told)));
    world.assert_success(second);
    assert!(world.is_ready());
}

/// The driver refused one row of a step, once.
#[test]
fn a_row_that_gets_no_memory_once_is_served_by_the_next_attempt() {
    let mut world = world();
    let shortfall = Shortfall { needed: Bytes::mib(7), available: Bytes::mib(3) };
    world.machine().misfortune = Some(Misfortune::Refused(1, shortfall));
    let request = world.submit(A, &[5, 6, 7]);
    world.rest();
    assert!(world.is_open(request));
    world.advance(Micros::millis(25));
    world.rest();
    world.assert_success(request);
    let (_, answer) = world.answered(request);
    assert_eq!(answer.as_ref().unwrap().steps.len(), 2);
}

#[test]
fn rows_that_get_no_memory_are_refused_in_the_end_with_the_devices_numbers_and_the_others_answered() {
    let mut world = world();
    let blocker = world.submit(A, &[1]);
    let requests: Vec<_> = (0..4).map(|_| world.submit(A, &[5])).collect();
    world.finish();
    world.assert_success(blocker);
    let shortfall = Shortfall { needed: Bytes::mib(7), available: Bytes::mib(3) };
    world.machine().misfortune = Some(Misfortune::Refused(1, shortfall));
    world.rest();
    let from = world.now;
    while world.is_open(requests[1]) {
        world.machine().misfortune = Some(Misfortune::Refused(0, shortfall));
        world.advance(Micros::millis(10));
        world.rest();
    }
    let (at, _) = world.answered(requests[1]);
    assert!((10..12).contains(&(at.since(from).get() / 1_000_000)), "{:?}", at.since(from));
    for (index, &request) in requests.iter().enumerate() {
        if index != 1 {
            world.assert_success(request);
            continue;
        }
        let rejection = world.rejection(request);
        let Rejection::OutOfMemory { needed, available, .. } = rejection else { panic!("{rejection:?}") };
        assert_eq!((needed, available), (shortfall.needed, shortfall.available));
        assert!(rejection.retry_after().is_some());
    }
}

#[test]
fn a_row_that_waits_for_memory_is_given_up_after_a_bound_and_smaller_ones_pass() {
    // Case 22: the memory goes away while it is queued.
    let mut world = world();
    let blocker = world.submit(A, &[1]);
    let large = world.submit(A, &[LENGTH_MAX]);
    let small = world.submit(A, &[1]);
    // Room, beside the safety margin, for a step of a few tokens: its peak and the slack.
    let ours = super::world::weights() + Bytes::mib(1) + Bytes::kib(230);
    let total = world.machine().total;
    world.machine().neighbour = total.saturating_sub(ours);
    world.advance(Micros::millis(5));
    world.finish();
    world.assert_success(blocker);
    world.rest();
    world.assert_success(small);
    assert!(world.is_open(large), "it may still find its memory");
    let from = world.now;
    world.advance(Micros::secs(11));
    let (at, _) = world.answered(large);
    assert!(*at <= from + Micros::millis(10_100), "given up after ten seconds");
    let Rejection::OutOfMemory { needed, available, .. } = world.rejection(large) else { panic!() };
    assert!(needed > available);
}

/// Something lies in the cached workspace and keeps it from going back: nobody waits for that.
#[test]
fn a_trim_that_frees_nothing_is_not_tried_without_end() {
    let mut world = World::ready(Setup::of([model("a")]));
    world.machine().clings = true;
    world.machine().cached = Bytes::mib(200);
    world.advance(Micros::secs(3));
    world.rest();
    let before = world.machine().trims;
    let request = world.submit(id(0), &[3]);
    world.rest();
    world.assert_success(request);
    world.advance(Micros::secs(10));
    world.rest();
    let tried = world.machine().trims - before;
    assert!((1..=12).contains(&tried), "{tried} in ten seconds");
}
