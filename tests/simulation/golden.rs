//! Decisions pinned down, one line a step: when, which model, shape, reason, rows. A change here is a change of policy.

use plimsoll::scheduler::{Batching, Priority, Settings};
use plimsoll::units::{Bytes, Micros, ModelId};

use crate::setup::{lane, model, one_model, request};
use crate::truth::Truth;
use crate::world::{Event, Submission, World};
use plimsoll::memory::Budget;

fn decisions(mut world: World) -> String {
    world.run_to_the_end();
    world.decisions.iter().map(|decision| decision.text.as_str()).collect::<Vec<_>>().join("\n")
}

/// Short and long texts arrive mixed: batches are formed by length around the oldest.
#[test]
fn mixed_lengths() {
    let (mut world, id) = one_model(Bytes::mib(400), Settings::default());
    for tokens in [20, 300, 22, 19, 310, 280, 21, 100, 24, 350] {
        world.submit(request(id, &[tokens]));
    }
    insta::assert_snapshot!(decisions(world), @"");
}

/// A client batch beside single rows, with little memory: cut by memory, then by the queue.
#[test]
fn a_client_batch_under_pressure() {
    let (mut world, id) = one_model(Bytes::mib(200), Settings::default());
    world.at(world.now, Event::Neighbour(Bytes::mib(93)));
    world.run_until(world.now);
    world.submit(request(id, &[120, 128, 125, 122, 60, 121]));
    world.submit(request(id, &[124]));
    world.submit(request(id, &[64, 62]));
    insta::assert_snapshot!(decisions(world), @"");
}

fn two_models(shares: [f64; 2]) -> World {
    let mut world = World::new(0, Settings { batching: Batching::Fixed(2), ..Settings::default() }, Bytes::mib(400));
    for (id, share) in (0u32..).zip(shares) {
        let mut settings = lane(&Truth::SMALL);
        settings.share = share;
        let id = world.add(id, model(Truth::SMALL), settings, Budget::SHARED);
        world.load_now(id);
    }
    world
}

/// Two models and three classes take turns by share and priority; classes of one model share batches.
#[test]
fn turns() {
    let mut world = two_models([1.0, 3.0]);
    for priority in [Priority::Low, Priority::High] {
        for _ in 0..5 {
            world.submit(Submission { priority, ..request(ModelId::new(0), &[100]) });
        }
    }
    for _ in 0..10 {
        world.submit(request(ModelId::new(1), &[100]));
    }
    insta::assert_snapshot!(decisions(world), @"");
}

/// A model that has had far more than its share serves a request before its turn, because of its deadline; the next
/// one with a deadline has to wait for its turn, and misses it.
#[test]
fn one_jump_for_a_deadline() {
    let mut world = two_models([1.0, 3.0]);
    world.submit(request(ModelId::new(0), &[500, 500]));
    for _ in 0..14 {
        world.submit(request(ModelId::new(1), &[100]));
    }
    world.run_until(world.now + Micros::millis(37));
    let hurried = Submission { within: Some(Micros::millis(9)), ..request(ModelId::new(0), &[10]) };
    world.submit(hurried.clone());
    world.run_until(world.now + Micros::millis(7));
    world.submit(hurried);
    insta::assert_snapshot!(decisions(world), @"");
}

/// Deadlines and a target latency bound the batch by time; beyond the knee a batch does not grow for a short queue.
#[test]
fn latency_and_knee() {
    let mut world = World::new(0, Settings::default(), Bytes::mib(600));
    let mut settings = lane(&Truth::SMALL);
    settings.target_latency = Some(Micros::millis(20));
    let slow = world.add(0, model(Truth::SMALL), settings, Budget::SHARED);
    let free = world.add(1, model(Truth::SMALL), lane(&Truth::SMALL), Budget::SHARED);
    world.load_now(slow);
    world.load_now(free);
    world.submit(request(slow, &[100; 12]));
    world.submit(request(free, &[256; 10]));
    world.submit(Submission { within: Some(Micros::millis(400)), ..request(free, &[250; 2]) });
    insta::assert_snapshot!(decisions(world), @"");
}
