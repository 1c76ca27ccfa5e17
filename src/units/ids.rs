//! Names that are numbers.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($repr:ty), $letter:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name($repr);

        impl $name {
            /// The id with this number.
            pub const fn new(number: $repr) -> Self {
                $name(number)
            }

            /// The number, for logs and for indexing.
            pub const fn get(self) -> $repr {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($letter, "{}"), self.0)
            }
        }
    };
}

id!(
    /// One registered model, for as long as the process lives: unloading and loading again keeps it.
    ModelId(u32),
    "m"
);
id!(
    /// One accepted call. Increasing in order of arrival, never reused.
    RequestId(u64),
    "r"
);
id!(
    /// One step. Increasing in order of choice, never reused.
    StepId(u64),
    "s"
);
