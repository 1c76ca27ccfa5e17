//! Who is charged, what a step may reach, and what is left.

use std::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::device::trace::Trace;

#[test]
fn a_step_above_its_ceiling_is_told_so_without_asking_the_driver() {
    for mode in [Mode::Pools, Mode::Plain, Mode::Driver] {
        let card = pooled(mode, 1);
        card.open_model(MODEL);
        let step = card.begin_step(MODEL, Need::up_to(Bytes::mib(10))).unwrap();
        let held = blocks(&card, step, 4, 2 * MIB);
        let calls = card.driver().calls.load(Relaxed);
        assert_eq!(card.alloc(step, 3 * MIB, 1), Err(DriverError::OUT_OF_MEMORY));
        assert_eq!(card.driver().calls.load(Relaxed), calls, "{mode:?}");
        free_all(&card, held);
        let books = card.end_step(step);
        assert_eq!(books.used.peak, Bytes::mib(8));
        let shortfall = books.shortfall.unwrap();
        assert_eq!((shortfall.cause, shortfall.ceiling), (Cause::Ceiling, Bytes::mib(10)));
        assert_eq!((shortfall.held, shortfall.owner.kind), (Bytes::mib(8), Kind::Workspace));
        assert!(shortfall.requested >= Bytes::mib(3));
        // The next step starts afresh.
        let step = card.begin_step(MODEL, Need::up_to(Bytes::mib(16))).unwrap();
        free_all(&card, blocks(&card, step, 1, 15 * MIB));
        assert_eq!(card.end_step(step).shortfall, None);
    }
}

#[test]
fn no_bytes_are_no_memory_and_too_many_do_not_overflow() {
    let card = pooled(Mode::Pools, 1);
    assert_eq!(card.alloc(Slot::NOBODY, 0, 1), Ok(0));
    assert!(card.free(0, Some(1)));
    for mode in [Mode::Pools, Mode::Plain] {
        let card = pooled(mode, 1);
        assert_eq!(card.alloc(Slot::NOBODY, u64::MAX, 1), Err(DriverError::OUT_OF_MEMORY));
        assert!(card.take_shortfall(Slot::NOBODY).is_some());
        card.books().check();
    }
}

#[test]
fn an_address_of_somebody_else_is_left_to_the_driver() {
    let card = pooled(Mode::Pools, 1);
    assert!(!card.free(0x1234, Some(1)));
    assert!(!card.free(0x1234, None));
    assert_eq!(card.snapshot().foreign_frees, 2);
    card.books().check();
}

#[test]
fn what_a_step_leaves_is_its_models_and_then_nobodys() {
    let card = pooled(Mode::Pools, 1);
    let weights = card.open_model(MODEL);
    let step = card.begin_step(MODEL, Need::WHATEVER).unwrap();
    let mut held = blocks(&card, step, 3, MIB);
    free_all(&card, [held.remove(0)]);
    let used = card.end_step(step).used;
    assert_eq!((used.left, used.peak, used.allocated, used.freed), (Bytes::mib(2), Bytes::mib(3), 3, 1));
    card.books().check();
    assert_eq!(card.resident(weights).library, Bytes::mib(2));
    // It lies in the workspace's pool and is not for the next step.
    assert_eq!(card.workspace().reserved, Bytes::new(GRANULE - 2 * MIB));
    assert_eq!(card.close_model(weights), Bytes::mib(2));
    card.books().check();
    assert_eq!(card.live(Slot::NOBODY), 2 * MIB);
    free_all(&card, held);
    assert_eq!((card.live(Slot::NOBODY), card.workspace().reserved), (0, Bytes::new(GRANULE)));
    card.books().check();
}

#[test]
fn a_model_that_is_unloaded_gives_everything_back_twenty_times() {
    for mode in [Mode::Pools, Mode::Plain] {
        let card = pooled(mode, 2);
        let mut reserved = Vec::new();
        for _ in 0..20 {
            let weights = card.open_model(MODEL);
            let mut tensors = blocks(&card, weights, 40, 5 * MIB + 100);
            let transient = blocks(&card, weights, 1, 200 * MIB);
            free_all(&card, transient);
            card.settle_model(weights);
            let resident = card.resident(weights).weights;
            assert!(resident >= Bytes::mib(200) && resident <= Bytes::mib(240), "{mode:?}: {resident}");
            let step = card.begin_step(MODEL, Need::WHATEVER).unwrap();
            free_all(&card, blocks(&card, step, 10, 7 * MIB));
            card.end_step(step);
            free_all(&card, tensors.drain(..));
            assert_eq!(card.close_model(weights), Bytes::ZERO);
            card.books().check();
            reserved.push(card.reserved());
        }
        assert!(reserved.windows(2).all(|pair| pair[0] == pair[1]), "{mode:?}: {reserved:?}");
        card.trim_workspace(Bytes::ZERO);
        assert_eq!((card.reserved(), card.driver().living()), (Bytes::ZERO, 0));
    }
}

#[test]
fn a_pool_with_a_survivor_goes_with_it() {
    let card = pooled(Mode::Pools, 1);
    let weights = card.open_model(MODEL);
    let held = blocks(&card, weights, 2, MIB);
    assert_eq!(card.close_model(weights), Bytes::mib(2));
    assert_eq!(card.driver().pool_count(), 3);
    free_all(&card, held);
    assert_eq!(card.driver().pool_count(), 2, "workspace and library stay");
    card.books().check();
}

#[test]
fn a_model_that_is_closed_twice_does_not_close_its_successor() {
    let card = pooled(Mode::Pools, 1);
    let first = card.open_model(MODEL);
    card.close_model(first);
    let second = card.open_model(OTHER);
    let held = blocks(&card, second, 1, MIB);
    assert_eq!(card.close_model(first), Bytes::ZERO);
    assert_eq!(card.resident(second).weights, Bytes::new(GRANULE));
    free_all(&card, held);
    assert!(card.begin_step(MODEL, Need::WHATEVER).is_none());
    card.books().check();
}

#[test]
fn a_load_makes_room_before_the_driver_helps_itself() {
    let card = pooled(Mode::Pools, 1);
    card.open_model(MODEL);
    let step = card.begin_step(MODEL, Need::WHATEVER).unwrap();
    free_all(&card, blocks(&card, step, 1, 900 * MIB));
    card.end_step(step);
    let weights = card.open_model(OTHER);
    let held = blocks(&card, weights, 1, 300 * MIB);
    assert_eq!(card.driver().raids.load(Relaxed), 0);
    let cached = card.workspace().cached;
    assert!(cached >= Bytes::mib(600) && cached < Bytes::mib(720), "no more than was needed: {cached}");
    free_all(&card, held);
}

#[test]
fn a_trim_leaves_what_it_is_told_to_leave() {
    for mode in [Mode::Pools, Mode::Plain] {
        let card = pooled(mode, 1);
        card.open_model(MODEL);
        let step = card.begin_step(MODEL, Need::WHATEVER).unwrap();
        let held = blocks(&card, step, 1, 32 * MIB);
        for _ in 0..4 {
            free_all(&card, blocks(&card, step, 1, 64 * MIB));
        }
        assert_eq!(card.workspace().cached, Bytes::mib(64), "{mode:?}");
        assert_eq!(card.trim_workspace(Bytes::mib(64)), Bytes::ZERO);
        assert_eq!(card.trim_workspace(Bytes::ZERO), Bytes::mib(64), "{mode:?}");
        assert_eq!(card.workspace().cached, Bytes::ZERO);
        assert_eq!(card.workspace().reserved, Bytes::mib(32));
        free_all(&card, held);
        card.end_step(step);
        card.books().check();
    }
}

#[test]
fn a_card_without_pools_is_served_from_single_allocations() {
    let card = PooledAllocator::new(Simulated::new(1 << 30).without_pools(), Mode::Pools).unwrap();
    assert_eq!(card.mode(), Mode::Plain);
    card.open_model(MODEL);
    let step = card.begin_step(MODEL, Need::WHATEVER).unwrap();
    free_all(&card, blocks(&card, step, 1, 10 * MIB));
    let calls = card.driver().calls.load(Relaxed);
    free_all(&card, blocks(&card, step, 1, 10 * MIB - 5));
    assert_eq!(card.driver().calls.load(Relaxed), calls, "served from the cache");
    // Larger than what is cached, and there is no room for both: rung 1.
    free_all(&card, blocks(&card, step, 1, 600 * MIB));
    free_all(&card, blocks(&card, step, 1, 700 * MIB));
    let books = card.end_step(step);
    assert_eq!((books.used.retried, books.shortfall), (1, None));
    card.books().check();
}

#[test]
fn events_name_owner_and_size() {
    let card = pooled(Mode::Pools, 1);
    card.open_model(MODEL);
    let step = card.begin_step(MODEL, Need::up_to(Bytes::mib(4))).unwrap();
    free_all(&card, blocks(&card, step, 1, MIB));
    assert!(card.snapshot().events.is_empty(), "off");
    card.record_events(true);
    let held = blocks(&card, step, 1, MIB);
    assert!(card.alloc(step, 5 * MIB, 1).is_err());
    let block = card.snapshot().blocks[0];
    assert_eq!((block.bytes, block.owner.model), (Bytes::mib(1), Some(MODEL)));
    free_all(&card, held);
    let events = card.snapshot().events;
    let told: Vec<_> = events.iter().map(|event| (event.action, event.bytes / MIB, event.live / MIB)).collect();
    assert_eq!(told, [(Action::Allocate, 1, 1), (Action::Refuse, 5, 1), (Action::Free, 1, 0)]);
    card.record_events(false);
    assert!(card.snapshot().events.is_empty());
}

#[test]
fn a_recording_has_the_steps_blocks_and_nobody_else_s() {
    let card = pooled(Mode::Pools, 1);
    let weights = card.open_model(MODEL);
    let step = card.begin_step(MODEL, Need::up_to(Bytes::mib(64))).unwrap();
    free_all(&card, blocks(&card, step, 1, MIB));
    assert_eq!(card.take_recording(), None);
    card.record();
    let held = blocks(&card, step, 3, MIB);
    let beside = blocks(&card, weights, 1, 7 * MIB);
    free_all(&card, held);
    let trace = Trace::of(&card.take_recording().unwrap());
    assert_eq!((trace.blocks, trace.peak, trace.missed), (3, Bytes::mib(3), 0));
    free_all(&card, beside);
    assert_eq!(card.take_recording(), None);
}

#[test]
fn an_error_of_a_free_is_kept_for_who_asks() {
    let card = pooled(Mode::Pools, 1);
    let held = blocks(&card, Slot::NOBODY, 1, 512);
    card.driver().fails_at.store(card.driver().calls.load(Relaxed) + 1, Relaxed);
    free_all(&card, held);
    assert_eq!(card.fault(), Some(simulated::BROKEN));
    assert_eq!(card.fault(), None);
    card.books().check();
}

#[test]
fn a_load_gets_no_more_than_its_lease_and_the_loaded_model_has_none() {
    let card = pooled(Mode::Pools, 1);
    let weights = card.open_model(MODEL);
    card.set_ceiling(weights, Bytes::mib(100));
    let tensors = blocks(&card, weights, 2, 40 * MIB);
    let calls = card.driver().calls.load(Relaxed);
    assert_eq!(card.alloc(weights, 20 * MIB + 1, 1), Err(DriverError::OUT_OF_MEMORY));
    assert_eq!(card.driver().calls.load(Relaxed), calls, "the driver does not hear of it");
    let record = card.take_shortfall(weights).unwrap();
    assert_eq!((record.cause, record.held, record.ceiling), (Cause::Ceiling, Bytes::mib(80), Bytes::mib(100)));
    // What is freed meanwhile is there again.
    free_all(&card, blocks(&card, weights, 1, 20 * MIB));
    card.settle_model(weights);
    free_all(&card, blocks(&card, weights, 1, 200 * MIB));
    free_all(&card, tensors);
    assert_eq!(card.close_model(weights), Bytes::ZERO);
    card.books().check();
}
