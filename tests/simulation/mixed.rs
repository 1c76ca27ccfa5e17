//! Random load of every kind over many seeds.
//!
//! A failing seed is printed; `PLIMSOLL_SEED=n cargo test --test simulation mixed` runs that one alone.
//! `PLIMSOLL_SEEDS=n` runs the first n instead of all, where the tests run very often (scripts/mutants).

use plimsoll::admission::{QueueLimits, Rejection};
use plimsoll::memory::{Budget, ShapeKind};
use plimsoll::scheduler::{LaneState, Priority, Settings, WhileNotReady};
use plimsoll::units::{Bytes, Micros, ModelId, RequestId, Timestamp};

use crate::coverage::Coverage;
use crate::rng::Rng;
use crate::setup::{lane, model};
use crate::truth::Truth;
use crate::world::{Event, Submission, World};

const SEEDS: u64 = 240;
/// Virtual time in which requests come.
const ARRIVALS: Micros = Micros::secs(6);

/// Builds the world of a seed and fills its calendar.
fn world_of(seed: u64) -> World {
    let mut rng = Rng::new(seed ^ 0xA11CE);
    let settings = Settings {
        overtaking_max: rng.pick(&[4, 16, 64]),
        memory_wait_max: rng.pick(&[Micros::millis(300), Micros::secs(2)]),
        denied_wait_max: [Micros::ZERO, Micros::millis(300), Micros::secs(10)][seed as usize / 2 % 3],
        ..Settings::default()
    };
    let capacity = Bytes::mib(rng.range(140, 420));
    let mut world = World::new(seed, settings, capacity);
    world.runs_ahead = seed % 2 == 1;
    let models: Vec<ModelId> =
        (0..rng.range(1, 4) as u32).map(|id| add_model(&mut world, id, capacity, &mut rng)).collect();
    for &id in &models {
        clients(&mut world, id, &mut rng);
    }
    trouble(&mut world, &models, capacity, &mut rng);
    world
}

fn add_model(world: &mut World, id: u32, capacity: Bytes, rng: &mut Rng) -> ModelId {
    let kind = if rng.chance(0.25) { ShapeKind::Ragged } else { ShapeKind::Padded };
    let truth = Truth {
        kind,
        length_max: rng.pick(&[128, 512]),
        batch_max: rng.pick(&[32, 128]),
        bytes_token: rng.range(2_000, 30_000) as f64,
        micros_base: rng.range(300, 4_000) as f64,
        micros_token: rng.range(2, 30) as f64,
        ..Truth::SMALL
    };
    let mut settings = lane(&truth);
    settings.share = rng.pick(&[0.5, 1.0, 3.0]);
    settings.target_latency = rng.chance(0.3).then(|| Micros::millis(rng.range(20, 80)));
    settings.max_linger = if rng.chance(0.2) { Micros::millis(rng.range(1, 10)) } else { Micros::ZERO };
    settings.request.rows_max = 100;
    settings.while_not_ready = if rng.chance(0.6) { WhileNotReady::Wait } else { WhileNotReady::Refuse };
    settings.load_timeout = Micros::millis(rng.range(100, 2_000));
    let tight = rng.range(0, 4);
    settings.queue = QueueLimits {
        rows: if tight == 0 { 150 } else { 2_000 },
        tokens: if tight == 1 { 8_000 } else { 400_000 },
        host_bytes: if tight == 2 { Bytes::kib(96) } else { Bytes::mib(64) },
    };
    let mut built = model(truth);
    built.resident = Bytes::mib(rng.range(20, 120));
    built.faults = rng.pick(&[0.0, 0.0, 0.05]);
    built.broken = rng.pick(&[0.0, 0.0, 0.3]);
    built.load_time = Micros::millis(rng.range(50, 800));
    built.error = 0.8 + 0.7 * rng.unit();
    if rng.chance(0.4) {
        built.profile = truth.empty_profile();
    }
    let limit = if rng.chance(0.3) { built.resident + Bytes::mib(rng.range(8, 60)) } else { Bytes::MAX };
    let load = rng.chance(0.7) && built.resident + Bytes::mib(60) < capacity;
    let id = world.add(id, built, settings, Budget { guaranteed: Bytes::ZERO, limit });
    if load {
        world.at(Timestamp::new(u64::from(id.get())), Event::Load(id));
    }
    id
}

/// Poisson arrivals with bursts, mixed lengths, deadlines, cancels, priorities and mistakes.
fn clients(world: &mut World, model: ModelId, rng: &mut Rng) {
    let truth = world.models[&model].truth;
    let mean_gap = rng.range(4_000, 60_000) as f64;
    let mut at = 0;
    while at < ARRIVALS.get() {
        at += rng.exponential(mean_gap);
        let burst = if rng.chance(0.03) { rng.range(10, 120) } else { 1 };
        for _ in 0..burst {
            let rows = if rng.chance(0.1) { rng.range(2, 60) } else { 1 };
            let mut lengths: Vec<u32> = (0..rows).map(|_| rng.log_uniform(4, truth.length_max)).collect();
            match rng.range(0, 300) {
                0 => lengths.clear(),
                1 => lengths.push(truth.length_max + 1),
                2 => lengths.resize(101, 8),
                _ => {}
            }
            let within = rng.chance(0.3).then(|| Micros::new(rng.exponential(150_000.0)));
            let priority = rng.pick(&[Priority::Low, Priority::Normal, Priority::Normal, Priority::High]);
            let host_bytes = Bytes::new(64 + lengths.iter().map(|&tokens| 8 * u64::from(tokens)).sum::<u64>());
            world.at(Timestamp::new(at), Event::Submit(Submission { model, lengths, within, priority, host_bytes }));
        }
    }
}

/// Neighbours, budgets, errors of the profile, unloads and cancels.
fn trouble(world: &mut World, models: &[ModelId], capacity: Bytes, rng: &mut Rng) {
    let moment = |rng: &mut Rng| Timestamp::new(rng.range(0, ARRIVALS.get()));
    for _ in 0..rng.range(0, 30) {
        let part = if rng.chance(0.5) { 0.0 } else { 0.7 * rng.unit() };
        world.at(moment(rng), Event::Neighbour(capacity.scale(part)));
    }
    for _ in 0..rng.range(0, 40) {
        world.at(moment(rng), Event::Cancel(RequestId::new(rng.range(0, 600))));
    }
    for &model in models {
        for _ in 0..rng.range(0, 3) {
            world.at(moment(rng), Event::Error(model, 0.8 + 0.7 * rng.unit()));
            world.at(moment(rng), Event::Unload(model));
            world.at(moment(rng), Event::Load(model));
            let limit = world.models[&model].resident + Bytes::mib(rng.range(1, 100));
            world.at(moment(rng), Event::SetBudget(model, Budget { guaranteed: Bytes::ZERO, limit }));
            world.at(moment(rng), Event::SetBudget(model, Budget::SHARED));
        }
    }
    world.at(Timestamp::START + ARRIVALS, Event::Neighbour(Bytes::ZERO));
}

fn run(seed: u64) -> World {
    let mut world = world_of(seed);
    world.run_until(Timestamp::START + ARRIVALS);
    world.run_to_the_end();
    let busy = world.scheduler.lanes().any(|lane| lane.occupancy != Default::default());
    assert!(!busy, "nothing is left of answered requests");
    world
}

#[test]
fn invariants_hold_over_many_seeds() {
    let number = |name: &str| {
        std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap_or_else(|_| panic!("{name} is a number")))
    };
    let seeds = match (number("PLIMSOLL_SEED"), number("PLIMSOLL_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, count) => 0..count.unwrap_or(SEEDS),
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(4) as u64;
    let coverage = std::thread::scope(|scope| {
        let worker = |part: u64| {
            let mine = seeds.clone().filter(move |seed| seed % threads == part);
            scope.spawn(move || {
                let mut coverage = Coverage::default();
                for seed in mine {
                    let world = std::panic::catch_unwind(|| run(seed)).unwrap_or_else(|_| panic!("SEED {seed} failed"));
                    coverage.add(&world.coverage);
                }
                coverage
            })
        };
        let workers: Vec<_> = (0..threads).map(worker).collect();
        let mut coverage = Coverage::default();
        for worker in workers {
            coverage.add(&worker.join().expect("the failing seed is printed above"));
        }
        coverage
    });
    println!("SEEDS {seeds:?}: {coverage:#?}");
    // Fewer seeds than all cannot be expected to meet everything.
    if seeds == (0..SEEDS) {
        assert_eq!(coverage.missing(), [""; 0], "a simulation that misses an event does not test it");
    }
}

#[test]
fn the_same_seed_gives_the_same_steps() {
    for seed in [3, 17, 101] {
        let (first, second) = (run(seed), run(seed));
        assert!(first.decisions.len() > 50, "seed {seed} runs {} steps", first.decisions.len());
        assert_eq!(first.decisions, second.decisions, "seed {seed}");
    }
}

#[test]
fn a_broken_model_can_be_repaired() {
    // Method: a seed whose loads fail; afterwards the operator sets the lane down as merely not loaded.
    let (mut world, id) = crate::setup::one_model(Bytes::mib(300), Settings::default());
    world.lane_down(id, Rejection::Broken);
    assert_eq!(world.state(id), LaneState::Down(Rejection::Broken));
    let refused = world.submit(crate::setup::request(id, &[8]));
    assert_eq!(world.answer(refused), Some(crate::world::Answer::Rejected(Rejection::Broken)));
    world.load_now(id);
    let served = world.submit(crate::setup::request(id, &[8]));
    world.run_to_the_end();
    assert_eq!(world.answer(served), Some(crate::world::Answer::Finished));
}
