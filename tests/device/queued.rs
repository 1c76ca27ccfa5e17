//! Steps that a device goes on with by itself: one behind the other, reported in their order.

use std::ops::Deref;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::Ordering::SeqCst;

use super::*;
use plimsoll::memory::{Axes, Axis, Outcome, ShapeKind};
use plimsoll::model::{Fault, Later, Output};

/// What the test and the model share.
#[derive(Default)]
struct Shared {
    /// Steps that were started.
    started: AtomicU64,
    /// Steps that may end.
    may_end: AtomicU64,
    /// What the next step that is waited for comes to, if not to its rows.
    fault: Mutex<Option<Fault>>,
    /// Bytes of the step that an answer keeps until it is fetched.
    kept: AtomicU64,
}

/// What a test has of [`Shared`]. Dropping it lets every step end: a device whose test has failed would wait for them for
/// ever, and the test for the device.
struct Reins(Arc<Shared>);

impl Drop for Reins {
    fn drop(&mut self) {
        self.0.may_end.store(u64::MAX, SeqCst);
    }
}

impl Deref for Reins {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

/// A model on a device that works by itself: the n-th step ends once `may_end` is above n.
struct Queuing(Arc<Shared>);

struct OnItsWay {
    shared: Arc<Shared>,
    number: u64,
    rows: Vec<Vec<f32>>,
    _kept: Vec<u8>,
}

impl Later for OnItsWay {
    fn is_there(&self) -> bool {
        self.shared.may_end.load(SeqCst) > self.number
    }

    fn wait(&self) -> Result<Vec<Vec<f32>>, Fault> {
        while !self.is_there() {
            std::thread::yield_now();
        }
        match self.shared.fault.lock().unwrap().take() {
            Some(fault) => Err(fault),
            None => Ok(self.rows.clone()),
        }
    }
}

impl Model for Queuing {
    fn axes(&self) -> Axes {
        let axis = |max| Axis { min: 1, max, splits: Vec::new() };
        let (batch, extent) = (axis(64), axis(64));
        Axes { kind: ShapeKind::Padded, batch, extent, step_tokens_max: 64, measured_tokens_min: 64 }
    }

    fn step(&mut self, batch: &Batch) -> Result<Output, Fault> {
        let number = self.0.started.fetch_add(1, SeqCst);
        let Batch::Tokens(rows) = batch;
        let rows = rows.iter().map(|row| vec![row.ids.iter().sum::<u32>() as f32, row.ids.len() as f32]).collect();
        let kept = vec![1; self.0.kept.load(SeqCst) as usize];
        Ok(Output::Later(Rc::new(OnItsWay { shared: self.0.clone(), number, rows, _kept: kept })))
    }
}

/// The reins come last: what is bound last is dropped first.
fn stage(model: ModelId) -> (Bench, Reins) {
    let (bench, shared) = (Bench::new(), Reins(Arc::default()));
    let own = shared.0.clone();
    let loader = move |_: &candle_core::Device| Ok(Box::new(Queuing(own)) as Box<dyn Model>);
    match bench.send(Order::Load { model, ceiling: Bytes::MAX, loader: Box::new(loader) }) {
        Report::Loaded { result: Ok(_), .. } => (bench, shared),
        other => panic!("not loaded: {other:?}"),
    }
}

fn run(step: u64, model: ModelId, count: u32) -> Order {
    Order::Run(Run { step: StepId::new(step), ..serve(model, rows(count, 2), Bytes::mib(1)) })
}

fn ran(report: Report) -> Ran {
    match report {
        Report::Ran(ran) => ran,
        other => panic!("not run: {other:?}"),
    }
}

/// Waits until the model has started so many steps.
fn until_started(shared: &Shared, steps: u64) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while shared.started.load(SeqCst) < steps {
        assert!(Instant::now() < deadline, "{steps} steps are never started");
        std::thread::yield_now();
    }
}

#[test]
fn a_step_is_started_while_the_one_before_it_runs() {
    let model = ModelId::new(821_001);
    let (bench, shared) = stage(model);
    bench.thread.send(run(0, model, 3)).unwrap();
    bench.thread.send(run(1, model, 2)).unwrap();
    until_started(&shared, 2);
    assert!(bench.reports.try_recv().is_err(), "neither has ended");
    shared.may_end.store(1, SeqCst);
    let first = ran(bench.next());
    assert_eq!((first.step, first.rows.len(), first.observed.outcome), (StepId::new(0), 3, Outcome::Done));
    assert_eq!(first.rows, (0..3).map(|row| Ok(expected(row, 2))).collect::<Vec<_>>());
    assert!(bench.reports.try_recv().is_err(), "the second has not ended");
    shared.may_end.store(2, SeqCst);
    let second = ran(bench.next());
    assert_eq!((second.step, second.rows.len()), (StepId::new(1), 2));
}

#[test]
fn a_steps_time_begins_when_the_one_before_it_has_ended() {
    let model = ModelId::new(821_002);
    let (bench, shared) = stage(model);
    let began = Instant::now();
    bench.thread.send(run(0, model, 1)).unwrap();
    bench.thread.send(run(1, model, 1)).unwrap();
    until_started(&shared, 2);
    std::thread::sleep(Duration::from_millis(30));
    shared.may_end.store(1, SeqCst);
    let first = ran(bench.next()).observed.time;
    shared.may_end.store(2, SeqCst);
    let second = ran(bench.next()).observed.time;
    let both = plimsoll::units::Micros::from(began.elapsed());
    assert!(first >= plimsoll::units::Micros::millis(30), "{first:?}");
    assert!(first + second <= both, "no moment counts twice: {first:?} and {second:?} in {both:?}");
}

#[test]
fn everything_else_waits_for_what_is_queued() {
    let model = ModelId::new(821_003);
    let (bench, shared) = stage(model);
    bench.thread.send(run(0, model, 1)).unwrap();
    until_started(&shared, 1);
    let measure = Run { purpose: RunPurpose::Measure, step: StepId::new(1), ..serve(model, rows(1, 2), Bytes::mib(1)) };
    bench.thread.send(Order::Run(measure)).unwrap();
    bench.thread.send(Order::Unload { model }).unwrap();
    std::thread::sleep(Duration::from_millis(10));
    assert_eq!(shared.started.load(SeqCst), 1, "what is measured has the device to itself");
    shared.may_end.store(2, SeqCst);
    assert_eq!(ran(bench.next()).step, StepId::new(0));
    let measured = ran(bench.next());
    assert_eq!((measured.step, measured.observed.outcome), (StepId::new(1), Outcome::Done));
    assert!(matches!(bench.next(), Report::Unloaded(gone) if gone.model == model));
}

#[test]
fn what_goes_wrong_on_the_device_is_the_fault_of_the_steps_rows() {
    let model = ModelId::new(821_004);
    let (bench, shared) = stage(model);
    let fault = Fault::Model { message: "told to".to_owned() };
    *shared.fault.lock().unwrap() = Some(fault.clone());
    shared.may_end.store(2, SeqCst);
    let first = ran(bench.send(run(0, model, 2)));
    assert_eq!(first.rows, vec![Err(RowFailure::Fault(fault)); 2]);
    assert_eq!(first.observed.outcome, Outcome::Faulted);
    assert_eq!(ran(bench.send(run(1, model, 2))).observed.outcome, Outcome::Done);
}

#[test]
fn parts_of_a_halved_step_come_in_order() {
    let model = ModelId::new(821_005);
    let (bench, shared) = stage(model);
    shared.may_end.store(u64::MAX, SeqCst);
    bench.room.store(1 << 19, SeqCst);
    let ran = ran(bench.send(run(0, model, 8)));
    assert_eq!(ran.rows, (0..8).map(|row| Ok(expected(row, 2))).collect::<Vec<_>>());
    assert!(ran.observed.rungs.halvings > 0 && shared.started.load(SeqCst) > 1);
}

#[test]
fn an_eviction_is_told_although_the_answer_comes_later() {
    let (model, idle) = (ModelId::new(821_006), ModelId::new(821_007));
    let (bench, shared) = stage(model);
    bench.load(idle, settings());
    shared.may_end.store(u64::MAX, SeqCst);
    // A trim does not help, an eviction does.
    bench.room.store(10, SeqCst);
    bench.refusals.store(2, SeqCst);
    let evictable = vec![idle];
    bench.thread.send(Order::Run(Run { evictable, ..serve(model, rows(1, 2), Bytes::mib(1)) })).unwrap();
    assert!(matches!(bench.next(), Report::Evicted(gone) if gone.model == idle));
    let ran = ran(bench.next());
    assert_eq!((ran.rows, ran.observed.rungs.trims, ran.observed.rungs.evictions), (vec![Ok(expected(0, 2))], 1, 1));
}

#[test]
fn what_an_answer_keeps_until_it_is_fetched_is_not_the_models() {
    let model = ModelId::new(821_008);
    let (bench, shared) = stage(model);
    shared.may_end.store(u64::MAX, SeqCst);
    let before = ran(bench.send(run(0, model, 1))).resident;
    shared.kept.store(1 << 20, SeqCst);
    let after = ran(bench.send(run(1, model, 1))).resident;
    assert!(after < before + Bytes::kib(64), "{after} where {before} were held");
}
