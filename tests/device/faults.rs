//! What a step that goes wrong does to its rows, and that it does nothing to the next step.

use super::*;
use plimsoll::device::drill::Drill;
use plimsoll::memory::Outcome;
use plimsoll::model::Fault;

/// Drills the first call of a model with three rows, checks the second, and returns the rows of the first.
fn drilled(model: u32, drill: Drill) -> Vec<Result<Vec<f32>, RowFailure>> {
    let bench = Bench::new();
    let model = ModelId::new(model);
    bench.load(model, DrillSettings { drills: [(0, drill)].into(), ..settings() });
    let first = bench.run(serve(model, rows(3, 4), Bytes::mib(1)));
    assert_eq!(first.observed.outcome, Outcome::Faulted);
    let second = bench.run(serve(model, rows(3, 4), Bytes::mib(1)));
    assert_eq!(second.observed.outcome, Outcome::Done);
    assert_eq!(second.resident, first.resident, "the failed step leaves nothing behind");
    let counters = bench.statistics.counters()[&model];
    assert_eq!((counters.steps, counters.steps_faulted), (2, 1));
    first.rows
}

#[test]
fn an_error_is_every_row_s_fault() {
    let fault = Fault::Model { message: "drilled error".to_owned() };
    assert_eq!(drilled(810_001, Drill::Error), vec![Err(RowFailure::Fault(fault)); 3]);
}

#[test]
fn a_panic_is_every_row_s_fault_and_leaves_the_thread_alive() {
    let fault = Fault::Panicked { message: "drilled panic".to_owned() };
    assert_eq!(drilled(810_002, Drill::Panic), vec![Err(RowFailure::Fault(fault)); 3]);
}

#[test]
fn a_row_that_is_not_a_number_fails_alone() {
    let rows = drilled(810_003, Drill::NotANumber { row: 1 });
    assert_eq!(rows[0], Ok(expected(0, 4)));
    assert_eq!(rows[1], Err(RowFailure::Fault(Fault::NotFinite { row: 1 })));
    assert_eq!(rows[2], Ok(expected(2, 4)));
}

#[test]
fn a_missing_row_is_every_row_s_fault() {
    let fault = Fault::Model { message: "the model returned 2 rows for 3".to_owned() };
    assert_eq!(drilled(810_004, Drill::LosesARow), vec![Err(RowFailure::Fault(fault)); 3]);
}

#[test]
fn a_load_that_fails_leaves_nothing_and_is_told() {
    let bench = Bench::new();
    let model = ModelId::new(810_005);
    let errs = |_: &candle_core::Device| Err("the file is cut short".into());
    let panics = |_: &candle_core::Device| panic!("a shape is wrong");
    let check =
        |loader: Box<dyn Loader>, text: &str| match bench.send(Order::Load { model, ceiling: Bytes::MAX, loader }) {
            Report::Loaded { result: Err(fault), .. } => assert!(fault.to_string().contains(text), "{fault}"),
            other => panic!("not refused: {other:?}"),
        };
    check(Box::new(errs), "the file is cut short");
    check(Box::new(panics), "a shape is wrong");
    bench.load(model, settings());
}

#[test]
fn a_step_of_a_model_that_is_not_there_is_a_fault() {
    let bench = Bench::new();
    let ran = bench.run(serve(ModelId::new(810_006), rows(2, 1), Bytes::mib(1)));
    assert!(ran.rows.iter().all(|row| matches!(row, Err(RowFailure::Fault(Fault::Model { .. })))));
}

#[test]
fn orders_before_a_stop_are_answered_and_none_after_it() {
    let bench = Bench::new();
    bench.thread.send(Order::Trim { keep: Bytes::MAX }).unwrap();
    bench.thread.send(Order::Stop).unwrap();
    assert!(matches!(bench.next(), Report::Trimmed { .. }));
    let end = Instant::now() + Duration::from_secs(60);
    while bench.thread.send(Order::Stop).is_ok() {
        assert!(Instant::now() < end, "the thread has not ended");
        std::thread::yield_now();
    }
}

#[test]
fn a_load_that_runs_out_of_memory_says_how_much_it_lacks_and_may_come_again() {
    let bench = Bench::new();
    let model = ModelId::new(810_009);
    let send = || {
        let loader = move |device: &candle_core::Device| {
            Ok(Box::new(DrillModel::new(settings(), device)?) as Box<dyn plimsoll::model::Model>)
        };
        match bench.send(Order::Load { model, ceiling: Bytes::mib(9), loader: Box::new(loader) }) {
            Report::Loaded { result, .. } => result,
            other => panic!("a load was answered with {other:?}"),
        }
    };
    let room = Bytes::mib(5);
    bench.room.store(room.get(), std::sync::atomic::Ordering::Relaxed);
    let failure = send().unwrap_err();
    assert_eq!(failure, LoadFailure::OutOfMemory(Shortfall { needed: Bytes::mib(9), available: room }));
    assert_eq!(failure.to_string(), "out of memory while loading: 9.00 MiB are needed and 5.00 MiB can be had");
    bench.room.store(u64::MAX, std::sync::atomic::Ordering::Relaxed);
    assert!(send().unwrap().resident >= Bytes::mib(8));
}
