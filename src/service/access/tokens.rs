//! Bearer tokens, as a file lists them.
//!
//! One a line; empty lines and those that begin with # are left out. What follows a token after a space is how long it
//! is good for: `TOKEN until 2027-01-31T12:00:00Z`.

use std::time::SystemTime;

use sha2::{Digest, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Fewer characters can be guessed.
const LENGTH_MIN: usize = 16;

/// What is known of a token, the better the larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verdict {
    /// It is not in the file.
    Unknown,
    /// Its time is over.
    Expired,
    /// It is good.
    Valid,
}

/// The tokens of a file. What is kept of them are digests, which are compared bit by bit to the end.
#[derive(Debug)]
pub(super) struct Tokens(Vec<Token>);

#[derive(Debug)]
struct Token {
    digest: [u8; 32],
    until: Option<SystemTime>,
}

impl Tokens {
    /// Reads a file's contents.
    ///
    /// # Errors
    /// What is wrong in which line; nothing of the line itself, which may be a secret.
    pub(super) fn parse(contents: &[u8]) -> Result<Tokens, String> {
        let text = std::str::from_utf8(contents).map_err(|_| "it is not text".to_owned())?;
        let lines = (1..).zip(text.lines().map(str::trim));
        let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let tokens: Vec<Token> = lines
            .map(|(number, line)| Token::parse(line).map_err(|problem| format!("line {number}: {problem}")))
            .collect::<Result<_, _>>()?;
        // Nobody could call: an emptied file is a mistake more often than a wish.
        if tokens.is_empty() {
            return Err(
                "there is no token in it: write one a line, such as the output of 'openssl rand -hex 32'".into()
            );
        }
        Ok(Tokens(tokens))
    }

    /// Looks at every token to its end, whatever is found.
    pub(super) fn check(&self, token: &[u8], now: SystemTime) -> Verdict {
        let digest: [u8; 32] = Sha256::digest(token).into();
        let mut found = 0u8;
        for Token { digest: known, until } in &self.0 {
            let verdict = if until.is_some_and(|until| until <= now) { Verdict::Expired } else { Verdict::Valid };
            let is_this: Choice = known.ct_eq(&digest);
            found = u8::conditional_select(&found, &(verdict as u8).max(found), is_this);
        }
        match found {
            0 => Verdict::Unknown,
            1 => Verdict::Expired,
            _ => Verdict::Valid,
        }
    }
}

impl Token {
    fn parse(line: &str) -> Result<Token, &'static str> {
        let mut words = line.split_ascii_whitespace();
        let token = words.next().unwrap_or_default();
        // What a header can carry as a token.
        if !token.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte)) {
            return Err("a token has letters, digits and -._~+/= only");
        }
        if token.len() < LENGTH_MIN {
            return Err("a token has at least 16 characters, or it can be guessed");
        }
        let until = match (words.next(), words.next(), words.next()) {
            (None, ..) => None,
            (Some("until"), Some(time), None) => Some(
                OffsetDateTime::parse(time, &Rfc3339)
                    .map_err(|_| "the time behind 'until' is written as in 2027-01-31T12:00:00Z")?
                    .into(),
            ),
            _ => return Err("a token may be followed by 'until' and a time, and by nothing else"),
        };
        Ok(Token { digest: Sha256::digest(token).into(), until })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn lines_are_tokens_with_or_without_an_end() {
        let text = "# for the crawler\r\n\r\nabcdefghijklmnop\r\n  0123456789abcdef+/==   until 2027-01-31T12:00:00Z\n";
        let tokens = Tokens::parse(text.as_bytes()).unwrap();
        let end = SystemTime::UNIX_EPOCH + Duration::from_secs(1_801_396_800);
        let before = end - Duration::from_secs(1);
        assert_eq!(tokens.check(b"abcdefghijklmnop", before), Verdict::Valid);
        assert_eq!(tokens.check(b"0123456789abcdef+/==", before), Verdict::Valid);
        assert_eq!(tokens.check(b"0123456789abcdef+/==", end), Verdict::Expired);
        assert_eq!(tokens.check(b"abcdefghijklmnop", end), Verdict::Valid);
        for wrong in ["", "abcdefghijklmno", "abcdefghijklmnopq", "ABCDEFGHIJKLMNOP", "# for the crawler"] {
            assert_eq!(tokens.check(wrong.as_bytes(), before), Verdict::Unknown, "{wrong}");
        }
    }

    #[test]
    fn a_token_that_is_listed_twice_is_good_as_long_as_one_of_them() {
        let text = "abcdefghijklmnop until 2020-01-01T00:00:00Z\nabcdefghijklmnop\n";
        for text in [text.to_owned(), text.lines().rev().collect::<Vec<_>>().join("\n")] {
            let tokens = Tokens::parse(text.as_bytes()).unwrap();
            assert_eq!(tokens.check(b"abcdefghijklmnop", SystemTime::now()), Verdict::Valid, "{text}");
        }
    }

    #[test]
    fn mistakes_are_named_by_their_line_and_not_quoted() {
        for (text, expected) in [
            ("", "no token"),
            ("# none\n", "no token"),
            ("abcdefghijklmnop\nshort", "line 2: a token has at least 16"),
            ("abcdefghijklmnopé", "line 1: a token has letters"),
            ("abcdefghijklmnop until", "line 1: a token may be followed"),
            ("abcdefghijklmnop until tomorrow", "line 1: the time behind 'until'"),
            ("abcdefghijklmnop until 2027-01-31T12:00:00Z please", "line 1: a token may be followed"),
            ("abcdefghijklmnop abcdefghijklmnop", "line 1: a token may be followed"),
        ] {
            let problem = Tokens::parse(text.as_bytes()).expect_err(text);
            assert!(problem.contains(expected) && !problem.contains("ijklmnop"), "{text}: {problem}");
        }
        assert!(Tokens::parse(&[0xff; 20]).is_err());
    }
}
