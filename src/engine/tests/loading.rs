//! Models come when they are asked for.

use super::world::{Setup, World, id, model, on_demand, transient, weights};
use crate::admission::Rejection;
use crate::engine::inbox::Message;
use crate::engine::{Failure, ModelState};
use crate::model::Fault;
use crate::units::{Bytes, Micros, ModelId};

const A: ModelId = id(0);
const B: ModelId = id(1);

fn load(world: &mut World, model: ModelId) -> super::world::Asked<Result<(), Failure>> {
    world.ask(|reply| Message::Load { model, reply })
}

#[test]
fn a_server_is_ready_when_its_required_models_are() {
    let mut world = World::new(Setup::of([model("a"), model("b"), on_demand("c")]));
    assert_eq!((world.state(A), world.is_ready()), (ModelState::Loading, false));
    let early = world.submit(B, &[4]);
    world.rest();
    assert!(world.is_ready());
    assert_eq!((world.state(A), world.state(B)), (ModelState::Ready, ModelState::Ready));
    assert_eq!(world.state(id(2)), ModelState::NotLoaded, "nobody has asked for it");
    world.assert_success(early);
}

#[test]
fn the_first_request_loads_a_model_and_waits_for_it() {
    let mut world = World::ready(Setup::of([model("a"), on_demand("b")]));
    let request = world.submit(B, &[4, 9]);
    assert_eq!(world.state(B), ModelState::Loading);
    let other = world.submit(B, &[1]);
    world.rest();
    world.assert_success(request);
    world.assert_success(other);
    assert_eq!(world.machine().loads, [A, B], "it is loaded once");
}

#[test]
fn requests_and_callers_wait_for_a_load_no_longer_than_the_load_timeout() {
    let mut world = World::ready(Setup { load_timeout: Micros::secs(2), ..Setup::of([model("a"), on_demand("b")]) });
    world.machine().load_time = Micros::secs(3);
    let start = world.now;
    let mut call = load(&mut world, B);
    let request = world.submit(B, &[4]);
    // It has not come back.
    world.advance(Micros::millis(1_999));
    call.assert_waits();
    assert!(world.is_open(request));
    world.advance(Micros::millis(1));
    assert!(matches!(call.answer(), Err(Failure::Rejected(Rejection::Loading { .. }))));
    assert_eq!(world.answered(request).0, start + Micros::secs(2));
    assert!(matches!(world.rejection(request), Rejection::Loading { .. }));
    world.rest();
    assert_eq!(world.state(B), ModelState::Ready, "the load itself goes on");
}

#[test]
fn what_never_fits_is_refused_at_once_with_the_numbers() {
    let pinned = crate::config::ModelConfig { pinned: true, ..model("a") };
    let mut world = World::ready(Setup::of([pinned, on_demand("b")]).with_room_for(1));
    let mut call = load(&mut world, B);
    let Err(Failure::Rejected(Rejection::DoesNotFit { needed, available, retry_after })) = call.answer() else {
        panic!("it does not fit beside a model that may not go")
    };
    assert!(needed > available && retry_after > Micros::ZERO);
    assert!(needed >= weights() * 2, "{needed} counts what has to stay");
    let request = world.submit(B, &[1]);
    assert!(matches!(world.rejection(request), Rejection::DoesNotFit { .. }));
    assert_eq!(world.state(B), ModelState::NotLoaded);
    assert!(world.is_ready(), "the others are served");
    // The pin is all that was in the way.
    world.ask(|reply| Message::Pin { model: A, pinned: false, reply }).answer();
    world.advance(Micros::secs(6));
    let again = world.submit(B, &[1]);
    world.rest();
    world.assert_success(again);
}

#[test]
fn a_neighbour_on_the_device_counts() {
    // Case 2: with less than the weights free it is refused, and it loads when the other leaves.
    let mut world = World::ready(Setup::of([model("a"), on_demand("b")]));
    let total = world.machine().total;
    world.machine().neighbour = total.saturating_sub(weights() + Bytes::mib(3));
    world.advance(Micros::secs(1));
    let Err(Failure::Rejected(Rejection::DoesNotFit { needed, available, .. })) = load(&mut world, B).answer() else {
        panic!("the neighbour has the memory")
    };
    assert!(needed >= weights() && available < needed);
    world.machine().neighbour = Bytes::ZERO;
    world.advance(Micros::secs(1));
    let mut call = load(&mut world, B);
    world.rest();
    assert_eq!(call.answer(), Ok(()));
}

#[test]
fn a_load_that_fails_is_told_and_may_be_tried_again() {
    let mut world = World::ready(Setup::of([model("a"), on_demand("b")]));
    world.machine().load_fault = Some(Fault::Model { message: "bad weights".to_owned() });
    let mut call = load(&mut world, B);
    let waiting = world.submit(B, &[1]);
    world.rest();
    assert_eq!(call.answer(), Err(Failure::Rejected(Rejection::Broken)));
    assert_eq!(world.rejection(waiting), Rejection::Broken);
    assert_eq!(world.state(B), ModelState::Broken);
    let refused = world.submit(B, &[1]);
    assert_eq!(world.rejection(refused), Rejection::Broken);
    let mut again = load(&mut world, B);
    world.rest();
    assert_eq!(again.answer(), Ok(()));
    assert_eq!(load(&mut world, B).answer(), Ok(()), "it is ready");
}

#[test]
fn a_model_whose_smallest_steps_fail_is_broken_and_gives_its_memory_back() {
    let mut world = World::ready(Setup::of([model("a"), on_demand("b")]));
    // Long rows fail, and not by accident.
    world.machine().probe_faults = (u32::MAX, 9);
    let mut call = load(&mut world, B);
    let waiting = world.submit(B, &[16]);
    world.rest();
    assert_eq!(call.answer(), Err(Failure::Rejected(Rejection::Broken)));
    assert_eq!(world.rejection(waiting), Rejection::Broken);
    assert_eq!(world.state(B), ModelState::Broken);
    assert!(!world.machine().held.contains_key(&B), "its memory is back");
    let other = world.submit(id(0), &[3]);
    world.rest();
    world.assert_success(other);
    // It was mended.
    world.machine().probe_faults = (0, 0);
    let mut again = load(&mut world, B);
    world.rest();
    assert_eq!((again.answer(), world.state(B)), (Ok(()), ModelState::Ready));
}

#[test]
fn a_measurement_that_fails_by_accident_is_taken_again() {
    let mut world = World::ready(Setup::of([model("a"), on_demand("b")]));
    world.machine().probe_faults = (2, 1);
    let mut call = load(&mut world, B);
    world.rest();
    assert_eq!((call.answer(), world.state(B)), (Ok(()), ModelState::Ready));
}

#[test]
fn a_model_that_is_broken_from_the_start_hurts_nobody() {
    let mut setup = Setup::of([model("a")]);
    setup.models.push(Err("config.json is missing".to_owned()));
    let mut world = World::ready(setup);
    assert!(world.is_ready());
    assert_eq!(world.state(B), ModelState::Broken);
    let request = world.submit(B, &[1]);
    assert_eq!(world.rejection(request), Rejection::Broken);
    assert_eq!(load(&mut world, B).answer(), Err(Failure::Rejected(Rejection::Broken)));
    let unload = world.ask(|reply| Message::Unload { model: B, reply }).answer();
    assert_eq!(unload, Err(Failure::Rejected(Rejection::NotLoaded)));
}

#[test]
fn a_model_that_was_never_fetched_is_not_loaded_and_says_why() {
    let reason = "a/b at main is not on this machine: run `plimsoll pull hf:a/b`";
    let mut setup = Setup { absent: true, ..Setup::of([model("a")]) };
    setup.models.push(Err(reason.to_owned()));
    let mut world = World::ready(setup);
    assert!(world.is_ready());
    assert_eq!(world.state(B), ModelState::NotLoaded);
    assert_eq!(world.core.shared.board.copy(B).reason.as_deref(), Some(reason));
    // No request brings it, and none waits for it.
    let request = world.submit(B, &[1]);
    assert_eq!(world.rejection(request), Rejection::Broken);
    assert_eq!(load(&mut world, B).answer(), Err(Failure::Rejected(Rejection::Broken)));
    assert_eq!(world.state(B), ModelState::NotLoaded);
}

#[test]
fn a_load_needs_its_transient_bytes_as_well() {
    // Room for both weights, not for the conversion of the second's.
    let budget = (weights() * 2 + transient()).saturating_sub(Bytes::kib(500));
    let pinned = crate::config::ModelConfig { pinned: true, ..model("a") };
    let mut world = World::ready(Setup { budget, ..Setup::of([pinned, on_demand("b")]) });
    assert!(matches!(load(&mut world, B).answer(), Err(Failure::Rejected(Rejection::DoesNotFit { .. }))));
}

/// A device on which so many loads find less than there was when they were planned: a neighbour was faster.
fn short_loads(world: &World, loads: u32) {
    world.machine().load_room = Some((Bytes::kib(700), loads));
}

/// Lets the device work, also on what is tried again later.
fn rest_for_long(world: &mut World) {
    for _ in 0..5 {
        world.rest();
        world.advance(Micros::secs(2));
    }
}

#[test]
fn a_load_that_runs_out_of_memory_is_tried_again() {
    let mut world = World::ready(Setup::of([model("a"), on_demand("b")]));
    short_loads(&world, 2);
    let request = world.submit(B, &[4]);
    world.rest();
    let status = |world: &World| world.core.shared.board.copy(B);
    assert_eq!(status(&world).state, ModelState::Loading);
    let reason = status(&world).reason.expect("it says why it takes so long");
    assert!(reason.contains("out of memory") && reason.contains("700 KiB"), "{reason}");
    assert_eq!(world.machine().loads, [A, B], "not at once");
    let served = world.submit(A, &[4]);
    world.rest();
    world.assert_success(served);
    rest_for_long(&mut world);
    world.assert_success(request);
    assert_eq!(world.machine().loads, [A, B, B, B]);
    assert_eq!(status(&world).reason, None);
}

#[test]
fn a_load_that_keeps_running_out_of_memory_is_refused_with_the_numbers() {
    let mut world = World::ready(Setup::of([model("a"), on_demand("b")]));
    short_loads(&world, u32::MAX);
    let mut call = load(&mut world, B);
    let request = world.submit(B, &[4]);
    rest_for_long(&mut world);
    let Err(Failure::Rejected(Rejection::DoesNotFit { needed, available, .. })) = call.answer() else {
        panic!("there is no room, however often it is tried")
    };
    assert_eq!((needed, available), (weights() + transient(), Bytes::kib(700)));
    assert!(matches!(world.rejection(request), Rejection::DoesNotFit { .. }));
    assert_eq!((world.state(B), world.machine().loads.len()), (ModelState::NotLoaded, 4));
    // It is not broken: it comes when there is room.
    world.machine().load_room = None;
    let mut again = load(&mut world, B);
    world.rest();
    assert_eq!(again.answer(), Ok(()));
}

#[test]
fn a_load_that_ran_out_of_memory_is_not_tried_beyond_the_load_timeout() {
    let mut world = World::ready(Setup { load_timeout: Micros::secs(1), ..Setup::of([model("a"), on_demand("b")]) });
    short_loads(&world, u32::MAX);
    let mut call = load(&mut world, B);
    rest_for_long(&mut world);
    assert!(matches!(call.answer(), Err(Failure::Rejected(Rejection::DoesNotFit { .. }))));
    assert_eq!(world.machine().loads, [A, B]);
}

#[test]
fn a_model_that_is_unloaded_while_its_load_runs_out_of_memory_is_gone() {
    let mut world = World::ready(Setup::of([model("a"), on_demand("b")]));
    short_loads(&world, u32::MAX);
    let mut call = load(&mut world, B);
    let mut unload = world.ask(|reply| Message::Unload { model: B, reply });
    rest_for_long(&mut world);
    assert!(call.answer().is_err());
    assert_eq!(unload.answer().map(|gone| gone.released), Ok(Bytes::ZERO));
    assert_eq!((world.state(B), world.machine().loads.len()), (ModelState::NotLoaded, 2));
}

#[test]
fn a_load_that_waits_for_memory_can_be_unloaded() {
    let mut world = World::ready(Setup::of([model("a"), on_demand("b")]));
    short_loads(&world, u32::MAX);
    let mut call = load(&mut world, B);
    world.rest();
    let unload = world.ask(|reply| Message::Unload { model: B, reply }).answer();
    assert_eq!(unload.map(|gone| gone.released), Ok(Bytes::ZERO));
    assert_eq!(call.answer(), Err(Failure::Rejected(Rejection::NotLoaded)));
    rest_for_long(&mut world);
    assert_eq!((world.state(B), world.machine().loads.len()), (ModelState::NotLoaded, 2));
}

#[test]
fn a_load_that_needs_more_than_announced_gets_more_the_next_time() {
    let mut world = World::ready(Setup::of([model("a"), on_demand("b")]));
    let more = weights() + transient() + Bytes::kib(64);
    world.machine().tenants.get_mut(&B).expect("it is one of two").resident = more;
    let mut call = load(&mut world, B);
    rest_for_long(&mut world);
    assert_eq!(call.answer(), Ok(()));
    assert_eq!((world.core.shared.board.copy(B).resident, world.machine().loads.len()), (more, 3));
}

#[test]
fn the_budget_that_is_told_is_the_one_that_was_given() {
    let mut world = World::ready(Setup::of([model("a")]));
    world.advance(Micros::secs(1));
    let text = world.metrics.encode();
    let told = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(&format!("plimsoll_device_{name}_bytes{{")));
        line.and_then(|line| line.rsplit(' ').next()).and_then(|value| value.parse::<f64>().ok())
    };
    // The margin is beside it.
    assert_eq!(told("capacity"), Some(Bytes::mib(512).as_f64()), "{text}");
    assert_eq!(told("safety"), Some(Bytes::mib(1).as_f64()));
}
