//! What the neighbour does, as text.

use std::fmt;
use std::time::Duration;

use crate::cli::bench::duration::parse_duration;
use crate::config::Amount;
use crate::units::Bytes;

/// The longest script: what its holds and asks may add up to.
pub(super) const LONGEST: Duration = Duration::from_secs(3600);

/// Undisturbed; squeezed twice, back to plenty each time; at last a neighbour that waits for what an idle server keeps.
const BUILT_IN: &str = "\
hold 8s
leave 10%
hold 8s
free all
hold 6s
take 50%
hold 6s
free all
hold 6s
load stop
ask 85% floor 5% for 10s
hold 1s
free all
load start
hold 4s
";

/// One line of a script.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Statement {
    /// Waits.
    Hold(Duration),
    /// Holds so much in total, whatever is free.
    Take(Amount),
    /// Takes, not all at once, until only so much is free.
    Leave(Amount),
    /// Gives back so much.
    Free(Amount),
    /// Holds so much in total, but takes only while `floor` stays free.
    Ask { amount: Amount, floor: Amount, patience: Duration },
    /// Has calls sent, or not.
    Load { on: bool },
    /// Has the server started, and waits until it is ready. What stands before it happens beside no server.
    StartServer,
}

/// A checked script.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Script {
    statements: Vec<Statement>,
}

impl Default for Script {
    fn default() -> Script {
        Script::parse(BUILT_IN).expect("a test parses the built-in script")
    }
}

impl Script {
    /// Reads a script: a statement a line; empty lines and what follows `#` are left out.
    ///
    /// # Errors
    /// The first line that is not a statement, with what is allowed.
    pub(super) fn parse(text: &str) -> anyhow::Result<Script> {
        let mut statements = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let statement = statement(line).map_err(|error| anyhow::anyhow!("line {}: {error}", number + 1))?;
            statements.push(statement);
        }
        anyhow::ensure!(!statements.is_empty(), "the script has no statement");
        let script = Script { statements };
        anyhow::ensure!(
            script.length_max() <= LONGEST,
            "the script may last {} s; allowed are {} s",
            script.length_max().as_secs(),
            LONGEST.as_secs()
        );
        let starts = script.statements.iter().filter(|statement| **statement == Statement::StartServer).count();
        anyhow::ensure!(starts <= 1, "the script has 'start server' {starts} times: there is one server to start");
        Ok(script)
    }

    /// The statements in their order.
    pub(super) fn statements(&self) -> &[Statement] {
        &self.statements
    }

    /// Whether the neighbour is there before the server. Else the server is ready before the first statement.
    pub(super) fn starts_server(&self) -> bool {
        self.statements.contains(&Statement::StartServer)
    }

    /// How long it lasts at most, without the time for taking, freeing and the server's start.
    pub(super) fn length_max(&self) -> Duration {
        let length = |statement: &Statement| match *statement {
            Statement::Hold(duration) => duration,
            Statement::Ask { patience, .. } => patience,
            Statement::Take(_)
            | Statement::Leave(_)
            | Statement::Free(_)
            | Statement::Load { .. }
            | Statement::StartServer => Duration::ZERO,
        };
        self.statements.iter().map(length).fold(Duration::ZERO, Duration::saturating_add)
    }
}

/// As it can be parsed again.
impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.statements.iter().try_for_each(|statement| writeln!(f, "{statement}"))
    }
}

impl fmt::Display for Statement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let amount = |amount: &Amount| match *amount {
            Amount::Bytes(bytes) => bytes.get().to_string(),
            Amount::Percent(percent) => format!("{percent}%"),
        };
        match self {
            Statement::Hold(duration) => write!(f, "hold {}us", duration.as_micros()),
            Statement::Take(bytes) => write!(f, "take {}", amount(bytes)),
            Statement::Leave(bytes) => write!(f, "leave {}", amount(bytes)),
            Statement::Free(Amount::Percent(100.0)) => f.write_str("free all"),
            Statement::Free(bytes) => write!(f, "free {}", amount(bytes)),
            Statement::Ask { amount: bytes, floor, patience } => {
                write!(f, "ask {} floor {} for {}us", amount(bytes), amount(floor), patience.as_micros())
            }
            Statement::Load { on } => write!(f, "load {}", if *on { "start" } else { "stop" }),
            Statement::StartServer => f.write_str("start server"),
        }
    }
}

fn statement(line: &str) -> Result<Statement, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words.as_slice() {
        ["hold", duration] => Ok(Statement::Hold(parse_duration(duration)?)),
        ["take", bytes] => Ok(Statement::Take(amount(bytes)?)),
        ["leave", bytes] => Ok(Statement::Leave(amount(bytes)?)),
        ["free", "all"] => Ok(Statement::Free(Amount::Percent(100.0))),
        ["free", bytes] => Ok(Statement::Free(amount(bytes)?)),
        ["ask", bytes, "floor", floor, "for", patience] => {
            Ok(Statement::Ask { amount: amount(bytes)?, floor: amount(floor)?, patience: parse_duration(patience)? })
        }
        ["load", "start"] => Ok(Statement::Load { on: true }),
        ["load", "stop"] => Ok(Statement::Load { on: false }),
        ["start", "server"] => Ok(Statement::StartServer),
        _ => Err(format!(
            "'{line}' is not a statement; allowed are: hold DURATION, take AMOUNT, leave AMOUNT, free all, free AMOUNT, \
             ask AMOUNT floor AMOUNT for DURATION, load stop, load start, start server"
        )),
    }
}

fn amount(text: &str) -> Result<Amount, String> {
    let Some(percent) = text.strip_suffix('%') else {
        return text.parse::<Bytes>().map(Amount::Bytes).map_err(|error| format!("{error}, or a percentage"));
    };
    let percent = percent.parse::<f64>().ok().filter(|percent| (0.0..=100.0).contains(percent));
    percent.map(Amount::Percent).ok_or_else(|| format!("'{text}' is not a percentage from 0% to 100%"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_statement_is_read_and_written_alike() {
        let text = "# a comment\n\nhold 1.5s\ntake 100MiB # more\nleave 10%\nfree 25%\nfree all\n\
                    ask 60% floor 32MiB for 5s\nload stop\nload start\nstart server\n";
        let script = Script::parse(text).unwrap();
        let (mib, percent) = (|count| Amount::Bytes(Bytes::mib(count)), Amount::Percent);
        assert_eq!(
            script.statements(),
            [
                Statement::Hold(Duration::from_millis(1_500)),
                Statement::Take(mib(100)),
                Statement::Leave(percent(10.0)),
                Statement::Free(percent(25.0)),
                Statement::Free(percent(100.0)),
                Statement::Ask { amount: percent(60.0), floor: mib(32), patience: Duration::from_secs(5) },
                Statement::Load { on: false },
                Statement::Load { on: true },
                Statement::StartServer,
            ]
        );
        assert!(script.starts_server());
        assert_eq!(script.length_max(), Duration::from_millis(6_500));
        assert_eq!(Script::parse(&script.to_string()).unwrap(), script);
    }

    #[test]
    fn a_mistake_is_named_with_its_line() {
        let check = |text: &str, start: &str| {
            let error = Script::parse(text).unwrap_err().to_string();
            assert!(error.starts_with(start), "{error}");
        };
        check("", "the script has no statement");
        check("hold 1s\nsleep 2s", "line 2: 'sleep 2s' is not a statement; allowed are: hold");
        check("hold 5", "line 1: '5' is not a duration");
        check("take 101%", "line 1: '101%' is not a percentage");
        check("take much", "line 1: 'much' is not a number of bytes");
        check("ask 10% for 2s", "line 1: 'ask 10% for 2s' is not a statement");
        check("hold 59m\nhold 2m", "the script may last 3660 s");
        check("start server\nhold 1s\nstart server", "the script has 'start server' 2 times");
        check("start", "line 1: 'start' is not a statement");
    }

    #[test]
    fn the_built_in_script_parses() {
        let script = Script::default();
        assert_eq!(script, Script::parse(BUILT_IN).unwrap());
        assert!(script.length_max() < Duration::from_secs(60));
        assert!(!script.starts_server(), "a server that starts beside a neighbour is asked for");
    }
}
