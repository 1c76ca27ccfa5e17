//! What was measured once is kept, and believed only as far as it still holds.

use std::path::Path;

use super::world::{Setup, World, id, model};
use crate::engine::ModelState;
use crate::memory::{PROBE_RUNS, ProfileState};
use crate::units::{Bytes, ModelId};

const A: ModelId = id(0);

fn setup() -> Setup {
    Setup::of([model("a")])
}

/// Measures a model whose profile is kept in `folder`, and returns how many probes that took.
fn measure(folder: &Path) -> usize {
    let mut world = World::over(setup(), folder);
    world.rest();
    assert_eq!(profile_state(&world), ProfileState::Complete);
    let probes = world.machine().probes;
    // The thread that writes it is joined here.
    drop(world);
    probes
}

fn profile_state(world: &World) -> ProfileState {
    world.core.scheduler.profile(A).expect("it is loaded").state()
}

fn files(folder: &Path) -> usize {
    std::fs::read_dir(folder).map_or(0, |entries| entries.count())
}

#[test]
fn a_kept_profile_serves_at_once_and_is_spot_checked() {
    let folder = tempfile::tempdir().unwrap();
    let measured = measure(folder.path());
    assert_eq!(files(folder.path()), 1);

    let mut world = World::over(setup(), folder.path());
    world.finish();
    assert_eq!((world.state(A), world.machine().probes), (ModelState::Ready, 0), "ready by its load alone");
    world.rest();
    let probes = world.machine().probes;
    let runs = PROBE_RUNS as usize;
    assert!((runs..=2 * runs).contains(&probes) && probes < measured, "{probes} probes after {measured}");
    assert_eq!(profile_state(&world), ProfileState::Complete);
}

#[test]
fn a_kept_profile_that_no_longer_holds_is_measured_anew() {
    let folder = tempfile::tempdir().unwrap();
    let measured = measure(folder.path());
    let mut world = World::over(setup(), folder.path());
    // Steps take sixteen times the memory now.
    world.machine().token_bytes = Bytes::kib(64);
    world.finish();
    let early = world.submit(A, &[16; 8]);
    world.rest();
    world.assert_success(early);
    assert!(world.machine().probes >= measured / 2, "{} probes", world.machine().probes);
    let largest = crate::memory::Shape::Ragged { tokens: 128, longest: 16 };
    let predicted = world.core.scheduler.profile(A).unwrap().predicted(largest).unwrap();
    assert!(predicted >= Bytes::kib(64) * 128, "{predicted}");
    drop(world);

    // What was measured anew is what is kept.
    let mut world = World::over(setup(), folder.path());
    world.machine().token_bytes = Bytes::kib(64);
    world.rest();
    assert!(world.machine().probes <= 2 * PROBE_RUNS as usize);
}

#[test]
fn a_profile_that_the_memory_cuts_short_is_kept_too() {
    let folder = tempfile::tempdir().unwrap();
    let tight = || Setup { budget: super::world::weights() + super::world::transient(), ..setup() };
    let mut world = World::over(tight(), folder.path());
    // So much that the largest batches do not fit beside the weights.
    world.machine().token_bytes = Bytes::kib(64);
    world.rest();
    let probes = world.machine().probes;
    drop(world);
    assert_eq!(files(folder.path()), 1);
    let mut world = World::over(tight(), folder.path());
    world.machine().token_bytes = Bytes::kib(64);
    world.rest();
    assert!(world.machine().probes < probes, "{} probes after {probes}", world.machine().probes);
}

#[test]
fn a_damaged_file_is_measured_over() {
    let folder = tempfile::tempdir().unwrap();
    let measured = measure(folder.path());
    let file = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    std::fs::write(&file, "{}").unwrap();
    assert_eq!(measure(folder.path()), measured);
    assert!(std::fs::read_to_string(&file).unwrap().len() > 100);
}
