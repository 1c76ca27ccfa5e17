//! One model's lane: its classes, its profile, and what it has used.

use super::fair::Flow;
use super::overtaking::Overtaking;
use super::queue::Queue;
use super::settings::{LaneSettings, Settings, WhileNotReady};
use super::waiting::Priority;
use crate::admission::{DrainRate, Occupancy, Rejection};
use crate::memory::{Drift, ProbeRuns, Profile};
use crate::units::{Bytes, Micros, RequestId, Timestamp};

/// Whether steps of a lane may be chosen and requests may join it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LaneState {
    /// Not loaded, and why.
    Down(Rejection),
    /// Being loaded.
    Loading,
    /// Serving.
    Ready,
    /// Serving what waits, taking no more.
    Draining,
}

/// Who a charge of device time goes to; the least urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Claim {
    /// Measuring the profile.
    Survey,
    /// The requests of a class.
    Class(Priority),
}

impl Claim {
    pub(super) const ALL: [Claim; 4] =
        [Claim::Survey, Claim::Class(Priority::Low), Claim::Class(Priority::Normal), Claim::Class(Priority::High)];
}

/// One priority class of a lane.
#[derive(Debug)]
pub(super) struct Class {
    pub(super) queue: Queue,
    pub(super) flow: Flow,
    pub(super) overtaking: Overtaking,
    /// When it was last looked for a request that fits.
    pub(super) searched: Timestamp,
}

/// One model's lane.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) settings: LaneSettings,
    pub(super) state: LaneState,
    /// What is known of the model's steps; kept over an unload.
    pub(super) profile: Option<Profile>,
    /// The runs so far of the probe that is being measured.
    pub(super) probe_runs: ProbeRuns,
    /// How often the probe that is being measured has failed.
    pub(super) probe_faults: u32,
    /// End of the last run of a probe that went through.
    pub(super) probed: Timestamp,
    /// When probes that ran out of memory are tried again, if there are some.
    pub(super) retry_deferred_at: Option<Timestamp>,
    pub(super) drift: Drift,
    /// In the order of [`Priority::ALL`].
    classes: [Class; 3],
    pub(super) survey: Flow,
    pub(super) occupancy: Occupancy,
    pub(super) drain: DrainRate,
    /// End of the lane's last step.
    pub(super) last_step: Timestamp,
    /// About how many rows its larger batches have.
    pub(super) batch_rows: u32,
    /// Device time used so far.
    pub(super) device_time: Micros,
    /// The largest bytes for which a step was refused since the last one that was chosen, for the engine to make room.
    pub(super) shortfall: Option<Shortage>,
}

/// What the oldest request of a lane lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Bytes that its smallest step needs.
    pub needed: Bytes,
    /// Bytes that a step could have.
    pub available: Bytes,
}

impl Lane {
    pub(super) fn new(settings: LaneSettings, scheduler: &Settings) -> Self {
        let class = |priority: Priority| Class {
            queue: Queue::default(),
            flow: Flow::new(class_weight(&settings, priority)),
            overtaking: Overtaking::new(scheduler.overtaking_max),
            searched: Timestamp::START,
        };
        let survey_weight = class_weight(&settings, Priority::Normal) * scheduler.survey_share;
        Lane {
            settings,
            state: LaneState::Down(Rejection::NotLoaded),
            profile: None,
            probe_runs: ProbeRuns::default(),
            probe_faults: 0,
            probed: Timestamp::START,
            retry_deferred_at: None,
            drift: Drift::default(),
            classes: Priority::ALL.map(class),
            survey: Flow::new(survey_weight),
            occupancy: Occupancy::default(),
            drain: DrainRate::default(),
            last_step: Timestamp::START,
            batch_rows: 0,
            device_time: Micros::ZERO,
            shortfall: None,
        }
    }

    /// Changes the settings; the classes' claims on the device with them.
    pub(super) fn set(&mut self, settings: LaneSettings, survey_share: f64) {
        for priority in Priority::ALL {
            self.class_mut(priority).flow.set_weight(class_weight(&settings, priority));
        }
        self.survey.set_weight(class_weight(&settings, Priority::Normal) * survey_share);
        self.settings = settings;
    }

    pub(super) fn class(&self, priority: Priority) -> &Class {
        &self.classes[priority as usize]
    }

    pub(super) fn class_mut(&mut self, priority: Priority) -> &mut Class {
        &mut self.classes[priority as usize]
    }

    pub(super) fn flow_mut(&mut self, claim: Claim) -> &mut Flow {
        match claim {
            Claim::Class(priority) => &mut self.class_mut(priority).flow,
            Claim::Survey => &mut self.survey,
        }
    }

    /// Whether steps may be chosen.
    pub(super) fn is_serving(&self) -> bool {
        matches!(self.state, LaneState::Ready | LaneState::Draining)
    }

    /// Whether a request may join now.
    pub(super) fn is_open(&self) -> Result<(), Rejection> {
        let waits = self.settings.while_not_ready == WhileNotReady::Wait;
        match self.state {
            LaneState::Ready => Ok(()),
            LaneState::Loading if waits => Ok(()),
            LaneState::Loading => Err(Rejection::Loading { retry_after: self.settings.load_timeout }),
            LaneState::Draining => Err(Rejection::Draining),
            LaneState::Down(Rejection::Broken) => Err(Rejection::Broken),
            LaneState::Down(_) if waits => Ok(()),
            LaneState::Down(why) => Err(why),
        }
    }

    /// Classes in which something waits, the most urgent first.
    pub(super) fn waiting_classes(&self) -> impl Iterator<Item = Priority> + '_ {
        Priority::ALL.into_iter().rev().filter(|&priority| !self.class(priority).queue.is_empty())
    }

    /// Classes in which something waits that may be chosen now, the most urgent first.
    pub(super) fn ready_classes(&self) -> impl Iterator<Item = Priority> + '_ {
        self.waiting_classes().filter(|&priority| self.class(priority).queue.oldest().is_some())
    }

    /// The request that has waited longest.
    pub(super) fn oldest_waiting(&self) -> Option<RequestId> {
        self.waiting_classes().filter_map(|class| self.class(class).queue.oldest_waiting()).min()
    }

    /// Whether anything waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting_classes().next().is_none()
    }
}

/// The weight of a class in the division of device time.
fn class_weight(settings: &LaneSettings, priority: Priority) -> f64 {
    settings.share * f64::from(priority.factor())
}
