//! Random actions on a small server, and the invariants after each: the world checks that every request is answered
//! exactly once with its own rows, that the scheduler and the payloads agree, that the device has the errands that the engine knows of,
//! that the books balance and that the engine never spins.

use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};

use super::machine::Misfortune;
use super::world::{Asked, LENGTH_MAX, Setup, World, id, model, on_demand, weights};
use crate::config::{LoadPolicy, ModelConfig};
use crate::device::Shortfall;
use crate::engine::inbox::Message;
use crate::engine::{Failure, ModelState, Released};
use crate::memory::Budget;
use crate::model::Fault;
use crate::units::{Bytes, Micros, ModelId};

const MODELS: u32 = 4;
const ACTIONS: usize = 150;
const SEEDS: u64 = 60;

/// Calls whose answers have to come in the end.
#[derive(Default)]
struct Calls {
    loads: Vec<Asked<Result<(), Failure>>>,
    unloads: Vec<Asked<Result<Released, Failure>>>,
}

fn setup(random: &mut SmallRng) -> Setup {
    let manual = ModelConfig { load: LoadPolicy::Manual, ..on_demand("d") };
    let models = [model("a"), on_demand("b"), on_demand("c"), manual];
    let setup = Setup {
        load_timeout: Micros::millis(random.random_range(50..3_000)),
        minimum_residency: Micros::millis(random.random_range(0..2_000)),
        runs_ahead: random.random(),
        ..Setup::of(models)
    };
    setup.with_room_for(random.random_range(1..4))
}

fn act(world: &mut World, random: &mut SmallRng, calls: &mut Calls) {
    let model = id(random.random_range(0..MODELS));
    match random.random_range(0..100) {
        0..35 => submit(world, random, model),
        35..60 => drop(world.finish()),
        60..68 => world.advance(Micros::new(random.random_range(0..400_000))),
        68..74 => {
            let open = world.open_requests();
            if !open.is_empty() {
                world.tell(Message::Cancel(open[random.random_range(0..open.len())]));
            }
        }
        74..79 => {
            let call = world.ask(|reply| Message::Load { model, reply });
            calls.loads.push(call);
        }
        79..84 => {
            let call = world.ask(|reply| Message::Unload { model, reply });
            calls.unloads.push(call);
        }
        84..86 => world.ask(|reply| Message::Pin { model, pinned: random.random(), reply }).answer(),
        86..89 => {
            let limit = match random.random_range(0..3) {
                0 => Bytes::MAX,
                1 => weights() + Bytes::kib(random.random_range(300..4_000)),
                _ => weights().saturating_sub(Bytes::mib(1)),
            };
            let budget = Budget { guaranteed: Bytes::ZERO, limit };
            let _ = world.ask(|reply| Message::SetBudget { model, budget, expected_revision: None, reply }).answer();
        }
        89..95 => world.machine().misfortune = Some(misfortune(random)),
        95 => world.machine().load_fault = Some(Fault::Model { message: "told to".to_owned() }),
        96 => world.machine().load_room = Some((Bytes::kib(1), random.random_range(1..4))),
        97..99 => {
            let most = world.machine().total.get();
            world.machine().neighbour = Bytes::new(random.random_range(0..most));
        }
        _ => world.machine().step_time = Micros::new(random.random_range(10..100_000)),
    }
}

fn submit(world: &mut World, random: &mut SmallRng, model: ModelId) {
    let rows = if random.random_bool(0.1) { random.random_range(0..40) } else { random.random_range(1..4) };
    // Some are too long.
    let lengths: Vec<u32> = (0..rows).map(|_| random.random_range(1..LENGTH_MAX + 2)).collect();
    let deadline = random.random_bool(0.3).then(|| world.now + Micros::new(random.random_range(0..500_000)));
    world.submit_until(model, &lengths, deadline);
}

fn misfortune(random: &mut impl Rng) -> Misfortune {
    match random.random_range(0..4) {
        0 => Misfortune::BadRow(random.random_range(0..8)),
        1 => Misfortune::Panic,
        2 => {
            let shortfall = Shortfall { needed: Bytes::mib(2), available: Bytes::mib(1) };
            Misfortune::Refused(random.random_range(0..8), shortfall)
        }
        _ => Misfortune::Evicts,
    }
}

/// Lets everything come to an end: nobody may wait for ever.
fn settle(world: &mut World) {
    for _ in 0..100 {
        world.rest();
        world.advance(Micros::secs(1));
        let at_rest = world.machine().errands() == 0 && !world.core.loads_wait();
        // A model that is there and lacks the room to be measured is waited for as long as loads are.
        let nobody_waits = world.core.models.iter().all(|life| life.load_waiters.is_empty());
        if at_rest && nobody_waits && world.open_requests().is_empty() {
            return;
        }
    }
    panic!("requests {:?} are never answered", world.open_requests());
}

fn play(seed: u64) {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut world = World::new(setup(&mut random));
    let mut calls = Calls::default();
    for _ in 0..ACTIONS {
        act(&mut world, &mut random, &mut calls);
    }
    let ending = random.random_range(0..4);
    match ending {
        0 => {
            let mut drained = world.ask(|reply| Message::Drain { reply });
            settle(&mut world);
            drained.answer();
        }
        1 => {
            world.machine().misfortune = Some(Misfortune::Lost);
            submit(&mut world, &mut random, id(0));
            settle(&mut world);
        }
        2 => world.tell(Message::Stop),
        _ => {
            settle(&mut world);
            world.machine().neighbour = Bytes::ZERO;
            assert!(!world.core.poisoned, "only a lost device ends the server");
        }
    }
    assert!(world.open_requests().is_empty());
    if ending == 2 {
        return;
    }
    calls.loads.iter_mut().for_each(|call| drop(call.answer()));
    calls.unloads.iter_mut().for_each(|call| drop(call.answer()));
    for index in 0..MODELS {
        let here = world.machine().held.contains_key(&id(index));
        let state = world.state(id(index));
        let agrees = match state {
            ModelState::Ready => here,
            // A lost device is not asked to throw anything out: the process ends.
            ModelState::NotLoaded | ModelState::Broken => !here || world.core.poisoned,
            // Without room to measure what it lacks; or the device was lost.
            ModelState::Loading => true,
            ModelState::Draining => world.core.poisoned,
        };
        assert!(agrees, "model {index} is {state:?}, on the device: {here}, after ending {ending}");
    }
}

#[test]
fn random_actions_break_no_invariant() {
    let seeds = match std::env::var("SEED") {
        Ok(seed) => {
            let seed = seed.parse().expect("SEED is a number");
            seed..seed + 1
        }
        Err(_) => 0..SEEDS,
    };
    for seed in seeds {
        let played = std::panic::catch_unwind(|| play(seed));
        assert!(played.is_ok(), "run again with SEED={seed}");
    }
}
