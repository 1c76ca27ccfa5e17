//! Models go when they are told to, budgets change, and the server drains.

use super::world::{Asked, Setup, World, id, model, on_demand, weights};
use crate::admission::Rejection;
use crate::engine::inbox::Message;
use crate::engine::{BudgetError, Failure, ModelState, Released};
use crate::memory::{Budget, BudgetChange};
use crate::units::{Bytes, Micros, ModelId};

const A: ModelId = id(0);
const B: ModelId = id(1);

fn load(world: &mut World, model: ModelId) -> Asked<Result<(), Failure>> {
    world.ask(|reply| Message::Load { model, reply })
}

fn unload(world: &mut World, model: ModelId) -> Asked<Result<Released, Failure>> {
    world.ask(|reply| Message::Unload { model, reply })
}

#[test]
fn an_unload_finishes_what_is_accepted_and_refuses_what_comes_after() {
    // Case 23: queued and running requests of the model, and one of another.
    let mut world = World::ready(Setup::of([model("a"), model("b")]));
    let running = world.submit(A, &[16; 12]);
    let queued = world.submit(A, &[3]);
    let other = world.submit(B, &[3]);
    let mut call = unload(&mut world, A);
    let late = world.submit(A, &[3]);
    assert_eq!(world.rejection(late), Rejection::Draining);
    call.assert_waits();
    world.rest();
    for request in [running, queued, other] {
        world.assert_success(request);
    }
    assert_eq!(call.answer().map(|gone| gone.released), Ok(weights()));
    assert_eq!(world.state(A), ModelState::NotLoaded);

    // It stays away until it is loaded.
    let refused = world.submit(A, &[3]);
    assert_eq!(world.rejection(refused), Rejection::NotLoaded);
    world.advance(Micros::secs(60));
    assert_eq!(world.state(A), ModelState::NotLoaded);
    assert_eq!(unload(&mut world, A).answer(), Err(Failure::Rejected(Rejection::NotLoaded)));
    let mut call = load(&mut world, A);
    let waits = world.submit(A, &[3]);
    world.rest();
    assert_eq!(call.answer(), Ok(()));
    world.assert_success(waits);
}

#[test]
fn what_a_model_held_is_there_for_the_next_one_at_once() {
    // Case 5, as far as the books go: two models that do not fit together, in turn.
    let mut world = World::ready(Setup::of([model("a"), on_demand("b")]).with_room_for(1));
    for cycle in 0..50 {
        let (from, to) = if cycle % 2 == 0 { (A, B) } else { (B, A) };
        let mut gone = unload(&mut world, from);
        world.rest();
        assert_eq!(gone.answer().map(|gone| gone.released), Ok(weights()));
        assert!(world.machine().held.is_empty());
        let mut here = load(&mut world, to);
        let request = world.submit(to, &[5, 1]);
        world.rest();
        assert_eq!(here.answer(), Ok(()));
        world.assert_success(request);
    }
}

#[test]
fn the_last_word_counts() {
    let mut world = World::ready(Setup::of([model("a")]));
    // Unload, load, unload, all while it is busy.
    let running = world.submit(A, &[16; 12]);
    let mut first = unload(&mut world, A);
    let mut second = load(&mut world, A);
    let mut third = unload(&mut world, A);
    assert_eq!(second.answer(), Err(Failure::Rejected(Rejection::NotLoaded)));
    world.rest();
    world.assert_success(running);
    assert_eq!(first.answer(), third.answer());
    assert_eq!(world.state(A), ModelState::NotLoaded);

    // Load and unload while the load is on the device.
    let mut loading = load(&mut world, A);
    let mut unloading = unload(&mut world, A);
    assert_eq!(loading.answer(), Err(Failure::Rejected(Rejection::NotLoaded)));
    unloading.assert_waits();
    world.rest();
    assert_eq!(unloading.answer().map(|gone| gone.released), Ok(weights()));
    assert_eq!(world.state(A), ModelState::NotLoaded);

    // Unload and load while it is busy: it is back in the end.
    let mut again = load(&mut world, A);
    world.rest();
    assert_eq!(again.answer(), Ok(()));
    let running = world.submit(A, &[16; 12]);
    let mut gone = unload(&mut world, A);
    let mut back = load(&mut world, A);
    world.rest();
    world.assert_success(running);
    gone.answer().expect("it was unloaded in between");
    assert_eq!(back.answer(), Ok(()));
    assert_eq!(world.state(A), ModelState::Ready);
}

#[test]
fn a_model_whose_profile_is_being_measured_can_be_unloaded() {
    let mut world = World::new(Setup::of([model("a"), on_demand("b")]));
    world.finish();
    assert_eq!((world.state(A), world.machine().held.len()), (ModelState::Loading, 1));
    let mut call = unload(&mut world, A);
    world.rest();
    assert_eq!(call.answer().map(|gone| gone.released), Ok(weights()));
    assert_eq!(world.state(A), ModelState::NotLoaded);
    assert!(!world.is_ready(), "a required model was taken away");
    // The other one is not loaded either, and nobody waits for it.
    let told = world.core.shared.health.borrow().readiness();
    assert_eq!(told, Err("a required model is not ready: a is not_loaded".to_owned()));
}

#[test]
fn a_budget_is_applied_or_deferred_and_counted() {
    let mut world = World::ready(Setup::of([model("a")]));
    let set = |world: &mut World, limit: Bytes, expected_revision| {
        let budget = Budget { guaranteed: Bytes::ZERO, limit };
        world.ask(|reply| Message::SetBudget { model: A, budget, expected_revision, reply }).answer()
    };
    assert_eq!(set(&mut world, weights() + Bytes::mib(1), Some(1)), Ok(BudgetChange::Applied));
    let outdated = BudgetError::Outdated { expected: 1, current: 2 };
    assert_eq!(set(&mut world, weights() * 2, Some(1)), Err(outdated));
    let refused = set(&mut world, Bytes::new(1), None);
    assert!(matches!(refused, Err(BudgetError::Refused(_))), "{refused:?}");
    assert_eq!(world.core.shared.board.copy(A).revision, 2, "what is refused changes nothing");

    // Steps are smaller from now on: 1 MiB, less the slack, is 236 tokens.
    let request = world.submit(A, &[16; 20]);
    world.rest();
    let ceilings = world.assert_success(request).steps.iter().map(|step| step.ceiling).max().unwrap();
    assert!(ceilings <= Bytes::mib(1));

    // Below what it holds: in force at the end of the step that runs, for every new lease.
    let running = world.submit(A, &[2]);
    let below = weights().saturating_sub(Bytes::mib(1));
    let Ok(BudgetChange::Deferred { overage }) = set(&mut world, below, None) else { panic!("it holds more") };
    assert!(overage >= Bytes::mib(1));
    let queued = world.submit(A, &[2]);
    assert!(matches!(world.rejection(queued), Rejection::TooLarge(_)), "no step of it fits any more");
    world.rest();
    world.assert_success(running);
    assert_eq!(set(&mut world, Bytes::MAX, Some(3)), Ok(BudgetChange::Applied));
    let after = world.submit(A, &[2]);
    world.rest();
    world.assert_success(after);
}

#[test]
fn a_drain_finishes_what_is_accepted_and_loads_what_that_needs() {
    // Case 24: also a request whose model is not there yet.
    let mut world = World::ready(Setup::of([model("a"), on_demand("b"), on_demand("c")]));
    let running = world.submit(A, &[16; 12]);
    let queued = world.submit(A, &[2]);
    let wants_b = world.submit(B, &[2]);
    let mut idle_load = load(&mut world, id(2));
    let mut drained = world.ask(|reply| Message::Drain { reply });
    assert!(!world.is_ready(), "health is the first to know");
    assert_eq!(idle_load.answer(), Err(Failure::Rejected(Rejection::Draining)));
    assert_eq!(world.state(id(2)), ModelState::NotLoaded);
    let late = world.submit(A, &[2]);
    assert_eq!(world.rejection(late), Rejection::Draining);
    assert_eq!(load(&mut world, B).answer(), Err(Failure::Rejected(Rejection::Draining)));
    while !world.open_requests().is_empty() {
        drained.assert_waits();
        assert!(world.finish(), "what is accepted goes on");
    }
    drained.answer();
    for request in [running, queued, wants_b] {
        world.assert_success(request);
    }
    world.ask(|reply| Message::Drain { reply }).answer();
}

#[test]
fn a_stop_answers_everything_that_is_left() {
    let mut world = World::ready(Setup::of([model("a")]));
    let requests: Vec<_> = (0..5).map(|_| world.submit(A, &[16; 12])).collect();
    world.tell(Message::Stop);
    assert!(world.core.stopped());
    for request in requests {
        assert_eq!(world.rejection(request), Rejection::Draining);
    }
}
