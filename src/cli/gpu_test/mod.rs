//! `plimsoll gpu-test`: does the allocator keep its promises on this machine's GPU? Needs a card and nothing else.

mod stage;
mod cost;
mod books;
mod behind;
mod ceiling;
mod exhaustion;
mod injected;
mod cycle;
mod foreign;
mod operations;
mod cases;
mod products;
mod kernels;
mod eight_bit;
mod answers;
mod neighbours;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};

use self::stage::Stage;
use super::table;
use crate::device::cuda::{CardSettings, driver_version};
use crate::device::pools::{Failures, Mode};

/// Options of `gpu-test`.
#[derive(clap::Args, Clone, Debug)]
pub struct GpuTestArgs {
    /// Checks to run; all of them unless some are named.
    #[arg(value_name = "CHECK")]
    pub checks: Vec<String>,

    /// Number of the GPU.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub gpu: u32,

    /// Where memory comes from: pools, plain or driver.
    #[arg(long, value_name = "MODE", default_value = "pools", value_parser = mode)]
    pub allocator: Mode,

    /// A Hugging Face folder whose answers are compared too, beside those of the built-in models; repeatable.
    #[arg(long = "model", value_name = "FOLDER")]
    pub models: Vec<PathBuf>,

    /// At most so many cases of each check that goes over many, evenly: for tools that slow kernels down, as sanitizers.
    #[arg(long = "cases", value_name = "N")]
    pub cases_max: Option<usize>,

    /// Seed of the failures of the checks that fail on purpose.
    #[arg(long, value_name = "SEED", default_value_t = 7)]
    pub seed: u64,
}

fn mode(text: &str) -> Result<Mode, String> {
    [Mode::Pools, Mode::Plain, Mode::Driver]
        .into_iter()
        .find(|mode| mode.as_str() == text)
        .ok_or_else(|| format!("'{text}' is not pools, plain or driver"))
}

/// One check.
struct Check {
    name: &'static str,
    claim: &'static str,
    /// What comes back is what was measured.
    run: fn(&mut Stage) -> anyhow::Result<String>,
    failures: fn(u64) -> Failures,
}

fn never(_: u64) -> Failures {
    Failures::Never
}

/// In the order in which they are run. Those that fail on purpose have a process of their own: a process has one
/// allocator.
const CHECKS: [Check; 15] = [
    Check { name: "cost", claim: "an allocation and its free cost at most 1.5 us", run: cost::run, failures: never },
    Check { name: "books", claim: "every part of the card's memory is named", run: books::run, failures: never },
    Check { name: "behind", claim: "memory taken behind our back shows", run: behind::run, failures: never },
    Check { name: "ceiling", claim: "a step gets no byte above its ceiling", run: ceiling::run, failures: never },
    Check { name: "exhaustion", claim: "a full card is an ordinary event", run: exhaustion::run, failures: never },
    Check { name: "cycle", claim: "20 loads and unloads leave nothing", run: cycle::run, failures: never },
    Check { name: "foreign", claim: "what is not ours is left to the driver", run: foreign::run, failures: never },
    Check { name: "operations", claim: "f16 and int8 compute what f32 does", run: operations::run, failures: never },
    Check { name: "products", claim: "products are those of plain code", run: products::run, failures: never },
    Check { name: "kernels", claim: "our kernels compute what plain code does", run: kernels::run, failures: never },
    Check { name: "eight-bit", claim: "so do those of 8 bits, by every way", run: eight_bit::run, failures: never },
    Check { name: "answers", claim: "models answer as in f32 on the CPU", run: answers::run, failures: never },
    Check { name: "neighbours", claim: "the nearest texts stay the nearest", run: neighbours::run, failures: never },
    Check {
        name: "random-failures",
        claim: "no answer is lost when the driver fails at random",
        run: injected::run,
        failures: |seed| Failures::Random { probability: 0.05, seed },
    },
    Check {
        name: "size-failures",
        claim: "no answer is lost when large blocks fail",
        run: injected::run,
        failures: |_| Failures::Above { bytes: injected::LARGEST },
    },
];

/// Runs the checks and prints a table. Exits with 0 if all hold.
///
/// # Errors
/// A check of that name does not exist, or the GPU cannot be used at all.
pub fn run(args: GpuTestArgs) -> anyhow::Result<ExitCode> {
    if let Some(unknown) = args.checks.iter().find(|name| CHECKS.iter().all(|check| check.name != name.as_str())) {
        let names: Vec<_> = CHECKS.iter().map(|check| check.name).collect();
        bail!("there is no check '{unknown}': there are {}", names.join(", "));
    }
    let chosen: Vec<_> =
        CHECKS.iter().filter(|check| args.checks.is_empty() || args.checks.iter().any(|n| n == check.name)).collect();
    let mut out = io::stdout().lock();
    // One that fails on purpose, alone: this is the process that was started for it.
    if let [check] = chosen.as_slice() {
        let failures = (check.failures)(args.seed);
        let mut stage = open(&args, failures)?;
        return told(&mut out, &[(check, (check.run)(&mut stage))]);
    }
    let mut stage = open(&args, Failures::Never)?;
    let (major, minor) = stage.card().capability();
    let driver = driver_version().map_or_else(|| "unknown".to_owned(), |(major, minor)| format!("{major}.{minor}"));
    let (name, mode) = (stage.card().name(), stage.card().memory_comes_from());
    writeln!(out, "{name}, compute capability {major}.{minor}, driver for CUDA {driver}, allocator: {mode}\n")?;
    out.flush()?;
    let mut results = Vec::new();
    for check in chosen {
        let result = match (check.failures)(args.seed) {
            Failures::Never => (check.run)(&mut stage),
            _ => in_a_process_of_its_own(check, &args),
        };
        results.push((check, result));
    }
    told(&mut out, &results)
}

fn open(args: &GpuTestArgs, failures: Failures) -> anyhow::Result<Stage> {
    let settings = CardSettings { ordinal: args.gpu, mode: args.allocator, failures };
    let mut stage = Stage::open(settings, args.models.clone()).context("the GPU cannot be used")?;
    stage.cases_max = args.cases_max;
    Ok(stage)
}

fn in_a_process_of_its_own(check: &Check, args: &GpuTestArgs) -> anyhow::Result<String> {
    let program = std::env::current_exe().context("this program does not know where it is")?;
    let output = Command::new(program)
        .args(["gpu-test", check.name, "--gpu", &args.gpu.to_string(), "--seed", &args.seed.to_string()])
        .args(["--allocator", args.allocator.as_str()])
        .output()
        .context("no second process can be started")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let figures = text.lines().find_map(|line| line.split_once(check.claim)).map(|(_, figures)| figures.trim());
    match (output.status.success(), figures) {
        (true, Some(figures)) => Ok(figures.to_owned()),
        _ => bail!("{text}{}", String::from_utf8_lossy(&output.stderr)),
    }
}

fn told(out: &mut impl Write, results: &[(&Check, anyhow::Result<String>)]) -> anyhow::Result<ExitCode> {
    let mut rows = Vec::new();
    for (check, result) in results {
        let (verdict, figures) = match result {
            Ok(figures) => ("holds", figures.lines().next().unwrap_or_default().to_owned()),
            Err(error) => ("FAILS", format!("{error:#}")),
        };
        rows.push([check.name.to_owned(), verdict.to_owned(), check.claim.to_owned(), figures]);
    }
    table::write(out, &rows)?;
    for (check, result) in results {
        // What does not fit into a line.
        if let Ok(figures) = result
            && let Some((_, rest)) = figures.split_once('\n')
        {
            writeln!(out, "\n{}:\n{rest}", check.name)?;
        }
    }
    let failed = results.iter().filter(|(_, result)| result.is_err()).count();
    if failed > 0 {
        writeln!(out, "\n{failed} of {} checks fail", results.len())?;
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}
