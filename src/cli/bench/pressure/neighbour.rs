//! The neighbour: a process of its own that takes real memory and gives it back, as its script says.
//!
//! It tells what it does on stdout, one JSON object a line; who started it stamps the lines as they come. At `start
//! server` it waits for a line on stdin.

use std::io::{self, BufRead, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use memmap2::MmapMut;
use serde::{Deserialize, Serialize};

use super::args::NeighbourArgs;
use super::card;
use super::room::Room;
use super::script::{Script, Statement};
use crate::units::Bytes;

/// What is mapped and given back as a whole.
const GRANULE: u64 = 1 << 20;

/// The same on a GPU: what its driver hands out.
const CARD_GRANULE: u64 = 2 << 20;

/// The most that is taken of a GPU in one piece.
const CARD_PIECE: u64 = 1 << 30;

/// Pages are at least this large: one written byte in each makes all of them resident.
const PAGE: usize = 4096;

/// The most that is taken before free memory is read again.
const BITE: u64 = 64 << 20;

/// How often free memory is read while waiting for more; a room that is a file is written that often.
const GLANCE: Duration = Duration::from_millis(10);

/// How often `leave` takes a granule. A program that grows takes time for it; one that takes all there is at once leaves
/// nobody the time to follow, and `take` is there for that.
const LEAVE_PERIOD: Duration = Duration::from_millis(31);

/// `leave` is done when for so long nothing was free beyond what it leaves: a step that was running has ended by then, and
/// what it has given back is taken.
const LEAVE_SETTLED: Duration = Duration::from_secs(1);

/// The longest that `leave` goes on: a server that keeps giving back could be chased for ever.
const LEAVE_MAX: Duration = Duration::from_secs(60);

/// What the neighbour says.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Event {
    /// It is about to take or ask; this is what it holds so far.
    Takes { holds: u64 },
    /// It holds what it wanted.
    Holds { holds: u64 },
    /// It has given back; this is what is left.
    Freed { holds: u64 },
    /// An ask has ended: it wanted `asked` in total and, if `got`, had it after `waited_ms`.
    Asked { asked: u64, got: bool, waited_ms: f64 },
    /// Calls are wanted, or not.
    Load { on: bool },
    /// It waits for the server; this is what it holds.
    Waits { holds: u64 },
    /// The script is over.
    Done,
}

/// Runs the script.
///
/// # Errors
/// A script or room that cannot be read, memory that the kernel refuses, or nobody left who would start the server.
pub(in crate::cli::bench) fn run(args: &NeighbourArgs) -> anyhow::Result<ExitCode> {
    let place = || format!("--script {}", args.script.display());
    let script = Script::parse(&std::fs::read_to_string(&args.script).with_context(place)?).with_context(place)?;
    let expected = if script.starts_server() { args.server_needs } else { Bytes::ZERO };
    let spare = match args.room {
        // To look at a GPU takes a context, half a GiB of it: what is free beside that is what there is to have.
        Room::Card(_) if !script.starts_server() => args.room.free()?,
        _ => args.spare,
    };
    let mut neighbour = Neighbour { spare, expected, room: args.room.clone(), held: Vec::new() };
    let mut told = io::stdin().lock();
    for statement in script.statements() {
        neighbour.act(*statement, &mut told)?;
    }
    say(Event::Done)?;
    Ok(ExitCode::SUCCESS)
}

struct Neighbour {
    spare: Bytes,
    /// What the server needs that is still to come: left free beside what the script says.
    expected: Bytes,
    room: Room,
    held: Vec<Piece>,
}

/// Memory that is held, given back when dropped.
struct Piece {
    bytes: u64,
    _memory: Memory,
}

enum Memory {
    Host(#[allow(dead_code, reason = "it is held, not used")] MmapMut),
    Card(#[allow(dead_code, reason = "it is held, not used")] card::Held),
}

impl Neighbour {
    fn act(&mut self, statement: Statement, told: &mut impl BufRead) -> anyhow::Result<()> {
        match statement {
            Statement::Hold(duration) => {
                std::thread::sleep(duration);
                Ok(())
            }
            Statement::Load { on } => say(Event::Load { on }),
            Statement::StartServer => {
                say(Event::Waits { holds: self.holds() })?;
                let read = told.read_line(&mut String::new()).context("waiting for the server")?;
                anyhow::ensure!(read > 0, "whoever should start the server is gone");
                self.expected = Bytes::ZERO;
                Ok(())
            }
            Statement::Take(amount) => {
                say(Event::Takes { holds: self.holds() })?;
                let wanted = amount.of(self.spare).get();
                self.take(wanted.saturating_sub(self.holds()))?;
                say(Event::Holds { holds: self.holds() })
            }
            Statement::Leave(amount) => {
                say(Event::Takes { holds: self.holds() })?;
                self.leave((amount.of(self.spare) + self.expected).get())?;
                say(Event::Holds { holds: self.holds() })
            }
            Statement::Free(amount) => {
                // "All" is a percentage of the spare too, but what is held may be more than that.
                let all = amount == crate::config::Amount::Percent(100.0);
                self.free(if all { u64::MAX } else { amount.of(self.spare).get() });
                say(Event::Freed { holds: self.holds() })
            }
            Statement::Ask { amount, floor, patience } => {
                say(Event::Takes { holds: self.holds() })?;
                let floor = floor.of(self.spare) + self.expected;
                self.ask(amount.of(self.spare).get(), floor.get(), patience)
            }
        }
    }

    fn holds(&self) -> u64 {
        self.held.iter().map(|piece| piece.bytes).sum()
    }

    /// Gives back at least so much, the latest first.
    fn free(&mut self, bytes: u64) {
        let mut freed = 0;
        while freed < bytes
            && let Some(piece) = self.held.pop()
        {
            freed += piece.bytes;
        }
    }

    fn granule(&self) -> u64 {
        if matches!(self.room, Room::Card(_)) { CARD_GRANULE } else { GRANULE }
    }

    /// Takes `bytes` more, rounded up to granules. Of a GPU as much of it as there is: whoever asks a full one is refused.
    fn take(&mut self, bytes: u64) -> anyhow::Result<()> {
        if let Room::Card(ordinal) = self.room {
            return self.take_of_card(ordinal, bytes.next_multiple_of(CARD_GRANULE));
        }
        for _ in 0..bytes.div_ceil(GRANULE) {
            let mut granule = MmapMut::map_anon(GRANULE as usize).context("mapping memory")?;
            for page in granule.chunks_mut(PAGE) {
                page[0] = 1;
            }
            self.held.push(Piece { bytes: GRANULE, _memory: Memory::Host(granule) });
        }
        Ok(())
    }

    fn take_of_card(&mut self, ordinal: u32, mut left: u64) -> anyhow::Result<()> {
        let mut piece = left.min(CARD_PIECE);
        while left > 0 && piece >= CARD_GRANULE {
            match card::take(ordinal, Bytes::new(piece))? {
                Some(held) => {
                    self.held.push(Piece { bytes: piece, _memory: Memory::Card(held) });
                    left -= piece;
                    piece = piece.min(left);
                }
                None => piece = piece / 2 / CARD_GRANULE * CARD_GRANULE,
            }
        }
        Ok(())
    }

    fn leave(&mut self, left: u64) -> anyhow::Result<()> {
        let (began, mut taken) = (Instant::now(), Instant::now());
        while taken.elapsed() < LEAVE_SETTLED && began.elapsed() < LEAVE_MAX {
            let above = self.room.free()?.get().saturating_sub(left) / self.granule() * self.granule();
            if above > 0 {
                // A GPU is taken a quarter of the rest at a time: most of it at once, the end in small pieces.
                let bite = if matches!(self.room, Room::Card(_)) { above / 4 } else { GRANULE };
                self.take(bite.max(self.granule()))?;
                taken = Instant::now();
            }
            std::thread::sleep(LEAVE_PERIOD);
        }
        Ok(())
    }

    fn ask(&mut self, wanted: u64, floor: u64, patience: Duration) -> anyhow::Result<()> {
        let began = Instant::now();
        let wanted = wanted.next_multiple_of(self.granule()); // so that no last part of a granule is waited for
        while self.holds() < wanted && began.elapsed() < patience {
            let above_floor = self.room.free()?.get().saturating_sub(floor);
            let bite = above_floor.min(wanted - self.holds()).min(BITE) / self.granule() * self.granule();
            self.take(bite)?;
            if bite == 0 || !matches!(self.room, Room::Cgroup1(_) | Room::Cgroup2(_)) {
                std::thread::sleep(GLANCE);
            }
        }
        let got = self.holds() >= wanted;
        say(Event::Asked { asked: wanted, got, waited_ms: began.elapsed().as_secs_f64() * 1e3 })?;
        say(Event::Holds { holds: self.holds() })
    }
}

fn say(event: Event) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(&event)?).and_then(|()| out.flush()).context("telling what happens")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::bench::smaps::Usage;
    use crate::cli::bench::tries::in_some_try;
    use crate::config::Amount;

    fn mib(count: u64) -> Amount {
        Amount::Bytes(Bytes::mib(count))
    }

    /// Carries out a statement for which nothing has to be told.
    fn act(neighbour: &mut Neighbour, statement: Statement) {
        neighbour.act(statement, &mut io::empty()).unwrap();
    }

    fn neighbour(free: u64) -> (Neighbour, tempfile::NamedTempFile) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), free.to_string()).unwrap();
        let room = Room::File(file.path().into());
        (Neighbour { spare: Bytes::mib(100), expected: Bytes::ZERO, room, held: Vec::new() }, file)
    }

    #[test]
    fn what_is_taken_is_resident_and_what_is_freed_is_gone() {
        let (mut neighbour, _file) = neighbour(0);
        let rss = || Usage::of(std::process::id()).unwrap().rss_bytes as i64;
        let before = rss();
        act(&mut neighbour, Statement::Take(Amount::Percent(50.0)));
        let taken = rss() - before;
        assert_eq!(neighbour.holds(), 50 << 20);
        assert!((40 << 20..80 << 20).contains(&taken), "{taken}"); // other tests take and free some too
        act(&mut neighbour, Statement::Free(mib(20)));
        assert_eq!(neighbour.holds(), 30 << 20);
        act(&mut neighbour, Statement::Free(Amount::Percent(100.0)));
        assert_eq!(neighbour.holds(), 0);
    }

    /// Goal: `leave` takes while more is free than it leaves, also what comes free after all seemed taken, and no more.
    /// Method: a room with nothing to take for half a second, then too much for 200 ms.
    #[test]
    fn leave_takes_what_is_given_back_too() {
        in_some_try(|| {
            let (mut neighbour, file) = neighbour(8 << 20);
            neighbour.leave(8 << 20).unwrap();
            assert_eq!(neighbour.holds(), 0);
            let path = file.path().to_owned();
            let server = std::thread::spawn(move || {
                for (after, free) in [(500, 12u64), (200, 8)] {
                    std::thread::sleep(Duration::from_millis(after));
                    Room::File(path.clone()).publish(Bytes::mib(free)).unwrap();
                }
            });
            neighbour.leave(8 << 20).unwrap();
            server.join().unwrap();
            assert!((1 << 20..=7 << 20).contains(&neighbour.holds()), "{}", neighbour.holds());
        });
    }

    /// Goal: an ask never goes below its floor, and gets the rest when it comes free. Method: a room of 30 MiB that
    /// another thread widens after 100 ms.
    #[test]
    fn an_ask_waits_for_room() {
        let (mut neighbour, file) = neighbour(12 << 20);
        neighbour.ask(20 << 20, 8 << 20, Duration::from_millis(60)).unwrap();
        // The file does not fall as memory is taken, so bites of 4 MiB go on: what counts is that it took some.
        assert!(neighbour.holds() >= 4 << 20);
        neighbour.held.clear();
        neighbour.room.publish(Bytes::mib(8)).unwrap();
        let path = file.path().to_owned();
        let widen = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            Room::File(path).publish(Bytes::mib(60)).unwrap();
        });
        let began = Instant::now();
        neighbour.ask(20 << 20, 8 << 20, Duration::from_secs(10)).unwrap();
        assert!(began.elapsed() >= Duration::from_millis(90), "nothing was above the floor before");
        assert_eq!(neighbour.holds(), 20 << 20);
        widen.join().unwrap();
    }

    /// Goal: one line says that the server has started; its lack, that nobody will say so. Method: a reader with a line
    /// more than that, and an empty one.
    #[test]
    fn the_server_is_waited_for_before_anything_else() {
        let (mut neighbour, _file) = neighbour(0);
        act(&mut neighbour, Statement::Take(mib(3)));
        let mut told = io::Cursor::new(b"go on\nnot read\n".as_slice());
        neighbour.act(Statement::StartServer, &mut told).unwrap();
        assert_eq!((told.position(), neighbour.holds()), (6, 3 << 20));
        let error = neighbour.act(Statement::StartServer, &mut io::empty()).unwrap_err().to_string();
        assert!(error.contains("is gone"), "{error}");
    }

    /// Goal: before the server is there, what it will need is left beside what the script says. Method: rooms in which
    /// exactly so much is free, and 2 MiB more.
    #[test]
    fn what_the_server_needs_is_left_until_it_is_there() {
        let ask = Statement::Ask { amount: mib(2), floor: mib(8), patience: Duration::from_millis(100) };
        let check = |free: u64, held: u64| {
            let (mut neighbour, _file) = neighbour(free << 20);
            neighbour.expected = Bytes::mib(50);
            act(&mut neighbour, ask);
            assert_eq!(neighbour.holds(), held << 20, "{free} MiB are free");
        };
        check(58, 0);
        check(60, 2);
        let (mut neighbour, _file) = neighbour(58 << 20);
        neighbour.expected = Bytes::mib(50);
        act(&mut neighbour, Statement::Leave(mib(8)));
        assert_eq!(neighbour.holds(), 0);
        neighbour.act(Statement::StartServer, &mut b"\n".as_slice()).unwrap();
        act(&mut neighbour, ask);
        assert_eq!(neighbour.holds(), 2 << 20, "it has what it needs by now");
    }
}
