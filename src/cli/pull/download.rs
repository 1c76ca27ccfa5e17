//! One file over HTTP, taken up again where it broke off.

use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, ensure};
use indicatif::ProgressBar;
use ureq::Agent;
use ureq::config::RedirectAuthHeaders;
use ureq::http::StatusCode;
use ureq::http::header::{AUTHORIZATION, RANGE};

/// How long is waited before the first further try; before the second four times as long, and so on.
const PAUSE: Duration = Duration::from_millis(300);

/// Where files come from.
pub(super) struct Files {
    agent: Agent,
    token: Option<String>,
    /// Further tries of each.
    retries: usize,
}

/// A file to have.
pub(super) struct Whole {
    pub(super) url: String,
    /// Its bytes, where that is known: no more are taken.
    pub(super) size: Option<u64>,
    /// Whether what an earlier run has left of it may be gone on with.
    pub(super) can_go_on: bool,
}

impl Files {
    pub(super) fn new(token: Option<String>, retries: usize) -> Files {
        // A server that leads elsewhere does not get the token there.
        let agent = Agent::config_builder()
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .user_agent(concat!("plimsoll/", env!("CARGO_PKG_VERSION")))
            .build();
        Files { agent: agent.into(), token, retries }
    }

    /// Downloads the file to `to`, which appears when all of it is there. In `bar` it begins at `before`.
    pub(super) fn download(&self, whole: &Whole, to: &Path, bar: &ProgressBar, before: u64) -> anyhow::Result<()> {
        let name = to.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let part = to.with_file_name(format!(".{name}.part"));
        let parent = to.parent().context("a file lies in a folder")?;
        fs::create_dir_all(parent).with_context(|| format!("{}", parent.display()))?;
        let left = fs::metadata(&part).map(|metadata| metadata.len()).ok();
        // Of a whole one the server would refuse to give the next byte.
        let can_go_on = |left| whole.can_go_on && whole.size.is_some_and(|size| left < size);
        if left.is_some_and(|left| !can_go_on(left)) {
            fs::remove_file(&part)?;
        }
        let mut tries = 0;
        while let Err(error) = self.go_on(whole, &part, bar, before) {
            if tries == self.retries || is_final(&error) {
                return Err(error);
            }
            tries += 1;
            sleep(PAUSE * (tries * tries) as u32);
        }
        fs::rename(&part, to).with_context(|| format!("{}", to.display()))
    }

    /// Asks for what `part` has not yet.
    fn go_on(&self, whole: &Whole, part: &Path, bar: &ProgressBar, before: u64) -> anyhow::Result<()> {
        let mut file = OpenOptions::new().create(true).append(true).open(part)?;
        let mut start = file.metadata()?.len();
        if whole.size == Some(start) {
            return Ok(());
        }
        let mut request = self.agent.get(&whole.url).header(RANGE, format!("bytes={start}-"));
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let answer = request.call()?;
        if answer.status() != StatusCode::PARTIAL_CONTENT {
            // It gives all of it, whatever was asked for.
            file.set_len(0)?;
            start = 0;
        }
        bar.set_position(before + start);
        // One more, so that a file that is longer is seen to be.
        let most = whole.size.map_or(u64::MAX, |size| size.saturating_sub(start) + 1);
        let body = answer.into_body().into_reader().take(most);
        let found = start + io::copy(&mut bar.wrap_read(body), &mut file)?;
        ensure!(whole.size.is_none_or(|size| found >= size), "it broke off after {found} bytes");
        Ok(())
    }
}

/// Whether another try would end as this one: the server has understood, and refuses.
fn is_final(error: &anyhow::Error) -> bool {
    match error.downcast_ref() {
        Some(ureq::Error::StatusCode(status)) => (400..500).contains(status) && ![408, 429].contains(status),
        _ => false,
    }
}
