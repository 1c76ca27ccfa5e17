//! Logs: for people on a terminal, one JSON object a line everywhere else.
//!
//! What a user sent is never logged, neither texts nor token ids. A cause that can repeat at the rate of the requests
//! goes through [`admit`]: one line a second.

mod limit;
mod lines;

use std::io::{self, IsTerminal};

use crate::config::{LogFilter, LogFormat};
pub use limit::admit;
pub use lines::{ModelReady, model_ready, request_unanswered};
use tracing::Subscriber;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{EnvFilter, Layer};

/// Sends the logs of this process to standard error. To be called once, as soon as the configuration is known.
///
/// In JSON a line has `timestamp`, `level`, `target`, `message`, the fields of the event, and in `span` those of the
/// request.
///
/// # Errors
/// When the logs of this process go somewhere already.
pub fn init(format: LogFormat, filter: &LogFilter) -> Result<(), TryInitError> {
    subscriber(format, filter.as_str(), io::stderr().is_terminal(), io::stderr).try_init()
}

/// `filter`: one that `EnvFilter` understands, as each [`LogFilter`] is.
fn subscriber<W>(format: LogFormat, filter: &str, terminal: bool, writer: W) -> impl Subscriber + Send + Sync
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt::layer().with_writer(writer);
    let pretty = match format {
        LogFormat::Auto => terminal,
        LogFormat::Pretty => true,
        LogFormat::Json => false,
    };
    let layer: Box<dyn Layer<_> + Send + Sync> = match pretty {
        true => lines.with_target(false).with_ansi(terminal).boxed(),
        false => lines.json().flatten_event(true).with_span_list(false).boxed(),
    };
    tracing_subscriber::registry().with(EnvFilter::new(filter)).with(layer)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::admission::{QueueLimit, Rejection};
    use crate::model::Fault;
    use crate::telemetry::Outcome;
    use crate::units::{Bytes, Micros, ModelId};

    const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[derive(Clone, Default)]
    struct Captured(Arc<Mutex<Vec<u8>>>);

    impl Write for Captured {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no test panics while it writes").extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What `events` writes in this format.
    fn written(format: LogFormat, terminal: bool, events: impl FnOnce()) -> String {
        let captured = Captured::default();
        let writer = captured.clone();
        let subscriber = subscriber(format, "info", terminal, move || writer.clone());
        tracing::subscriber::with_default(subscriber, events);
        let bytes = captured.0.lock().expect("no test panics while it writes").clone();
        String::from_utf8(bytes).expect("logs are text")
    }

    fn one_request() {
        let span = tracing::info_span!("call", request_id = "id-7", traceparent = TRACE);
        span.in_scope(|| tracing::warn!(needed = 12, "too large"));
    }

    #[test]
    fn json_lines_carry_the_request_and_its_trace() {
        let text = written(LogFormat::Auto, false, one_request);
        let line: serde_json::Value = serde_json::from_str(text.trim_end()).expect("one JSON object a line");
        assert_eq!(line["level"], "WARN");
        assert_eq!(line["message"], "too large");
        assert_eq!(line["needed"], 12);
        assert_eq!(line["span"]["request_id"], "id-7");
        assert_eq!(line["span"]["traceparent"], TRACE);
    }

    #[test]
    fn a_terminal_gets_lines_for_people() {
        let text = written(LogFormat::Auto, true, one_request);
        assert!(text.contains("too large"), "{text}");
        assert!(serde_json::from_str::<serde_json::Value>(&text).is_err(), "{text}");
        assert_eq!(written(LogFormat::Pretty, false, one_request).lines().count(), 1);
    }

    #[test]
    fn a_ready_model_is_one_line_with_its_bytes_profile_and_largest_batch() {
        let text = written(LogFormat::Json, false, || {
            model_ready(&ModelReady {
                model: "minilm",
                dtype: "int8",
                resident: Bytes::mib(23),
                profile: "measuring",
                batch_rows_max: 12,
                length_max: 256,
                took: Micros::millis(310),
            });
        });
        assert_eq!(text.lines().count(), 1);
        let line: serde_json::Value = serde_json::from_str(text.trim_end()).expect("one JSON object a line");
        assert_eq!(line["model"], "minilm");
        assert_eq!(line["resident_bytes"], 23 << 20);
        assert_eq!(line["profile"], "measuring");
        assert_eq!(line["batch_rows_max"], 12);
    }

    #[test]
    fn a_flood_of_one_rejection_is_one_warning_with_its_numbers() {
        let rejection = Rejection::QueueFull {
            limit: QueueLimit::Rows,
            waiting: 8000,
            asked: 200,
            allowed: 8192,
            retry_after: Micros::millis(40),
        };
        let fault = Fault::Model { message: "shape mismatch".to_owned() };
        // No other test uses this model: the limit is one for the process.
        let id = ModelId::new(u32::MAX);
        let text = written(LogFormat::Json, false, || {
            for _ in 0..100 {
                request_unanswered(id, "a", &Outcome::Rejected(&rejection));
                request_unanswered(id, "a", &Outcome::Rejected(&Rejection::Cancelled));
                request_unanswered(id, "a", &Outcome::Faulted(&fault));
            }
        });
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("one JSON object a line")).collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert_eq!((&lines[0]["level"], &lines[0]["reason"]), (&"WARN".into(), &"queue_full_rows".into()));
        assert!(lines[0]["facts"].to_string().contains("8192"), "{text}");
        assert_eq!((&lines[1]["level"], &lines[1]["reason"]), (&"ERROR".into(), &"model".into()));
        assert!(lines[1]["fault"].to_string().contains("shape mismatch"), "{text}");
    }
}
