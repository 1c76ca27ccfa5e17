//! The choices that a model's configuration offers.

use std::fmt;

macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Deserialize, serde::Serialize)]
        pub enum $name { $($(#[$variant_doc])* #[serde(rename = $text)] $variant),+ }

        impl $name {
            /// Every choice, in the order of the documentation.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// The word in configuration, metrics and logs.
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text),+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;
            fn from_str(text: &str) -> Result<Self, String> {
                $name::ALL.iter().copied().find(|choice| choice.as_str() == text).ok_or_else(|| {
                    let words: Vec<_> = $name::ALL.iter().map(|choice| choice.as_str()).collect();
                    format!("'{text}' is not one of {}", words.join(", "))
                })
            }
        }
    };
}

pub(super) use choice;

choice!(
    /// What a model is for.
    Task {
        /// A vector for each text.
        Embed = "embed",
        /// Labels for each text.
        Classify = "classify",
        /// A score for each pair of query and text.
        Rerank = "rerank",
        /// Labels for each token of each text.
        TokenClassify = "token_classify",
    }
);

choice!(
    /// The form in which the matrices are held on the device.
    Dtype {
        /// 4 bytes a weight.
        F32 = "f32",
        /// 2 bytes a weight.
        F16 = "f16",
        /// 2 bytes a weight.
        Bf16 = "bf16",
        /// Blocks of 32 signed bytes with a f16 scale: 34 bytes for 32 weights, which are decoded as they are used.
        Q8 = "q8_0",
        /// On a GPU a signed byte a weight and a f32 scale for each output: layers multiply activations in int8, quantized
        /// token by token, on int8 tensor cores; tables and heads are f16. Where there are no kernels for that (a CPU,
        /// unusual widths), the same as `q8_0`.
        Int8 = "int8",
        /// The same in fp8 (e4m3), on a GPU of compute capability 8.9 or later and nowhere else.
        Fp8 = "fp8",
    }
);

choice!(
    /// What to do with a text that has too many tokens. Special tokens are always kept.
    #[derive(Default)]
    Truncate {
        /// Refuse it.
        #[default]
        No = "none",
        /// Leave out the end of the text.
        End = "end",
        /// Leave out its beginning.
        Start = "start",
    }
);

choice!(
    /// How a sequence's hidden states become one vector.
    Pooling {
        /// Mean over the real tokens.
        Mean = "mean",
        /// The first token.
        Cls = "cls",
        /// The last real token.
        Last = "last",
    }
);

choice!(
    /// When a model is loaded.
    LoadPolicy {
        /// When the server starts.
        Startup = "startup",
        /// By the first request for it.
        OnDemand = "on_demand",
        /// By a Load call only.
        Manual = "manual",
    }
);
