//! Would these models fit together?

use super::core::Core;
use super::memory_view::PlanError;
use crate::memory::{FitLine, FitPlan, Profile, Reading, RowFacts, Terms, fit_plan};
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
        let terms = self.ledger.books().terms;
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
            let weights = self.rig.taken_by(blueprint.resident());
            let line = fit_line(model, &blueprint, weights, profile.as_ref(), terms);
            lines.push(match resident {
                Some(weights) => FitLine { weights, transient: Bytes::ZERO, resident: true, ..line },
                None => line,
            });
        }
        let available = self.ledger.books().available();
        Ok(fit_plan(lines, budget.unwrap_or(available).saturating_sub(reading.library)))
    }
}

/// The line of a model that is not loaded, by what a load of it is planned with: what the load takes, of which `weights`
/// stay (the device rounds up), and the workspace of its smallest and its best step of the longest rows, as far as its
/// profile knows.
pub fn fit_line(
    model: ModelId,
    blueprint: &Blueprint,
    weights: Bytes,
    profile: Option<&Profile>,
    terms: Terms,
) -> FitLine {
    let axes = blueprint.axes();
    let longest = axes.extent.max;
    let at_knee = |profile: &Profile| profile.predicted(axes.kind.at(profile.knee(longest)?, longest));
    let least = axes.kind.of_rows([RowFacts { tokens: longest }]);
    FitLine {
        model,
        weights,
        transient: blueprint.transient(),
        workspace_knee: profile.and_then(at_knee),
        workspace_least: profile.and_then(|profile| profile.predicted(least)).map(|least| terms.taken(least)),
        resident: false,
    }
}
