//! The device's thread: it owns the device, every model on it and every tensor.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{self, AssertUnwindSafe};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{hint, io};

use super::statistics::{Event, Statistics};
use super::step::{Progress, Queued, StepRunner};
use super::{Change, Hardware, LoadFailure, Loaded, Loader, Order, Patience, Released, Report, Run, RunPurpose};
use crate::model::{Fault, Model};
use crate::units::{Bytes, Micros, ModelId};

/// Where orders go. The engine holds one; in tests it may be anything that answers with reports.
pub trait Executor: Send {
    /// Queues an order. The queue is not bounded here: the engine has at most two steps in flight, and a load or an
    /// unload for each model.
    ///
    /// # Errors
    /// [`Stopped`] once the thread has ended: no report will come.
    fn send(&self, order: Order) -> Result<(), Stopped>;
}

/// The device's thread has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device's thread has ended")]
pub struct Stopped;

/// A running device thread. Dropping it stops the thread after the orders before it and waits for its end.
pub struct DeviceThread {
    orders: mpsc::Sender<Order>,
    thread: Option<JoinHandle<()>>,
}

impl DeviceThread {
    /// Starts a thread named `name` that builds its device with `hardware` and answers through `reports`, which is
    /// called on the thread and should only hand the report on.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start<H: Hardware>(
        name: &str,
        hardware: impl FnOnce() -> H + Send + 'static,
        statistics: Statistics,
        reports: impl FnMut(Report) + Send + 'static,
    ) -> io::Result<DeviceThread> {
        let (orders, queue) = mpsc::channel();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            let models = BTreeMap::new();
            let (queued, free_since) = (VecDeque::new(), Instant::now());
            let hardware = hardware();
            let patience = hardware.patience();
            let mut owner = Owner { hardware, patience, models, statistics, reports, queued, free_since };
            // Also ends when every sender is gone.
            while let Some(order) = owner.next(&queue) {
                if let Next::Stop = owner.carry_out(order) {
                    break;
                }
            }
        })?;
        Ok(DeviceThread { orders, thread: Some(thread) })
    }
}

impl Executor for DeviceThread {
    fn send(&self, order: Order) -> Result<(), Stopped> {
        self.orders.send(order).map_err(|_| Stopped)
    }
}

impl Drop for DeviceThread {
    fn drop(&mut self) {
        // An error means that the thread has ended already.
        let _ = self.orders.send(Order::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the device's thread had panicked");
        }
    }
}

enum Next {
    Order,
    Stop,
}

/// A model on the device. Fields drop in this order: the tensors before the account that they are charged to.
pub(super) struct Tenant<A> {
    pub(super) model: Box<dyn Model>,
    pub(super) account: A,
}

/// Everything that lives on the thread.
struct Owner<H: Hardware, R> {
    hardware: H,
    patience: Patience,
    models: BTreeMap<ModelId, Tenant<H::Account>>,
    statistics: Statistics,
    reports: R,
    /// Steps that the device works on, in its order: two at most, since nobody sends more.
    queued: VecDeque<Queued>,
    /// The end of the step before them.
    free_since: Instant,
}

impl<H: Hardware, R: FnMut(Report)> Owner<H, R> {
    /// The next order. While the device works on a step, an order that comes before the step's end is taken first, so
    /// that a step behind it is ready by then; steps that end are reported.
    fn next(&mut self, orders: &mpsc::Receiver<Order>) -> Option<Order> {
        loop {
            let Some(running) = self.queued.front() else {
                let soon = self.patience.look(Duration::MAX, || orders.try_recv().ok());
                return soon.or_else(|| orders.recv().ok());
            };
            match orders.try_recv() {
                Ok(order) => return Some(order),
                // A step is over in a millisecond or ten, and its caller waits for it: no sleep is short enough.
                Err(mpsc::TryRecvError::Empty) if !running.is_done() => hint::spin_loop(),
                Err(_) => self.finish_one(),
            }
        }
    }

    /// Reports the step that the device was given first of those that it works on, when it has ended.
    fn finish_one(&mut self) {
        let Some(queued) = self.queued.pop_front() else { return };
        let free_since = self.free_since;
        let ran = self.runner().finish(queued, free_since);
        self.free_since = Instant::now();
        (self.reports)(Report::Ran(ran));
    }

    fn finish_all(&mut self) {
        while !self.queued.is_empty() {
            self.finish_one();
        }
    }

    fn runner(&mut self) -> StepRunner<'_, H> {
        StepRunner { hardware: &mut self.hardware, models: &mut self.models, statistics: &self.statistics }
    }

    fn run(&mut self, run: Run) {
        // What is measured is to have the device to itself.
        if run.purpose != RunPurpose::Serve {
            self.finish_all();
        }
        match self.runner().run(run) {
            Progress::Queued(queued) => self.queued.push_back(queued),
            Progress::Done(ran, evicted) => {
                // Reports come in the order of the orders.
                self.finish_all();
                self.free_since = Instant::now();
                evicted.into_iter().for_each(|gone| (self.reports)(Report::Evicted(gone)));
                (self.reports)(Report::Ran(ran));
            }
        }
    }

    fn carry_out(&mut self, order: Order) -> Next {
        if !matches!(order, Order::Run(_)) {
            self.finish_all();
        }
        match order {
            Order::Load { model, ceiling, loader } => {
                let result = self.load(model, ceiling, loader);
                (self.reports)(Report::Loaded { model, result });
            }
            Order::Run(run) => self.run(run),
            Order::Unload { model } => {
                let gone = unload(&mut self.hardware, &mut self.models, &self.statistics, model);
                (self.reports)(Report::Unloaded(gone));
            }
            Order::Trim { keep } => {
                let released = self.hardware.trim(keep);
                if released > Bytes::ZERO {
                    self.statistics.record(Event::Trimmed { released_bytes: released.get() });
                }
                (self.reports)(Report::Trimmed { released });
            }
            Order::Stop => return Next::Stop,
        }
        Next::Order
    }

    fn load(&mut self, model: ModelId, ceiling: Bytes, loader: Box<dyn Loader>) -> Result<Loaded, LoadFailure> {
        assert!(!self.models.contains_key(&model), "the engine loads a model once");
        let started = Instant::now();
        let result = self.hardware.load(model, ceiling, |device| {
            // A model that is given up half made is dropped here, still inside its account.
            match panic::catch_unwind(AssertUnwindSafe(|| loader.load(device).map_err(|error| error.to_string()))) {
                Ok(loaded) => loaded.map_err(|message| Fault::Model { message }),
                Err(payload) => Err(Fault::Panicked { message: panic_text(&*payload) }),
            }
        });
        let time = Micros::from(started.elapsed());
        let failure = match result {
            Ok((loaded, account)) => {
                let resident = self.hardware.resident(&account);
                let axes = loaded.axes();
                self.models.insert(model, Tenant { model: loaded, account });
                self.statistics.loaded(model, resident, time);
                return Ok(Loaded { resident: resident.total(), peak: resident.weights_peak, time, axes });
            }
            Err(LoadFailure::Fault(panicked @ Fault::Panicked { .. })) => {
                self.hardware.check().err().unwrap_or(panicked).into()
            }
            Err(failure) => failure,
        };
        self.hardware.settle();
        self.statistics.record(Event::LoadFailed { model: model.get(), reason: failure.to_string() });
        Err(failure)
    }
}

/// Drops a model, if it is loaded, and returns its memory.
pub(super) fn unload<H: Hardware>(
    hardware: &mut H,
    models: &mut BTreeMap<ModelId, Tenant<H::Account>>,
    statistics: &Statistics,
    model: ModelId,
) -> Released {
    let Some(tenant) = models.remove(&model) else {
        return Released { model, released: Bytes::ZERO, left: Bytes::ZERO, free: None };
    };
    let free_before = hardware.free();
    let before = hardware.resident(&tenant.account);
    let Tenant { model: tensors, account } = tenant;
    if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(|| drop(tensors))) {
        tracing::error!(model = model.get(), "dropping the model panicked: {}", panic_text(&*payload));
    }
    let left = hardware.close(account);
    hardware.settle();
    let free = free_before.zip(hardware.free()).map(|(before, after)| Change { before, after });
    let gone = Released { model, released: before.total().saturating_sub(left), left, free };
    statistics.unloaded(&gone);
    gone
}

/// The text of a panic.
pub(super) fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text").to_owned()
}
