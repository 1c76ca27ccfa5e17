//! Deadlines of the calls that this program makes.

use std::time::Duration;

use tonic::{Code, Request, Status};

/// `message` as a request that has to be answered within so long, if that is said.
pub(super) fn request<T>(message: T, deadline: Option<Duration>) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(deadline) = deadline {
        request.set_timeout(deadline);
    }
    request
}

/// What came of a call with this deadline, by its right name. tonic's client gives up by itself at `grpc-timeout` and calls that
/// CANCELLED. It is the deadline: nobody cancelled, because a cancel drops the future.
pub(super) fn named(status: Status, deadline: Option<Duration>) -> Status {
    match status.code() {
        Code::Cancelled if deadline.is_some() => Status::deadline_exceeded(status.message().to_owned()),
        _ => status,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clients_own_clock_is_the_deadline() {
        let check = |status: Status, deadline, code| assert_eq!(named(status, deadline).code(), code);
        let second = Some(Duration::from_secs(1));
        check(Status::cancelled("Timeout expired"), second, Code::DeadlineExceeded);
        check(Status::cancelled("cancelled"), None, Code::Cancelled);
        check(Status::deadline_exceeded("late"), second, Code::DeadlineExceeded);
        check(Status::resource_exhausted("full"), second, Code::ResourceExhausted);
        assert!(request((), second).metadata().contains_key("grpc-timeout"));
        assert!(request((), None).metadata().is_empty());
    }
}
