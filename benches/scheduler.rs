//! Time to choose a step of 32 rows and to complete it, while so many requests wait; and to accept a request.
//!
//! `cargo bench --bench scheduler`. Bounds for a step: 20 us with 1,000 waiting, 40 us with 100,000.

use std::cell::RefCell;

use divan::Bencher;
use plimsoll::admission::{QueueLimits, RequestLimits};
use plimsoll::memory::{
    Axes, Axis, Budget, DeviceBooks, Ledger, LoadNeed, Measured, Observed, Outcome, Profile, Reading, Readings,
    RowFacts, Rungs, ShapeKind, Slack, Terms,
};
use plimsoll::scheduler::{Batching, LaneSettings, Priority, Scheduler, Settings, Waiting, WhileNotReady};
use plimsoll::units::{Bytes, Micros, ModelId, RequestId, Timestamp};

const MODEL: ModelId = ModelId::new(0);
const STEP_ROWS: u32 = 32;
const STEP_TIME: Micros = Micros::millis(10);
const READING: Reading = Reading {
    at: Timestamp::START,
    free: Bytes::gib(8),
    total: Bytes::gib(8),
    workspace_reserved: Bytes::ZERO,
    workspace_cached: Bytes::ZERO,
    library: Bytes::ZERO,
    leftovers: Bytes::ZERO,
};

fn main() {
    divan::main();
}

/// A server with one model whose queue is kept full.
struct Bench {
    scheduler: Scheduler,
    ledger: Ledger,
    now: Timestamp,
    next: u64,
}

fn profile() -> Profile {
    let axis = |max| Axis { min: 1, max, splits: Vec::new() };
    let axes = Axes {
        kind: ShapeKind::Padded,
        batch: axis(256),
        extent: axis(512),
        step_tokens_max: 1 << 16,
        measured_tokens_min: 512,
    };
    let mut profile = Profile::new(axes, Slack::CPU);
    while let Some(probe) = profile.next_probe(Bytes::MAX) {
        let tokens = probe.shape.tokens();
        // A large fixed part, so that batches of 32 are worth measuring at every length.
        let time = Micros::new(200_000 + 5 * tokens);
        profile.record(Measured { shape: probe.shape, peak: Bytes::new(1_000_000 + 9_000 * tokens), time });
    }
    profile
}

impl Bench {
    fn new(waiting: u64) -> Bench {
        let books = DeviceBooks {
            capacity: Bytes::gib(8),
            safety: Bytes::mib(64),
            fixed: Bytes::ZERO,
            terms: Terms::CPU,
            readings: Readings::Live,
        };
        let mut ledger = Ledger::new(books).expect("8 GiB are enough");
        ledger.register(MODEL, Budget::SHARED, false).expect("the first model fits");
        let need = LoadNeed { resident: Bytes::mib(90), transient: Bytes::ZERO, least_workspace: Bytes::mib(1) };
        ledger.loading(MODEL, need);
        ledger.loaded(MODEL, need.resident);
        // Fixed, so that every step has 32 rows; the work of looking for them is the same.
        let settings = Settings { batching: Batching::Fixed(STEP_ROWS), ..Settings::default() };
        let mut scheduler = Scheduler::new(settings);
        let lane = LaneSettings {
            kind: ShapeKind::Padded,
            share: 1.0,
            target_latency: None,
            max_linger: Micros::ZERO,
            request: RequestLimits { rows_max: 1_024, length_max: 512 },
            queue: QueueLimits { rows: u64::MAX, tokens: u64::MAX, host_bytes: Bytes::MAX },
            while_not_ready: WhileNotReady::Refuse,
            load_timeout: Micros::secs(60),
        };
        scheduler.add_lane(MODEL, lane);
        scheduler.lane_ready(Timestamp::START, MODEL, profile());
        let mut bench = Bench { scheduler, ledger, now: Timestamp::START, next: 0 };
        bench.submit(waiting);
        bench
    }

    /// Lengths from 8 to 512 in a fixed scatter, every other one with a deadline far off.
    fn submit(&mut self, count: u64) {
        for _ in 0..count {
            let tokens = 8 + (self.next.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as u32 % 505;
            let waiting = Waiting {
                id: RequestId::new(self.next),
                model: MODEL,
                rows: vec![RowFacts { tokens }],
                host_bytes: Bytes::new(u64::from(tokens) * 8),
                arrival: self.now,
                deadline: self.next.is_multiple_of(2).then_some(self.now + Micros::secs(100_000)),
                priority: Priority::Normal,
            };
            self.next += 1;
            self.scheduler.submit(self.now, waiting, &self.ledger).expect("there is no limit");
        }
    }

    /// One step from choice to completion; gives the rows that it took.
    fn step(&mut self) -> u64 {
        let step = self.scheduler.poll_step(self.now, &READING, &mut self.ledger).expect("the queue is full");
        let rows = step.members.len() as u64;
        let peak = step.lease.predicted;
        self.now = self.now + STEP_TIME;
        let seen = Observed { peak, reach: peak, time: STEP_TIME, rungs: Rungs::default(), outcome: Outcome::Done };
        let done = self.scheduler.complete(self.now, step, &seen, &[], &mut self.ledger);
        divan::black_box_drop(done);
        rows
    }

    /// In the steady state: the window has been walked through.
    fn steady(waiting: u64) -> Bench {
        let mut bench = Bench::new(waiting);
        let mut rows = 0;
        for _ in 0..500 {
            let taken = bench.step();
            bench.submit(taken);
            rows += taken;
        }
        assert!(rows > 500 * 30, "{rows} rows in 500 steps: batches are not formed as they should be");
        bench
    }
}

#[divan::bench(args = [1_000, 10_000, 100_000], sample_count = 2_000, sample_size = 1)]
fn step_of_32_rows(bencher: Bencher, waiting: u64) {
    let bench = RefCell::new(Bench::steady(waiting));
    let taken = RefCell::new(0);
    bencher.with_inputs(|| bench.borrow_mut().submit(taken.take())).bench_local_values(|()| {
        *taken.borrow_mut() = bench.borrow_mut().step();
    });
}

#[divan::bench(args = [1_000, 10_000, 100_000], sample_count = 2_000, sample_size = 1)]
fn accept_one(bencher: Bencher, waiting: u64) {
    let mut bench = Bench::steady(waiting);
    bencher.bench_local(|| bench.submit(1));
}
