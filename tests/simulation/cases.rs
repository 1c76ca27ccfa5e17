//! What users of comparable servers were hit by, as far as it concerns the pure cores.

use plimsoll::admission::{LateAt, QueueLimit, Rejection, TooLarge};
use plimsoll::memory::{Budget, ShapeKind};
use plimsoll::scheduler::{Batching, LaneState, Settings, WhileNotReady};
use plimsoll::units::{Bytes, Micros, ModelId, RequestId, Timestamp};

use crate::setup::{lane, model, one_model, ragged, request};
use crate::truth::Truth;
use crate::world::{Answer, Event, Submission, World};

/// A device full of idle models, and a request for one that needs two of them gone.
#[test]
fn case_09_the_least_recently_used_idle_models_make_room() {
    let mut world = World::new(9, Settings::default(), Bytes::mib(420));
    let truth = Truth::SMALL;
    let resident: Vec<ModelId> = (0..4).map(|id| world.add(id, model(truth), lane(&truth), Budget::SHARED)).collect();
    let mut settings = lane(&truth);
    settings.while_not_ready = WhileNotReady::Wait;
    let mut large = model(truth);
    large.resident = Bytes::mib(150);
    let wanted = world.add(4, large, settings, Budget::SHARED);
    // The first is pinned; the second was used last of the rest and still has work; the fourth was used before the third.
    for &id in &resident {
        world.load_now(id);
    }
    world.ledger.pin(resident[0], true);
    for index in [0, 3, 2] {
        world.submit(request(resident[index], &[16]));
        world.run_to_the_end();
    }
    let busy: Vec<RequestId> = (0..40).map(|_| world.submit(request(resident[1], &[512]))).collect();
    let asking = world.submit(request(wanted, &[16]));
    world.run_until(world.now + Micros::millis(1));
    let down = LaneState::Down(Rejection::NotLoaded);
    assert_eq!(world.state(wanted), LaneState::Loading);
    let states: Vec<LaneState> = resident.iter().map(|&id| world.state(id)).collect();
    assert_eq!(states, [LaneState::Ready, LaneState::Ready, down, down]);
    world.run_to_the_end();
    assert!(world.finished(asking) && busy.iter().all(|&id| world.finished(id)));
}

/// A row that needs all that there can be, and one byte less of that.
#[test]
fn what_fits_exactly_is_served() {
    let longest = ShapeKind::Padded.at(1, 512);
    let needed = Truth::SMALL.profile().predicted(longest).expect("it is measured");
    // Safety, fixed and weights, as `World` and `model` have them.
    let rest = Bytes::mib(4 + 2 + 90);
    let (mut world, id) = one_model(rest + needed, Settings::default());
    let fits = world.submit(request(id, &[512]));
    world.run_to_the_end();
    assert!(world.finished(fits), "{:?}", world.answer(fits));
    let possible = needed.saturating_sub(Bytes::new(1));
    let (mut world, id) = one_model(rest + possible, Settings::default());
    let refused = world.submit(request(id, &[512]));
    let expected = Rejection::TooLarge(TooLarge::Workspace { needed, possible });
    assert_eq!(world.answer(refused), Some(Answer::Rejected(expected)));
}

/// Nine texts of ten are short, one is long.
#[test]
fn case_15_padding_stays_within_its_bound() {
    for (truth, bound) in [(Truth::SMALL, 1.2), (ragged(), 1.0)] {
        let mut world = World::new(15, Settings::default(), Bytes::mib(600));
        let id = world.add(0, model(truth), lane(&truth), Budget::SHARED);
        world.load_now(id);
        let mut at = 0;
        for _ in 0..3_000 {
            at += world.rng.exponential(400.0);
            let tokens = if world.rng.chance(0.1) { world.rng.range(480, 513) } else { world.rng.range(14, 19) };
            world.at(Timestamp::new(at), Event::Submit(request(id, &[tokens as u32])));
        }
        world.run_until(Timestamp::new(at));
        world.run_to_the_end();
        let (padded, real) = world
            .served()
            .fold((0, 0), |(padded, real), decision| (padded + decision.padded_tokens, real + decision.real_tokens));
        assert!(padded as f64 <= bound * real as f64, "{padded} padded, {real} real");
        let steps = world.served().count();
        assert!(steps < 3_000 / 8, "batches are still formed: {steps} steps");
        assert!(
            world.requests.values().all(|record| record.answer.map(|(_, answer)| answer) == Some(Answer::Finished))
        );
    }
}

/// A client batch of 100 where a step holds 32.
#[test]
fn case_16_a_client_batch_is_split_in_order() {
    let settings = Settings { batching: Batching::Fixed(32), ..Settings::default() };
    let (mut world, id) = one_model(Bytes::mib(400), settings);
    let batch = world.submit(request(id, &[16; 100]));
    let after = world.submit(request(id, &[16]));
    world.run_to_the_end();
    let rows: Vec<usize> = world.served().map(|decision| decision.rows).collect();
    assert_eq!(rows, [32, 32, 32, 5], "rows are counted, not calls");
    assert!(world.requests[&batch].rows_in.is_sorted(), "rows go in order");
    assert!(world.finished(batch) && world.finished(after));
    assert_eq!(world.requests[&batch].answer.unwrap().0, world.requests[&after].answer.unwrap().0);
}

/// 200 requests with 5 ms behind a step of 500 ms, 200 more that are cancelled.
#[test]
fn case_19_late_and_cancelled_requests_never_reach_the_device() {
    let (mut world, id) = one_model(Bytes::mib(400), Settings::default());
    let start = world.now;
    // The step takes far longer than its profile says, so admission cannot know.
    world.models.get_mut(&id).unwrap().truth.micros_base = 500_000.0;
    let slow = world.submit(request(id, &[8]));
    world.run_until(start + Micros::millis(10));
    let late: Vec<RequestId> =
        (0..200).map(|_| world.submit(Submission { within: Some(Micros::millis(5)), ..request(id, &[8]) })).collect();
    let gone: Vec<RequestId> = (0..200).map(|_| world.submit(request(id, &[8]))).collect();
    for &id in &gone {
        world.at(start + Micros::millis(12), Event::Cancel(id));
    }
    world.run_to_the_end();
    assert!(world.finished(slow));
    assert_eq!(world.served().count(), 1, "nothing else reaches the device");
    let waited = Micros::millis(5);
    let expected = Answer::Rejected(Rejection::Late { at: LateAt::Queue, waited });
    for id in late {
        assert_eq!(world.requests[&id].answer, Some((start + Micros::millis(15), expected)), "not after the step");
    }
    assert!(gone.iter().all(|&id| world.answer(id) == Some(Answer::Cancelled)));
}

/// The same, where the profile is right: refused at once, because it is known that they would be late.
#[test]
fn case_19_a_known_remainder_refuses_at_admission() {
    let mut world = World::new(19, Settings::default(), Bytes::mib(400));
    let truth = Truth { micros_base: 500_000.0, ..Truth::SMALL };
    let id = world.add(0, model(truth), lane(&truth), Budget::SHARED);
    world.load_now(id);
    world.submit(request(id, &[8]));
    world.run_until(world.now + Micros::millis(10));
    let check = |world: &mut World, within: u64, accepted: bool| {
        let late = world.submit(Submission { within: Some(Micros::millis(within)), ..request(id, &[8]) });
        let expected = Rejection::Late { at: LateAt::Admission, waited: Micros::ZERO };
        let answer = (!accepted).then_some(Answer::Rejected(expected));
        assert_eq!(world.answer(late), answer, "{within} ms");
    };
    check(&mut world, 5, false);
    check(&mut world, 900, false);
    check(&mut world, 1_100, true);
}

/// 50,000 requests in a second, a queue of 1,000 rows; unary calls and client batches alike.
#[test]
fn case_20_exactly_the_excess_is_refused() {
    let mut world = World::new(20, Settings::default(), Bytes::mib(400));
    let mut settings = lane(&Truth::SMALL);
    settings.queue.rows = 1_000;
    let id = world.add(0, model(Truth::SMALL), settings, Budget::SHARED);
    world.load_now(id);
    let (mut accepted, mut refused) = (Vec::new(), 0u32);
    for tick in 0..500 {
        for _ in 0..100 {
            let rows = if world.rng.chance(0.1) { 5 } else { 1 };
            let before = world.scheduler.lanes().next().unwrap().occupancy.rows;
            let tokens = world.rng.range(8, 64) as u32;
            let asked = world.submit(request(id, &vec![tokens; rows]));
            match world.answer(asked) {
                None => {
                    assert!(before + rows as u64 <= 1_000);
                    accepted.push(asked);
                }
                Some(Answer::Rejected(rejection)) => {
                    assert!(before + rows as u64 > 1_000, "only what does not fit is refused");
                    assert!(matches!(rejection, Rejection::QueueFull { limit: QueueLimit::Rows, .. }));
                    let hint = rejection.retry_after().unwrap();
                    assert!(hint >= Micros::millis(10) && hint <= Micros::secs(60), "{hint}");
                    refused += 1;
                }
                Some(other) => panic!("{other:?}"),
            }
        }
        world.run_until(Timestamp::new(2_000 * (tick + 1)));
    }
    world.run_to_the_end();
    assert!(refused > 30_000, "{refused} are refused");
    assert!(accepted.iter().all(|&id| world.finished(id)), "accepted ones finish");
}

/// A request that can never fit, then small ones.
#[test]
fn case_21_what_never_fits_is_refused_at_once() {
    let (mut world, id) = one_model(Bytes::mib(400), Settings::default());
    // Weights of 90 MiB and 6 MiB for steps: 512 tokens alone need about 13 MB.
    let limit = Bytes::mib(96);
    world.ledger.set_budget(id, Budget { guaranteed: Bytes::ZERO, limit }).unwrap();
    let large = world.submit(request(id, &[512]));
    let small: Vec<RequestId> = (0..50).map(|_| world.submit(request(id, &[16]))).collect();
    match world.answer(large) {
        Some(Answer::Rejected(Rejection::TooLarge(TooLarge::Workspace { needed, possible }))) => {
            assert_eq!(possible, Bytes::mib(6));
            assert!(needed > possible && needed < Bytes::mib(16), "{needed}");
        }
        other => panic!("{other:?}"),
    }
    let long = world.submit(request(id, &[16, 513]));
    let too_long = TooLarge::Length { row: 1, needed: 513, possible: 512 };
    assert_eq!(world.answer(long), Some(Answer::Rejected(Rejection::TooLarge(too_long))));
    world.run_to_the_end();
    assert!(small.iter().all(|&id| world.finished(id)));
}

/// A neighbour leaves too little for a request that waits: smaller ones pass, it waits no longer than the bound, and
/// nobody spins.
#[test]
fn case_22_a_request_that_no_longer_fits_waits_within_bounds() {
    let settings = Settings { memory_wait_max: Micros::secs(2), ..Settings::default() };
    let (mut world, id) = one_model(Bytes::mib(200), settings);
    let start = world.now;
    // 200 MiB less 96 MiB of weights, fixed bytes and safety: 8 MiB are left for steps.
    world.at(start, Event::Neighbour(Bytes::mib(96)));
    world.run_until(start);
    let large = world.submit(request(id, &[512]));
    let hurried = world.submit(Submission { within: Some(Micros::millis(700)), ..request(id, &[500]) });
    let small: Vec<RequestId> = (0..20).map(|_| world.submit(request(id, &[16]))).collect();
    let polls = world.polls;
    world.run_until(start + Micros::millis(600));
    assert!(small.iter().all(|&id| world.finished(id)), "small ones pass");
    assert_eq!((world.answer(large), world.answer(hurried)), (None, None));
    world.run_to_the_end();
    let (at, answer) = world.requests[&large].answer.unwrap();
    assert_eq!(at, start + Micros::secs(2));
    match answer {
        Answer::Rejected(Rejection::OutOfMemory { needed, available, .. }) => {
            assert!(needed > available && available <= Bytes::mib(8), "{needed} of {available}");
        }
        other => panic!("{other:?}"),
    }
    let late = Rejection::Late { at: LateAt::Queue, waited: Micros::millis(700) };
    assert_eq!(world.answer(hurried), Some(Answer::Rejected(late)));
    assert!(world.polls - polls < 300, "{} polls in two seconds", world.polls - polls);

    // The same again, but the neighbour leaves in time.
    let back = world.now;
    let large = world.submit(request(id, &[512]));
    world.at(back + Micros::secs(1), Event::Neighbour(Bytes::ZERO));
    world.run_to_the_end();
    assert!(world.finished(large));
    assert!(world.now <= back + Micros::millis(1_200), "served soon after there is room");
}

/// A neighbour takes everything for a moment while more waits than is served within the bound: nobody who fits again is
/// refused for it later, and who was blocked at that moment and is again much later begins to wait anew.
#[test]
fn case_22_a_short_shortage_refuses_nobody_who_fits_again() {
    let settings = Settings { memory_wait_max: Micros::secs(1), ..Settings::default() };
    let (mut world, id) = one_model(Bytes::mib(400), settings);
    let start = world.now;
    world.at(start, Event::Neighbour(Bytes::mib(400)));
    world.run_until(start);
    let queued: Vec<RequestId> = (0..2_000).map(|_| world.submit(request(id, &[256]))).collect();
    world.at(start + Micros::millis(30), Event::Neighbour(Bytes::ZERO));
    world.run_to_the_end();
    assert!(world.now > start + Micros::secs(2), "more than is served within the bound: {:?}", world.now);
    let unserved = queued.iter().filter(|&&id| !world.finished(id)).count();
    assert_eq!(unserved, 0);
}

/// Of two rows of a request one fits and one does not, and it is in flight when its time is over: it is answered all the
/// same, and its lane can be drained.
#[test]
fn case_22_a_request_of_which_a_part_runs_does_not_wait_for_ever() {
    let wait = Micros::secs(1);
    let (mut world, id) = one_model(Bytes::mib(200), Settings { memory_wait_max: wait, ..Settings::default() });
    let start = world.now;
    // Nothing at all, so that both are blocked; then little, and just in time.
    world.at(start, Event::Neighbour(Bytes::mib(200)));
    world.run_until(start);
    let before = world.submit(request(id, &[128]));
    let parted = world.submit(request(id, &[128, 512]));
    world.at(start + Micros::new(999_500), Event::Neighbour(Bytes::mib(96)));
    world.run_until(start + Micros::millis(2_100));
    assert!(world.finished(before));
    assert!(
        matches!(world.answer(parted), Some(Answer::Rejected(Rejection::OutOfMemory { .. }))),
        "{:?}",
        world.answer(parted)
    );
}

/// The model's own budget falls below what a waiting request needs: it will never fit again.
#[test]
fn case_22_a_budget_that_never_lets_it_run_refuses_with_numbers() {
    let (mut world, id) = one_model(Bytes::mib(400), Settings::default());
    let first = world.submit(request(id, &[256]));
    world.run_until(world.now + Micros::new(1));
    let waiting = world.submit(request(id, &[512]));
    let small = world.submit(request(id, &[16]));
    let budget = Budget { guaranteed: Bytes::ZERO, limit: Bytes::mib(96) };
    world.at(world.now, Event::SetBudget(id, budget));
    let end = world.now + Micros::millis(200);
    world.run_until(end);
    assert!(world.finished(first) && world.finished(small));
    match world.answer(waiting) {
        Some(Answer::Rejected(Rejection::OutOfMemory { needed, available, .. })) => {
            assert_eq!(available, Bytes::mib(6));
            assert!(needed > available);
        }
        other => panic!("{other:?}"),
    }
}

/// One client unloads a model while another has it queued and running.
#[test]
fn case_23_unloading_a_busy_model_serves_what_waits() {
    let mut world = World::new(23, Settings::default(), Bytes::mib(500));
    let ids: Vec<ModelId> =
        (0..2).map(|id| world.add(id, model(Truth::SMALL), lane(&Truth::SMALL), Budget::SHARED)).collect();
    ids.iter().for_each(|&id| world.load_now(id));
    let queued: Vec<RequestId> = (0..200).map(|_| world.submit(request(ids[0], &[64]))).collect();
    let others: Vec<RequestId> = (0..200).map(|_| world.submit(request(ids[1], &[64]))).collect();
    world.run_until(world.now + Micros::millis(3));
    world.at(world.now, Event::Unload(ids[0]));
    world.run_until(world.now + Micros::millis(1));
    let too_late = world.submit(request(ids[0], &[64]));
    assert_eq!(world.answer(too_late), Some(Answer::Rejected(Rejection::Draining)));
    world.run_to_the_end();
    assert!(queued.iter().chain(&others).all(|&id| world.finished(id)));
    assert_eq!(world.state(ids[0]), LaneState::Down(Rejection::NotLoaded));
    let after = world.submit(request(ids[0], &[64]));
    assert_eq!(world.answer(after), Some(Answer::Rejected(Rejection::NotLoaded)));

    // Down at once, with a step in flight: one status for all of them, and the step ends for nothing.
    let queued: Vec<RequestId> = (0..200).map(|_| world.submit(request(ids[1], &[64]))).collect();
    world.run_until(world.now + Micros::millis(1));
    world.lane_down(ids[1], Rejection::Draining);
    world.run_to_the_end();
    assert!(queued.iter().all(|&id| world.answer(id) == Some(Answer::Rejected(Rejection::Draining))));
}
