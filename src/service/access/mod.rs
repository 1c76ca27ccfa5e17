//! Who may call what: bearer tokens for calls, and for those of administration a token or an address of their own.
//!
//! | | without `admin_token_file` | with it |
//! | --- | --- | --- |
//! | calls, without `token_file` | anybody | anybody |
//! | calls, with `token_file` | a token of either file | a token of either file |
//! | administration, on a loopback address | as any call | a token of `admin_token_file` |
//! | administration, on another address | nobody | a token of `admin_token_file` |
//! | administration, on `admin_address` | as any call | a token of `admin_token_file` |
//!
//! What is decided here is decided before a message is read.

mod guard;
mod methods;
mod pages;
mod pass;
mod refusal;
mod tokens;

use std::net::IpAddr;
use std::path::Path;
use std::sync::Once;
use std::time::SystemTime;

pub(crate) use guard::{Guarded, guard};
#[cfg(test)]
pub(super) use methods::admin_paths;
pub(crate) use pass::Pass;
pub(crate) use refusal::Refusal;
use tokens::{Tokens, Verdict};

use super::errors::Problem;
use super::kept::Kept;

/// Where a call came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    /// At the address for everybody.
    Main,
    /// At the one for administration.
    Admin,
}

/// Which calls are let in.
#[derive(Debug)]
pub(crate) struct Access {
    tokens: Option<Kept<Tokens>>,
    admin_tokens: Option<Kept<Tokens>>,
    /// Whether the main address is reached from this machine alone.
    is_loopback: bool,
    /// Said once how administration is allowed.
    said: Once,
}

impl Access {
    /// Reads the files. `address` is where the server listens.
    ///
    /// # Errors
    /// A file cannot be read, or a line of it is no token: by file and line, without what it says.
    pub(crate) fn open(
        address: IpAddr,
        token_file: Option<&Path>,
        admin_token_file: Option<&Path>,
    ) -> Result<Access, String> {
        let open = |file: Option<&Path>| {
            file.map(|file| Kept::open(&[file], |contents| Tokens::parse(&contents[0]))).transpose()
        };
        Ok(Access {
            tokens: open(token_file)?,
            admin_tokens: open(admin_token_file)?,
            is_loopback: address.is_loopback(),
            said: Once::new(),
        })
    }

    /// Reads the files again, if they have changed.
    pub(crate) fn refresh(&self) {
        for (kept, what) in [(&self.tokens, "tokens"), (&self.admin_tokens, "tokens of administration")] {
            if let Some(kept) = kept {
                kept.refresh(what);
            }
        }
    }

    /// Whether calls need a token.
    pub(crate) fn asks_for_tokens(&self) -> bool {
        self.tokens.is_some()
    }

    /// Whether calls of administration need a token of their own.
    pub(crate) fn asks_for_admin_tokens(&self) -> bool {
        self.admin_tokens.is_some()
    }

    /// Whether a call is let in. `authorization` is its header of that name.
    fn decide(&self, is_admin: bool, authorization: Option<&[u8]>, door: Door, now: SystemTime) -> Result<(), Refusal> {
        let token = authorization.map(bearer);
        let verdict_by = |kept: &Option<Kept<Tokens>>| match (kept, token) {
            (Some(kept), Some(Some(token))) => kept.get().check(token, now),
            _ => Verdict::Unknown,
        };
        // Both are always looked at, so that how long it takes does not tell which file has a token.
        let (as_caller, as_admin) = (verdict_by(&self.tokens), verdict_by(&self.admin_tokens));
        let found = as_caller.max(as_admin);
        let missing = match (found, token) {
            (_, None) => Refusal::NoToken,
            (Verdict::Expired, _) => Refusal::Expired,
            _ => Refusal::Unknown,
        };
        if is_admin && self.admin_tokens.is_some() {
            return match (as_admin, as_caller) {
                (Verdict::Valid, _) => Ok(()),
                (_, Verdict::Valid) => Err(Refusal::NotForAdmin),
                _ => Err(missing),
            };
        }
        if is_admin && door == Door::Main && !self.is_loopback {
            self.say_how_to_allow();
            return Err(Refusal::AdminClosed);
        }
        if self.tokens.is_some() && found != Verdict::Valid { Err(missing) } else { Ok(()) }
    }

    fn say_how_to_allow(&self) {
        self.said.call_once(|| {
            tracing::warn!(
                "a call of administration is refused: this address is reached from other machines. To allow them, \
                 name a file of tokens for them (--admin-token-file) or an address of their own (--admin-address)"
            );
        });
    }
}

/// The token of a header `authorization: Bearer TOKEN`.
fn bearer(header: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = header.split_at_checked("Bearer ".len())?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"Bearer ") && !token.is_empty()).then_some(token)
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Problem {
        Problem::Refused(refusal)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const CALLER: &str = "caller-caller-caller";
    const ADMIN: &str = "admin-admin-admin-admin";
    const OLD: &str = "old-old-old-old-old-old";

    fn access(address: &str, with_tokens: bool, with_admin_tokens: bool) -> Access {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: String| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let tokens = file("tokens", format!("# callers\n\n{CALLER}\n{OLD} until 2020-01-01T00:00:00Z\n"));
        let admin = file("admin", format!("{ADMIN}\n"));
        Access::open(
            address.parse().unwrap(),
            with_tokens.then_some(tokens.as_path()),
            with_admin_tokens.then_some(admin.as_path()),
        )
        .unwrap()
    }

    const NOW: fn() -> SystemTime = || SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);

    /// What calls with no token, a wrong one, an expired one, a caller's and an administrator's come to.
    fn answers(access: &Access, is_admin: bool, door: Door) -> [Result<(), Refusal>; 5] {
        let headers = [None, Some("no-such-token-anywhere"), Some(OLD), Some(CALLER), Some(ADMIN)];
        headers.map(|token| {
            let header = token.map(|token| format!("Bearer {token}"));
            access.decide(is_admin, header.as_deref().map(str::as_bytes), door, NOW())
        })
    }

    #[test]
    fn the_table_holds() {
        use Refusal::*;
        let by_caller = [Err(NoToken), Err(Unknown), Err(Expired), Ok(()), Ok(())];
        // Without a file of administration its token is like any other unknown one.
        let by_caller_alone = [Err(NoToken), Err(Unknown), Err(Expired), Ok(()), Err(Unknown)];
        let anybody = [Ok(()); 5];
        let by_admin = [Err(NoToken), Err(Unknown), Err(Expired), Err(NotForAdmin), Ok(())];
        // Where there is no file of callers, theirs are unknown.
        let by_admin_alone = [Err(NoToken), Err(Unknown), Err(Unknown), Err(Unknown), Ok(())];
        let nobody = [Err(AdminClosed); 5];
        for (address, is_loopback) in [("127.0.0.1", true), ("::1", true), ("0.0.0.0", false), ("10.0.0.1", false)] {
            for door in [Door::Main, Door::Admin] {
                let check = |tokens, admin_tokens, calls, administration| {
                    let access = access(address, tokens, admin_tokens);
                    let place = format!("{address} {door:?} {tokens} {admin_tokens}");
                    assert_eq!(answers(&access, false, door), calls, "{place}");
                    assert_eq!(answers(&access, true, door), administration, "{place}");
                };
                let open = is_loopback || door == Door::Admin;
                check(false, false, anybody, if open { anybody } else { nobody });
                check(true, false, by_caller_alone, if open { by_caller_alone } else { nobody });
                check(false, true, anybody, by_admin_alone);
                check(true, true, by_caller, by_admin);
            }
        }
    }

    #[test]
    fn a_header_that_is_no_bearer_token_is_none() {
        let access = access("127.0.0.1", true, false);
        let decide = |header: &[u8]| access.decide(false, Some(header), Door::Main, NOW());
        assert_eq!(decide(format!("bearer  {CALLER} ").as_bytes()), Ok(()), "schemes have no case");
        for header in ["", "Bearer", "Bearer ", CALLER, "Basic caller-caller-caller", "Bearer caller-caller-calle"] {
            assert_eq!(decide(header.as_bytes()), Err(Refusal::Unknown), "{header:?}");
        }
        assert_eq!(decide(&[0xff, 0xfe, 0, 0x80]), Err(Refusal::Unknown));
        assert_eq!(decide(&[b'B'; 100_000]), Err(Refusal::Unknown));
    }
}
