//! Pools of ours: what they hold, what they never hold, and who gets none of it.

use std::sync::atomic::Ordering::Relaxed;

use super::*;

#[test]
fn the_workspace_never_holds_more_than_a_step_may_have() {
    let card = with_arenas(1);
    card.open_model(MODEL);
    let step = card.begin_step(MODEL, Bytes::mib(200)).unwrap();
    free_all(&card, blocks(&card, step, 3, 50 * MIB));
    card.end_step(step);
    assert_eq!(card.workspace().reserved, Bytes::mib(150));
    // The next one may have less: what is cached above it goes.
    let step = card.begin_step(MODEL, Bytes::mib(60)).unwrap();
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
    let step = card.begin_step(MODEL, Bytes::MAX).unwrap();
    let held = blocks(&card, step, 2, 20 * MIB);
    free_all(&card, held[..1].iter().copied());
    // It does not fit where the first was: 70 MiB have to be held for blocks of 50.
    let third = blocks(&card, step, 1, 30 * MIB);
    free_all(&card, held[1..].iter().copied().chain(third));
    assert_eq!(card.end_step(step).used.peak, Bytes::mib(70));
    // Without gaps it is the bytes themselves.
    let step = card.begin_step(MODEL, Bytes::MAX).unwrap();
    free_all(&card, blocks(&card, step, 2, 20 * MIB - 512));
    assert_eq!(card.end_step(step).used.peak, Bytes::new(40 * MIB - 1024));
}

#[test]
fn a_result_that_waits_is_in_no_steps_way() {
    let card = with_arenas(1);
    let weights = card.open_model(MODEL);
    let mut results = Vec::new();
    for mib in [40, 50, 60] {
        let step = card.begin_step(MODEL, Bytes::mib(64)).unwrap();
        let activations = blocks(&card, step, 1, mib * MIB);
        results.extend(blocks(&card, step, 1, 300 << 10));
        free_all(&card, activations);
        let books = card.end_step(step);
        assert_eq!((books.shortfall, books.used.left), (None, Bytes::kib(300)));
        assert!(books.used.peak <= Bytes::mib(mib + 2));
    }
    assert_eq!(card.resident(weights).library, Bytes::kib(900));
    free_all(&card, results);
    assert_eq!(card.close_model(weights), Bytes::ZERO);
    card.trim_workspace(Bytes::ZERO);
    assert_eq!(card.reserved(), Bytes::ZERO);
}

#[test]
fn what_steps_leave_is_set_aside_before_it_is_there() {
    let card = with_arenas(1);
    card.open_model(MODEL);
    let reserved = |ceiling: u64| {
        let step = card.begin_step(MODEL, Bytes::mib(ceiling)).unwrap();
        while card.alloc(step, 2 * MIB, 1).is_ok() {}
        card.end_step(step);
        card.reserved()
    };
    assert_eq!(card.left(), Bytes::mib(4));
    // All of it is left, and 4 MiB were known of.
    assert_eq!(reserved(20), Bytes::mib(20));
    assert_eq!(card.left(), Bytes::mib(4));
    assert_eq!(reserved(8), Bytes::mib(20), "nothing can be returned, and nothing is added");
    assert_eq!(card.left(), Bytes::mib(20), "now it is known");
    assert_eq!(reserved(10), Bytes::mib(30));
}

#[test]
fn another_stream_gets_nothing_of_it() {
    let card = with_arenas(1);
    let ours = card.alloc(Slot::NOBODY, MIB, 1).unwrap();
    let reserved = card.reserved();
    let theirs = card.alloc(Slot::NOBODY, MIB, 2).unwrap();
    assert!(!card.driver().inner().is_memory(theirs, MIB), "it is the driver's");
    assert_eq!(card.reserved(), reserved);
    assert!(card.free(theirs, Some(2)) && card.free(ours, Some(1)));
    // Nothing lives there any more: it is the other's once the device is done.
    let calls = card.driver().inner().calls.load(Relaxed);
    let theirs = card.alloc(Slot::NOBODY, MIB - 512, 2).unwrap();
    assert!(card.driver().inner().is_memory(theirs, MIB));
    assert_eq!(card.driver().inner().calls.load(Relaxed), calls + 1, "waited for, and nothing else");
    assert!(card.free(theirs, Some(2)));
    card.books().check();
    card.return_everything();
    assert_eq!(card.driver().inner().living(), 0);
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
