//! How much of the device's memory the server may use, and how much it leaves.

use super::Amount;
use super::written::{Form, Written};
use crate::units::Bytes;

/// The memory of the device that this server may use for everything.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MemoryBudget {
    /// [`MemoryBudget::AUTO_PERCENT`] of what is free at start.
    Auto,
    /// So many bytes, or a part of the device's whole memory.
    Amount(Amount),
}

impl MemoryBudget {
    /// What `auto` takes of the free memory; the rest is left to the page cache and to programs that start later.
    pub const AUTO_PERCENT: f64 = 80.0;

    /// The budget in bytes on a device with `total` bytes of which `free` are free at start.
    pub fn of(self, total: Bytes, free: Bytes) -> Bytes {
        match self {
            MemoryBudget::Auto => free.scale(MemoryBudget::AUTO_PERCENT / 100.0),
            MemoryBudget::Amount(amount) => amount.of(total),
        }
    }
}

impl Written for MemoryBudget {
    const FORM: Form = Form::TextOrInteger;

    fn allowed() -> String {
        "\"auto\", a number of bytes, such as \"4GiB\", or a part of the device's memory, such as \"60%\"".into()
    }

    fn read(text: &str) -> Option<MemoryBudget> {
        match text {
            "auto" => Some(MemoryBudget::Auto),
            amount => Amount::read(amount).map(MemoryBudget::Amount),
        }
    }

    fn show(&self) -> String {
        match self {
            MemoryBudget::Auto => "auto".into(),
            MemoryBudget::Amount(amount) => amount.show(),
        }
    }
}

/// Memory of the device that is kept free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemorySafety {
    /// What is usual on the device.
    Auto,
    /// So much.
    Bytes(Bytes),
}

impl MemorySafety {
    /// In bytes, where `usual` is usual.
    pub fn of(self, usual: Bytes) -> Bytes {
        match self {
            MemorySafety::Auto => usual,
            MemorySafety::Bytes(bytes) => bytes,
        }
    }
}

impl Written for MemorySafety {
    const FORM: Form = Form::TextOrInteger;

    fn allowed() -> String {
        "\"auto\", or a number of bytes, such as \"64MiB\"".into()
    }

    fn read(text: &str) -> Option<MemorySafety> {
        match text {
            "auto" => Some(MemorySafety::Auto),
            bytes => Bytes::read(bytes).map(MemorySafety::Bytes),
        }
    }

    fn show(&self) -> String {
        match self {
            MemorySafety::Auto => "auto".into(),
            MemorySafety::Bytes(bytes) => bytes.show(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_survive_being_shown() {
        fn check<T: Written + PartialEq + std::fmt::Debug>(text: &str) {
            let value = T::read(text);
            assert!(value.is_some(), "{text}");
            assert_eq!(value.as_ref().and_then(|value| T::read(&value.show())), value, "{text}");
        }
        check::<MemorySafety>("auto");
        check::<MemorySafety>("64MiB");
        check::<MemoryBudget>("auto");
        check::<MemoryBudget>("60%");
        check::<MemoryBudget>("4GiB");
        assert_eq!(MemoryBudget::read("-1"), None);
        assert_eq!(MemorySafety::read("some"), None);
    }

    #[test]
    fn a_margin_that_nobody_chose_is_the_devices() {
        assert_eq!(MemorySafety::Auto.of(Bytes::mib(16)), Bytes::mib(16));
        assert_eq!(MemorySafety::Bytes(Bytes::ZERO).of(Bytes::mib(16)), Bytes::ZERO);
    }

    #[test]
    fn budgets_count_from_the_right_whole() {
        let of = |text: &str| MemoryBudget::read(text).expect("valid").of(Bytes::gib(10), Bytes::gib(5));
        assert_eq!(of("auto"), Bytes::gib(4));
        assert_eq!(of("50%"), Bytes::gib(5));
        assert_eq!(of("1GiB"), Bytes::gib(1));
    }
}
