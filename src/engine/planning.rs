//! Would these models fit together?

use super::core::Core;
use super::memory_view::PlanError;
use crate::memory::{FitLine, FitPlan, Profile, Reading, RowFacts, fit_plan};
use crate::model::Blueprint;
use crate::units::{Bytes, ModelId};

impl Core {
    /// The fit table of `models` under `budget` (`None`: the server's own). Changes nothing.
    pub(super) fn plan(
        &mut self,
        models: &[ModelId],
        budget: Option<Bytes>,
        reading: &Reading,
    ) -> Result<FitPlan, PlanError> {
        let mut lines = Vec::with_capacity(models.len());
        for &model in models {
            let registered = self.shared.registry.get(model);
            let broken = |reason: &str| PlanError::Broken { name: registered.name.clone(), reason: reason.to_owned() };
            let life = self.life(model);
            let resident = (life.resident > Bytes::ZERO).then_some(life.resident);
            let blueprint = life.blueprint.clone();
            let Some(blueprint) = blueprint else {
                return Err(broken(registered.definition.as_ref().err().map_or("", String::as_str)));
            };
            let measured = self.scheduler.profile(model).cloned();
            let profile = measured.or_else(|| self.rig.stored_profile(&blueprint));
            lines.push(fit_line(model, &blueprint, profile.as_ref(), resident));
        }
        let available = self.ledger.books().available();
        Ok(fit_plan(lines, budget.unwrap_or(available).saturating_sub(reading.library)))
    }
}

/// One model's line: what it holds or would hold, and the workspace of its smallest and its best step of the longest
/// rows, as far as its profile knows.
pub fn fit_line(model: ModelId, blueprint: &Blueprint, profile: Option<&Profile>, resident: Option<Bytes>) -> FitLine {
    let axes = blueprint.axes();
    let longest = axes.extent.max;
    let at_knee = |profile: &Profile| profile.predicted(axes.kind.at(profile.knee(longest)?, longest));
    let least = axes.kind.of_rows([RowFacts { tokens: longest }]);
    FitLine {
        model,
        weights: resident.unwrap_or_else(|| blueprint.resident()),
        workspace_knee: profile.and_then(at_knee),
        workspace_least: profile.and_then(|profile| profile.predicted(least)),
        resident: resident.is_some(),
    }
}
