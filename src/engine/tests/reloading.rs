//! Revisions follow each other while requests come in.

use super::world::{Asked, Setup, World, id, model, offer, on_demand, weights};
use crate::config::{Amount, ModelConfig};
use crate::engine::inbox::Message;
use crate::engine::{Change, ChangeKind, ChangeRefusal, Changed, ModelState, Offer};
use crate::memory::{Budget, BudgetRefusal};
use crate::model::Fault;
use crate::units::{Bytes, Micros, ModelId};

type Reload = Asked<Result<Vec<Changed>, ChangeRefusal>>;

fn apply(world: &mut World, changes: impl IntoIterator<Item = Change>) -> Reload {
    let changes = changes.into_iter().collect();
    world.ask(|reply| Message::Apply { changes, reply })
}

fn replace(name: &str) -> Change {
    Change::Replace(offer(model(name)))
}

fn changed(model: &str, kind: ChangeKind, outcome: Result<u32, &str>) -> Changed {
    Changed { model: model.to_owned(), kind, in_place: outcome.is_ok(), outcome: outcome.map_err(str::to_owned) }
}

/// The revision that a name stands for, held by nobody.
fn current(world: &World, name: &str) -> ModelId {
    world.find(name).expect("the name stands for a revision").id
}

#[test]
fn a_revision_is_loaded_beside_the_one_that_it_replaces() {
    let mut world = World::ready(Setup::of([model("a")]).with_room_for(2));
    let mut reload = apply(&mut world, [replace("a")]);
    reload.assert_waits();
    assert_eq!(current(&world, "a"), id(0), "the old one serves until the new one can");
    let meanwhile = world.submit(current(&world, "a"), &[4, 9]);
    assert!(world.is_ready());
    world.rest();
    world.assert_success(meanwhile);
    assert_eq!(reload.answer(), Ok(vec![changed("a", ChangeKind::Replaced, Ok(2))]));
    let found = world.find("a").expect("it is served");
    assert_eq!((found.id, found.version(), world.state(found.id)), (id(1), 2, ModelState::Ready));
    let after = world.submit(found.id, &[3]);
    world.rest();
    world.assert_success(after);
    world.advance(Micros::secs(1));
    world.rest();
    assert_eq!(world.machine().held.keys().copied().collect::<Vec<_>>(), [id(1)], "the old one's bytes are back");
    assert!(world.is_ready());
}

#[test]
fn a_call_that_holds_the_old_revision_is_served_by_it() {
    let mut world = World::ready(Setup::of([model("a")]).with_room_for(2));
    let held = world.find("a").expect("it is served");
    let mut reload = apply(&mut world, [replace("a")]);
    world.rest();
    assert!(reload.answer().is_ok());
    assert_eq!(current(&world, "a"), id(1));
    world.advance(Micros::secs(5));
    world.rest();
    // It was being tokenized meanwhile.
    let late = world.submit(held.id, &[7]);
    world.rest();
    world.assert_success(late);
    assert_eq!(world.machine().held.len(), 2);
    drop(held);
    world.advance(Micros::secs(1));
    world.rest();
    assert_eq!(world.machine().held.keys().copied().collect::<Vec<_>>(), [id(1)]);

    // Whoever never lets go does not keep the memory.
    let stuck = world.find("a").expect("it is served");
    let mut reload = apply(&mut world, [replace("a")]);
    world.rest();
    assert!(reload.answer().is_ok());
    world.advance(Micros::secs(61));
    world.rest();
    assert_eq!(world.machine().held.keys().copied().collect::<Vec<_>>(), [id(2)]);
    let refused = world.submit(stuck.id, &[1]);
    world.rest();
    assert!(world.answered(refused).1.is_err());
}

#[test]
fn where_both_do_not_fit_the_old_one_makes_room() {
    let mut world = World::ready(Setup::of([model("a")]).with_room_for(1));
    let before = world.submit(id(0), &[16; 6]);
    let mut reload = apply(&mut world, [replace("a")]);
    world.finish();
    assert_eq!(current(&world, "a"), id(1), "who comes now waits for the new one");
    let meanwhile = world.submit(id(1), &[5]);
    world.rest();
    world.assert_success(before);
    world.advance(Micros::secs(1));
    world.rest();
    world.assert_success(meanwhile);
    assert_eq!(reload.answer(), Ok(vec![changed("a", ChangeKind::Replaced, Ok(2))]));
    assert_eq!(world.machine().loads, [id(0), id(1)]);
    assert_eq!(world.machine().unloads, [id(0)]);
    assert_eq!(world.machine().held.keys().copied().collect::<Vec<_>>(), [id(1)]);
}

#[test]
fn nobody_else_has_to_go_for_a_successor() {
    let mut world = World::ready(Setup::of([model("a"), model("b")]).with_room_for(2));
    world.advance(Micros::secs(60));
    let mut reload = apply(&mut world, [replace("a")]);
    world.rest();
    world.advance(Micros::secs(1));
    world.rest();
    assert!(reload.answer().is_ok());
    assert_eq!(world.machine().unloads, [id(0)], "the old one went, and not the other model");
}

#[test]
fn a_revision_that_cannot_be_loaded_leaves_the_old_one_in_place() {
    let mut world = World::ready(Setup::of([model("a")]).with_room_for(2));
    world.machine().load_fault = Some(Fault::Model { message: "a tensor is missing".to_owned() });
    let mut reload = apply(&mut world, [replace("a")]);
    world.rest();
    let changes = reload.answer().expect("the reload was allowed");
    let [Changed { outcome: Err(reason), .. }] = &changes[..] else { panic!("{changes:?}") };
    assert!(reason.contains("a tensor is missing"), "{reason}");
    assert_eq!((current(&world, "a"), world.state(id(0)), world.is_ready()), (id(0), ModelState::Ready, true));
    let request = world.submit(id(0), &[2]);
    world.rest();
    world.assert_success(request);
    // It was mended.
    let mut reload = apply(&mut world, [replace("a")]);
    world.rest();
    assert_eq!(reload.answer(), Ok(vec![changed("a", ChangeKind::Replaced, Ok(2))]));
}

#[test]
fn a_revision_whose_steps_fail_leaves_the_old_one_in_place() {
    let mut world = World::ready(Setup::of([model("a")]).with_room_for(2));
    world.machine().probe_faults = (u32::MAX, 1);
    let mut reload = apply(&mut world, [replace("a")]);
    world.rest();
    let changes = reload.answer().expect("the reload was allowed");
    let [Changed { outcome: Err(reason), in_place: false, .. }] = &changes[..] else { panic!("{changes:?}") };
    assert!(reason.contains("not finite"), "{reason}");
    assert_eq!((current(&world, "a"), world.state(id(0)), world.is_ready()), (id(0), ModelState::Ready, true));
    world.advance(Micros::secs(120));
    let request = world.submit(id(0), &[2]);
    world.rest();
    world.assert_success(request);
    assert_eq!(world.machine().held.keys().copied().collect::<Vec<_>>(), [id(0)], "nothing of the other is left");
}

#[test]
fn a_revision_that_is_measured_slowly_does_not_take_the_name_before_it_can_serve() {
    let mut world = World::ready(Setup::of([model("a")]).with_room_for(2));
    world.machine().step_time = Micros::secs(12);
    let mut reload = apply(&mut world, [replace("a")]);
    let began = world.now;
    while world.now < began + Micros::secs(70) {
        assert!(world.finish(), "it is being measured");
        assert_eq!(world.state(current(&world, "a")), ModelState::Ready, "the name stands for one that serves");
    }
    reload.assert_waits();
    world.machine().step_time = Micros::millis(1);
    world.rest();
    assert_eq!(reload.answer(), Ok(vec![changed("a", ChangeKind::Replaced, Ok(2))]));
    assert_eq!(current(&world, "a"), id(1));
}

#[test]
fn a_model_that_is_not_there_is_replaced_at_once() {
    let mut world = World::ready(Setup::of([on_demand("a")]));
    let mut reload = apply(&mut world, [Change::Replace(offer(on_demand("a")))]);
    assert_eq!(reload.answer(), Ok(vec![changed("a", ChangeKind::Replaced, Ok(2))]));
    assert_eq!(current(&world, "a"), id(1));
    let request = world.submit(id(1), &[4]);
    world.rest();
    world.assert_success(request);
    assert_eq!(world.machine().loads, [id(1)], "the old one is not loaded any more");
}

#[test]
fn all_of_a_reload_is_done_or_nothing() {
    let mut world = World::ready(Setup::of([model("a"), model("b")]));
    let broken = Offer { name: "a".to_owned(), required: true, absent: false, model: Err("no config.json".to_owned()) };
    let greedy = |name: &str| ModelConfig { guaranteed: Amount::Percent(60.0), ..model(name) };
    let mut check = |changes: Vec<Change>, expected: fn(&ChangeRefusal) -> bool| {
        let refused = apply(&mut world, changes).answer().expect_err("it is refused");
        assert!(expected(&refused), "{refused:?}");
        world.rest();
        assert_eq!((current(&world, "a"), current(&world, "b")), (id(0), id(1)));
        assert_eq!((world.core.shared.board.copy(id(0)).revision, world.machine().loads.len()), (1, 2), "{refused}");
    };
    check(vec![replace("b"), Change::Replace(broken)], |refused| matches!(refused, ChangeRefusal::Broken { .. }));
    check(vec![Change::Tune(greedy("a")), Change::Replace(offer(greedy("b")))], |refused| {
        matches!(refused, ChangeRefusal::Budget { refusal: BudgetRefusal::Guarantees { .. }, .. })
    });
    check(vec![replace("a"), Change::Remove("c".to_owned())], |refused| {
        matches!(refused, ChangeRefusal::Unknown { .. })
    });
    // One alone can be kept; and so can both where one gives up what the other gets.
    let mut reload = apply(&mut world, [Change::Tune(greedy("a"))]);
    assert!(reload.answer().is_ok());
    let mut reload = apply(&mut world, [Change::Tune(model("a")), Change::Tune(greedy("b"))]);
    assert_eq!(reload.answer().expect("it is allowed")[1].outcome, Ok(1));
}

#[test]
fn one_reload_is_under_way_at_a_time_and_none_while_the_server_goes_down() {
    let mut world = World::ready(Setup::of([model("a")]));
    let mut first = apply(&mut world, [replace("a")]);
    assert_eq!(apply(&mut world, [replace("a")]).answer(), Err(ChangeRefusal::Busy));
    world.rest();
    assert!(first.answer().is_ok());
    world.tell(Message::Drain { reply: tokio::sync::oneshot::channel().0 });
    assert_eq!(apply(&mut world, [replace("a")]).answer(), Err(ChangeRefusal::Draining));
}

#[test]
fn settings_hold_without_a_load() {
    let mut world = World::ready(Setup::of([model("a")]));
    let limit = weights() + Bytes::mib(8);
    let config = ModelConfig { share: 3.0, pinned: true, limit: Some(Amount::Bytes(limit)), ..model("a") };
    let held = world.find("a").expect("it is served");
    let mut reload = apply(&mut world, [Change::Tune(config)]);
    assert_eq!(reload.answer(), Ok(vec![changed("a", ChangeKind::Tuned, Ok(1))]));
    let status = world.core.shared.board.copy(id(0));
    assert_eq!((status.share, status.pinned, status.budget.limit, status.revision), (3.0, true, limit, 2));
    let now = world.find("a").expect("it is served").definition.clone().expect("it can be read");
    assert_eq!((now.config.share, world.machine().loads.len()), (3.0, 1));
    // Whoever found it before has not lost it, whatever comes next.
    let mut reload = apply(&mut world, [replace("a")]);
    world.rest();
    assert!(reload.answer().is_ok());
    world.advance(Micros::secs(5));
    world.rest();
    let late = world.submit(held.id, &[2]);
    world.rest();
    world.assert_success(late);
    drop(held);
    world.advance(Micros::secs(1));
    world.rest();
    assert_eq!(world.machine().held.len(), 1);
}

#[test]
fn models_come_and_go() {
    let mut world = World::ready(Setup::of([model("a")]));
    let before = world.submit(id(0), &[16; 6]);
    let mut reload = apply(
        &mut world,
        [Change::Remove("a".to_owned()), Change::Add(offer(model("b"))), Change::Add(offer(on_demand("c")))],
    );
    assert!(world.find("a").is_none(), "nobody finds it any more");
    assert!(!world.is_ready(), "b is required and is being loaded");
    world.rest();
    world.assert_success(before);
    let expected = [
        changed("a", ChangeKind::Removed, Ok(1)),
        changed("b", ChangeKind::Added, Ok(1)),
        changed("c", ChangeKind::Added, Ok(1)),
    ];
    assert_eq!(reload.answer(), Ok(expected.to_vec()));
    assert!(world.is_ready());
    world.advance(Micros::secs(1));
    world.rest();
    let here: Vec<ModelId> = world.machine().held.keys().copied().collect();
    assert_eq!(here, [current(&world, "b")]);
    let request = world.submit(current(&world, "c"), &[4]);
    world.rest();
    world.assert_success(request);
}

#[test]
fn what_was_unloaded_by_hand_stays_away() {
    let mut world = World::ready(Setup::of([model("a")]));
    let mut unload = world.ask(|reply| Message::Unload { model: id(0), reply });
    world.rest();
    assert!(unload.answer().is_ok());
    let mut reload = apply(&mut world, [replace("a")]);
    world.rest();
    assert_eq!(reload.answer(), Ok(vec![changed("a", ChangeKind::Replaced, Ok(2))]));
    assert_eq!((world.state(current(&world, "a")), world.machine().loads.len()), (ModelState::NotLoaded, 1));
    let mut load = world.ask(|reply| Message::Load { model: id(1), reply });
    world.rest();
    assert_eq!(load.answer(), Ok(()));
}

#[test]
fn health_does_not_flap_while_a_revision_takes_over() {
    for room in [1, 2] {
        let mut world = World::ready(Setup::of([model("a")]).with_room_for(room));
        let seen = world.core.shared.health.subscribe();
        let mut reload = apply(&mut world, [replace("a")]);
        for _ in 0..200 {
            assert!(seen.borrow().ready, "the server is ready all the time, room for {room}");
            // Without room for both the model itself is being loaded for a while.
            assert!(room == 1 || seen.borrow().serves("a"));
            if !world.finish() {
                world.advance(Micros::millis(50));
            }
        }
        assert!(reload.answer().is_ok());
        assert!(seen.borrow().serves("a"));
    }
}

#[test]
fn a_guarantee_follows_the_name() {
    let guaranteed = weights() + Bytes::mib(1);
    let own = |name: &str| ModelConfig { guaranteed: Amount::Bytes(guaranteed), ..model(name) };
    for room in [1, 2] {
        let mut world = World::ready(Setup::of([own("a")]).with_room_for(room));
        let mut reload = apply(&mut world, [Change::Replace(offer(own("a")))]);
        world.rest();
        world.advance(Micros::secs(1));
        world.rest();
        assert!(reload.answer().is_ok());
        world.advance(Micros::secs(1));
        world.rest();
        let status = world.core.shared.board.copy(current(&world, "a"));
        assert_eq!((status.budget.guaranteed, status.revision > 1), (guaranteed, true), "room for {room}");
    }
    // What one gives up another gets, in whichever order they are named.
    let half = |name: &str| ModelConfig { guaranteed: Amount::Percent(60.0), ..model(name) };
    let mut world = World::ready(Setup::of([model("a"), half("b")]));
    let mut reload = apply(&mut world, [Change::Tune(half("a")), Change::Tune(model("b"))]);
    assert!(reload.answer().expect("it is allowed").iter().all(|line| line.outcome.is_ok()));
    let guaranteed = |world: &World, id: ModelId| world.core.shared.board.copy(id).budget.guaranteed;
    assert!(guaranteed(&world, id(0)) > Bytes::mib(200) && guaranteed(&world, id(1)) == Bytes::ZERO);
}

#[test]
fn a_guarantee_that_is_due_changes_nothing_else_when_it_is_given() {
    // Others hold what it would promise.
    let guaranteed = weights() + weights();
    let own = |name: &str| ModelConfig { guaranteed: Amount::Bytes(guaranteed), ..model(name) };
    for by_call in [false, true] {
        let mut world = World::ready(Setup::of([model("a"), model("b")]).with_room_for(2));
        assert!(apply(&mut world, [Change::Tune(own("a"))]).answer().is_ok());
        let status = |world: &World| world.core.shared.board.copy(id(0));
        assert_eq!(status(&world).budget.guaranteed, Bytes::ZERO, "it is due");
        world.ask(|reply| Message::Pin { model: id(0), pinned: true, reply }).answer();
        let set = Budget { guaranteed: Bytes::ZERO, limit: guaranteed + Bytes::mib(1) };
        if by_call {
            let call = |reply| Message::SetBudget { model: id(0), budget: set, expected_revision: None, reply };
            assert!(world.ask(call).answer().is_ok());
        }
        let before = status(&world);
        assert!(apply(&mut world, [Change::Remove("b".to_owned())]).answer().is_ok());
        world.rest();
        world.advance(Micros::secs(1));
        world.rest();
        let after = status(&world);
        assert!(after.pinned, "as the call has set it");
        let expected = if by_call { Bytes::ZERO } else { guaranteed };
        assert_eq!((after.budget.guaranteed, after.budget.limit), (expected, before.budget.limit));
        assert_eq!(after.revision > before.revision, !by_call, "whoever changes it next has to know of it");
    }
}

#[test]
fn a_successor_that_would_not_fit_alone_does_not_take_the_name() {
    let mut world = World::ready(Setup::of([model("a")]).with_room_for(1));
    let cramped = ModelConfig { limit: Some(Amount::Bytes(Bytes::mib(2))), required: false, ..model("a") };
    let mut reload = apply(&mut world, [Change::Replace(offer(cramped))]);
    world.rest();
    world.advance(Micros::secs(30));
    world.rest();
    let changes = reload.answer().expect("it was allowed");
    assert!(changes[0].outcome.is_err() && !changes[0].in_place, "{changes:?}");
    assert_eq!((current(&world, "a"), world.state(id(0)), world.is_ready()), (id(0), ModelState::Ready, true));
}

#[test]
fn a_model_that_is_unloaded_meanwhile_stays_away() {
    let mut world = World::ready(Setup::of([model("a")]).with_room_for(2));
    let mut reload = apply(&mut world, [replace("a")]);
    let mut unload = world.ask(|reply| Message::Unload { model: id(0), reply });
    world.rest();
    world.advance(Micros::secs(1));
    world.rest();
    assert!(reload.answer().is_ok() && unload.answer().is_ok());
    assert_eq!(world.state(current(&world, "a")), ModelState::NotLoaded);
    assert!(world.machine().held.is_empty());
}

#[test]
fn a_reload_is_answered_whatever_happens_to_its_models() {
    // The device is lost.
    let mut world = World::ready(Setup::of([model("a")]).with_room_for(2));
    let mut reload = apply(&mut world, [replace("a")]);
    world.tell(Message::DeviceEnded);
    assert!(reload.is_gone(), "its caller is told that the server goes down");
    // A new model has no room to be measured.
    let mut world = World::ready(Setup::of([model("a")]).with_room_for(2));
    let mut reload = apply(&mut world, [Change::Add(offer(ModelConfig { required: false, ..model("b") }))]);
    world.machine().load_room = Some((Bytes::kib(1), u32::MAX));
    for _ in 0..40 {
        world.rest();
        world.advance(Micros::secs(1));
    }
    let changes = reload.answer().expect("it was allowed");
    assert!(changes[0].outcome.is_err() && changes[0].in_place, "the name is taken by what failed: {changes:?}");
    // It is mended by another revision, and goes with its folder.
    world.machine().load_room = None;
    let mut reload = apply(&mut world, [replace("b")]);
    world.rest();
    assert_eq!(reload.answer(), Ok(vec![changed("b", ChangeKind::Replaced, Ok(2))]));
    assert!(apply(&mut world, [Change::Add(offer(model("b")))]).answer().is_err(), "it is served already");
    let mut reload = apply(&mut world, [Change::Remove("b".to_owned())]);
    assert!(reload.answer().is_ok());
    world.advance(Micros::secs(1));
    world.rest();
    assert_eq!(world.machine().held.len(), 1);
}

#[test]
fn where_two_have_no_room_for_a_step_the_old_one_makes_it() {
    let mut world = World::ready(Setup::of([model("a")]).with_room_for(2));
    let mut reload = apply(&mut world, [replace("a")]);
    world.finish();
    assert_eq!(world.machine().held.len(), 2, "their weights fit");
    let mut machine = world.machine();
    machine.cached = Bytes::ZERO;
    machine.neighbour = machine.total.saturating_sub(weights() * 2 + Bytes::kib(50));
    drop(machine);
    for _ in 0..30 {
        world.rest();
        world.advance(Micros::secs(1));
    }
    assert_eq!(reload.answer(), Ok(vec![changed("a", ChangeKind::Replaced, Ok(2))]));
    assert_eq!(world.machine().held.keys().copied().collect::<Vec<_>>(), [id(1)]);
}

#[test]
fn a_model_that_is_removed_while_it_is_measured_leaves() {
    let mut world = World::new(Setup::of([model("a"), on_demand("b")]));
    world.finish();
    assert_eq!(world.state(id(0)), ModelState::Loading);
    let mut reload = apply(&mut world, [Change::Remove("a".to_owned())]);
    assert!(reload.answer().is_ok());
    world.rest();
    world.advance(Micros::secs(1));
    world.rest();
    assert!(world.machine().held.is_empty());
    // The name comes back.
    let mut reload = apply(&mut world, [Change::Add(offer(model("a")))]);
    world.rest();
    assert_eq!(reload.answer(), Ok(vec![changed("a", ChangeKind::Added, Ok(1))]));
    let request = world.submit(current(&world, "a"), &[3]);
    world.rest();
    world.assert_success(request);
}

#[test]
fn twenty_revisions_under_load_lose_no_request() {
    for room in [1, 2] {
        let mut world = World::ready(Setup::of([model("a"), on_demand("b")]).with_room_for(room));
        let mut requests = Vec::new();
        for version in 2..22 {
            // It is busy when the next revision comes.
            let model = current(&world, "a");
            requests.extend([world.submit(model, &[16; 6]), world.submit(model, &[3, 11])]);
            let mut reload = apply(&mut world, [replace("a")]);
            for _ in 0..40 {
                let model = current(&world, "a");
                requests.push(world.submit(model, &[3, 11]));
                world.finish();
                world.advance(Micros::millis(20));
            }
            for _ in 0..3 {
                world.rest();
                world.advance(Micros::millis(300));
            }
            assert_eq!(reload.answer(), Ok(vec![changed("a", ChangeKind::Replaced, Ok(version))]));
        }
        assert_eq!(requests.len(), 20 * 42);
        for request in requests {
            world.assert_success(request);
        }
        let gone = world.core.models.iter().filter(|life| life.blueprint.is_none()).count();
        assert_eq!(gone, 20, "nothing is left of those before");
        assert_eq!(world.machine().held.len(), 1);
    }
}
