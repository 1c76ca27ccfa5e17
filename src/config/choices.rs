//! The choices that the server's configuration offers.

use std::fmt;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use super::kinds::choice;
use super::written::{Form, Written, written_choice};
use crate::units::Bytes;

/// The device that runs the models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// The first GPU if this program and the machine have one, else the processor.
    Auto,
    /// The processor and its memory.
    Cpu,
    /// The GPU of this number.
    Cuda(u32),
}

impl std::str::FromStr for DeviceKind {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceKind, String> {
        super::written::read(text)
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.show())
    }
}

impl Written for DeviceKind {
    const FORM: Form = Form::Text;

    fn allowed() -> String {
        "\"auto\", \"cpu\", \"cuda\" or \"cuda:N\" for the GPU of that number".into()
    }

    fn read(text: &str) -> Option<DeviceKind> {
        match text {
            "auto" => Some(DeviceKind::Auto),
            "cpu" => Some(DeviceKind::Cpu),
            "cuda" => Some(DeviceKind::Cuda(0)),
            other => other.strip_prefix("cuda:")?.parse().ok().map(DeviceKind::Cuda),
        }
    }

    fn show(&self) -> String {
        match self {
            DeviceKind::Auto => "auto".into(),
            DeviceKind::Cpu => "cpu".into(),
            DeviceKind::Cuda(ordinal) => format!("cuda:{ordinal}"),
        }
    }
}

choice!(
    /// Where the memory of a GPU comes from.
    Allocator {
        /// Memory pools of the driver, one for each purpose; where the device has none, as `plain`.
        Pools = "pools",
        /// Single allocations of the driver, cached by size.
        Plain = "plain",
        /// What the driver does by itself, for profilers and sanitizers.
        Driver = "driver",
    }
);

/// Which allocations of a GPU fail on purpose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FailAllocations {
    /// None.
    Never,
    /// Each with this probability.
    Random {
        /// From 0 to 1.
        probability: f64,
        /// The same seed and the same calls fail alike.
        seed: u64,
    },
    /// Those of steps above this size.
    Above(Bytes),
}

impl Written for FailAllocations {
    const FORM: Form = Form::Text;

    fn allowed() -> String {
        "\"never\", \"random:PROBABILITY:SEED\", such as \"random:0.01:7\", or \"above:BYTES\", such as \"above:64MiB\""
            .into()
    }

    fn read(text: &str) -> Option<FailAllocations> {
        if text == "never" {
            return Some(FailAllocations::Never);
        }
        if let Some(bytes) = text.strip_prefix("above:") {
            return bytes.parse().ok().map(FailAllocations::Above);
        }
        let (probability, seed) = text.strip_prefix("random:")?.split_once(':')?;
        let (probability, seed) = (probability.parse().ok()?, seed.parse().ok()?);
        (0.0..=1.0).contains(&probability).then_some(FailAllocations::Random { probability, seed })
    }

    fn show(&self) -> String {
        match self {
            FailAllocations::Never => "never".into(),
            FailAllocations::Random { probability, seed } => format!("random:{probability}:{seed}"),
            FailAllocations::Above(bytes) => format!("above:{}B", bytes.get()),
        }
    }
}

choice!(
    /// Whether free memory is read again before each step.
    Readings {
        /// Before each step, so that batches follow what others on the machine take and give back.
        Live = "live",
        /// Once, at start: the control arm of a comparison.
        Off = "off",
    }
);

choice!(
    /// What happens when a step gets less memory than it needs.
    OutOfMemory {
        /// The ladder helps: trim, halve, evict, and try single rows again before they are refused.
        Ladder = "ladder",
        /// Its requests are refused: the control arm of a comparison.
        Refuse = "refuse",
    }
);

choice!(
    /// The form of the log.
    LogFormat {
        /// For people on a terminal, JSON otherwise.
        Auto = "auto",
        /// Lines for people.
        Pretty = "pretty",
        /// One JSON object a line.
        Json = "json",
    }
);

written_choice!(Allocator, Readings, OutOfMemory, LogFormat);

/// How the size of a batch is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batching {
    /// By the memory profile, the readings and the deadlines.
    Profile,
    /// Always up to so many rows: the control arm of a comparison.
    Fixed(NonZeroU32),
}

impl Written for Batching {
    const FORM: Form = Form::Text;

    fn allowed() -> String {
        "\"profile\" or \"fixed:N\" with N rows, such as \"fixed:32\"".into()
    }

    fn read(text: &str) -> Option<Batching> {
        match text {
            "profile" => Some(Batching::Profile),
            other => other.strip_prefix("fixed:")?.parse().ok().map(Batching::Fixed),
        }
    }

    fn show(&self) -> String {
        match self {
            Batching::Profile => "profile".into(),
            Batching::Fixed(rows) => format!("fixed:{rows}"),
        }
    }
}

/// How many threads compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// One for each processor that this process may use.
    Auto,
    /// So many.
    Count(NonZeroU32),
}

impl Threads {
    /// The number of threads on this machine.
    pub fn count(self) -> usize {
        match self {
            Threads::Auto => std::thread::available_parallelism().map_or(1, usize::from),
            Threads::Count(count) => count.get() as usize,
        }
    }
}

impl Written for Threads {
    const FORM: Form = Form::TextOrInteger;

    fn allowed() -> String {
        "\"auto\" or a number of threads of at least 1".into()
    }

    fn read(text: &str) -> Option<Threads> {
        match text {
            "auto" => Some(Threads::Auto),
            count => count.parse().ok().map(Threads::Count),
        }
    }

    fn show(&self) -> String {
        match self {
            Threads::Auto => "auto".into(),
            Threads::Count(count) => count.to_string(),
        }
    }
}

/// Where the configured models are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Models {
    /// The embedded repository, unless `--model` says what to serve.
    Auto,
    /// The repository that is built into the program.
    Embedded,
    /// A folder with a folder for each model.
    Folder(PathBuf),
}

impl Written for Models {
    const FORM: Form = Form::Text;

    fn allowed() -> String {
        "a folder, \"embedded\" or \"auto\"".into()
    }

    fn read(text: &str) -> Option<Models> {
        match text {
            "" => None,
            "auto" => Some(Models::Auto),
            "embedded" => Some(Models::Embedded),
            path => Some(Models::Folder(path.into())),
        }
    }

    fn show(&self) -> String {
        match self {
            Models::Auto => "auto".into(),
            Models::Embedded => "embedded".into(),
            Models::Folder(path) => path.display().to_string(),
        }
    }

    fn relative_to(self, folder: &Path) -> Models {
        match self {
            Models::Folder(path) => Models::Folder(folder.join(path)),
            other => other,
        }
    }
}

/// What is logged: a level, or levels by module, in the syntax of `tracing`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilter(String);

impl LogFilter {
    /// Errors only: for commands that print for people.
    pub fn quiet() -> LogFilter {
        LogFilter("error".into())
    }

    /// The text, known to be understood by `tracing_subscriber::EnvFilter`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Written for LogFilter {
    const FORM: Form = Form::Text;

    fn allowed() -> String {
        "error, warn, info, debug or trace, or a level for each module, such as \"info,plimsoll::scheduler=debug\""
            .into()
    }

    fn read(text: &str) -> Option<LogFilter> {
        // The filter takes any single word for the name of a target and would then log next to nothing.
        let level = text.split(',').any(|part| part.parse::<tracing::Level>().is_ok() || part == "off");
        let directives = text.contains('=');
        ((level || directives) && tracing_subscriber::EnvFilter::try_new(text).is_ok()).then(|| LogFilter(text.into()))
    }

    fn show(&self) -> String {
        self.0.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_survive_being_shown() {
        fn check<T: Written + PartialEq + std::fmt::Debug>(text: &str) {
            let value = T::read(text);
            assert!(value.is_some(), "{text}");
            assert_eq!(value.as_ref().and_then(|value| T::read(&value.show())), value, "{text}");
        }
        check::<Batching>("profile");
        check::<Batching>("fixed:32");
        check::<Threads>("auto");
        check::<Threads>("2");
        check::<Models>("auto");
        check::<Models>("some/folder");
        check::<LogFilter>("info,plimsoll::scheduler=debug");
        check::<DeviceKind>("auto");
        check::<DeviceKind>("cuda");
        check::<DeviceKind>("cuda:3");
        check::<FailAllocations>("never");
        check::<FailAllocations>("random:0.01:7");
        check::<FailAllocations>("above:64MiB");
    }

    #[test]
    fn what_is_not_a_choice_is_refused() {
        assert_eq!(Batching::read("fixed:0"), None);
        assert_eq!(Batching::read("fixed"), None);
        assert_eq!(Threads::read("0"), None);
        assert_eq!(Models::read(""), None);
        assert_eq!(LogFilter::read("loud"), None);
        assert_eq!(DeviceKind::read("cuda:"), None);
        assert_eq!(DeviceKind::read("gpu"), None);
        assert_eq!(FailAllocations::read("random:1.5:1"), None);
        assert_eq!(FailAllocations::read("random:0.5"), None);
    }
}
