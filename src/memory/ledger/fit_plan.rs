//! "Would this fit?" as a table.

use crate::units::{Bytes, ModelId};

/// One model of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FitLine {
    /// The model.
    pub model: ModelId,
    /// Bytes of its weights.
    pub weights: Bytes,
    /// Bytes that its load takes beside them, and gives back; none once it is loaded.
    pub transient: Bytes,
    /// Workspace at the knee of its longest rows: beyond it throughput gains little. `None` when not measured.
    pub workspace_knee: Option<Bytes>,
    /// Workspace of one row of the longest length, or whatever else it cannot do without. `None` when not measured.
    pub workspace_least: Option<Bytes>,
    /// It is loaded now.
    pub resident: bool,
}

/// How a plan turns out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// All weights and the smallest workspace, or the last load, do not fit together.
    DoesNotFit,
    /// It fits, with batches smaller than the knee, or an unknown workspace.
    Tight,
    /// It fits with room for every model's best batch.
    Fits,
}

/// Whether models fit together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FitPlan {
    /// One for each model.
    pub lines: Vec<FitLine>,
    /// The least that they need together: all weights and the largest of the least workspaces and of what a load takes,
    /// since steps and loads run one after another.
    pub needed: Bytes,
    /// All weights and the largest workspace at a knee; the same as `needed` where none is measured.
    pub wanted: Bytes,
    /// What they can have.
    pub available: Bytes,
    /// The answer.
    pub verdict: Verdict,
}

/// The plan of these models in so many bytes (the budget less safety, fixed bytes and library scratch).
pub fn fit_plan(lines: Vec<FitLine>, available: Bytes) -> FitPlan {
    let weights: Bytes = lines.iter().map(|line| line.weights).sum();
    let largest = |of: fn(&FitLine) -> Option<Bytes>| lines.iter().filter_map(of).max().unwrap_or(Bytes::ZERO);
    let load = largest(|line| Some(line.transient));
    let needed = weights + largest(|line| line.workspace_least).max(load);
    let wanted = needed.max(weights + largest(|line| line.workspace_knee));
    let all_known = lines.iter().all(|line| line.workspace_knee.is_some());
    let verdict = if needed > available {
        Verdict::DoesNotFit
    } else if wanted > available || !all_known {
        Verdict::Tight
    } else {
        Verdict::Fits
    };
    FitPlan { lines, needed, wanted, available, verdict }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_add_up_and_workspace_is_shared() {
        let line = |model, weights, knee: Option<u64>, least| FitLine {
            model: ModelId::new(model),
            weights: Bytes::mib(weights),
            transient: Bytes::ZERO,
            workspace_knee: knee.map(Bytes::mib),
            workspace_least: Some(Bytes::mib(least)),
            resident: false,
        };
        let check = |lines: &[FitLine], available, verdict, needed, wanted| {
            let plan = fit_plan(lines.to_vec(), Bytes::mib(available));
            assert_eq!((plan.verdict, plan.needed, plan.wanted), (verdict, Bytes::mib(needed), Bytes::mib(wanted)));
        };
        let two = [line(0, 100, Some(50), 5), line(1, 200, Some(30), 8)];
        check(&two, 350, Verdict::Fits, 308, 350);
        check(&two, 349, Verdict::Tight, 308, 350);
        check(&two, 308, Verdict::Tight, 308, 350);
        check(&two, 307, Verdict::DoesNotFit, 308, 350);
        check(&[two[0], line(1, 200, None, 8)], 1000, Verdict::Tight, 308, 350);
        check(&[], 0, Verdict::Fits, 0, 0);
        // A load takes as much again as a step, or more, and never at the same time.
        let loading = |line, transient| FitLine { transient: Bytes::mib(transient), ..line };
        check(&[loading(two[0], 4), loading(two[1], 6)], 350, Verdict::Fits, 308, 350);
        let larger = [loading(two[0], 40), two[1]];
        check(&larger, 340, Verdict::Tight, 340, 350);
        check(&larger, 339, Verdict::DoesNotFit, 340, 350);
        check(&[loading(two[0], 60), two[1]], 360, Verdict::Fits, 360, 360);
    }
}
