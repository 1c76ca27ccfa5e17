//! A number of bytes.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Mul};
use std::str::FromStr;

/// A number of bytes. Addition saturates: a budget that has overflowed is already refused by every comparison.
/// There is no `Sub`: what should happen below zero is said at each place (`saturating_sub`, `checked_sub`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(u64);

impl Bytes {
    /// No bytes.
    pub const ZERO: Bytes = Bytes(0);
    /// More than any device has: "no limit".
    pub const MAX: Bytes = Bytes(u64::MAX);

    /// `count` bytes.
    pub const fn new(count: u64) -> Self {
        Bytes(count)
    }

    /// `count` KiB.
    pub const fn kib(count: u64) -> Self {
        Bytes(count.saturating_mul(1 << 10))
    }

    /// `count` MiB.
    pub const fn mib(count: u64) -> Self {
        Bytes(count.saturating_mul(1 << 20))
    }

    /// `count` GiB.
    pub const fn gib(count: u64) -> Self {
        Bytes(count.saturating_mul(1 << 30))
    }

    /// The number itself.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The number as a float, for ratios and metrics.
    pub const fn as_f64(self) -> f64 {
        self.0 as f64
    }

    /// `self - other`, or zero.
    pub const fn saturating_sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }

    /// `self - other`, or `None` below zero.
    pub fn checked_sub(self, other: Bytes) -> Option<Bytes> {
        self.0.checked_sub(other.0).map(Bytes)
    }

    /// `self * factor`, rounded up and saturating. A factor that is negative or not a number gives zero.
    pub fn scale(self, factor: f64) -> Bytes {
        // `as` saturates at both ends and maps NaN to 0.
        Bytes((self.0 as f64 * factor).ceil() as u64)
    }

    /// Rounded down to a whole number of `granule`s; unchanged when the granule is zero.
    pub fn round_down_to(self, granule: Bytes) -> Bytes {
        match granule.0 {
            0 => self,
            g => Bytes(self.0 / g * g),
        }
    }

    /// Rounded up to a whole number of `granule`s; unchanged when the granule is zero.
    pub fn round_up_to(self, granule: Bytes) -> Bytes {
        match granule.0 {
            0 => self,
            g => Bytes(self.0.div_ceil(g).saturating_mul(g)),
        }
    }
}

impl Add for Bytes {
    type Output = Bytes;
    fn add(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_add(other.0))
    }
}

impl Bytes {
    /// These bytes as text, for a sentence that says that there are only so many: `654 MiB`, and where that would read the same,
    /// `654 MiB (12.5 KiB more)`.
    pub fn beyond(self, available: Bytes) -> String {
        let text = self.to_string();
        match text == available.to_string() && self > available {
            true => format!("{text} ({} more)", self.saturating_sub(available)),
            false => text,
        }
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Bytes) {
        *self = *self + other;
    }
}

impl Mul<u64> for Bytes {
    type Output = Bytes;
    fn mul(self, count: u64) -> Bytes {
        Bytes(self.0.saturating_mul(count))
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Bytes>>(iter: I) -> Bytes {
        iter.fold(Bytes::ZERO, Add::add)
    }
}

/// `1.50 GiB`, `12.0 MiB`, `640 KiB`, `17 B`: three significant digits, for people. Use [`Bytes::get`] for machines.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Bytes::MAX {
            return f.pad("unlimited");
        }
        let text = match self.0 {
            0..1024 => format!("{} B", self.0),
            _ => {
                let mut value = self.0 as f64 / 1024.0;
                let mut units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"].into_iter();
                let mut unit = units.next().expect("the list is not empty");
                while value >= 999.5 {
                    let Some(next) = units.next() else { break };
                    value /= 1024.0;
                    unit = next;
                }
                let decimals = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
                format!("{value:.decimals$} {unit}")
            }
        };
        f.pad(&text)
    }
}

/// Why a text is not a number of bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{text}' is not a number of bytes: write a whole or decimal number with B, KiB, MiB, GiB or TiB, such as 512MiB or 1.5GiB"
)]
pub struct ParseBytesError {
    text: String,
}

/// `2GiB`, `1.5 GiB`, `512MiB`, `64k`, `1048576`. `K`, `KB` and `KiB` all mean 1024: memory is sold in powers of two.
impl FromStr for Bytes {
    type Err = ParseBytesError;

    fn from_str(text: &str) -> Result<Bytes, ParseBytesError> {
        let error = || ParseBytesError { text: text.to_owned() };
        let trimmed = text.trim();
        let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits);
        let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kb" | "kib" => 1 << 10,
            "m" | "mb" | "mib" => 1 << 20,
            "g" | "gb" | "gib" => 1 << 30,
            "t" | "tb" | "tib" => 1 << 40,
            _ => return Err(error()),
        };
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(factor).map(Bytes).ok_or_else(error);
        }
        let value: f64 = number.parse().map_err(|_| error())?;
        let product = value * factor as f64;
        if !product.is_finite() || product >= u64::MAX as f64 {
            return Err(error());
        }
        Ok(Bytes(product.round() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_told_where_two_sizes_read_the_same() {
        let (needed, available) = (Bytes::mib(654) + Bytes::kib(12), Bytes::mib(654));
        assert_eq!(needed.beyond(available), "654 MiB (12.0 KiB more)");
        assert_eq!(needed.beyond(Bytes::mib(600)), "654 MiB");
        assert_eq!(available.beyond(available), "654 MiB");
    }

    #[test]
    fn display_keeps_three_digits() {
        let check = |bytes: Bytes, text: &str| assert_eq!(bytes.to_string(), text);
        check(Bytes::ZERO, "0 B");
        check(Bytes::new(1023), "1023 B");
        check(Bytes::new(1024), "1.00 KiB");
        check(Bytes::mib(12), "12.0 MiB");
        check(Bytes::mib(999), "999 MiB");
        check(Bytes::mib(1000), "0.98 GiB");
        check(Bytes::mib(1536), "1.50 GiB");
        check(Bytes::MAX, "unlimited");
    }

    #[test]
    fn parse_takes_units_and_refuses_the_rest() {
        let check = |text: &str, expected: Option<Bytes>| assert_eq!(text.parse::<Bytes>().ok(), expected, "{text}");
        check("0", Some(Bytes::ZERO));
        check("17", Some(Bytes::new(17)));
        check("2GiB", Some(Bytes::gib(2)));
        check(" 1.5 gib ", Some(Bytes::mib(1536)));
        check("64k", Some(Bytes::kib(64)));
        check("", None);
        check("GiB", None);
        check("-1GiB", None);
        check("1.2.3M", None);
        check("12 parsecs", None);
        check("99999999999999999999", None);
        check("20000000TiB", None);
    }

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Bytes::MAX + Bytes::new(1), Bytes::MAX);
        assert_eq!(Bytes::new(1).saturating_sub(Bytes::new(2)), Bytes::ZERO);
        assert_eq!(Bytes::new(1).checked_sub(Bytes::new(2)), None);
        assert_eq!(Bytes::new(10).scale(1.05), Bytes::new(11));
        assert_eq!(Bytes::new(10).scale(f64::NAN), Bytes::ZERO);
        assert_eq!(Bytes::new(33).round_up_to(Bytes::new(32)), Bytes::new(64));
        assert_eq!(Bytes::new(33).round_up_to(Bytes::ZERO), Bytes::new(33));
    }
}
