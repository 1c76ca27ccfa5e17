//! Why a call is not let in, and how that is said.

use tonic::Code;

/// Why a call is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It has no token.
    NoToken,
    /// Its token is in no file.
    Unknown,
    /// Its token's time is over.
    Expired,
    /// It is a call of administration, and its token is not one for those.
    NotForAdmin,
    /// It is a call of administration, and nothing says who may have those.
    AdminClosed,
    /// It comes from a web page of another server.
    ForeignPage,
    /// It is a call of administration, under a name that others may give this machine.
    ForeignHost,
}

impl Refusal {
    /// Its code, its reason to match on, and a sentence for people.
    pub(crate) fn words(self) -> (Code, &'static str, &'static str) {
        match self {
            Refusal::NoToken => (
                Code::Unauthenticated,
                "NO_TOKEN",
                "this call needs a token: send the header 'authorization: Bearer TOKEN'",
            ),
            Refusal::Unknown => (
                Code::Unauthenticated,
                "UNKNOWN_TOKEN",
                "the header 'authorization' has no token that is known here: it is written 'Bearer TOKEN'",
            ),
            Refusal::Expired => (Code::Unauthenticated, "EXPIRED_TOKEN", "the token's time is over: ask for a new one"),
            Refusal::NotForAdmin => (
                Code::PermissionDenied,
                "NOT_FOR_ADMINISTRATION",
                "this is a call of administration, and the token is not one for those",
            ),
            Refusal::AdminClosed => (
                Code::PermissionDenied,
                "ADMINISTRATION_CLOSED",
                "calls of administration are not allowed at this address; the server's log says how to allow them",
            ),
            Refusal::ForeignPage => (
                Code::PermissionDenied,
                "FOREIGN_PAGE",
                "this call comes from a web page of another server: name its origin in --cors-origins if it may call",
            ),
            Refusal::ForeignHost => (
                Code::PermissionDenied,
                "FOREIGN_PAGE",
                "a call of administration has to name this server 'localhost' or by its number, in the header 'host'; \
                 with a token of --admin-token-file it may name it as it likes",
            ),
        }
    }
}
