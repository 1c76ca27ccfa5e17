//! The invariants that are checked after every event and for every step.

use plimsoll::memory::RowFacts;
use plimsoll::scheduler::{Batching, Member, Priority, Purpose, Step, Work};
use plimsoll::units::{Micros, RequestId};

use crate::world::{Decision, Record, World};

impl World {
    /// The invariants between two events.
    pub(crate) fn check(&self) {
        self.scheduler.check();
        self.ledger.check().expect("the books balance");
        assert_eq!(self.scheduler.watchdog_bites(), 0);
        assert_eq!(self.scheduler.open_requests(), self.open.len(), "accepted and not answered means open");
    }

    /// The invariants of a step that was just chosen; marks its rows.
    pub(crate) fn check_step(&mut self, step: &Step) {
        assert!(step.lease.predicted <= step.lease.ceiling, "{step:?}");
        assert!(step.lease.predicted <= step.headroom, "{step:?}");
        let kind = self.models[&step.model].truth.kind;
        self.decide(step);
        if step.purpose == Purpose::Probe {
            assert!(step.members.is_empty());
            return;
        }
        let lengths = step.members.iter().map(|member| RowFacts { tokens: self.tokens(member.request, member.work) });
        assert_eq!(step.shape, kind.of_rows(lengths), "the shape is that of the members");
        assert!(step.members.is_sorted_by_key(|member| (member.request, member.work)), "rows keep their order");
        let ends = self.now + self.scheduler.remainder(self.now);
        let late = |member: &Member| self.requests[&member.request].facts.deadline.is_some_and(|end| end < ends);
        let fixed = matches!(self.batching, Batching::Fixed(_));
        assert!(fixed || !step.members.iter().any(late), "it is over at {ends:?}, too late for a member: {step:?}");
        let reason = step.reason;
        self.coverage.hit(&format!("reason: {}", reason.as_str()));

        let (overtaken, classes) = self.examine(step);
        if classes > 1 {
            self.coverage.hit("step: several classes");
        }
        for id in overtaken {
            self.requests.get_mut(&id).expect("open").overtaken += 1;
        }
        for member in &step.members {
            let Work::Row { index } = member.work else { unreachable!("nothing here generates") };
            let record = self.requests.get_mut(&member.request).expect("members are requests");
            assert_eq!(record.answer, None, "{} is answered already", member.request);
            let before = record.rows_in[index as usize].replace(step.id.get());
            assert_eq!(before, None, "row {index} of {} is in two steps", member.request);
        }
    }

    /// Whom a step overtakes, and how many classes it holds; checks that it holds the oldest request that fits of one.
    pub(crate) fn examine(&self, step: &Step) -> (Vec<RequestId>, usize) {
        let kind = self.models[&step.model].truth.kind;
        let profile = self.scheduler.profile(step.model).expect("a step needs a profile");
        let drift = self.scheduler.lanes().find(|lane| lane.model == step.model).expect("registered").drift;
        // It begins when what the device has before it is done.
        let starts = self.now + self.scheduler.remainder(self.now).saturating_sub(step.predicted_time);
        // Which requests could have been in the step, seen with the profile alone.
        let fits = |record: &Record, time_left: Micros| {
            let waiting = record.facts.rows.iter().zip(&record.rows_in).filter(|(_, step)| step.is_none());
            waiting.map(|(row, _)| kind.of_rows([*row])).any(|alone| {
                let peak = profile.predicted(alone).map(|peak| if drift == 1.0 { peak } else { peak.scale(drift) });
                let time = profile.time(alone).map(|time| time.max(time_left));
                let in_time = time.is_some_and(|time| record.facts.deadline.is_none_or(|end| starts + time <= end));
                peak.is_some_and(|peak| peak <= step.headroom) && in_time
            })
        };
        let mine = |id: &RequestId| {
            let record = &self.requests[id];
            record.facts.model == step.model && record.held_until <= self.now
        };
        let waiting: Vec<RequestId> = self.open.keys().copied().filter(mine).collect();
        let mut has_oldest = false;
        let (mut classes, mut overtaken) = (0, Vec::new());
        for class in Priority::ALL {
            let of_class = |id: &RequestId| self.requests[id].facts.priority == class;
            let members: Vec<RequestId> = step.members.iter().map(|member| member.request).filter(of_class).collect();
            let Some(&youngest) = members.iter().max() else { continue };
            classes += 1;
            let oldest = waiting.iter().find(|id| of_class(id) && fits(&self.requests[*id], Micros::ZERO));
            has_oldest |= oldest.is_some_and(|oldest| members.contains(oldest));
            let passed = waiting.iter().filter(|id| of_class(id) && **id < youngest && !members.contains(id));
            overtaken.extend(passed.filter(|id| fits(&self.requests[*id], step.predicted_time)).copied());
        }
        assert!(has_oldest, "a step holds the oldest request that fits of one class: {step:?}");
        (overtaken, classes)
    }

    pub(crate) fn decide(&mut self, step: &Step) {
        let real = step.members.iter().map(|member| u64::from(self.tokens(member.request, member.work))).sum();
        let mut names: Vec<String> = Vec::new();
        for member in &step.members {
            let Work::Row { index } = member.work else { unreachable!("nothing here generates") };
            names.push(format!("{}.{index}", member.request));
        }
        let rows = if step.members.is_empty() { "probe".to_owned() } else { names.join(" ") };
        let text = format!("{} {} {} {}: {rows}", self.now.get(), step.model, step.shape, step.reason.as_str());
        self.decisions.push(Decision {
            at: self.now,
            model: step.model,
            purpose: step.purpose,
            rows: step.members.len(),
            padded_tokens: step.shape.tokens(),
            real_tokens: real,
            text,
        });
    }
}
