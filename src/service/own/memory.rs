//! `plimsoll.v1.Memory`.

use std::fmt::Write;

use tonic::{Request, Response, Status};

use super::{Own, convert};
use crate::engine::{Failure, MemorySnapshot, MemoryTrace, TraceHolder as Holder, TraceMoment as Moment};
use crate::memory::{FitPlan, ModelBooks, Verdict};
use crate::service::errors::Problem;
use crate::service::port::{Inference, Operations};
use crate::service::proto::plimsoll as wire;
use crate::service::proto::plimsoll::memory_server::Memory;
use crate::units::{Bytes, ModelId};

#[tonic::async_trait]
impl<E: Inference + Operations> Memory for Own<E> {
    async fn snapshot(
        &self,
        _: Request<wire::MemorySnapshotRequest>,
    ) -> Result<Response<wire::MemorySnapshotResponse>, Status> {
        let snapshot = self.context.engine.memory().await.map_err(of_server)?;
        Ok(Response::new(write_snapshot(&snapshot, |model| self.context.engine.name(model))))
    }

    async fn plan(
        &self,
        request: Request<wire::MemoryPlanRequest>,
    ) -> Result<Response<wire::MemoryPlanResponse>, Status> {
        let wire::MemoryPlanRequest { models, budget_bytes } = request.into_inner();
        let mut ids = Vec::with_capacity(models.len());
        for name in &models {
            ids.push(self.context.find(name)?.id);
        }
        let budget = (budget_bytes != 0).then_some(Bytes::new(budget_bytes));
        let plan = self.context.engine.plan(ids, budget).await.map_err(of_server)?.map_err(Problem::Plan)?;
        Ok(Response::new(write_plan(&plan, |model| self.context.engine.name(model))))
    }

    async fn trace(
        &self,
        request: Request<wire::MemoryTraceRequest>,
    ) -> Result<Response<wire::MemoryTraceResponse>, Status> {
        let wire::MemoryTraceRequest { model, rows, length } = request.into_inner();
        let found = self.context.find(&model)?;
        let trace = self.context.engine.trace(found.id, rows, length).await.map_err(of_server)?;
        let trace = trace.map_err(|error| Problem::Trace { model: model.clone(), error })?;
        Ok(Response::new(write_trace(&model, &trace)))
    }
}

/// Moments of a timeline that a message may have: about 10 bytes each. The picture shows all.
const TIMELINE_MAX: usize = 65_536;

/// A trace for people's eyes and for programs.
fn write_trace(model: &str, trace: &MemoryTrace) -> wire::MemoryTraceResponse {
    let MemoryTrace { shape, predicted, peak, time, trace } = trace;
    let holder = |holder: &Holder| wire::TraceHolder {
        layer: holder.layer.clone(),
        operation: holder.operation.clone(),
        shape: holder.shape.clone(),
        bytes: holder.bytes.get(),
        blocks: holder.blocks,
    };
    let moment = |moment: &Moment| wire::TraceMoment { at_us: moment.at.get(), live_bytes: moment.live.get() };
    let title = format!("{model}: memory of a step of {shape}");
    wire::MemoryTraceResponse {
        shape: shape.to_string(),
        predicted_bytes: predicted.get(),
        peak_bytes: peak.get(),
        peak_at_us: trace.peak_at.get(),
        time_us: time.get(),
        holders: trace.holders.iter().map(holder).collect(),
        timeline: trace.timeline.iter().take(TIMELINE_MAX).map(moment).collect(),
        events_missed: trace.missed,
        // Nothing known goes wrong with drawing; the numbers are there in any case.
        timeline_svg: trace.svg(&title).unwrap_or_default(),
    }
}

/// A failure that is of no model.
fn of_server(failure: Failure) -> Problem {
    Problem::Failed { model: String::new(), failure }
}

fn write_snapshot(snapshot: &MemorySnapshot, name: impl Fn(ModelId) -> String) -> wire::MemorySnapshotResponse {
    let (reading, ledger) = (&snapshot.reading, &snapshot.ledger);
    let model = |books: &ModelBooks| wire::ModelMemory {
        model: name(books.model),
        weights_bytes: books.weights.get(),
        kv_bytes: books.kv.get(),
        budget: Some(convert::write_budget(books.budget)),
        headroom_bytes: books.headroom.bytes.get(),
        step_peak_bytes: books.step_peak.get(),
    };
    wire::MemorySnapshotResponse {
        device: snapshot.device.clone(),
        capacity_bytes: ledger.books.capacity.get(),
        safety_bytes: ledger.books.safety.get(),
        fixed_bytes: ledger.books.fixed.get(),
        free_bytes: reading.free.get(),
        library_bytes: reading.library.get(),
        workspace_reserved_bytes: reading.workspace_reserved.get(),
        workspace_cached_bytes: reading.workspace_cached.get(),
        leased_bytes: ledger.leased.get(),
        headroom_bytes: ledger.headroom.get(),
        models: ledger.models.iter().map(model).collect(),
        json: snapshot.json(&name).to_string(),
    }
}

fn write_plan(plan: &FitPlan, name: impl Fn(ModelId) -> String) -> wire::MemoryPlanResponse {
    let known = |bytes: Option<Bytes>| bytes.map_or(0, Bytes::get);
    let lines = plan.lines.iter().map(|line| wire::PlanLine {
        model: name(line.model),
        weights_bytes: line.weights.get(),
        workspace_knee_bytes: known(line.workspace_knee),
        workspace_least_bytes: known(line.workspace_least),
        resident: line.resident,
    });
    wire::MemoryPlanResponse {
        fits: plan.verdict != Verdict::DoesNotFit,
        lines: lines.collect(),
        needed_bytes: plan.needed.get(),
        available_bytes: plan.available.get(),
        text: table(plan, name),
    }
}

/// The plan for people.
fn table(plan: &FitPlan, name: impl Fn(ModelId) -> String) -> String {
    let cell = |bytes: Option<Bytes>| bytes.map_or("not measured".to_owned(), |bytes| bytes.to_string());
    let mut text = format!("{:<28} {:>12} {:>14} {:>14}  resident\n", "model", "weights", "least step", "best step");
    let mut line = |cells: std::fmt::Arguments| text.write_fmt(cells).expect("a String takes every text");
    for one in &plan.lines {
        let (least, knee) = (cell(one.workspace_least), cell(one.workspace_knee));
        let resident = if one.resident { "yes" } else { "no" };
        line(format_args!("{:<28} {:>12} {least:>14} {knee:>14}  {resident}\n", name(one.model), one.weights));
    }
    let verdict = match plan.verdict {
        Verdict::Fits => "fits with every model's best batch",
        Verdict::Tight => "fits, with smaller batches or workspace that is not measured yet",
        Verdict::DoesNotFit => "does not fit",
    };
    line(format_args!("needed {}, wanted {}, available {}: {verdict}\n", plan.needed, plan.wanted, plan.available));
    text
}
