//! Decisions pinned down, one line a step: when, which model, shape, reason, rows. A change here is a change of policy.

use plimsoll::memory::Budget;
use plimsoll::scheduler::{Batching, Priority, Settings};
use plimsoll::units::{Bytes, Micros, ModelId};

use crate::setup::{lane, model, one_model, request};
use crate::truth::Truth;
use crate::world::{Event, Submission, World};

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
    insta::assert_snapshot!(decisions(world), @r"
    0 m0 5 x 24 queue: r0.0 r2.0 r3.0 r6.0 r8.0
    5079 m0 4 x 350 queue: r1.0 r4.0 r5.0 r9.0
    42153 m0 1 x 100 queue: r7.0
    ");
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
    insta::assert_snapshot!(decisions(world), @r"
    0 m0 5 x 125 memory: r0.0 r0.2 r0.3 r0.5 r1.0
    17902 m0 1 x 128 queue: r0.1
    23113 m0 3 x 64 queue: r0.4 r2.0 r2.1
    ");
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
    insta::assert_snapshot!(decisions(world), @r"
    0 m0 2 x 100 limit: r5.0 r6.0
    6944 m1 2 x 100 limit: r10.0 r11.0
    14102 m0 2 x 100 limit: r0.0 r1.0
    21100 m0 2 x 100 limit: r7.0 r8.0
    27959 m1 2 x 100 limit: r12.0 r13.0
    35222 m0 2 x 100 limit: r2.0 r9.0
    42050 m1 2 x 100 limit: r14.0 r15.0
    48873 m1 2 x 100 limit: r16.0 r17.0
    55546 m1 2 x 100 queue: r18.0 r19.0
    62404 m0 2 x 100 queue: r3.0 r4.0
    ");
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
    insta::assert_snapshot!(decisions(world), @r"
    0 m0 2 x 500 queue: r0.0 r0.1
    26783 m1 2 x 100 limit: r1.0 r2.0
    33941 m1 2 x 100 limit: r3.0 r4.0
    40939 m0 1 x 10 queue: r15.0
    43144 m1 2 x 100 limit: r5.0 r6.0
    50407 m1 2 x 100 limit: r7.0 r8.0
    57235 m1 2 x 100 limit: r9.0 r10.0
    64058 m1 2 x 100 limit: r11.0 r12.0
    70731 m1 2 x 100 queue: r13.0 r14.0
    ");
}

/// A deadline that is kept in the model's own turn leaves it its jump for the next one.
#[test]
fn a_deadline_kept_in_turn_costs_no_jump() {
    let mut world = two_models([1.0, 3.0]);
    for _ in 0..15 {
        world.submit(request(ModelId::new(1), &[100]));
    }
    world.run_until(world.now + Micros::millis(1));
    world.submit(Submission { within: Some(Micros::millis(24)), ..request(ModelId::new(0), &[500]) });
    world.run_until(world.now + Micros::millis(23));
    world.submit(Submission { within: Some(Micros::millis(9)), ..request(ModelId::new(0), &[10]) });
    insta::assert_snapshot!(decisions(world), @r"
    0 m1 2 x 100 limit: r0.0 r1.0
    6944 m0 1 x 500 queue: r15.0
    21770 m1 2 x 100 limit: r2.0 r3.0
    28768 m0 1 x 10 queue: r16.0
    30973 m1 2 x 100 limit: r4.0 r5.0
    38236 m1 2 x 100 limit: r6.0 r7.0
    45064 m1 2 x 100 limit: r8.0 r9.0
    51887 m1 2 x 100 limit: r10.0 r11.0
    58560 m1 2 x 100 limit: r12.0 r13.0
    65418 m1 1 x 100 queue: r14.0
    ");
}

/// A target latency and a deadline bound the batch by time; a model without either goes to the end of what is measured.
#[test]
fn latency() {
    let mut world = World::new(0, Settings::default(), Bytes::mib(600));
    let mut settings = lane(&Truth::SMALL);
    settings.target_latency = Some(Micros::millis(20));
    let slow = world.add(0, model(Truth::SMALL), settings, Budget::SHARED);
    let free = world.add(1, model(Truth::SMALL), lane(&Truth::SMALL), Budget::SHARED);
    world.load_now(slow);
    world.load_now(free);
    world.submit(request(slow, &[100; 12]));
    world.submit(request(free, &[256; 10]));
    world.submit(Submission { within: Some(Micros::millis(100)), ..request(free, &[250; 2]) });
    insta::assert_snapshot!(decisions(world), @r"
    0 m0 7 x 100 latency: r0.0 r0.1 r0.2 r0.3 r0.4 r0.5 r0.6
    19344 m1 8 x 256 limit: r1.0 r1.1 r1.2 r1.3 r1.4 r1.5 r1.6 r1.7
    73738 m0 5 x 100 queue: r0.7 r0.8 r0.9 r0.10 r0.11
    88234 m1 2 x 256 latency: r1.8 r1.9
    ");
}

/// More waits than is worth while in one step, but less than two such steps: the knee ends the batch.
#[test]
fn the_knee() {
    let (mut world, id) = one_model(Bytes::mib(400), Settings::default());
    world.submit(request(id, &[128; 9]));
    insta::assert_snapshot!(decisions(world), @r"
    0 m0 7 x 128 knee: r0.0 r0.1 r0.2 r0.3 r0.4 r0.5 r0.6
    24783 m0 2 x 128 queue: r0.7 r0.8
    ");
}
