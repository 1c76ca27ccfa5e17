//! The command line: one file for each subcommand.

pub mod serve;
pub mod health;
pub mod reload;
pub mod demo;
pub mod check;
pub mod config;
pub mod plan;
pub mod pull;
pub mod profile;
pub mod bench;
pub mod top;
#[cfg(feature = "cuda")]
pub mod gpu_test;
mod deadline;
mod table;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// An inference server that knows, in bytes, what every batch will cost before it runs it.
#[derive(Debug, Parser)]
#[command(name = "plimsoll", version, about, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve models over gRPC
    Serve(serve::ServeArgs),
    /// Ask a server whether it is ready
    Health(health::HealthArgs),
    /// Have a server read its configuration and its repository again
    Reload(reload::ReloadArgs),
    /// Show what the server does, offline, with the built-in models
    Demo(demo::DemoArgs),
    /// Check the configuration and the models' files without serving
    Check(check::CheckArgs),
    /// Print every setting in force and where it came from
    Config(config::ConfigArgs),
    /// Would these models fit? Prints the fit table; exit code 3 if not, 1 if one is broken
    Plan(plan::PlanArgs),
    /// Measure a model's memory and time over all batch shapes
    Profile(profile::ProfileArgs),
    /// Fetch a model's files into the cache
    Pull(pull::PullArgs),
    /// Put a server under load and report what came of it
    Bench(bench::BenchArgs),
    /// Watch a server in the terminal: memory, models, latencies, why batches were not larger
    Top(top::TopArgs),
    /// Check on this machine's GPU that every byte is accounted for
    #[cfg(feature = "cuda")]
    GpuTest(gpu_test::GpuTestArgs),
}

impl Cli {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// What ended it, as one chain of causes for people.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Serve(args) => serve::run(args),
            Command::Health(args) => health::run(args),
            Command::Reload(args) => reload::run(args),
            Command::Demo(args) => demo::run(args),
            Command::Check(args) => check::run(args),
            Command::Config(args) => config::run(args),
            Command::Plan(args) => plan::run(args),
            Command::Profile(args) => profile::run(args),
            Command::Pull(args) => pull::run(args),
            Command::Bench(args) => bench::run(args),
            Command::Top(args) => top::run(args),
            #[cfg(feature = "cuda")]
            Command::GpuTest(args) => gpu_test::run(args),
        }
    }
}
