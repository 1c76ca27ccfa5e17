//! What load generators read between their windows: counters since the start of the server.

use super::repository;
use crate::engine::{ModelStatus, Tally};
use crate::service::context::{Context, HostTimes};
use crate::service::errors::Problem;
use crate::service::port::Inference;
use crate::service::proto::inference::{
    InferBatchStatistics, InferStatistics, MemoryUsage, ModelStatistics, StatisticDuration,
};
use crate::units::Micros;

/// The counters of the model of this name; of every one where the name is empty.
pub(crate) fn of_models<E: Inference>(
    context: &Context<E>,
    name: &str,
    version: &str,
) -> Result<Vec<ModelStatistics>, Problem> {
    if !name.is_empty() {
        let target = context.target(name)?;
        context.check_version(&target.definition.card, version)?;
    }
    let statuses = context.engine.statuses().into_iter();
    let asked = statuses.filter(|status| name.is_empty() || status.name == name);
    let of_model = |status: ModelStatus| {
        of_model(&status, &repository::version(context, &status.name), &context.host_times(status.id))
    };
    Ok(asked.map(of_model).collect())
}

/// The counters of one model.
fn of_model(status: &ModelStatus, version: &str, host: &HostTimes) -> ModelStatistics {
    let counted = &status.statistics;
    let answered = counted.success.count;
    let (tokenize_us, finish_us) = host.read();
    let batches = counted.batches.iter().map(|(rows, steps)| InferBatchStatistics {
        batch_size: u64::from(*rows),
        compute_input: duration(steps.count, Micros::ZERO),
        compute_infer: tally(*steps),
        compute_output: duration(steps.count, Micros::ZERO),
    });
    ModelStatistics {
        name: status.name.clone(),
        version: version.to_owned(),
        last_inference: counted.last_answer_unix_ms,
        inference_count: counted.rows,
        execution_count: counted.steps,
        inference_stats: Some(InferStatistics {
            success: tally(counted.success),
            fail: tally(counted.fail),
            queue: tally(counted.queue),
            compute_input: duration(answered, Micros::new(tokenize_us)),
            compute_infer: tally(counted.compute),
            compute_output: duration(answered, Micros::new(finish_us)),
            cache_hit: duration(0, Micros::ZERO),
            cache_miss: duration(0, Micros::ZERO),
        }),
        batch_stats: batches.collect(),
        memory_usage: vec![MemoryUsage { r#type: "weights".to_owned(), id: 0, byte_size: status.resident.get() }],
        ..ModelStatistics::default()
    }
}

fn tally(tally: Tally) -> Option<StatisticDuration> {
    duration(tally.count, tally.total)
}

fn duration(count: u64, total: Micros) -> Option<StatisticDuration> {
    Some(StatisticDuration { count, ns: total.get().saturating_mul(1_000) })
}
