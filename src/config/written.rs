//! Values as people write them: on the command line, in the environment and in TOML, with one meaning everywhere.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use super::{Amount, Dtype, LoadPolicy, Pooling, Task, Truncate};
use crate::units::{Bytes, Micros};

/// The TOML types in which a value may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// `"text"`.
    Text,
    /// `12`.
    Integer,
    /// `0.5`; an integer too.
    Number,
    /// `true` or `false`.
    Boolean,
    /// `"2GiB"` or `2147483648`.
    TextOrInteger,
}

/// A value that can be written as one piece of text. `read(show(v)) == v`.
pub(super) trait Written: Sized {
    /// How it is written in TOML.
    const FORM: Form;

    /// What is allowed, for an error message: `a port number from 0 to 65535`.
    fn allowed() -> String;

    /// The value of `text`; `None` if that is not allowed.
    fn read(text: &str) -> Option<Self>;

    /// The text of the value.
    fn show(&self) -> String;

    /// The value as seen from `folder`, the folder of the file in which it was written. Only paths differ.
    fn relative_to(self, _folder: &Path) -> Self {
        self
    }
}

/// [`Written::read`] with the error that names what was found and what is allowed.
pub(super) fn read<T: Written>(text: &str) -> Result<T, String> {
    T::read(text).ok_or_else(|| format!("'{text}' is not allowed: write {}", T::allowed()))
}

/// Implements [`Written`] for a type whose `FromStr` and `Display` are already its text.
macro_rules! written {
    ($type:ty, $form:ident, $allowed:expr $(, if $test:expr)?) => {
        impl Written for $type {
            const FORM: Form = Form::$form;
            fn allowed() -> String {
                $allowed.into()
            }
            fn read(text: &str) -> Option<Self> {
                text.parse::<$type>().ok()$(.filter($test))?
            }
            fn show(&self) -> String {
                self.to_string()
            }
        }
    };
}

/// Implements [`Written`] for a closed list of words.
macro_rules! written_choice {
    ($($type:ty),+) => { $(
        impl $crate::config::written::Written for $type {
            const FORM: $crate::config::written::Form = $crate::config::written::Form::Text;
            fn allowed() -> String {
                let words: Vec<_> = <$type>::ALL.iter().map(|choice| format!("\"{choice}\"")).collect();
                match words.as_slice() {
                    [only] => only.clone(),
                    [most @ .., last] => format!("{} or {last}", most.join(", ")),
                    [] => unreachable!("a choice has words"),
                }
            }
            fn read(text: &str) -> Option<Self> {
                text.parse().ok()
            }
            fn show(&self) -> String {
                self.to_string()
            }
        }
    )+ };
}
pub(crate) use written_choice;

written!(bool, Boolean, "true or false");
written!(u16, Integer, "a port number from 0 to 65535; 0 takes any free port");
written!(u32, Integer, "a whole number from 1 to 4294967295", if |count| *count > 0);
written!(u64, Integer, "a whole number of at least 1", if |count| *count > 0);
written!(f64, Number, "a number above 0", if |number| number.is_finite() && *number > 0.0);
written!(IpAddr, Text, "an IP address, such as 127.0.0.1, 0.0.0.0 or ::1");
written_choice!(Task, Dtype, Truncate, Pooling, LoadPolicy);

impl Written for String {
    const FORM: Form = Form::Text;

    fn allowed() -> String {
        "text".into()
    }

    fn read(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    fn show(&self) -> String {
        self.clone()
    }
}

impl Written for PathBuf {
    const FORM: Form = Form::Text;

    fn allowed() -> String {
        "a path".into()
    }

    fn read(text: &str) -> Option<PathBuf> {
        (!text.is_empty()).then(|| PathBuf::from(text))
    }

    fn show(&self) -> String {
        self.display().to_string()
    }

    fn relative_to(self, folder: &Path) -> PathBuf {
        folder.join(self)
    }
}

impl Written for Bytes {
    const FORM: Form = Form::TextOrInteger;

    fn allowed() -> String {
        "a number of bytes, such as \"512MiB\" or \"1.5GiB\"".into()
    }

    fn read(text: &str) -> Option<Bytes> {
        text.parse().ok()
    }

    fn show(&self) -> String {
        // The largest unit that divides it, so that reading gives the same number back.
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        let count = self.get();
        match units.iter().find(|(shift, _)| count > 0 && count.is_multiple_of(1 << shift)) {
            Some((shift, unit)) => format!("{}{unit}", count >> shift),
            None => count.to_string(),
        }
    }
}

impl Written for Micros {
    const FORM: Form = Form::Text;

    fn allowed() -> String {
        "a time with its unit, such as \"250us\", \"50ms\", \"30s\", \"5m\" or \"1h\"".into()
    }

    fn read(text: &str) -> Option<Micros> {
        let text = text.trim();
        let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != '.')?);
        let factor = TIME_UNITS.iter().find(|(_, name)| *name == unit.trim())?.0;
        let micros = number.parse::<f64>().ok()? * factor as f64;
        // Above 2^53 a float no longer counts single microseconds; that is 285 years.
        (micros <= (1u64 << 53) as f64).then(|| Micros::new(micros.round() as u64))
    }

    fn show(&self) -> String {
        let count = self.get();
        if count == 0 {
            return "0s".into();
        }
        let (factor, unit) =
            TIME_UNITS.iter().find(|(factor, _)| count.is_multiple_of(*factor)).expect("1 divides all");
        format!("{}{unit}", count / factor)
    }
}

const TIME_UNITS: [(u64, &str); 5] =
    [(3_600_000_000, "h"), (60_000_000, "m"), (1_000_000, "s"), (1_000, "ms"), (1, "us")];

impl Written for Amount {
    const FORM: Form = Form::TextOrInteger;

    fn allowed() -> String {
        "a number of bytes, such as \"2GiB\", or a part of the device's budget, such as \"40%\"".into()
    }

    fn read(text: &str) -> Option<Amount> {
        match text.trim().strip_suffix('%') {
            Some(number) => {
                let percent: f64 = number.trim().parse().ok()?;
                (0.0..=100.0).contains(&percent).then_some(Amount::Percent(percent))
            }
            None => Bytes::read(text).map(Amount::Bytes),
        }
    }

    fn show(&self) -> String {
        match self {
            Amount::Bytes(bytes) => bytes.show(),
            Amount::Percent(percent) => format!("{percent}%"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is shown is read back as the same value, and `text` means `value`.
    fn check<T: Written + PartialEq + std::fmt::Debug>(text: &str, value: T) {
        assert_eq!(T::read(text).as_ref(), Some(&value), "{text}");
        assert_eq!(T::read(&value.show()), Some(value), "{text}, shown");
    }

    #[track_caller]
    fn refused<T: Written>(text: &str, part: &str) {
        let error = read::<T>(text).err().expect("must be refused");
        assert!(error.contains(part), "{error}");
    }

    #[test]
    fn values_survive_being_shown() {
        check("250us", Micros::new(250));
        check("1.5s", Micros::millis(1_500));
        check("90m", Micros::secs(5_400));
        check("0s", Micros::ZERO);
        check("1.5GiB", Bytes::mib(1_536));
        check("17", Bytes::new(17));
        check("0", Bytes::ZERO);
        check("12.5%", Amount::Percent(12.5));
        check("2GiB", Amount::Bytes(Bytes::gib(2)));
        check("int8", Dtype::Int8);
        check("::1", "::1".parse::<IpAddr>().expect("an address"));
        check("0.25", 0.25);
    }

    #[test]
    fn refusals_say_what_is_allowed() {
        refused::<Micros>("30", "with its unit");
        refused::<Micros>("-1s", "with its unit");
        refused::<Micros>("s", "with its unit");
        refused::<Micros>("9999999999h", "with its unit");
        refused::<Bytes>("two", "\"512MiB\"");
        refused::<Amount>("101%", "\"40%\"");
        refused::<Amount>("NaN%", "\"40%\"");
        refused::<u16>("65536", "65535");
        refused::<u32>("0", "from 1");
        refused::<f64>("0", "above 0");
        refused::<f64>("inf", "above 0");
        refused::<Dtype>("fp4", "\"f32\", \"f16\", \"bf16\", \"q8_0\", \"int8\" or \"fp8\"");
        refused::<PathBuf>("", "a path");
    }
}
