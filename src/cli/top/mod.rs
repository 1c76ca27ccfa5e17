//! `plimsoll top`: the dashboard in a terminal. It knows a server only through what its metrics port answers.
//!
//! [`scrape`] asks, [`samples`] reads the answer, [`history`] keeps a minute of them, [`view`] derives what a person
//! wants to know, [`lines`] writes it down, [`screen`] shows it.

mod names;
mod samples;
mod history;
mod view;
mod figures;
mod table;
mod lines;
mod screen;
mod scrape;
#[cfg(test)]
mod watched;

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;

use self::history::History;
use self::scrape::Target;
use self::screen::{Colours, Message};
use self::view::View;
use super::bench::connect::CredentialArgs;
use super::bench::duration::parse_duration;

/// Watch a server in the terminal: memory, models, latencies, why batches were not larger
///
/// Rates and latencies are over the last ten seconds. q ends it. Where standard output is no terminal, it prints what
/// it sees once, as with --once. NO_COLOR is respected.
#[derive(clap::Args, Debug)]
pub struct TopArgs {
    /// Where the server's metrics are: its metrics port, or its HTTP port with what that asks of callers.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8002")]
    pub address: String,
    /// What the server asks of its callers.
    #[command(flatten)]
    pub credentials: CredentialArgs,
    /// How often it is asked.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_interval)]
    pub interval: Duration,
    /// Print the view once, after one interval.
    #[arg(long)]
    pub once: bool,
}

/// Below this the server would be asked more than it is used; the history holds a minute of answers.
const INTERVAL_MIN: Duration = Duration::from_millis(200);
const INTERVAL_MAX: Duration = Duration::from_secs(3600);
/// Cells of a line where there is no terminal to ask.
const PRINTED_WIDTH: usize = 120;

fn parse_interval(text: &str) -> Result<Duration, String> {
    let interval = parse_duration(text)?;
    match (INTERVAL_MIN..=INTERVAL_MAX).contains(&interval) {
        true => Ok(interval),
        false => Err(format!("'{text}' is not between 200ms and 60m")),
    }
}

/// Runs `plimsoll top`.
///
/// # Errors
/// A file of the credentials is not what it should be; with `--once`, that the server does not answer; the terminal's.
pub fn run(args: TopArgs) -> anyhow::Result<ExitCode> {
    let target = Target::new(&args.address, &args.credentials)?;
    match args.once || !io::stdout().is_terminal() {
        true => once(&args, &target)?,
        false => watch(args, target)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Two answers one interval apart, and what they say.
fn once(args: &TopArgs, target: &Target) -> anyhow::Result<()> {
    let ask = || target.ask().with_context(|| format!("no answer from {}", args.address));
    let mut history = History::default();
    let start = Instant::now();
    history.push(Duration::ZERO, ask()?.samples);
    thread::sleep(args.interval);
    let answer = ask()?;
    history.push(start.elapsed(), answer.samples);
    let view = View::new(&args.address, answer.condition, &history);
    screen::print(&mut io::stdout().lock(), &view, PRINTED_WIDTH)?;
    Ok(())
}

fn watch(args: TopArgs, target: Target) -> anyhow::Result<()> {
    let (sender, messages) = mpsc::channel();
    // An empty value counts as none.
    let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colours = if no_colour { Colours::None } else { Colours::Shown };
    end_on_signal(sender.clone())?;
    // It is not waited for at the end: an answer that is on its way is nobody's any more.
    thread::Builder::new().name("ask".to_owned()).spawn(move || {
        loop {
            let asked = Instant::now();
            if sender.send(Message::Asked(target.ask())).is_err() {
                break;
            }
            thread::sleep(args.interval.saturating_sub(asked.elapsed()));
        }
    })?;
    screen::run(&args.address, &messages, colours)
}

/// A process that ends by itself leaves the terminal as it was; Ctrl-C is a key there.
#[cfg(unix)]
fn end_on_signal(sender: Sender<Message>) -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut terminated, mut hung_up) = {
        let _context = runtime.enter();
        (signal(SignalKind::terminate())?, signal(SignalKind::hangup())?)
    };
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = terminated.recv() => {}
                _ = hung_up.recv() => {}
            }
        });
        // Nobody listens where it has ended already.
        let _ = sender.send(Message::End);
    })?;
    Ok(())
}

#[cfg(not(unix))]
fn end_on_signal(_: Sender<Message>) -> io::Result<()> {
    Ok(())
}
