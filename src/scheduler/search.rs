//! Looking for the row around which the next batch is formed.

use super::draft::alone;
use super::lane::{Lane, Shortage};
use super::queue::{Requests, Row};
use super::request::Blocked;
use super::timers::{Expiry, Timers};
use super::turn::When;
use super::waiting::Priority;
use crate::units::{Bytes, Micros, Timestamp};

/// The oldest row of a class that can be run now.
pub(super) struct Seed {
    pub(super) row: Row,
    pub(super) arrival: Timestamp,
    /// Time that it takes alone.
    pub(super) time: Micros,
}

/// What memory a row finds.
#[derive(Clone, Copy)]
pub(super) struct Room {
    /// What a step could have now.
    pub(super) headroom: Bytes,
    /// What it could ever have: a row that needs more does not wait.
    pub(super) ever: Bytes,
    /// How long one that needs more than there is now waits for it.
    pub(super) wait_max: Micros,
}

/// What looking for a seed came to.
#[derive(Default)]
pub(super) struct Search {
    pub(super) seed: Option<Seed>,
    /// An older row has a shape that nothing is known about yet.
    pub(super) unmeasured: bool,
    /// The shortest row that does not fit.
    pub(super) too_long: Option<u32>,
    /// What the oldest request lacks that does not fit.
    pub(super) shortage: Option<Shortage>,
}

/// Notes that a request lacks memory; true when it did not before.
fn block(blocked: &mut Option<Blocked>, now: Timestamp, shortage: Shortage, unmeasured: bool) -> bool {
    let since = blocked.map_or(now, |before| before.since);
    let Shortage { needed, available } = shortage;
    blocked.replace(Blocked { since, seen: now, unmeasured, needed, available }).is_none()
}

/// Finds the oldest row of a class that fits and can keep its deadline in a step that starts at `starts`. Requests that do
/// not fit are noted on the way: from then on they wait no longer for memory than `room` says. Not so when the step is to
/// run ahead: whether there is room counts when the device is free, and what is in flight cannot be given up.
pub(super) fn search(
    lane: &Lane,
    priority: Priority,
    (now, starts): (Timestamp, Timestamp),
    room: Room,
    requests: &mut Requests,
    timers: &mut Timers,
    when: When,
) -> Search {
    let (profile, drift) = match &lane.profile {
        Some(profile) => (profile, &lane.drift),
        None => return Search::default(),
    };
    let Room { headroom, ever, wait_max } = room;
    let mut search = Search::default();
    for id in lane.class(priority).queue.oldest_first() {
        let request = requests.get_mut(&id).expect("what is queued is accepted");
        let (mut lacks, mut unmeasured, mut never) = (None, false, false);
        for (index, tokens) in request.waiting_rows() {
            let shape = alone(lane.settings.kind, tokens);
            let (Some(peak), Some(time)) = (profile.predicted(shape), profile.time(shape)) else {
                (search.unmeasured, unmeasured) = (true, true);
                // How much it needs is not known, only that measuring it does not fit either if it stays so.
                lacks = lacks.or(Some(headroom + Bytes::new(1)));
                continue;
            };
            let needed = drift.on(peak);
            if needed > headroom {
                search.too_long = Some(search.too_long.map_or(tokens, |shortest| shortest.min(tokens)));
                lacks = Some(needed);
                never |= peak > ever;
            } else if starts + time <= request.deadline() {
                let row = Row { request: id, index, tokens, deadline: request.deadline() };
                search.seed = Some(Seed { row, arrival: request.facts.arrival, time });
                break;
            }
        }
        if search.seed.is_some() {
            if let Some(blocked) = request.blocked.take() {
                timers.clear(blocked.since + wait_max, id, Expiry::Memory);
            }
            break;
        }
        if let Some(needed) = lacks {
            let shortage = Shortage { needed, available: headroom };
            search.shortage = search.shortage.or(Some(shortage));
            if when == When::Ahead {
                continue;
            }
            if block(&mut request.blocked, now, shortage, unmeasured) {
                timers.set(now + wait_max, id, Expiry::Memory);
            }
            if never {
                timers.set(now, id, Expiry::Memory);
            }
        }
    }
    search
}
