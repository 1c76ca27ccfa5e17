//! A device that is lost takes nobody's answer with it.

use super::machine::Misfortune;
use super::world::{Setup, World, id, model, on_demand};
use crate::admission::Rejection;
use crate::engine::Failure;
use crate::engine::inbox::Message;
use crate::model::Fault;
use crate::units::{Micros, ModelId};

const A: ModelId = id(0);
const B: ModelId = id(1);

/// Everything that can wait for a device.
fn busy() -> World {
    World::ready(Setup::of([model("a"), model("b"), on_demand("c")]))
}

fn assert_lost(world: &mut World) {
    let health = world.core.shared.health.borrow().clone();
    assert!(health.poisoned && !health.ready);
    assert_eq!(health.readiness(), Err("the device is lost".to_owned()));
    assert!(world.open_requests().is_empty(), "everybody is answered at once");
    let refused = world.submit(A, &[1]);
    assert_eq!(world.rejection(refused), Rejection::Draining);
    let load = world.ask(|reply| Message::Load { model: B, reply }).answer();
    assert_eq!(load, Err(Failure::Rejected(Rejection::Draining)));
    let unload = world.ask(|reply| Message::Unload { model: B, reply }).answer();
    assert_eq!(unload, Err(Failure::Rejected(Rejection::Draining)));
    world.ask(|reply| Message::Drain { reply }).answer();
    world.advance(Micros::secs(5));
    assert!(!world.finish(), "nothing more is asked of the device");
}

#[test]
fn a_step_that_loses_the_device_fails_and_everybody_else_is_sent_away() {
    // Case 18, its last part.
    let mut world = busy();
    let running = world.submit(A, &[2]);
    let queued = world.submit(A, &[2]);
    let other = world.submit(B, &[2]);
    let wants_load = world.submit(id(2), &[2]);
    let mut load = world.ask(|reply| Message::Load { model: id(2), reply });
    let mut unload = world.ask(|reply| Message::Unload { model: B, reply });
    world.machine().misfortune = Some(Misfortune::Lost);
    world.finish();
    let told = Fault::DeviceLost { message: "told to".to_owned() };
    assert_eq!(world.answered(running).1, Err(Failure::Fault(told)));
    for request in [queued, other, wants_load] {
        assert_eq!(world.rejection(request), Rejection::Draining);
    }
    assert_eq!(load.answer(), Err(Failure::Rejected(Rejection::Draining)));
    assert_eq!(unload.answer(), Err(Failure::Rejected(Rejection::Draining)));
    assert_lost(&mut world);
}

#[test]
fn a_load_that_loses_the_device_ends_it_too() {
    let mut world = busy();
    let request = world.submit(id(2), &[2]);
    let waiting = world.submit(A, &[2]);
    world.machine().load_fault = Some(Fault::DeviceLost { message: "gone".to_owned() });
    world.finish();
    assert_eq!(world.rejection(request), Rejection::Broken);
    assert_eq!(world.rejection(waiting), Rejection::Draining);
    assert_lost(&mut world);
}

#[test]
fn a_device_thread_that_ends_is_a_lost_device() {
    let mut world = busy();
    let running = world.submit(A, &[2]);
    // Its report never comes.
    world.machine().next();
    world.tell(Message::DeviceEnded);
    assert_eq!(world.rejection(running), Rejection::Draining);
    assert_lost(&mut world);
}
