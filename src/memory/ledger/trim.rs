//! When cached workspace goes back to the device.
//!
//! Two reasons. *Decay*: what no step of the last window needed is returned, so a large batch does not hold its
//! workspace for ever and a neighbour that asks for memory finds it within two windows. *Pressure*: a neighbour is
//! taking memory now, so the cache is returned at once, down to a floor; or there is so little left that one may be
//! waiting.

use super::{Ledger, Readings, Residence};
use crate::memory::Reading;
use crate::units::{Bytes, Micros, Timestamp};

/// How eagerly cached workspace is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrimPolicy {
    /// Never returned, nor is what the smallest step of a loaded model needs: a neighbour that fills the device must
    /// not keep a model from running. Raising it saves small steps from asking the device; lowering it leaves more to
    /// neighbours.
    pub floor: Bytes,
    /// Length of a window: cache that no step needed for one to two windows is returned. Longer ones cost neighbours
    /// time; shorter ones make bursts ask the device for the same memory again.
    pub window: Micros,
    /// A fall of free memory between two readings that is not ours and larger than this is a neighbour taking memory.
    /// With less than this free above the safety margin, one may be waiting for some: what no step of the window now
    /// running needed is returned.
    pub pressure: Bytes,
}

impl Default for TrimPolicy {
    /// 8 MiB, 0.8 s, 64 MiB.
    fn default() -> TrimPolicy {
        TrimPolicy { floor: Bytes::mib(8), window: Micros::millis(800), pressure: Bytes::mib(64) }
    }
}

/// What steps needed lately.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Demand {
    /// Largest peak of the window now running, and of the one before.
    current: Bytes,
    before: Bytes,
    window_start: Timestamp,
    /// Cached workspace at the last look: while there is some, there is something to decide.
    cached: Bytes,
    /// Bytes that nobody else had at the last look: free ones and those of our workspace.
    ours_or_free: Option<Bytes>,
}

/// How much neighbours want what is cached.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pressure {
    /// There is room.
    None,
    /// There is hardly any: one who asks is refused, which is not to be seen from here.
    Tight,
    /// One takes memory now.
    Taking,
}

impl Demand {
    /// A step came by so much.
    pub(super) fn used(&mut self, reach: Bytes) {
        self.current = self.current.max(reach);
    }

    /// Begins a new window when the old one is over. However long ago that was, what it needed counts once more: a step
    /// may be longer than a window, and the next one like it should find its workspace.
    fn advance(&mut self, now: Timestamp, window: Micros) {
        if now.since(self.window_start) >= window {
            (self.before, self.current) = (self.current, Bytes::ZERO);
            self.window_start = now;
        }
    }
}

impl Ledger {
    /// Replaces the policy.
    pub fn set_trim_policy(&mut self, policy: TrimPolicy) {
        self.trim_policy = policy;
    }

    /// The workspace to keep, if some of what is cached should be returned now; the device's thread does so between two
    /// steps. To be asked after every step and at [`Ledger::wake_at`].
    pub fn trim(&mut self, now: Timestamp, reading: &Reading) -> Option<Bytes> {
        self.demand.advance(now, self.trim_policy.window);
        let pressure = self.pressure(reading);
        self.demand.cached = reading.workspace_cached;
        let keep = self.floor().max(match pressure {
            Pressure::Taking => Bytes::ZERO,
            Pressure::Tight => self.demand.current,
            Pressure::None => self.demand.current.max(self.demand.before),
        });
        let gives = reading.workspace_cached > keep + self.books.terms.trim_least;
        if gives {
            self.demand.cached = keep;
        }
        gives.then_some(keep)
    }

    /// What is never returned.
    fn floor(&self) -> Bytes {
        let resident = self.accounts.values().filter(|account| account.is_resident());
        resident.map(|account| account.least_workspace).fold(self.trim_policy.floor, Bytes::max)
    }

    /// Whether a neighbour is taking memory: what is not ours has grown since the last look, or little is left.
    fn pressure(&mut self, reading: &Reading) -> Pressure {
        if self.books.readings == Readings::Off {
            return Pressure::None;
        }
        let threshold = self.trim_policy.pressure;
        let tight = reading.free < self.books.safety + threshold;
        // A load takes memory that is booked already, or books what it has not taken yet: that is not a neighbour.
        let loading = self.accounts.values().any(|account| matches!(account.residence, Residence::Loading { .. }));
        let ours_or_free = reading.free + reading.workspace_reserved + reading.library + self.held();
        let before = std::mem::replace(&mut self.demand.ours_or_free, (!loading).then_some(ours_or_free));
        let taking = !loading && before.is_some_and(|before| ours_or_free + threshold < before);
        match (taking, tight) {
            (true, _) => Pressure::Taking,
            (false, true) => Pressure::Tight,
            (false, false) => Pressure::None,
        }
    }

    /// When [`Ledger::trim`] is to be asked again although no step has ended: at the end of the window, as long as
    /// there is cache that could be returned then.
    pub fn wake_at(&self) -> Option<Timestamp> {
        let idle = self.leases.is_empty() && self.demand.cached > self.floor() + self.books.terms.trim_least;
        idle.then(|| self.demand.window_start + self.trim_policy.window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::ledger::tests::{MIB, ledger, loaded, reading, seen};
    use crate::memory::{Lease, Observed, Readings};
    use crate::units::ModelId;

    const MODEL: ModelId = ModelId::new(0);

    /// A ledger whose only model has just run a step that needed `peak` MiB.
    fn after_step(readings: Readings, peak: u64) -> Ledger {
        let mut ledger = ledger(readings);
        loaded(&mut ledger, MODEL, 100);
        step(&mut ledger, peak);
        ledger
    }

    fn step(ledger: &mut Ledger, peak: u64) {
        let lease: Lease = ledger.lease(MODEL, MIB * peak, Bytes::ZERO, &reading(800, 0)).expect("it fits");
        ledger.give_back(lease, &seen(MIB * peak));
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::START + Micros::millis(millis)
    }

    #[test]
    fn a_large_batch_holds_its_workspace_for_at_most_two_windows() {
        // Case 4: one large batch, then small ones.
        let mut ledger = after_step(Readings::Live, 300);
        assert_eq!(ledger.trim(at(100), &reading(500, 300)), None);
        let (mut now, mut cached) = (100, 300);
        while cached > 20 {
            now += 100;
            step(&mut ledger, 20);
            if let Some(keep) = ledger.trim(at(now), &reading(800 - cached, cached)) {
                assert_eq!(keep, MIB * 20);
                cached = 20;
            }
            assert!(now <= 1_700, "still {cached} MiB after {now} ms");
        }
        assert!(now >= 800);
    }

    #[test]
    fn what_a_step_came_by_is_kept_for_the_next_one() {
        // It held 260 MiB at the worst moment, at places that are 300 together.
        let mut ledger = after_step(Readings::Live, 100);
        for now in (100..1_500).step_by(100) {
            let lease = ledger.lease(MODEL, MIB * 260, Bytes::ZERO, &reading(800, 0)).expect("it fits");
            ledger.give_back(lease, &Observed { reach: MIB * 300, ..seen(MIB * 260) });
            assert_eq!(ledger.trim(at(now), &reading(500, 300)), None);
        }
    }

    #[test]
    fn an_idle_server_wakes_up_to_return_its_cache_and_then_rests() {
        let mut ledger = after_step(Readings::Off, 300);
        let (mut now, mut cached) = (at(10), 300);
        assert_eq!(ledger.trim(now, &reading(500, cached)), None);
        let mut wakes = 0;
        while let Some(wake) = ledger.wake_at() {
            assert!(wake > now);
            (now, wakes) = (wake, wakes + 1);
            if let Some(keep) = ledger.trim(now, &reading(800 - cached, cached)) {
                assert_eq!(keep, MIB * 8);
                cached = 8;
            }
        }
        assert_eq!((cached, wakes), (8, 2));
        assert!(now < at(2_000), "a neighbour that asks gets idle cache within 2 s");
    }

    #[test]
    fn a_neighbours_pressure_returns_the_cache_at_once() {
        let check = |readings, before, now, expected| {
            let mut ledger = after_step(readings, 300);
            assert_eq!(ledger.trim(at(10), &reading(before, 300)), None);
            assert_eq!(ledger.trim(at(20), &reading(now, 300)), expected, "{before} to {now} MiB free");
        };
        check(Readings::Live, 500, 435, Some(MIB * 8)); // it took 65 MiB
        check(Readings::Live, 500, 436, None);
        check(Readings::Live, 120, 73, None); // it took less, and steps need what is cached
        check(Readings::Off, 500, 20, None);
    }

    #[test]
    fn on_a_full_device_only_what_steps_need_now_stays() {
        let check = |readings, free, expected| {
            let mut ledger = after_step(readings, 300);
            assert_eq!(ledger.trim(at(10), &reading(free + 40, 300)), None);
            step(&mut ledger, 290);
            assert_eq!(ledger.trim(at(810), &reading(free + 20, 300)), None);
            step(&mut ledger, 20);
            assert_eq!(ledger.trim(at(820), &reading(free, 300)), expected, "{free} MiB free");
        };
        check(Readings::Live, 73, Some(MIB * 20)); // less than safety (10) and 64 MiB are left
        check(Readings::Live, 74, None);
        check(Readings::Off, 20, None);
    }

    #[test]
    fn the_workspace_of_a_smallest_step_is_never_returned() {
        let mut ledger = after_step(Readings::Live, 300);
        ledger.set_least_workspace(MODEL, MIB * 30);
        assert_eq!(ledger.trim(at(10), &reading(500, 300)), None);
        assert_eq!(ledger.trim(at(20), &reading(300, 300)), Some(MIB * 30));
        assert_eq!(ledger.wake_at(), None);
        // With the model it goes as well.
        ledger.unloaded(MODEL);
        assert_eq!(ledger.trim(at(3_000), &reading(1_000, 31)), None);
        assert_eq!(ledger.trim(at(4_000), &reading(1_000, 31)), Some(MIB * 8));
    }

    #[test]
    fn memory_that_we_take_ourselves_is_no_pressure() {
        let mut ledger = after_step(Readings::Live, 300);
        assert_eq!(ledger.trim(at(10), &reading(800, 0)), None);
        // Our own workspace grew by what is free less.
        assert_eq!(ledger.trim(at(20), &reading(500, 300)), None);
        // A load has taken 200 MiB, of which 50 are back when it is done.
        let other = ModelId::new(1);
        ledger.register(other, crate::memory::Budget::SHARED, false).unwrap();
        let need = crate::memory::LoadNeed { resident: MIB * 200, transient: Bytes::ZERO, least_workspace: MIB };
        ledger.loading(other, need);
        assert_eq!(ledger.trim(at(30), &reading(300, 300)), None);
        ledger.loaded(other, MIB * 150);
        assert_eq!(ledger.trim(at(40), &reading(350, 300)), None);
        assert_eq!(ledger.trim(at(50), &reading(250, 300)), Some(MIB * 8));
    }

    #[test]
    fn less_than_a_granule_stays() {
        let mut ledger = after_step(Readings::Live, 1);
        assert_eq!(ledger.trim(at(10), &reading(20, 9)), None);
        assert_eq!(ledger.trim(at(20), &reading(20, 10)), Some(MIB * 8));
        assert_eq!(ledger.wake_at(), None);
    }
}
