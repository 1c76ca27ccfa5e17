//! The form of a stored profile.

use serde::{Deserialize, Serialize};

use super::{Listed, ProfileFacts};
use crate::memory::{Axes, Axis, Role, Shape, ShapeKind, Table, TableLine};
use crate::units::{Bytes, Micros};

/// Raised when the form changes; older files are then measured anew.
const SCHEMA: u32 = 1;

/// Points of a profile. One that was measured has a few hundred at most.
const POINTS_MAX: usize = 10_000;

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
pub enum FormError {
    /// It is longer than a profile is.
    #[error("is longer than the {allowed} bytes that a profile may have")]
    TooLong {
        /// Bytes allowed.
        allowed: u64,
    },
    /// It is not JSON, or has other fields.
    #[error("is not a profile: {0}")]
    Json(serde_json::Error),
    /// Another version of this program wrote it.
    #[error("has schema {found}; this program reads schema {SCHEMA}")]
    OtherSchema {
        /// Its schema.
        found: u32,
    },
    /// Its facts do not have the key that it says.
    #[error("says key {found}, but its facts have key {expected}: it was changed by hand or damaged")]
    OtherKey {
        /// What it says.
        found: String,
        /// What its facts give.
        expected: String,
    },
    /// Its facts are not those that were asked for.
    #[error("is the profile of another model or device")]
    OtherFacts,
    /// An axis is empty or starts at 0.
    #[error("has the axis {axis} from {min} to {max}; it has to start at 1 or more and not end before it starts")]
    BadAxis {
        /// `batch` or `extent`.
        axis: &'static str,
        /// Its start.
        min: u32,
        /// Its end.
        max: u32,
    },
    /// Too many points.
    #[error("has {found} points; at most {POINTS_MAX} are read")]
    TooMany {
        /// Points that it has.
        found: usize,
    },
}

/// The JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProfileFile {
    schema: u32,
    key: String,
    model: String,
    facts: ProfileFacts,
    axes: AxesForm,
    points: Vec<PointForm>,
    unmeasured: Vec<Place>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AxesForm {
    kind: KindForm,
    batch: AxisForm,
    extent: AxisForm,
    step_tokens_max: u32,
    measured_tokens_min: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AxisForm {
    min: u32,
    max: u32,
    splits: Vec<u32>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum KindForm {
    Padded,
    Ragged,
    Generate,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Place {
    batch: u32,
    extent: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PointForm {
    batch: u32,
    extent: u32,
    role: RoleForm,
    peak_bytes: u64,
    time_us: u64,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RoleForm {
    Grid,
    HeldOut,
}

impl ProfileFile {
    pub(super) fn of(model: &str, facts: &ProfileFacts, table: &Table) -> ProfileFile {
        let axis = |axis: &Axis| AxisForm { min: axis.min, max: axis.max, splits: axis.splits.clone() };
        let place = |shape: &Shape| {
            let (batch, extent) = shape.position();
            Place { batch, extent }
        };
        let point = |line: &TableLine| {
            let Place { batch, extent } = place(&line.shape);
            let role = match line.role {
                Role::Grid => RoleForm::Grid,
                Role::HeldOut => RoleForm::HeldOut,
            };
            PointForm { batch, extent, role, peak_bytes: line.peak.get(), time_us: line.time.get() }
        };
        let kind = match table.axes.kind {
            ShapeKind::Padded => KindForm::Padded,
            ShapeKind::Ragged => KindForm::Ragged,
            ShapeKind::Generate => KindForm::Generate,
        };
        ProfileFile {
            schema: SCHEMA,
            key: facts.key(),
            model: model.to_owned(),
            facts: facts.clone(),
            axes: AxesForm {
                kind,
                batch: axis(&table.axes.batch),
                extent: axis(&table.axes.extent),
                step_tokens_max: table.axes.step_tokens_max,
                measured_tokens_min: table.axes.measured_tokens_min,
            },
            points: table.lines.iter().map(point).collect(),
            unmeasured: table.unmeasured.iter().map(place).collect(),
        }
    }

    pub(super) fn text(&self) -> String {
        // Only maps with other keys than strings and failing `Serialize`s can fail, and there are none.
        let mut text = serde_json::to_string_pretty(self).expect("plain data is JSON");
        text.push('\n');
        text
    }

    /// Reads and checks a text. Whether the points can be those of the model is checked by
    /// [`crate::memory::Profile::from_table`].
    pub(super) fn parse(text: &str) -> Result<Listed, FormError> {
        // The schema first: a file of another one may have any fields.
        let Schema { schema } = serde_json::from_str(text).map_err(FormError::Json)?;
        if schema != SCHEMA {
            return Err(FormError::OtherSchema { found: schema });
        }
        let file: ProfileFile = serde_json::from_str(text).map_err(FormError::Json)?;
        let expected = file.facts.key();
        if file.key != expected {
            return Err(FormError::OtherKey { found: file.key, expected });
        }
        let found = file.points.len() + file.unmeasured.len();
        if found > POINTS_MAX {
            return Err(FormError::TooMany { found });
        }
        let kind = match file.axes.kind {
            KindForm::Padded => ShapeKind::Padded,
            KindForm::Ragged => ShapeKind::Ragged,
            KindForm::Generate => ShapeKind::Generate,
        };
        let axes = Axes {
            kind,
            batch: axis("batch", file.axes.batch)?,
            extent: axis("extent", file.axes.extent)?,
            step_tokens_max: file.axes.step_tokens_max,
            measured_tokens_min: file.axes.measured_tokens_min,
        };
        let line = |point: PointForm| TableLine {
            shape: kind.at(point.batch, point.extent),
            role: match point.role {
                RoleForm::Grid => Role::Grid,
                RoleForm::HeldOut => Role::HeldOut,
            },
            predicted: None,
            peak: Bytes::new(point.peak_bytes),
            time: Micros::new(point.time_us),
        };
        let table = Table {
            axes,
            lines: file.points.into_iter().map(line).collect(),
            unmeasured: file.unmeasured.into_iter().map(|place| kind.at(place.batch, place.extent)).collect(),
        };
        Ok(Listed { key: file.key, model: file.model, facts: file.facts, table })
    }
}

#[derive(Deserialize)]
struct Schema {
    schema: u32,
}

fn axis(axis: &'static str, form: AxisForm) -> Result<Axis, FormError> {
    let AxisForm { min, max, splits } = form;
    if min == 0 || max < min {
        return Err(FormError::BadAxis { axis, min, max });
    }
    Ok(Axis { min, max, splits })
}
