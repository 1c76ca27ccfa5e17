//! Time as the pure cores see it: a number that somebody else read from a clock.

use std::fmt;
use std::ops::{Add, AddAssign};
use std::time::Duration;

/// A length of time in microseconds. Addition saturates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(u64);

impl Micros {
    /// No time.
    pub const ZERO: Micros = Micros(0);
    /// Longer than anything here lasts: "no bound".
    pub const MAX: Micros = Micros(u64::MAX);

    /// `count` microseconds.
    pub const fn new(count: u64) -> Self {
        Micros(count)
    }

    /// `count` milliseconds.
    pub const fn millis(count: u64) -> Self {
        Micros(count.saturating_mul(1_000))
    }

    /// `count` seconds.
    pub const fn secs(count: u64) -> Self {
        Micros(count.saturating_mul(1_000_000))
    }

    /// The number of microseconds.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Seconds, for metrics.
    pub const fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// `self - other`, or zero.
    pub const fn saturating_sub(self, other: Micros) -> Micros {
        Micros(self.0.saturating_sub(other.0))
    }

    /// `self * factor`, rounded up and saturating; zero for a factor that is negative or not a number.
    pub fn scale(self, factor: f64) -> Micros {
        Micros((self.0 as f64 * factor).ceil() as u64)
    }
}

impl From<Duration> for Micros {
    /// Rounds up, so that a wait is never shorter than asked for.
    fn from(duration: Duration) -> Micros {
        Micros(u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX))
    }
}

impl From<Micros> for Duration {
    fn from(micros: Micros) -> Duration {
        Duration::from_micros(micros.0)
    }
}

impl Add for Micros {
    type Output = Micros;
    fn add(self, other: Micros) -> Micros {
        Micros(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Micros {
    fn add_assign(&mut self, other: Micros) {
        *self = *self + other;
    }
}

/// `850 us`, `12.3 ms`, `4.56 s`.
impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            u64::MAX => "unbounded".to_owned(),
            us @ 0..1_000 => format!("{us} us"),
            us @ 1_000..1_000_000 => format!("{:.1} ms", us as f64 / 1e3),
            us => format!("{:.2} s", us as f64 / 1e6),
        };
        f.pad(&text)
    }
}

/// A moment: microseconds since the engine started. Only differences mean anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The moment the engine started.
    pub const START: Timestamp = Timestamp(0);
    /// Later than everything.
    pub const NEVER: Timestamp = Timestamp(u64::MAX);

    /// The moment `micros` after the start.
    pub const fn new(micros: u64) -> Self {
        Timestamp(micros)
    }

    /// Microseconds since the start.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Time from `earlier` to `self`; zero if `earlier` is in fact later.
    pub const fn since(self, earlier: Timestamp) -> Micros {
        Micros(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Micros> for Timestamp {
    type Output = Timestamp;
    fn add(self, duration: Micros) -> Timestamp {
        Timestamp(self.0.saturating_add(duration.0))
    }
}
