//! The ledger in scenes: budgets, leases, loads and evictions with the numbers that each should come to.

use super::*;
use crate::memory::{Budget, BudgetChange, Observed, Outcome, Rungs};
use crate::units::{Micros, Timestamp};

pub(super) const MIB: Bytes = Bytes::mib(1);
const A: ModelId = ModelId::new(0);
const B: ModelId = ModelId::new(1);
const C: ModelId = ModelId::new(2);

/// 1,000 MiB, of which 10 are safety and 90 fixed: 900 are for models and steps. A granule is 1 MiB.
pub(super) fn ledger(readings: Readings) -> Ledger {
    ledger_on(Exhaustion::Kills, readings)
}

/// The same on a device that does so when there is no more.
pub(super) fn ledger_on(exhaustion: Exhaustion, readings: Readings) -> Ledger {
    let terms = Terms { granule: MIB, trim_least: MIB, workspace_min: MIB * 4, exhaustion };
    Ledger::new(DeviceBooks { capacity: MIB * 1_000, safety: MIB * 10, fixed: MIB * 90, terms, readings })
        .expect("the budget is large enough")
}

/// Registers a model without limits and loads it with so many MiB.
pub(super) fn loaded(ledger: &mut Ledger, model: ModelId, mib: u64) {
    ledger.register(model, Budget::SHARED, false).expect("nothing is asked for");
    ledger.loading(model, need(mib, 0, 1));
    ledger.loaded(model, MIB * mib);
}

/// A reading with so many MiB free and so many in our cache.
pub(super) fn reading(free: u64, cached: u64) -> Reading {
    Reading {
        at: Timestamp::START,
        free: MIB * free,
        total: MIB * 10_000,
        workspace_reserved: MIB * cached,
        workspace_cached: MIB * cached,
        library: Bytes::ZERO,
        leftovers: MIB * 3,
    }
}

/// A step that went well.
pub(super) fn seen(peak: Bytes) -> Observed {
    Observed { peak, reach: peak, time: Micros::millis(1), rungs: Rungs::default(), outcome: Outcome::Done }
}

fn need(resident: u64, transient: u64, least: u64) -> LoadNeed {
    LoadNeed { resident: MIB * resident, transient: MIB * transient, least_workspace: MIB * least }
}

fn budget(guaranteed: u64, limit: u64) -> Budget {
    Budget { guaranteed: MIB * guaranteed, limit: MIB * limit }
}

/// More is free on the device than the budget allows.
fn plenty() -> Reading {
    reading(9_000, 0)
}

#[test]
fn budgets_that_cannot_work_are_refused_with_the_numbers() {
    // Case 10.
    let books = |capacity| DeviceBooks { capacity: MIB * capacity, ..*ledger(Readings::Live).books() };
    let too_small = BudgetRefusal::CapacityTooSmall { capacity: MIB * 103, needed: MIB * 104 };
    assert_eq!(Ledger::new(books(103)).err(), Some(too_small));
    assert!(Ledger::new(books(104)).is_ok());

    let mut ledger = ledger(Readings::Live);
    let mut check = |model, budget, expected| assert_eq!(ledger.register(model, budget, false), expected);
    let (guaranteed, limit) = (MIB * 11, MIB * 10);
    check(A, budget(11, 10), Err(BudgetRefusal::GuaranteeAboveLimit { guaranteed, limit }));
    check(A, budget(0, 3), Err(BudgetRefusal::LimitTooSmall { limit: MIB * 3, needed: MIB * 4 }));
    check(A, budget(100, 103), Err(BudgetRefusal::LimitTooSmall { limit: MIB * 103, needed: MIB * 104 }));
    check(A, budget(500, 600), Ok(()));
    check(A, Budget::SHARED, Err(BudgetRefusal::Twice(A)));
    let refusal = BudgetRefusal::Guarantees { guaranteed: MIB * 897, workspace: MIB * 4, available: MIB * 900 };
    check(B, budget(397, 600), Err(refusal));
    check(B, budget(396, 600), Ok(()));
    assert_eq!(ledger.set_budget(C, Budget::SHARED), Err(BudgetRefusal::Unknown(C)));
    assert_eq!(ledger.check(), Ok(()));
}

#[test]
fn a_guarantee_does_not_promise_what_others_hold() {
    let mut ledger = ledger(Readings::Live);
    loaded(&mut ledger, A, 700);
    let refusal = BudgetRefusal::Taken { guaranteed: MIB * 200, free: MIB * 196 };
    assert_eq!(ledger.register(B, budget(200, 900), false), Err(refusal));
    assert_eq!(ledger.register(B, budget(196, 900), false), Ok(()));
    // What a model holds already it may be guaranteed.
    assert_eq!(ledger.set_budget(A, budget(700, 900)), Ok(BudgetChange::Applied));
}

#[test]
fn the_headroom_names_what_bounds_it() {
    let mut ledger = ledger(Readings::Live);
    loaded(&mut ledger, A, 100);
    loaded(&mut ledger, B, 300);
    let check = |ledger: &Ledger, reading: &Reading, mib, bound| {
        assert_eq!(ledger.headroom(A, reading), Headroom { bytes: MIB * mib, bound });
    };
    check(&ledger, &plenty(), 500, Bound::Budget);
    check(&ledger, &Reading { library: MIB * 20, ..plenty() }, 480, Bound::Budget);
    check(&ledger, &reading(200, 100), 290, Bound::Device);
    check(&ledger, &reading(5, 0), 0, Bound::Device);
    ledger.set_budget(A, budget(0, 250)).unwrap();
    check(&ledger, &plenty(), 150, Bound::Limit);
    assert_eq!(ledger.headroom(C, &plenty()).bytes, Bytes::ZERO);

    let mut off = self::ledger(Readings::Off);
    loaded(&mut off, A, 100);
    check(&off, &reading(0, 0), 800, Bound::Budget);
}

#[test]
fn where_an_allocation_may_fail_the_margin_is_kept_of_free_memory_only() {
    // Case 8 on a GPU: a neighbour leaves less than the margin.
    let check = |free, reserved, least, expected| {
        let mut ledger = ledger_on(Exhaustion::Refuses, Readings::Live);
        loaded(&mut ledger, A, 100);
        ledger.set_least_workspace(A, MIB * least);
        let reading = reading(free, reserved);
        assert_eq!(ledger.headroom(A, &reading).bytes, MIB * expected, "{free} free, {reserved} reserved");
    };
    check(200, 100, 1, 290);
    check(5, 100, 1, 100);
    check(0, 100, 200, 100);
    // The smallest step may use the margin.
    check(5, 2, 4, 4);
    check(5, 2, 9, 7);
    check(12, 2, 4, 4);
    check(20, 2, 4, 12);
    check(5, 2, 0, 2);
}

#[test]
fn the_smallest_step_has_all_of_its_last_granule() {
    // A neighbour leaves 6 MiB, and what is kept for the smallest step of 8.3 MiB is all that there is beside them.
    let terms = Terms { granule: MIB * 2, ..ledger_on(Exhaustion::Refuses, Readings::Live).books().terms };
    let mut ledger = Ledger::new(DeviceBooks { terms, ..*ledger(Readings::Live).books() }).unwrap();
    let least = Bytes::kib(8_500);
    let need = LoadNeed { resident: MIB * 100, transient: Bytes::ZERO, least_workspace: least };
    ledger.register(A, Budget::SHARED, false).unwrap();
    assert!(matches!(ledger.plan_load(A, need, &reading(109, 0), &[]), LoadPlan::Refuse(_)), "no step would fit");
    assert_eq!(ledger.plan_load(A, need, &reading(110, 0), &[]), LoadPlan::Fits);
    ledger.loading(A, need);
    ledger.loaded(A, MIB * 100);
    for _ in 0..2 {
        assert_eq!(ledger.headroom(A, &reading(0, 10)).bytes, MIB * 10);
        assert_eq!(ledger.headroom(A, &reading(6, 8)).bytes, MIB * 10);
        assert!(ledger.lease(A, least, Bytes::ZERO, &reading(6, 8)).is_ok());
        // The same when it was measured.
        ledger.set_least_workspace(A, least);
    }
}

#[test]
fn pools_give_headroom_in_granules() {
    let terms = Terms { granule: MIB * 32, ..ledger_on(Exhaustion::Refuses, Readings::Live).books().terms };
    let books = DeviceBooks { terms, ..*ledger(Readings::Live).books() };
    let mut ledger = Ledger::new(books).unwrap();
    loaded(&mut ledger, A, 100);
    let check = |free, reserved, expected| {
        let headroom = ledger.headroom(A, &reading(free, reserved));
        assert_eq!(headroom.bytes, MIB * expected, "{free} free, {reserved} reserved, {:?}", headroom.bound);
    };
    check(73, 64, 96);
    check(74, 64, 128);
    check(9_000, 0, 800); // the budget: 1,000 less 10, 90 and 100
    let mut less = Ledger::new(DeviceBooks { capacity: MIB * 999, ..books }).unwrap();
    loaded(&mut less, A, 100);
    assert_eq!((less.headroom(A, &plenty()).bytes, less.headroom_ever(A)), (MIB * 768, MIB * 768));
}

#[test]
fn where_an_allocation_may_fail_a_load_may_use_the_margin() {
    let plan = |exhaustion, free| {
        let mut ledger = ledger_on(exhaustion, Readings::Live);
        ledger.register(A, Budget::SHARED, false).unwrap();
        ledger.plan_load(A, need(100, 0, 4), &reading(free, 0), &[])
    };
    assert_eq!(plan(Exhaustion::Kills, 114), LoadPlan::Fits);
    assert!(matches!(plan(Exhaustion::Kills, 113), LoadPlan::Refuse(_)));
    assert_eq!(plan(Exhaustion::Refuses, 104), LoadPlan::Fits);
    assert!(matches!(plan(Exhaustion::Refuses, 103), LoadPlan::Refuse(_)));
}

#[test]
fn workspace_borrows_what_is_guaranteed_and_not_used() {
    let mut ledger = ledger(Readings::Live);
    loaded(&mut ledger, A, 100);
    ledger.register(B, budget(500, 900), false).unwrap();
    assert_eq!(ledger.headroom(A, &plenty()).bytes, MIB * 800);
    // Weights do not: they would stay.
    ledger.register(C, Budget::SHARED, false).unwrap();
    assert_eq!(ledger.plan_load(C, need(296, 0, 4), &plenty(), &[]), LoadPlan::Fits);
    assert!(matches!(ledger.plan_load(C, need(297, 0, 4), &plenty(), &[]), LoadPlan::Refuse(_)));
    assert_eq!(ledger.plan_load(B, need(700, 0, 4), &plenty(), &[]), LoadPlan::Fits);
}

#[test]
fn a_lease_gives_all_there_is_and_comes_back() {
    let mut ledger = ledger(Readings::Live);
    loaded(&mut ledger, A, 100);
    let headroom = Headroom { bytes: MIB * 800, bound: Bound::Budget };
    let shortfall = Shortfall { needed: MIB * 801, headroom };
    assert_eq!(ledger.lease(A, MIB * 800, MIB, &plenty()), Err(shortfall));
    let lease = ledger.lease(A, MIB * 40, MIB, &plenty()).unwrap();
    assert_eq!((lease.predicted, lease.ceiling, lease.kv), (MIB * 40, MIB * 799, MIB));
    assert_eq!(lease.leftovers, plenty().leftovers);
    assert_eq!((ledger.leased(), ledger.snapshot(&plenty()).models[0].kv), (MIB * 799, MIB));
    assert_eq!(ledger.check(), Ok(()));
    ledger.give_back(lease, &Observed { outcome: Outcome::OutOfMemory, ..seen(MIB * 60) });
    let line = ledger.snapshot(&plenty()).models[0];
    assert_eq!((ledger.leased(), line.kv, line.step_peak), (Bytes::ZERO, Bytes::ZERO, MIB * 60));
    let lease = ledger.lease(A, MIB * 40, MIB, &plenty()).unwrap();
    ledger.give_back(lease, &seen(MIB * 50));
    let line = ledger.snapshot(&plenty()).models[0];
    assert_eq!((line.kv, line.step_peak), (MIB, MIB * 60));
}

#[test]
fn a_lowered_budget_waits_for_the_end_of_the_step() {
    // Case 22, the ledger's half: what no longer fits is told so, with numbers, and what still fits goes on.
    let mut ledger = ledger(Readings::Live);
    loaded(&mut ledger, A, 100);
    let lease = ledger.lease(A, MIB * 300, Bytes::ZERO, &plenty()).unwrap();
    assert_eq!(ledger.set_budget(A, budget(0, 250)), Ok(BudgetChange::Deferred { overage: MIB * 650 }));
    assert_eq!(ledger.check(), Ok(()), "the lease was given under the old limit");
    ledger.give_back(lease, &seen(MIB * 300));
    assert_eq!(ledger.overage(A), Bytes::ZERO);
    let headroom = Headroom { bytes: MIB * 150, bound: Bound::Limit };
    assert_eq!(ledger.lease(A, MIB * 300, Bytes::ZERO, &plenty()), Err(Shortfall { needed: MIB * 300, headroom }));
    assert!(ledger.lease(A, MIB * 100, Bytes::ZERO, &plenty()).is_ok());
    // Below its weights: no step until it is unloaded and loaded under the new limit, or the limit rises.
    assert!(matches!(ledger.set_budget(A, budget(0, 60)), Ok(BudgetChange::Deferred { .. })));
    assert_eq!(ledger.headroom(A, &plenty()).bytes, Bytes::ZERO);
}

#[test]
fn what_can_never_fit_is_known_from_the_books() {
    // Case 21, the ledger's half.
    let mut ledger = ledger(Readings::Live);
    loaded(&mut ledger, A, 100);
    loaded(&mut ledger, B, 300);
    // The neighbour will leave, and B can be evicted.
    assert_eq!(ledger.headroom(A, &reading(50, 0)).bytes, MIB * 40);
    assert_eq!(ledger.headroom_ever(A), MIB * 800);
    ledger.pin(B, true);
    assert_eq!(ledger.headroom_ever(A), MIB * 500);
    ledger.set_budget(A, budget(0, 250)).unwrap();
    assert_eq!(ledger.headroom_ever(A), MIB * 150);
    assert_eq!(ledger.headroom_ever(C), Bytes::ZERO);
}

#[test]
fn a_server_beside_a_neighbour_starts_small_and_grows() {
    // Case 2: the neighbour leaves the weights (200) and 1.3 smallest batches of 10, and the safety margin.
    let mut ledger = ledger(Readings::Live);
    ledger.register(A, Budget::SHARED, false).unwrap();
    let tight = reading(10 + 200 + 13, 0);
    assert_eq!(ledger.plan_load(A, need(200, 5, 10), &tight, &[]), LoadPlan::Fits);
    ledger.loading(A, need(200, 5, 10));
    ledger.loaded(A, MIB * 200);
    assert_eq!(ledger.headroom(A, &reading(23, 0)), Headroom { bytes: MIB * 13, bound: Bound::Device });
    assert_eq!(ledger.headroom(A, &reading(2_000, 0)), Headroom { bytes: MIB * 700, bound: Bound::Budget });
    // With less than the weights free it refuses, with need and have.
    ledger.unloaded(A);
    let LoadPlan::Refuse(plan) = ledger.plan_load(A, need(200, 5, 10), &reading(180, 0), &[]) else {
        panic!("there is no room for it");
    };
    assert_eq!((plan.needed, plan.available, plan.verdict), (MIB * 210, MIB * 170, Verdict::DoesNotFit));
}

#[test]
fn models_that_load_at_the_same_moment_do_not_count_the_same_bytes() {
    // Case 6: the second sees what the first has booked, although the device's reading does not show it yet.
    let mut ledger = ledger(Readings::Live);
    ledger.register(A, Budget::SHARED, false).unwrap();
    ledger.register(B, Budget::SHARED, false).unwrap();
    let device = reading(510, 0);
    assert_eq!(ledger.plan_load(A, need(300, 0, 10), &device, &[]), LoadPlan::Fits);
    ledger.loading(A, need(300, 0, 10));
    assert!(matches!(ledger.plan_load(B, need(191, 0, 10), &device, &[]), LoadPlan::Refuse(_)));
    assert_eq!(ledger.plan_load(B, need(190, 0, 10), &device, &[]), LoadPlan::Fits);
    ledger.loading(B, need(190, 0, 10));
    ledger.loaded(A, MIB * 300);
    // B is still to take its 190 of the 210 that are left.
    assert_eq!(ledger.headroom(A, &reading(210, 0)).bytes, MIB * 10);
    ledger.loaded(B, MIB * 190);
    assert_eq!(ledger.headroom(A, &reading(20, 0)).bytes, MIB * 10);
    assert_eq!(ledger.check(), Ok(()));
}

#[test]
fn a_load_behind_a_step_may_use_the_steps_workspace() {
    let mut ledger = ledger(Readings::Live);
    loaded(&mut ledger, A, 100);
    let lease = ledger.lease(A, MIB * 10, Bytes::ZERO, &plenty()).unwrap();
    assert_eq!(lease.ceiling, MIB * 800);
    ledger.register(B, Budget::SHARED, false).unwrap();
    assert_eq!(ledger.plan_load(B, need(500, 0, 10), &plenty(), &[]), LoadPlan::Fits);
    ledger.loading(B, need(500, 0, 10));
    assert_eq!(ledger.check(), Ok(()));
    ledger.give_back(lease, &seen(MIB * 10));
    // The next step waits behind the load and gets what it leaves.
    let lease = ledger.lease(A, MIB * 10, Bytes::ZERO, &plenty()).unwrap();
    assert_eq!(lease.ceiling, MIB * 300);
    ledger.loaded(B, MIB * 500);
    assert_eq!(ledger.check(), Ok(()));
    ledger.give_back(lease, &seen(MIB * 10));
    // A load that takes more than it announced, under a lease given against the announcement, is found out.
    ledger.unloaded(B);
    ledger.loading(B, need(500, 0, 10));
    let lease = ledger.lease(A, MIB * 10, Bytes::ZERO, &plenty()).unwrap();
    ledger.loaded(B, MIB * 501);
    let broken = BrokenBooks::Overcommitted { claimed: MIB * 901, available: MIB * 900 };
    assert_eq!(ledger.check(), Err(broken));
    ledger.give_back(lease, &seen(MIB * 10));
    assert_eq!(ledger.check(), Ok(()));
}

#[test]
fn guarantees_that_cannot_be_kept_are_found_out() {
    let mut ledger = ledger(Readings::Live);
    ledger.register(A, budget(400, 900), false).unwrap();
    ledger.register(B, budget(400, 900), false).unwrap();
    let workspace = ledger.books.workspace_min();
    let mut check = |guaranteed, expected| {
        // No call does this: it would be refused.
        ledger.accounts.get_mut(&B).unwrap().budget.guaranteed = guaranteed;
        assert_eq!(ledger.check(), expected);
    };
    let rest = (MIB * 500).saturating_sub(workspace);
    check(rest, Ok(()));
    let (guaranteed, available) = (MIB * 900 + Bytes::new(1), MIB * 900);
    check(rest + Bytes::new(1), Err(BrokenBooks::Guarantees { guaranteed, available }));
}

#[test]
fn evictions_free_enough_and_no_more() {
    // The ledger's half of case 9.
    let mut ledger = ledger(Readings::Live);
    for (model, mib) in [(A, 100), (B, 300), (C, 400)] {
        loaded(&mut ledger, model, mib);
    }
    let new = ModelId::new(9);
    ledger.register(new, Budget::SHARED, false).unwrap();
    let check = |ledger: &Ledger, mib, idle: &[ModelId], expected: &[ModelId]| {
        let plan = ledger.plan_load(new, need(mib, 0, 10), &plenty(), idle);
        assert_eq!(plan, LoadPlan::Evict(expected.to_vec()), "{mib} MiB, idle {idle:?}");
    };
    check(&ledger, 150, &[A, B, C], &[A]);
    check(&ledger, 190, &[B, A, C], &[B]);
    check(&ledger, 390, &[A, B, C], &[B]); // with B gone, A need not go
    check(&ledger, 450, &[A, B, C], &[A, B]);
    check(&ledger, 890, &[A, B, C], &[A, B, C]);
    // Busy, pinned and absent ones are left alone.
    let lease = ledger.lease(A, MIB, Bytes::ZERO, &plenty()).unwrap();
    check(&ledger, 150, &[A, B, C], &[B]);
    ledger.pin(B, true);
    check(&ledger, 150, &[A, B, C, new, ModelId::new(77)], &[C]);
    let LoadPlan::Refuse(plan) = ledger.plan_load(new, need(491, 0, 10), &plenty(), &[A, B, C]) else {
        panic!("only C can go");
    };
    // A and B stay: 400 of 900.
    assert_eq!((plan.needed, plan.available), (MIB * 901, MIB * 900));
    assert_eq!(plan.lines.iter().map(|line| line.model).collect::<Vec<_>>(), [new, A, B]);
    ledger.give_back(lease, &seen(MIB));
}

#[test]
fn evicting_a_model_keeps_its_guarantee() {
    let mut ledger = ledger(Readings::Live);
    loaded(&mut ledger, A, 400);
    ledger.set_budget(A, budget(300, 900)).unwrap();
    ledger.register(B, Budget::SHARED, false).unwrap();
    // 900 - 300 are left for others, whether A is there or not.
    assert_eq!(ledger.plan_load(B, need(590, 0, 10), &plenty(), &[A]), LoadPlan::Evict(vec![A]));
    assert!(matches!(ledger.plan_load(B, need(591, 0, 10), &plenty(), &[A]), LoadPlan::Refuse(_)));
}

#[test]
fn evicted_bytes_fill_the_safety_margin_first() {
    let mut ledger = ledger(Readings::Live);
    loaded(&mut ledger, A, 100);
    ledger.register(B, Budget::SHARED, false).unwrap();
    // A neighbour has left 4 MiB, which is 6 less than the margin.
    assert_eq!(ledger.plan_load(B, need(84, 0, 10), &reading(4, 0), &[A]), LoadPlan::Evict(vec![A]));
    assert!(matches!(ledger.plan_load(B, need(85, 0, 10), &reading(4, 0), &[A]), LoadPlan::Refuse(_)));
}

#[test]
fn a_load_leaves_room_for_the_smallest_step_of_everybody() {
    let mut ledger = ledger(Readings::Live);
    ledger.register(A, Budget::SHARED, false).unwrap();
    ledger.loading(A, need(100, 0, 200));
    ledger.loaded(A, MIB * 100);
    ledger.register(B, Budget::SHARED, false).unwrap();
    assert_eq!(ledger.plan_load(B, need(600, 30, 10), &plenty(), &[]), LoadPlan::Fits);
    assert!(matches!(ledger.plan_load(B, need(601, 30, 10), &plenty(), &[]), LoadPlan::Refuse(_)));
    // A large tensor's conversion counts where it is more than a step.
    assert!(matches!(ledger.plan_load(B, need(599, 202, 10), &plenty(), &[]), LoadPlan::Refuse(_)));
    // Its own limit counts, whatever else is free.
    ledger.set_budget(B, budget(0, 300)).unwrap();
    assert_eq!(ledger.plan_load(B, need(290, 0, 10), &plenty(), &[]), LoadPlan::Fits);
    let LoadPlan::Refuse(plan) = ledger.plan_load(B, need(291, 0, 10), &plenty(), &[]) else {
        panic!("it is above its limit");
    };
    assert!(plan.needed > plan.available, "{plan:?}");
    ledger.register(C, Budget::SHARED, false).unwrap();
    let LoadPlan::Refuse(plan) = ledger.plan_load(B, need(291, 0, 10), &plenty(), &[]) else {
        panic!("C takes nothing away");
    };
    let models: Vec<ModelId> = plan.lines.iter().map(|line| line.model).collect();
    assert_eq!(models, [B, A], "C holds nothing");
    let unknown = ModelId::new(9);
    assert!(
        matches!(ledger.plan_load(unknown, need(1, 0, 1), &plenty(), &[]), LoadPlan::Refuse(_)),
        "it is not registered"
    );
}

#[test]
fn a_failed_load_and_an_unload_leave_nothing_behind() {
    // Case 5, the ledger's half.
    let mut ledger = ledger(Readings::Live);
    loaded(&mut ledger, A, 100);
    let before = ledger.snapshot(&plenty());
    ledger.register(B, Budget::SHARED, false).unwrap();
    for _ in 0..50 {
        assert_eq!(ledger.plan_load(B, need(790, 0, 10), &plenty(), &[]), LoadPlan::Fits);
        ledger.loading(B, need(790, 0, 10));
        assert_eq!(ledger.snapshot(&plenty()).models[1].loading, MIB * 790);
        ledger.load_failed(B);
        assert_eq!(ledger.snapshot(&plenty()).models[1].loading, Bytes::ZERO);
        ledger.loading(B, need(790, 0, 10));
        ledger.loaded(B, MIB * 788);
        assert_eq!(ledger.snapshot(&plenty()).models[1].weights, MIB * 788);
        ledger.unloaded(B);
        let after = ledger.snapshot(&plenty());
        assert_eq!((after.models[0], after.headroom), (before.models[0], before.headroom));
        assert_eq!(after.models[1].weights + after.models[1].kv + after.models[1].loading, Bytes::ZERO);
    }
}
