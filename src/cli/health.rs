//! `plimsoll health`: asks a server whether it is well, for supervisors that run a command, such as a container's.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};

/// Ask a server whether it is ready
///
/// Exit code: 0 if it is, 1 if it is not or does not answer.
#[derive(clap::Args, Clone, Debug)]
pub struct HealthArgs {
    /// Where metrics and health are.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8002")]
    pub address: SocketAddr,

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
    let (status, reason) = ask(args.address, path, Duration::from_secs(args.timeout.max(1)))
        .with_context(|| format!("no server answers at {}", args.address))?;
    if status != 200 {
        bail!("{}", if reason.is_empty() { format!("it answers {status}") } else { reason });
    }
    println!("{}", if args.live { "live" } else { "ready" });
    Ok(ExitCode::SUCCESS)
}

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
        let found = run(HealthArgs { address, live: false, timeout: 5 });
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
        let error = run(HealthArgs { address, live: true, timeout: 1 }).expect_err("nobody is there");
        assert!(error.to_string().contains("no server answers"), "{error}");
    }
}
