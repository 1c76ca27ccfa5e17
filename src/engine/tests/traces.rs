//! Traces are run between the steps for requests, under a lease, and a few at a time.

use super::world::{LENGTH_MAX, STEP_TOKENS_MAX, Setup, World, id, model};
use crate::admission::Rejection;
use crate::engine::inbox::Message;
use crate::engine::{Failure, ModelState, TraceError};
use crate::memory::Shape;
use crate::units::ModelId;

const A: ModelId = id(0);

type Asked = super::world::Asked<Result<crate::engine::MemoryTrace, TraceError>>;

fn trace(world: &mut World, rows: u32, length: u32) -> Asked {
    world.ask(|reply| Message::Trace { model: A, rows, length, reply })
}

#[test]
fn an_idle_server_traces_at_once_and_the_books_balance_again() {
    let mut world = World::ready(Setup::of([model("a")]));
    let mut asked = trace(&mut world, 2, 8);
    asked.assert_waits();
    world.rest();
    let trace = asked.answer().unwrap();
    assert_eq!(trace.shape, Shape::Ragged { tokens: 16, longest: 8 });
    assert!(trace.predicted >= trace.peak, "{} predicted, {} taken", trace.predicted, trace.peak);
    assert_eq!(world.machine().traces, 1);
    assert_eq!(world.core.ledger.leased(), crate::units::Bytes::ZERO);
}

#[test]
fn steps_for_requests_and_traces_take_turns() {
    let mut world = World::ready(Setup::of([model("a")]));
    let first = world.submit(A, &[LENGTH_MAX; 8]);
    // The first request runs; what is asked for now waits for its end.
    let mut asked: Vec<Asked> = (0..3).map(|_| trace(&mut world, 1, 4)).collect();
    let requests: Vec<_> = (0..3).map(|_| world.submit(A, &[LENGTH_MAX; 8])).collect();
    let mut order = Vec::new();
    while world.finish() {
        let machine = world.machine();
        order.push((machine.ran.len(), machine.traces));
    }
    order.dedup();
    // Steps and traces done, after each order.
    assert_eq!(order[..6], [(1, 0), (1, 1), (2, 1), (2, 2), (3, 2), (3, 3)]);
    assert!(order[6..].iter().all(|&(_, traces)| traces == 3), "{order:?}");
    assert!(asked.iter_mut().all(|asked| asked.answer().is_ok()));
    for request in requests.into_iter().chain([first]) {
        world.assert_success(request);
    }
}

#[test]
fn what_cannot_be_traced_is_told_at_once() {
    let mut world = World::ready(Setup::of([model("a")]));
    for (rows, length) in [(0, 4), (1, 0), (1, LENGTH_MAX + 1), (STEP_TOKENS_MAX / LENGTH_MAX + 1, LENGTH_MAX)] {
        let answer = trace(&mut world, rows, length).answer();
        assert!(matches!(answer, Err(TraceError::Outside { .. })), "{rows} x {length}: {answer:?}");
    }
    assert_eq!(world.machine().traces, 0);
    let busy = world.submit(A, &[4]);
    let mut waiting: Vec<Asked> = (0..4).map(|_| trace(&mut world, 1, 4)).collect();
    assert_eq!(trace(&mut world, 1, 4).answer(), Err(TraceError::Busy { waiting: 4 }));
    world.rest();
    assert!(waiting.iter_mut().all(|asked| asked.answer().is_ok()));
    world.assert_success(busy);
}

#[test]
fn a_model_that_has_left_is_not_traced() {
    let mut world = World::ready(Setup::of([model("a")]));
    let busy = world.submit(A, &[4]);
    let mut asked = trace(&mut world, 1, 4);
    let mut unloaded = world.ask(|reply| Message::Unload { model: A, reply });
    world.rest();
    world.assert_success(busy);
    assert!(unloaded.answer().is_ok());
    assert_eq!(world.state(A), ModelState::NotLoaded);
    let rejected = |rejection| Err(TraceError::Failed(Failure::Rejected(rejection)));
    let answer = asked.answer();
    assert!([Rejection::Draining, Rejection::NotLoaded].map(rejected).contains(&answer), "{answer:?}");
    assert_eq!(trace(&mut world, 1, 4).answer(), rejected(Rejection::NotLoaded));
    assert_eq!(world.machine().traces, 0);
}
