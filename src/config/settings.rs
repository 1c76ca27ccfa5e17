//! The table of settings: each with its type, its default and what changing it costs. Flags, environment variables,
//! the keys of `server.toml`, `plimsoll config` and the reference all come from it.

use std::net::IpAddr;
use std::path::PathBuf;

use super::argument::ModelArgument;
use super::choices::{
    Allocator, Batching, DeviceKind, FailAllocations, LogFilter, LogFormat, Models, OutOfMemory, Readings, Threads,
};
use super::device_memory::{MemoryBudget, MemorySafety};
use super::optional::{OptionalAddress, OptionalFile};
use super::origins::Origins;
use super::otlp::{OptionalEndpoint, Ratio};
use super::sources::Sources;
use super::written::{self, Written};
use crate::units::{Bytes, Micros};

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Its key in `server.toml`; `--kebab-case` is its flag, `PLIMSOLL_UPPER_SNAKE` its environment variable.
    pub name: &'static str,
    /// The heading under which it is listed.
    pub group: &'static str,
    /// What it is.
    pub doc: &'static str,
    /// What raising and lowering it costs.
    pub cost: &'static str,
    /// Its default, as it would be written.
    pub default: &'static str,
}

macro_rules! settings {
    ($($group:literal { $($(#[doc = $doc:literal])+ $name:ident: $type:ty = $default:literal, $cost:literal;)+ })+) => {
        /// The typed, validated configuration of the server.
        #[derive(Clone, Debug, PartialEq)]
        pub struct ServerConfig {
            $($($(#[doc = $doc])+ pub $name: $type,)+)+
            /// Models named one by one, served beside those of the repository.
            pub model: Vec<ModelArgument>,
        }

        /// Every setting, in the order of the documentation.
        pub const SETTINGS: &[Setting] = &[$($(Setting {
            name: stringify!($name),
            group: $group,
            doc: concat!($($doc),+).trim_ascii(),
            cost: $cost,
            default: $default,
        },)+)+];

        /// The settings as flags.
        #[derive(clap::Args, Clone, Debug, Default)]
        pub struct SettingFlags {
            $($(
                $(#[doc = $doc])+
                #[arg(
                    long,
                    value_name = "VALUE",
                    help_heading = $group,
                    help = concat!($($doc),+, " [default: ", $default, "]").trim_ascii(),
                    long_help = concat!($($doc),+, " [default: ", $default, "]\n", $cost).trim_ascii(),
                    value_parser = written::read::<$type>,
                )]
                pub $name: Option<$type>,
            )+)+
        }

        impl ServerConfig {
            /// The values of all sources, those of the file, the environment and `flags`.
            pub(super) fn from_sources(sources: &mut Sources<'_>, flags: &SettingFlags, model: Vec<ModelArgument>) -> ServerConfig {
                let mut lines = SETTINGS.iter();
                let mut line = || lines.next().expect("the table has a line for each field, in the same order");
                ServerConfig {
                    $($($name: sources.pick::<$type>(line(), flags.$name.clone()),)+)+
                    model,
                }
            }

            /// The values as text, in the order of [`SETTINGS`].
            pub(crate) fn texts(&self) -> Vec<String> {
                vec![$($(self.$name.show(),)+)+]
            }
        }
    };
}

settings! {
    "Network" {
        /// Address on which the server listens.
        address: IpAddr = "127.0.0.1",
            "0.0.0.0 lets other machines in: say who may with token_file, and encrypt with tls_cert.";
        /// Port of the gRPC services; 0 takes any free port.
        grpc_port: u16 = "8001",
            "Clients of other inference servers expect 8001.";
        /// Port of the HTTP interfaces; 0 takes any free port.
        http_port: u16 = "8000",
            "Clients of other inference servers expect 8000.";
        /// Port of metrics and health over HTTP; 0 takes any free port.
        metrics_port: u16 = "8002",
            "Scrapers of other inference servers expect 8002.";
        /// How long accepted work may take to finish after a signal to stop.
        drain_timeout: Micros = "30s",
            "Higher: slow stops. Lower: long queues are cut off, their requests answered UNAVAILABLE.";
    }
    "Security" {
        /// File of bearer tokens, one a line: calls over gRPC and HTTP need one. 'none': anybody may call. Read again when it changes. If it becomes unreadable or invalid, the last valid version stays in force.
        token_file: OptionalFile = "none",
            "Clients send the header 'authorization: Bearer TOKEN'. Metrics and health on their own port need none.";
        /// File of bearer tokens for calls of administration (load, unload, pin, budgets, memory, log settings). Read again when it changes.
        admin_token_file: OptionalFile = "none",
            "Without it they are open on a loopback address and refused on any other.";
        /// Address and port of a second place for gRPC, where calls of administration are allowed without a token of theirs.
        admin_address: OptionalAddress = "none",
            "Whoever reaches it may load, unload and look: for a loopback address or a network of administrators.";
        /// File of the server's certificate in PEM, followed by the intermediate certificates. Calls are encrypted then. Read again when it changes.
        tls_cert: OptionalFile = "none",
            "Needs tls_key. Metrics and health on their own port stay as they are.";
        /// File of the certificate's private key in PEM.
        tls_key: OptionalFile = "none",
            "Only the server should be able to read it.";
        /// File of certificates in PEM of those who sign clients' certificates: a client without one is turned away.
        tls_client_ca: OptionalFile = "none",
            "Every client needs a certificate of its own.";
        /// Origins of pages whose scripts a browser may let call over HTTP: '*' for all, or a list with commas between them; 'none': no other page's.
        cors_origins: Origins = "none",
            "With '*', any web page opened in a browser that can reach the server may call it.";
    }
    "Models" {
        /// Folder of the model repository, one folder for each model, in which model.toml is optional; 'embedded' for the built-in one; 'auto': embedded, unless --model says what to serve.
        models: Models = "auto",
            "Costs nothing until its models are loaded.";
        /// How long requests wait for a model that is being loaded.
        load_timeout: Micros = "1m",
            "Higher: requests hold their place in the queue longer. Lower: the first requests for a large model get UNAVAILABLE and must come again.";
        /// How long a model stays loaded at least before another may evict it.
        minimum_residency: Micros = "30s",
            "Higher: another model waits longer for its memory. Lower: two models that do not fit together evict each other all the time.";
        /// Folder of what `plimsoll pull` fetches; Hugging Face repositories go to HF_HUB_CACHE, or else to HF_HOME/hub, where one of the two is set.
        cache_dir: PathBuf = "~/.cache/plimsoll",
            "Needs room for the weights.";
        /// Folder of the measured memory profiles.
        profile_dir: PathBuf = "CACHE_DIR/profiles",
            "A few KiB for each model; without a kept profile a model is measured again after each start.";
    }
    "Memory" {
        /// Memory of the device for models and their steps: bytes, a percentage of the device's whole memory, or 'auto' for 80 % of what is free at start. A GPU's fixed memory and the safety margin lie outside.
        memory_budget: MemoryBudget = "auto",
            "Higher: larger batches, less for neighbours. Lower: smaller batches, and models that no longer fit are refused.";
        /// Memory of the device that is kept free beside the budget, because readings of free memory are noisy: bytes, or 'auto': 64MiB on the CPU, 16MiB on a GPU. On a GPU a model's smallest step may use the margin.
        memory_safety: MemorySafety = "auto",
            "Higher: smaller batches. Lower: more steps that run short and are repeated in halves.";
        /// A file that says how many bytes of the machine's memory may still be taken, if they are fewer than what the system says; 'none': the system alone. It is read again each time, so replace it as a whole. On the CPU only.
        memory_reading_file: OptionalFile = "none",
            "The server relies on whoever writes it. For comparisons, and where another program shares out memory.";
        /// Whether free memory is read before each step (live) or only once (off).
        readings: Readings = "live",
            "'off' ignores neighbours: steps run out of memory when they grow. For comparisons.";
        /// What happens when a step gets less memory than it needs: trim, halve the batch, evict, try single rows again for ten seconds (ladder), or refuse its requests at once (refuse).
        out_of_memory: OutOfMemory = "ladder",
            "'refuse' is what servers without a ladder do. For comparisons.";
        /// How long workspace may lie idle: what no step needed for one to two times so long is given back, but for 8 MiB and the smallest step of a loaded model.
        idle_decay: Micros = "800ms",
            "Higher: idle memory is kept from others. Lower: the first batch after a pause allocates again. When a neighbour takes memory, idle workspace is given back at once in any case.";
    }
    "Scheduling" {
        /// How batches are sized: by the memory profile, or fixed:N rows.
        batching: Batching = "profile",
            "fixed:N ignores memory and latency. For comparisons.";
        /// How many steps of its model may overtake a waiting request.
        overtaking_max: u32 = "16",
            "Higher: better filled batches, a longer worst wait. Lower: closer to first come, first served, more padding.";
        /// Part of a model's share of the device for measuring its profile while requests wait.
        survey_share: f64 = "0.05",
            "Higher: a new model reaches its best batch size sooner, requests meanwhile are slower. Lower: the reverse. Idle time is used in any case.";
    }
    "Limits" {
        /// Rows in one request; more are refused with INVALID_ARGUMENT.
        request_rows_max: u32 = "1024",
            "Higher: one client holds the queue longer and more host memory. Lower: clients must split.";
        /// Rows waiting for one model; more are refused with RESOURCE_EXHAUSTED, a request that is more by itself with INVALID_ARGUMENT.
        queue_rows_max: u32 = "8192",
            "Higher: longer waits before clients are told, more host memory. Lower: bursts are refused sooner.";
        /// Tokens waiting for one model; more are refused as with queue_rows_max.
        queue_tokens_max: u64 = "4000000",
            "Higher: longer waits before clients are told, 4 bytes of host memory a token. Lower: bursts of long texts are refused sooner.";
        /// Host memory of the requests waiting for one model; more are refused as with queue_rows_max.
        queue_bytes_max: Bytes = "256MiB",
            "Higher: more host memory under load. Lower: bursts of large requests are refused sooner.";
        /// Size of one message, both ways; larger ones are refused with OUT_OF_RANGE.
        message_bytes_max: Bytes = "64MiB",
            "Higher: each connection may make the server hold so much at once. Lower: large batches must be split.";
        /// Calls at a time on one connection, of which more wait in the client; and streams of inferences open at once over all connections, of which one more is refused with RESOURCE_EXHAUSTED.
        streams_max: u32 = "1000",
            "Higher: more host memory for each connection. Lower: busy clients need several connections.";
    }
    "Device" {
        /// Device that runs the models: 'cpu', 'cuda' or 'cuda:N'; 'auto': the first GPU, or the CPU where it cannot be used.
        device: DeviceKind = "auto",
            "A GPU needs a program that was built with --features cuda. With 'auto' a broken GPU is only a line in the log.";
        /// Where the memory of a GPU comes from: 'pools' (ours, or the driver's on cards without virtual memory), 'plain' allocations that are cached here (by itself where a card has no pools), or the 'driver' for each block.
        allocator: Allocator = "pools",
            "'plain' is for devices without pools. 'driver' is slower, and is what profilers and sanitizers understand.";
        /// Which allocations of a GPU fail on purpose: 'never', 'random:PROBABILITY:SEED' or 'above:BYTES'.
        fail_allocations: FailAllocations = "never",
            "Steps are repeated and halved, and take longer. For tests.";
        /// Threads that compute; 'auto' for one for each processor this process may use.
        threads: Threads = "auto",
            "More than there are free processors: each operation waits for its slowest thread. Fewer: slower steps, room for others.";
    }
    "Log" {
        /// Form of the log: 'auto' is pretty on a terminal and JSON otherwise.
        log_format: LogFormat = "auto",
            "JSON is for machines.";
        /// What is logged: a level, or levels by module.
        log_level: LogFilter = "info",
            "debug and trace write several lines for each request.";
    }
    "Traces" {
        /// Where a collector takes OpenTelemetry traces over gRPC, such as http://127.0.0.1:4317; 'none': there are no traces.
        otlp_endpoint: OptionalEndpoint = "none",
            "Some spans for each request. While the collector cannot be reached they are lost, and requests go on.";
        /// Part of the traces that begin here which is sent, from 0 to 1. A call that names its parent follows what was decided there.
        otlp_sample: Ratio = "1",
            "Higher: more work for the collector. Lower: fewer requests can be looked at one by one.";
    }
}
