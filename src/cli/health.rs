//! `plimsoll health`: asks a server whether it is well, for supervisors that run a command, such as a container's.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};

use crate::config::Environment;

/// Ask a server whether it is ready
///
/// Exit code: 0 if it is, 1 if it is not or does not answer.
#[derive(clap::Args, Clone, Debug)]
pub struct HealthArgs {
    /// Where metrics and health are [default: where PLIMSOLL_ADDRESS and PLIMSOLL_METRICS_PORT say, or 127.0.0.1:8002].
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub address: Option<SocketAddr>,

    /// Ask whether it lives instead: a server that loads its models, or drains, does.
    #[arg(long)]
    pub live: bool,

    /// How long it may take.
    #[arg(long, value_name = "SECONDS", default_value_t = 2)]
    pub timeout: u64,
}

/// Runs `plimsoll health`.
///
/// # Errors
/// What the server says, or that it says nothing.
pub fn run(args: HealthArgs) -> anyhow::Result<ExitCode> {
    let path = if args.live { "/health/live" } else { "/health/ready" };
    let address = args.address.map_or_else(|| served_at(&Environment::of_process()), Ok)?;
    let (status, reason) = ask(address, path, Duration::from_secs(args.timeout.max(1)))
        .with_context(|| format!("no server answers at {address}"))?;
    if status != 200 {
        bail!("{}", if reason.is_empty() { format!("it answers {status}") } else { reason });
    }
    println!("{}", if args.live { "live" } else { "ready" });
    Ok(ExitCode::SUCCESS)
}

/// Where a server that was started in this environment has metrics and health, as seen from its own machine. A file of
/// settings is not looked for: a check runs where the server runs, but not in its folder.
fn served_at(environment: &Environment) -> anyhow::Result<SocketAddr> {
    let read = |name: &'static str| environment.get(name).map(|text| (name, text));
    let port = match read("PLIMSOLL_METRICS_PORT").map(|(name, text)| (name, text, text.parse())) {
        None => METRICS_PORT,
        Some((name, _, Ok(0))) => bail!("{name} is 0, which is any free port: say with --address which one it is"),
        Some((_, _, Ok(port))) => port,
        Some((name, text, Err(_))) => bail!("{name} is '{text}' and not a port: write a number from 1 to 65535"),
    };
    let address: IpAddr = match read("PLIMSOLL_ADDRESS") {
        None => Ipv4Addr::LOCALHOST.into(),
        Some((name, text)) => {
            text.parse().with_context(|| format!("{name} is '{text}' and not an address such as 127.0.0.1"))?
        }
    };
    // A server that listens everywhere is reached from here, too.
    let address = match address {
        IpAddr::V4(all) if all.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(all) if all.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        one => one,
    };
    Ok(SocketAddr::new(address, port))
}

/// The port of metrics and health unless it is set.
const METRICS_PORT: u16 = 8002;

/// The largest answer that is read.
const ANSWER_MAX: u64 = 64 << 10;

fn ask(address: SocketAddr, path: &str, timeout: Duration) -> anyhow::Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    // In one piece: what is written part by part travels part by part.
    let asked = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(asked.as_bytes())?;
    let mut answer = String::new();
    stream.take(ANSWER_MAX).read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("what answers does not speak HTTP")?;
    let status = head.split_ascii_whitespace().nth(1).and_then(|status| status.parse().ok());
    Ok((status.context("what answers does not speak HTTP")?, body.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// What comes of asking somebody who answers this.
    fn answered(answer: &'static str) -> anyhow::Result<ExitCode> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let answering = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("somebody asks");
            // All of it: a connection that is closed with something unread is reset, and the answer with it.
            let mut asked = Vec::new();
            while !asked.ends_with(b"\r\n\r\n") {
                let mut next = [0];
                stream.read_exact(&mut next).expect("a whole request");
                asked.extend(next);
            }
            stream.write_all(answer.as_bytes()).expect("somebody listens");
        });
        let found = run(HealthArgs { address: Some(address), live: false, timeout: 5 });
        answering.join().expect("it answers");
        found
    }

    #[test]
    fn the_answer_is_the_exit_code() {
        assert!(answered("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok\n").is_ok());
        let refused = answered("HTTP/1.1 503 Service Unavailable\r\n\r\na is being loaded\n").expect_err("it is not");
        assert_eq!(refused.to_string(), "a is being loaded");
        assert!(answered("SSH-2.0-OpenSSH\r\n").is_err());
        assert!(answered("").is_err());
    }

    #[test]
    fn nobody_is_not_well() {
        let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port");
        let error = run(HealthArgs { address: Some(address), live: true, timeout: 1 }).expect_err("nobody is there");
        assert!(error.to_string().contains("no server answers"), "{error}");
    }

    #[test]
    fn the_server_of_this_environment_is_asked() {
        let check = |variables: &[(&str, &str)], expected: &str| {
            let found = served_at(&Environment::from_pairs(variables.iter().copied()));
            assert_eq!(found.expect("an address").to_string(), expected);
        };
        const PORT: &str = "PLIMSOLL_METRICS_PORT";
        const ADDRESS: &str = "PLIMSOLL_ADDRESS";
        check(&[], "127.0.0.1:8002");
        check(&[(PORT, "9002")], "127.0.0.1:9002");
        check(&[(PORT, ""), (ADDRESS, "")], "127.0.0.1:8002");
        check(&[(PORT, "9002"), (ADDRESS, "10.1.2.3")], "10.1.2.3:9002");
        check(&[(ADDRESS, "0.0.0.0")], "127.0.0.1:8002");
        check(&[(ADDRESS, "::")], "[::1]:8002");
        check(&[(ADDRESS, "fd00::1")], "[fd00::1]:8002");
        let refused = |variable, value, part: &str| {
            let error = served_at(&Environment::from_pairs([(variable, value)])).expect_err("it must be refused");
            assert!(error.to_string().contains(variable) && error.to_string().contains(part), "{error}");
        };
        refused(PORT, "0", "--address");
        refused(PORT, "http", "not a port");
        refused(ADDRESS, "localhost", "not an address");
    }

    #[test]
    fn the_port_is_that_of_the_settings() {
        let setting = crate::config::SETTINGS.iter().find(|setting| setting.name == "metrics_port");
        assert_eq!(setting.map(|setting| setting.default), Some(METRICS_PORT.to_string().as_str()));
    }
}
