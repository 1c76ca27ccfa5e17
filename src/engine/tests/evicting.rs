//! Models make room for others, and come back.

use super::machine::Misfortune;
use super::world::{Setup, World, id, model, on_demand, transient, weights};
use crate::admission::Rejection;
use crate::config::ModelConfig;
use crate::engine::inbox::Message;
use crate::engine::{Failure, ModelState};
use crate::units::{Bytes, Micros, ModelId};

const A: ModelId = id(0);
const B: ModelId = id(1);
const C: ModelId = id(2);
const D: ModelId = id(3);

/// Runs one request of each of these models, in this order.
fn use_each(world: &mut World, models: &[ModelId]) {
    for &model in models {
        let request = world.submit(model, &[2]);
        world.rest();
        world.assert_success(request);
        world.advance(Micros::millis(10));
    }
}

#[test]
fn the_least_recently_used_idle_unpinned_model_goes() {
    // Case 9.
    let mut world =
        World::ready(Setup::of([model("a"), on_demand("b"), on_demand("c"), on_demand("d")]).with_room_for(3));
    use_each(&mut world, &[A, B, C]);
    world.advance(Micros::secs(6));
    use_each(&mut world, &[B, A, C]);
    world.ask(|reply| Message::Pin { model: B, pinned: true, reply }).answer();
    use_each(&mut world, &[D]);
    assert_eq!(world.machine().unloads, [A], "b was used before it, and is pinned; one is enough");
    assert_eq!(world.state(A), ModelState::NotLoaded);
    assert!(world.is_ready(), "a required model that had to go comes back when it is asked for");
    world.advance(Micros::secs(6));
    use_each(&mut world, &[A]);
    assert_eq!(world.machine().unloads, [A, C]);
    assert_eq!(world.state(A), ModelState::Ready);
}

#[test]
fn as_many_go_as_bytes_are_needed() {
    let mut world = World::ready(Setup::of([model("a"), on_demand("b"), on_demand("c")]).with_room_for(2));
    use_each(&mut world, &[A, B]);
    world.advance(Micros::secs(6));
    // A neighbour comes that leaves room for one model: both have to go for the third.
    let (total, one) = (world.machine().total, weights() + transient() + Bytes::mib(2));
    world.machine().neighbour = total.saturating_sub(one);
    world.advance(Micros::secs(1));
    use_each(&mut world, &[C]);
    assert_eq!(world.machine().unloads, [A, B]);
}

#[test]
fn a_model_stays_for_its_minimum_residency() {
    let mut world = World::ready(Setup::of([model("a"), on_demand("b")]).with_room_for(1));
    let young_until = world.now + Micros::secs(5);
    let request = world.submit(B, &[2]);
    world.rest();
    assert!(world.is_open(request), "a has only just come");
    world.advance_to(young_until);
    world.rest();
    world.assert_success(request);
    assert_eq!(world.machine().unloads, [A]);
}

#[test]
fn a_busy_model_is_waited_for_within_the_load_timeout() {
    let setup = Setup { load_timeout: Micros::secs(8), ..Setup::of([model("a"), on_demand("b")]).with_room_for(1) };
    let mut world = World::ready(setup);
    world.advance(Micros::secs(6));
    // Two steps of a; b is asked for in the first.
    world.machine().step_time = Micros::millis(100);
    let running = world.submit(A, &[16; 12]);
    let request = world.submit(B, &[2]);
    world.finish();
    assert_eq!(world.state(A), ModelState::Ready, "it still has work");
    world.rest();
    world.assert_success(running);
    world.assert_success(request);
    assert_eq!(world.machine().unloads, [A]);

    // Now a asks while b never rests: it is refused when its time is up, and b goes on.
    world.advance(Micros::secs(6));
    let mut work = vec![world.submit(B, &[16; 12])];
    let refused = world.submit(A, &[2]);
    let start = world.now;
    while world.is_open(refused) {
        work.push(world.submit(B, &[16; 12]));
        world.finish();
        assert!(world.now < start + Micros::secs(9), "a is told within its load timeout");
    }
    assert!(matches!(world.rejection(refused), Rejection::Loading { .. } | Rejection::DoesNotFit { .. }));
    world.rest();
    for request in work {
        world.assert_success(request);
    }
}

#[test]
fn a_request_for_a_model_that_is_leaving_waits_until_it_is_back() {
    let mut world = World::ready(Setup::of([model("a"), on_demand("b")]).with_room_for(1));
    world.advance(Micros::secs(6));
    let for_b = world.submit(B, &[2]);
    assert_eq!(world.state(A), ModelState::Draining, "it is on its way out");
    let for_a = world.submit(A, &[2]);
    world.rest();
    world.assert_success(for_b);
    assert!(world.is_open(for_a), "b has only just come");
    world.advance(Micros::secs(5));
    world.rest();
    world.assert_success(for_a);
    assert_eq!(world.machine().unloads, [A, B]);
}

#[test]
fn a_victim_that_finds_work_before_it_goes_stays() {
    // Room for two; the third needs one to go. The older one finds work while the device is busy.
    let mut world = World::ready(Setup::of([model("a"), on_demand("b"), on_demand("c")]).with_room_for(2));
    use_each(&mut world, &[A, B]);
    world.advance(Micros::secs(6));
    let running = world.submit(B, &[2]);
    let for_c = world.submit(C, &[2]);
    let for_a = world.submit(A, &[2]);
    world.rest();
    for request in [running, for_a, for_c] {
        world.assert_success(request);
    }
    assert_eq!(world.machine().unloads, [B], "a, used longer ago, had work again");
}

#[test]
fn requests_for_a_model_that_the_ladder_evicts_wait_until_it_is_back() {
    let mut world = World::ready(Setup::of([model("a"), model("b")]));
    world.advance(Micros::secs(6));
    let needs_room = world.submit(A, &[2]);
    // b was idle when the step began.
    let in_between = world.submit(B, &[2]);
    world.machine().misfortune = Some(Misfortune::Evicts);
    world.rest();
    world.assert_success(needs_room);
    world.assert_success(in_between);
    assert_eq!(world.machine().unloads, [B]);
    assert_eq!((world.state(B), world.is_ready()), (ModelState::Ready, true));
}

#[test]
fn the_ladder_may_take_a_model_that_is_being_unloaded() {
    let mut world = World::ready(Setup::of([model("a"), model("b")]));
    world.advance(Micros::secs(6));
    let needs_room = world.submit(A, &[2]);
    let mut unload = world.ask(|reply| Message::Unload { model: B, reply });
    let mut load = world.ask(|reply| Message::Load { model: B, reply });
    world.machine().misfortune = Some(Misfortune::Evicts);
    world.finish();
    world.assert_success(needs_room);
    assert_eq!(unload.answer().map(|gone| gone.released), Ok(weights()));
    load.assert_waits();
    world.rest();
    assert_eq!(load.answer(), Ok(()));
    assert_eq!(world.machine().unloads, [B], "it went once");
}

#[test]
fn a_manual_model_does_not_come_back_by_itself() {
    let manual = ModelConfig { load: crate::config::LoadPolicy::Manual, ..on_demand("a") };
    let mut world = World::ready(Setup::of([manual, on_demand("b")]).with_room_for(1));
    let refused = world.submit(A, &[2]);
    assert_eq!(world.rejection(refused), Rejection::NotLoaded);
    let mut call = world.ask(|reply| Message::Load { model: A, reply });
    world.rest();
    assert_eq!(call.answer(), Ok(()));
    world.advance(Micros::secs(6));
    use_each(&mut world, &[B]);
    let refused = world.submit(A, &[2]);
    assert_eq!(world.answered(refused).1, Err(Failure::Rejected(Rejection::NotLoaded)));
}
