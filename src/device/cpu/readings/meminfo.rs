//! `/proc/meminfo`.

use crate::units::Bytes;

/// The two lines that matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meminfo {
    /// `MemTotal`.
    pub(super) total: Bytes,
    /// `MemAvailable`: free pages and what the kernel would give up for new ones, by its own estimate.
    pub(super) available: Bytes,
}

/// Why a text is not `/proc/meminfo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("/proc/meminfo has no line '{0}: <number> kB'")]
pub(super) struct MeminfoError(&'static str);

impl Meminfo {
    pub(super) fn parse(text: &str) -> Result<Meminfo, MeminfoError> {
        Ok(Meminfo { total: field(text, "MemTotal")?, available: field(text, "MemAvailable")? })
    }
}

fn field(text: &str, name: &'static str) -> Result<Bytes, MeminfoError> {
    text.lines()
        .filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .find_map(|value| value.trim().strip_suffix("kB")?.trim_end().parse().ok())
        .map(Bytes::kib)
        .ok_or(MeminfoError(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_found_wherever_they_stand() {
        let text =
            "MemTotal:       24684084 kB\nMemFree:        24148620 kB\nMemAvailable:   24255372 kB\nSwapTotal: 0 kB\n";
        let expected = Meminfo { total: Bytes::kib(24684084), available: Bytes::kib(24255372) };
        assert_eq!(Meminfo::parse(text), Ok(expected));
    }

    #[test]
    fn a_missing_or_broken_line_is_named() {
        let check = |text: &str, line| assert_eq!(Meminfo::parse(text), Err(MeminfoError(line)), "{text:?}");
        check("", "MemTotal");
        check("MemTotal: 1 kB\n", "MemAvailable");
        check("MemTotal: 1 kB\nMemAvailable: many kB\n", "MemAvailable");
        check("MemTotal: 1 kB\nMemAvailableSoon: 1 kB\n", "MemAvailable");
        check("MemTotal: -1 kB\nMemAvailable: 1 kB\n", "MemTotal");
    }
}
