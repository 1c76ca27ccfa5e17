//! Pools of ours: what they hold, what they never hold, and who gets none of it.

use std::sync::atomic::Ordering::Relaxed;

use super::*;

#[test]
fn the_workspace_never_holds_more_than_a_step_may_have() {
    let card = with_arenas(1);
    card.open_model(MODEL);
    let step = card.begin_step(MODEL, Need::up_to(Bytes::mib(200))).unwrap();
    free_all(&card, blocks(&card, step, 3, 50 * MIB));
    card.end_step(step);
    assert_eq!(card.workspace().reserved, Bytes::mib(150));
    // The next one may have less: what is cached above it goes.
    let step = card.begin_step(MODEL, Need::up_to(Bytes::mib(60))).unwrap();
    assert_eq!(card.workspace().reserved, Bytes::mib(60));
    let held = blocks(&card, step, 2, 25 * MIB);
    free_all(&card, held[..1].iter().copied());
    // 35 MiB are within the ceiling, but between what lives there is no place for them.
    assert_eq!(card.alloc(step, 35 * MIB, 1), Err(DriverError::OUT_OF_MEMORY));
    assert!(card.workspace().reserved <= Bytes::mib(60));
    free_all(&card, held[1..].iter().copied());
    let books = card.end_step(step);
    let shortfall = books.shortfall.unwrap();
    assert_eq!((shortfall.cause, shortfall.held, books.used.retried), (Cause::Driver, Bytes::mib(25), 0));
    card.books().check();
}

#[test]
fn what_is_lost_between_blocks_counts_for_the_peak() {
    let card = with_arenas(1);
    card.open_model(MODEL);
    let step = card.begin_step(MODEL, Need::WHATEVER).unwrap();
    // Of each second one a part of a chunk lies between others that live.
    let held = blocks(&card, step, 6, 3 * MIB);
    free_all(&card, held.iter().step_by(2).copied());
    let more = blocks(&card, step, 1, 12 * MIB);
    free_all(&card, held.into_iter().skip(1).step_by(2).chain(more));
    // 21 MiB in blocks at the most: 9 in three times two chunks, 12 in six behind those.
    assert_eq!(card.end_step(step).used.peak, Bytes::mib(21) + Bytes::mib(24 - 22));
    // Without gaps it is the bytes themselves.
    let step = card.begin_step(MODEL, Need::WHATEVER).unwrap();
    free_all(&card, blocks(&card, step, 2, 20 * MIB - 512));
    assert_eq!(card.end_step(step).used.peak, Bytes::new(40 * MIB - 1024));
}

#[test]
fn a_small_block_that_is_left_is_in_no_steps_way() {
    let card = with_arenas(1);
    let weights = card.open_model(MODEL);
    let mut results = Vec::new();
    for mib in [40, 50, 60] {
        let step = card.begin_step(MODEL, Need::up_to(Bytes::mib(64))).unwrap();
        let activations = blocks(&card, step, 1, mib * MIB);
        results.extend(blocks(&card, step, 1, 30 << 10));
        free_all(&card, activations);
        let books = card.end_step(step);
        assert_eq!((books.shortfall, books.used.left), (None, Bytes::kib(30)));
        assert!(books.used.peak <= Bytes::mib(mib + 2));
    }
    assert_eq!(card.resident(weights).library, Bytes::kib(90));
    free_all(&card, results);
    assert_eq!(card.close_model(weights), Bytes::ZERO);
    card.trim_workspace(Bytes::ZERO);
    assert_eq!(card.reserved(), Bytes::ZERO);
}

#[test]
fn what_steps_leave_is_set_aside_before_it_is_there() {
    let card = with_arenas(1);
    card.open_model(MODEL);
    let lease = |ceiling: u64| Need { ceiling: Bytes::mib(ceiling), leftovers: card.leftovers(), ..Need::WHATEVER };
    let reserved = |lease: Need| {
        let step = card.begin_step(MODEL, lease).unwrap();
        while card.alloc(step, 2 * MIB, 1).is_ok() {}
        card.end_step(step);
        card.reserved()
    };
    assert_eq!(card.leftovers(), Bytes::mib(4));
    // All of it is left, and 4 MiB were known of when the leases were given.
    let leases = [20, 8, 18].map(lease);
    assert_eq!(reserved(leases[0]), Bytes::mib(20));
    assert_eq!(reserved(leases[1]), Bytes::mib(20), "nothing can be returned, and nothing is added");
    assert_eq!(reserved(leases[2]), Bytes::mib(22), "what was learnt since has no room in what it was given");
    assert_eq!(reserved(lease(10)), Bytes::mib(30), "20 MiB were found by now");
}

#[test]
fn another_stream_waits_for_the_device() {
    let card = with_arenas(1);
    let calls = || card.driver().inner().calls.load(Relaxed);
    let small = MIB - 512; // for which nobody looks what is free
    let ours = blocks(&card, Slot::NOBODY, 2, small);
    let before = calls();
    // It gets memory that the other may still use: not before that is done.
    let theirs = card.alloc(Slot::NOBODY, small, 2).unwrap();
    assert_eq!(calls() - before, 1 + 1, "waited for, and a chunk mapped");
    assert!(card.free(theirs, Some(2)));
    assert_eq!(calls() - before, 2, "in the order of its own stream");
    assert!(card.free(ours[0], Some(1)));
    assert_eq!(calls() - before, 3, "what the first frees it may still use, too");
    assert!(card.free(ours[1], Some(2)));
    assert_eq!(calls() - before, 3);
    card.books().check();
}

#[test]
fn a_pool_that_is_destroyed_early_goes_with_its_last_block() {
    let driver = Arenas::new(Simulated::new(1 << 30));
    let pool = driver.create_pool().unwrap();
    let request = Request { bytes: 3 * MIB, stream: 1, kind: Kind::Weights };
    let held = [driver.alloc(Some(pool), request).unwrap(), driver.alloc(Some(pool), request).unwrap()];
    // As when another thread has taken the last block out of the books, and has not freed it yet.
    assert_eq!(driver.destroy_pool(pool), Ok(()));
    assert_eq!(driver.inner().span_count(), 1);
    held.into_iter().for_each(|pointer| driver.free(pointer, 1).unwrap());
    assert_eq!((driver.inner().span_count(), driver.inner().living()), (0, 0));
}

#[test]
fn memory_that_the_driver_does_not_take_back_stays_memory() {
    let driver = Arenas::new(Simulated::new(1 << 30));
    let pool = driver.create_pool().unwrap();
    let request = Request { bytes: 8 * MIB, stream: 1, kind: Kind::Workspace };
    driver.free(driver.alloc(Some(pool), request).unwrap(), 1).unwrap();
    driver.inner().work();
    let calls = || driver.inner().calls.load(Relaxed);
    // First the wait fails, then the second of four chunks is not taken.
    for (failing, reserved) in [(1, 8 * MIB), (3, 2 * MIB)] {
        driver.inner().fails_at.store(calls() + failing, Relaxed);
        assert_eq!(driver.trim(pool, 0), Err(simulated::BROKEN));
        assert_eq!((driver.reserved(pool), driver.inner().living()), (reserved, reserved));
    }
    // It is used again, and returned in the end.
    driver.free(driver.alloc(Some(pool), request).unwrap(), 1).unwrap();
    assert_eq!((driver.trim(pool, 0), driver.reserved(pool)), (Ok(()), 0));
}

#[test]
fn a_block_that_is_freed_without_a_stream_is_done_with() {
    let card = with_arenas(1);
    let block = card.alloc(Slot::NOBODY, MIB, 1).unwrap();
    let calls = card.driver().inner().calls.load(Relaxed);
    assert!(card.free(block, None));
    assert_eq!(card.driver().inner().calls.load(Relaxed), calls + 1, "the device was waited for");
    assert_eq!((card.live(Slot::NOBODY), card.fault()), (0, None));
}

#[test]
fn a_device_without_virtual_memory_has_the_drivers_pools() {
    let driver = Arenas::new(Simulated::new(1 << 30).without_pools());
    assert!(!driver.has_arenas() && !driver.has_pools());
    assert_eq!(PooledAllocator::new(driver, Mode::Pools).unwrap().mode(), Mode::Plain);
}

#[test]
fn steps_of_other_shapes_share_a_tight_ceiling() {
    let card = with_arenas(1);
    card.open_model(MODEL);
    let weights = card.open_model(OTHER);
    free_all(&card, blocks(&card, weights, 1, 50 * MIB)); // cached beside, and nobody's business
    let before = card.reserved();
    let calls = || card.driver().inner().calls.load(Relaxed);
    for (first, second, third) in [(10, 20, 20), (16, 10, 30), (10, 20, 20)] {
        let step = card.begin_step(MODEL, Need::up_to(Bytes::mib(40))).unwrap();
        let [first, second] = [first, second].map(|mib| blocks(&card, step, 1, mib * MIB));
        free_all(&card, first);
        let before = calls();
        // Behind the second, with the memory of the first.
        let third = blocks(&card, step, 1, third * MIB);
        assert!(calls() > before, "something had to make way");
        assert_eq!(card.workspace().reserved, Bytes::mib(40));
        free_all(&card, [second, third].concat());
        let books = card.end_step(step);
        assert_eq!((books.shortfall, books.used.retried), (None, 0));
    }
    assert_eq!((card.snapshot().trims, card.reserved()), (0, before + Bytes::mib(40)));
}
