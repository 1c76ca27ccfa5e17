//! What the scheduler promises about time: shares, classes, surveys, linger, the control arm, the ladder's refusals.

use plimsoll::admission::Rejection;
use plimsoll::memory::Budget;
use plimsoll::scheduler::{Batching, LaneView, Priority, Purpose, Settings, WhileNotReady};
use plimsoll::units::{Bytes, Micros, ModelId, RequestId};

use crate::setup::{lane, model, one_model, ragged, request};
use crate::truth::Truth;
use crate::world::{Answer, Event, Submission, World};

/// Keeps `waiting` requests in each lane for `time`; gives the device time that each used.
fn saturate(world: &mut World, submissions: &[Submission], waiting: u64, time: Micros) -> Vec<u64> {
    let start = world.now;
    let used = |world: &World| world.scheduler.lanes().map(|lane| lane.device_time.get()).collect::<Vec<_>>();
    let before = used(world);
    while world.now < start + time {
        for submission in submissions {
            let rows = |lane: &LaneView| lane.model == submission.model;
            let there = world.scheduler.lanes().find(rows).unwrap().occupancy.rows;
            for _ in there..waiting {
                world.submit(submission.clone());
            }
        }
        world.run_until(world.now + Micros::millis(20));
    }
    used(world).iter().zip(before).map(|(after, before)| after - before).collect()
}

/// Device time follows the shares within 10 %, although the models' steps differ in length and one profile is wrong.
#[test]
fn device_time_follows_the_shares() {
    let mut world = World::new(1, Settings::default(), Bytes::mib(600));
    let truths = [Truth::SMALL, Truth { micros_base: 9_000.0, micros_token: 60.0, ..Truth::SMALL }, ragged()];
    let shares = [1.0, 3.0, 2.0];
    for (id, (truth, share)) in (0u32..).zip(truths.into_iter().zip(shares)) {
        let mut settings = lane(&truth);
        settings.share = share;
        let id = world.add(id, model(truth), settings, Budget::SHARED);
        world.load_now(id);
    }
    // What steps of the last one really take is twice what was measured.
    let truth = &mut world.models.get_mut(&ModelId::new(2)).unwrap().truth;
    (truth.micros_base, truth.micros_token) = (2.0 * truth.micros_base, 2.0 * truth.micros_token);
    let load: Vec<Submission> = (0..3).map(|id| request(ModelId::new(id), &[64])).collect();
    let used = saturate(&mut world, &load, 200, Micros::secs(60));
    let total: u64 = used.iter().sum();
    for (&time, share) in used.iter().zip(shares) {
        let expected = share / 6.0;
        let part = time as f64 / total as f64;
        assert!((part / expected - 1.0).abs() < 0.1, "{part} of the time, {expected} is its share: {used:?}");
    }
}

/// Time that passes while a model is loaded is not owed to it afterwards, although requests waited for it.
#[test]
fn a_model_that_comes_late_gets_its_share_from_then_on() {
    let mut world = World::new(4, Settings::default(), Bytes::mib(600));
    let mut settings = lane(&Truth::SMALL);
    settings.while_not_ready = WhileNotReady::Wait;
    settings.load_timeout = Micros::secs(60);
    let ids = [0, 1].map(|id| world.add(id, model(Truth::SMALL), settings, Budget::SHARED));
    world.load_now(ids[0]);
    // Its load has to wait for another one, which does not keep the device.
    world.loading = Some(ids[1]);
    let load = ids.map(|id| request(id, &[64]));
    let used = saturate(&mut world, &load, 100, Micros::secs(4));
    assert!(used[0] > 3_900_000 && used[1] == 0, "{used:?}");
    world.loading = None;
    world.models.get_mut(&ids[1]).unwrap().load_time = Micros::millis(1);
    world.run_until(world.now + Micros::millis(200));
    let used = saturate(&mut world, &load, 100, Micros::secs(4));
    let part = used[1] as f64 / (used[0] + used[1]) as f64;
    assert!((part - 0.5).abs() < 0.05, "{used:?}");
}

/// A flood of one class leaves the others their part: waiting is bounded by shares, in both directions.
#[test]
fn a_priority_is_a_factor_and_starves_nobody() {
    let (mut world, id) = one_model(Bytes::mib(400), Settings::default());
    let with = |priority, tokens| Submission { priority, ..request(id, &[tokens]) };
    // Lengths far apart, so that the classes cannot share their batches.
    for _ in 0..2_000 {
        world.submit(with(Priority::Low, 500));
    }
    world.run_until(world.now + Micros::millis(500));
    let urgent: Vec<RequestId> = (0..200).map(|_| world.submit(with(Priority::High, 16))).collect();
    let start = world.now;
    world.run_until(start + Micros::secs(2));
    let last = urgent.iter().map(|id| world.requests[id].answer.expect("served").0).max().unwrap();
    assert!(last.since(start) < Micros::secs(2), "high ones do not wait for the flood");
    let served = |world: &World| {
        let low = world.requests.values().filter(|record| record.facts.priority == Priority::Low);
        low.filter(|record| record.answer.is_some()).count()
    };
    let before = served(&world);
    let flood = [with(Priority::High, 16)];
    saturate(&mut world, &flood, 400, Micros::secs(20));
    assert!(served(&world) > before + 20, "low ones are served in a flood of high ones");
}

/// While requests wait a survey gets a small part of the time; on an idle device it gets all.
#[test]
fn a_profile_is_measured_between_requests() {
    let mut world = World::new(2, Settings::default(), Bytes::mib(600));
    for id in 0..2 {
        let mut built = model(Truth::SMALL);
        if id == 0 {
            built.profile = Truth::SMALL.empty_profile();
        }
        let id = world.add(id, built, lane(&Truth::SMALL), Budget::SHARED);
        world.load_now(id);
    }
    // A request can be served as soon as its length is measured.
    let first = world.submit(request(ModelId::new(0), &[512]));
    world.run_until(world.now + Micros::secs(2));
    assert!(world.finished(first));
    let measured = |world: &World| world.decisions.iter().filter(|decision| decision.purpose == Purpose::Probe).count();
    let load = [request(ModelId::new(1), &[64])];
    let (before, start) = (measured(&world), world.now);
    if world.scheduler.profile(ModelId::new(0)).unwrap().next_probe(Bytes::MAX).is_some() {
        let used = saturate(&mut world, &load, 200, Micros::secs(10));
        let part = used[0] as f64 / (used[0] + used[1]) as f64;
        assert!(part < 0.15, "measuring takes {part} of a busy device");
        assert!(measured(&world) > before, "but it goes on");
    }
    world.run_to_the_end();
    world.run_until(world.now + Micros::secs(120));
    assert!(world.scheduler.profile(ModelId::new(0)).unwrap().next_probe(Bytes::MAX).is_none(), "measured when idle");
    assert!(world.now > start);
}

/// A model that asks for it lets its oldest request wait for company, on an idle device only as long as it says.
#[test]
fn a_linger_gathers_rows_and_ends() {
    let mut world = World::new(3, Settings::default(), Bytes::mib(400));
    let mut settings = lane(&Truth::SMALL);
    settings.max_linger = Micros::millis(8);
    let id = world.add(0, model(Truth::SMALL), settings, Budget::SHARED);
    world.load_now(id);
    let start = world.now;
    for after in [0, 3, 6] {
        world.at(start + Micros::millis(after), Event::Submit(request(id, &[32])));
    }
    // One that cannot wait so long starts at once.
    let hurried = Submission { within: Some(Micros::millis(9)), ..request(id, &[32]) };
    world.at(start + Micros::millis(100), Event::Submit(hurried));
    world.run_until(start + Micros::millis(200));
    let steps: Vec<_> = world.served().map(|decision| (decision.at.since(start), decision.rows)).collect();
    assert_eq!(steps, [(Micros::millis(8), 3), (Micros::millis(100), 1)]);
}

/// Who joins a batch that lingers is not made late by it.
#[test]
fn a_linger_ends_for_the_most_hurried_of_the_batch() {
    let mut world = World::new(3, Settings::default(), Bytes::mib(400));
    let mut settings = lane(&Truth::SMALL);
    settings.max_linger = Micros::millis(20);
    let id = world.add(0, model(Truth::SMALL), settings, Budget::SHARED);
    world.load_now(id);
    let start = world.now;
    let patient = world.submit(request(id, &[32]));
    world.run_until(start + Micros::millis(1));
    let hurried = world.submit(Submission { within: Some(Micros::millis(15)), ..request(id, &[32]) });
    world.run_to_the_end();
    assert!(world.finished(patient) && world.finished(hurried), "{:?}", world.answer(hurried));
    assert_eq!(world.served().count(), 1);
}

/// The control arm does not look at memory: a batch goes to the device whatever is free there.
#[test]
fn a_fixed_batch_runs_whatever_is_free() {
    let settings = Settings { batching: Batching::Fixed(8), ..Settings::default() };
    let (mut world, id) = one_model(Bytes::mib(200), settings);
    let start = world.now;
    world.at(start, Event::Neighbour(Bytes::mib(92)));
    world.run_until(start);
    // 8 rows of 128 tokens need 14 MB, of which 12 MiB are there; the arm as shipped would run 6 of them.
    let batch = world.submit(request(id, &[128; 8]));
    world.run_to_the_end();
    assert!(world.finished(batch), "the simulated device has a ladder");
    let first = world.served().next().unwrap();
    assert_eq!((first.at, first.rows), (start, 8));

    // Nothing at all is free: it does not wait, as one that looked would for `memory_wait_max`.
    let start = world.now;
    world.at(start, Event::Neighbour(Bytes::mib(200)));
    world.run_until(start);
    world.submit(request(id, &[128; 8]));
    world.run_until(start + Micros::millis(1));
    let last = world.served().last().unwrap();
    assert_eq!((last.at, last.rows), (start, 8));
}

/// The ladder refuses the one row that does not fit even alone; its neighbours in the batch have their answers.
#[test]
fn a_refused_row_costs_its_neighbours_nothing() {
    let (mut world, id) = one_model(Bytes::mib(130), Settings::default());
    // Weights, fixed bytes and safety leave 34 MiB for steps. 500 tokens really need 45 MB, 380 tokens 32 MB.
    world.models.get_mut(&id).unwrap().error = 3.6;
    let large = world.submit(request(id, &[500]));
    let small: Vec<RequestId> = (0..3).map(|_| world.submit(request(id, &[380]))).collect();
    world.run_until(world.now + Micros::new(1));
    assert!(world.served().next().unwrap().rows >= 2, "they share a batch");
    world.run_to_the_end();
    match world.answer(large) {
        Some(Answer::Rejected(Rejection::OutOfMemory { needed, available, .. })) => assert!(needed > available),
        other => panic!("{other:?}"),
    }
    assert!(small.iter().all(|&id| world.finished(id)));
    let lane: LaneView = world.scheduler.lanes().next().unwrap();
    assert!(lane.drift > 1.0, "the next steps are predicted with what was seen: {}", lane.drift);
}

/// What the device refuses for a while is tried again until it goes through; rows that need less pass meanwhile, and each
/// row of the request is run once in the end.
#[test]
fn a_row_that_the_device_refuses_for_a_while_is_served_in_the_end() {
    let (mut world, id) = one_model(Bytes::mib(130), Settings::default());
    // A row of 500 tokens does not go through now, one of 16 does.
    world.driver_max = Bytes::mib(5);
    let start = world.now;
    world.at(start + Micros::millis(700), Event::DriverMax(Bytes::MAX));
    let large = world.submit(request(id, &[16, 500, 500, 16]));
    for at in (0..700).step_by(5) {
        world.at(start + Micros::millis(at), Event::Submit(request(id, &[16])));
    }
    world.run_until(start + Micros::millis(690));
    assert_eq!(world.answer(large), None);
    let ids: Vec<RequestId> = world.requests.keys().copied().collect();
    let (answered, all) = (ids.iter().filter(|&&id| world.finished(id)).count(), ids.len());
    assert!(answered + 3 >= all, "small ones pass: {answered} of {all}");
    let attempts = world.served().filter(|decision| decision.text.contains(&format!("{large}."))).count();
    assert!((4..=8).contains(&attempts), "{attempts} in 0.7 s");
    world.run_to_the_end();
    assert!(world.finished(large), "{:?}", world.answer(large));
    let Some((at, _)) = world.requests[&large].answer else { unreachable!() };
    assert!(at <= start + Micros::millis(1_700), "{at:?}");
}

/// A shortage that a request has got over does not count when another comes.
#[test]
fn a_second_shortage_has_the_whole_time_again() {
    let settings = Settings { denied_wait_max: Micros::millis(300), ..Settings::default() };
    let (mut world, id) = one_model(Bytes::mib(130), settings);
    let start = world.now;
    let long = world.submit(request(id, &[500; 100]));
    for at in [50, 600] {
        world.at(start + Micros::millis(at), Event::DriverMax(Bytes::mib(5)));
        world.at(start + Micros::millis(at + 60), Event::DriverMax(Bytes::MAX));
    }
    world.run_until(start + Micros::millis(700));
    assert_eq!(world.answer(long), None, "it takes longer than that");
    world.run_to_the_end();
    assert!(world.finished(long), "{:?}", world.answer(long));
    assert!(world.coverage.count("row: waits again") >= 4);
}

/// While its only request is held back a model saves up no turns.
#[test]
fn time_in_which_all_are_held_back_is_not_owed() {
    let mut world = World::new(1, Settings::default(), Bytes::mib(300));
    let ids = [0u32, 1].map(|id| world.add(id, model(Truth::SMALL), lane(&Truth::SMALL), Budget::SHARED));
    ids.into_iter().for_each(|id| world.load_now(id));
    world.driver_max = Bytes::mib(5);
    let held = world.submit(request(ids[0], &[500]));
    saturate(&mut world, &[request(ids[1], &[16])], 50, Micros::secs(3));
    assert_eq!(world.answer(held), None);
    let load = ids.map(|id| request(id, &[16]));
    let used = saturate(&mut world, &load, 50, Micros::secs(1));
    let part = used[0] as f64 / (used[0] + used[1]) as f64;
    assert!((0.45..0.55).contains(&part), "{part} of the time: {used:?}");
}

/// How long the queue will take is told by the rows that were served, and by no attempt that failed.
#[test]
fn attempts_that_fail_are_no_figure_of_how_fast_rows_are_served() {
    let mut world = World::new(1, Settings::default(), Bytes::mib(300));
    let mut settings = lane(&Truth::SMALL);
    settings.queue.rows = 10;
    let id = world.add(0, model(Truth::SMALL), settings, Budget::SHARED);
    world.load_now(id);
    let all = world.submit(request(id, &[500; 10]));
    world.run_to_the_end();
    assert!(world.finished(all));
    world.driver_max = Bytes::mib(5);
    world.submit(request(id, &[500; 8]));
    let hint = |world: &mut World| {
        let asked = world.submit(request(id, &[500; 10]));
        match world.answer(asked) {
            Some(Answer::Rejected(rejection @ Rejection::QueueFull { .. })) => rejection.retry_after(),
            other => panic!("{other:?}"),
        }
    };
    let before = hint(&mut world);
    world.run_until(world.now + Micros::secs(3));
    assert!(world.coverage.count("row: waits again") >= 8);
    assert_eq!(hint(&mut world), before);
}

/// The control arm of comparisons answers at once.
#[test]
fn rows_are_refused_at_once_where_they_may_not_be_tried_again() {
    let settings = Settings { denied_wait_max: Micros::ZERO, ..Settings::default() };
    let (mut world, id) = one_model(Bytes::mib(130), settings);
    world.driver_max = Bytes::mib(5);
    let start = world.now;
    let large = world.submit(request(id, &[500]));
    world.run_until(start + Micros::millis(100));
    assert!(matches!(world.answer(large), Some(Answer::Rejected(Rejection::OutOfMemory { .. }))));
    assert_eq!(world.served().count(), 1);
}

/// A model may not go while a request of it is only held back; and one who cancels then is gone.
#[test]
fn who_is_held_back_waits_like_others() {
    let (mut world, id) = one_model(Bytes::mib(130), Settings::default());
    world.driver_max = Bytes::mib(5);
    let start = world.now;
    let [first, second] = [0, 1].map(|_| world.submit(request(id, &[500])));
    world.run_until(start + Micros::millis(300));
    while !world.running.is_empty() {
        world.run_until(world.now + Micros::millis(1));
    }
    assert!(!world.scheduler.is_drained(id) && world.scheduler.idle_models().is_empty());
    assert_eq!(world.scheduler.lanes().next().unwrap().oldest, Some(start));
    world.at(world.now, Event::Cancel(first));
    world.at(world.now, Event::Unload(id));
    world.at(world.now + Micros::millis(300), Event::DriverMax(Bytes::MAX));
    world.run_to_the_end();
    assert_eq!(world.answer(first), Some(Answer::Cancelled));
    assert!(world.finished(second), "{:?}", world.answer(second));
}

/// A long row whose length cannot be measured for want of memory does not spend its class's turns on other probes: short
/// rows are served as soon as their own length is known.
#[test]
fn what_cannot_be_measured_does_not_hold_up_the_rest() {
    let mut world = World::new(5, Settings::default(), Bytes::mib(200));
    let mut unmeasured = model(Truth::SMALL);
    unmeasured.profile = Truth::SMALL.empty_profile();
    let id = world.add(0, unmeasured, lane(&Truth::SMALL), Budget::SHARED);
    world.load_now(id);
    world.at(world.now, Event::Neighbour(Bytes::mib(96)));
    world.run_until(world.now);
    let long = world.submit(request(id, &[512]));
    let short = world.submit(request(id, &[16]));
    world.run_to_the_end();
    assert!(world.finished(short));
    assert!(matches!(world.answer(long), Some(Answer::Rejected(Rejection::OutOfMemory { .. }))));
    let served = world.decisions.iter().position(|decision| decision.purpose == Purpose::Serve).unwrap();
    let probes: Vec<&str> = world.decisions[..served].iter().map(|decision| decision.text.as_str()).collect();
    let others = probes.iter().filter(|text| !text.contains(" 1 x ")).count();
    assert!(others <= 2, "{probes:#?}");
    assert!(world.decisions.len() > served + 5, "the rest is measured afterwards");
}

/// A device that refuses a model's very first probe, and then has exactly as much room as before.
#[test]
fn a_model_whose_probes_were_refused_serves_once_they_are_not() {
    let mut world = World::new(12, Settings::default(), Bytes::mib(200));
    let mut unmeasured = model(Truth::SMALL);
    unmeasured.profile = Truth::SMALL.empty_profile();
    unmeasured.error = 1e6;
    let id = world.add(0, unmeasured, lane(&Truth::SMALL), Budget::SHARED);
    world.load_now(id);
    world.run_until(world.now + Micros::secs(1));
    assert!(world.decisions.iter().any(|decision| decision.purpose == Purpose::Probe), "one was tried");
    world.models.get_mut(&id).unwrap().error = 1.0;
    world.run_until(world.now + Micros::secs(30));
    let request = world.submit(request(id, &[512]));
    world.run_to_the_end();
    assert!(world.finished(request), "{:?}", world.answer(request));
}

/// A request whose shape is still to be measured waits as long as measuring takes, and not only as long as it would wait for
/// memory.
#[test]
fn who_waits_for_a_measurement_is_not_refused_for_memory() {
    let settings = Settings { memory_wait_max: Micros::secs(2), ..Settings::default() };
    let mut world = World::new(13, settings, Bytes::mib(400));
    let slow = Truth { micros_base: 400_000.0, ..Truth::SMALL };
    let mut unmeasured = model(slow);
    unmeasured.profile = slow.empty_profile();
    let id = world.add(0, unmeasured, lane(&slow), Budget::SHARED);
    world.load_now(id);
    let start = world.now;
    let long = world.submit(request(id, &[512]));
    world.run_to_the_end();
    assert!(world.finished(long), "{:?}", world.answer(long));
    assert!(world.now > start + Micros::secs(4), "measuring takes longer than what is waited for memory");
}

/// Turns that a model could not use for want of memory are not saved up for later.
#[test]
fn a_model_that_was_short_of_memory_gets_its_share_from_then_on() {
    let mut world = World::new(6, Settings::default(), Bytes::mib(400));
    let ids = [0, 1].map(|id| world.add(id, model(Truth::SMALL), lane(&Truth::SMALL), Budget::SHARED));
    ids.iter().for_each(|&id| world.load_now(id));
    // 8 MiB are left: enough for rows of 16 tokens, not for one of 512.
    world.at(world.now, Event::Neighbour(Bytes::mib(206)));
    let load = [request(ids[0], &[16]), request(ids[1], &[512])];
    let used = saturate(&mut world, &load, 100, Micros::secs(4));
    assert!(used[0] > 3_900_000 && used[1] == 0, "{used:?}");
    world.at(world.now, Event::Neighbour(Bytes::ZERO));
    world.run_until(world.now + Micros::millis(200));
    let used = saturate(&mut world, &load, 100, Micros::secs(4));
    let part = used[1] as f64 / (used[0] + used[1]) as f64;
    assert!((part - 0.5).abs() < 0.05, "{used:?}");
}
