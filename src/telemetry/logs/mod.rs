//! Logs: for people on a terminal, one JSON object a line everywhere else.
//!
//! What a user sent is never logged: neither texts nor token ids, and names that a client chose only after
//! [`sanitized`]. A cause that can repeat at the rate of the requests goes through [`admit`]: one line a second.

mod limit;
mod lines;
mod span;

use std::io::{self, IsTerminal};

use tracing::Subscriber;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

pub use limit::admit;
pub use lines::{ModelReady, model_ready};
pub use span::{Traceparent, request_span, sanitized};

/// How lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Pretty where standard error is a terminal, JSON where it is not.
    #[default]
    Auto,
    /// For people.
    Pretty,
    /// One JSON object a line: `timestamp`, `level`, `target`, `message`, the event's fields, and `span` with the
    /// fields of the request.
    Json,
}

impl std::str::FromStr for Format {
    type Err = String;
    fn from_str(text: &str) -> Result<Format, String> {
        match text {
            "auto" => Ok(Format::Auto),
            "pretty" => Ok(Format::Pretty),
            "json" => Ok(Format::Json),
            other => Err(format!("'{other}' is not one of auto, pretty, json")),
        }
    }
}

/// Sends the logs of this process to standard error. To be called once, first thing.
///
/// `filter` is a level (`info`) or directives by module (`info,plimsoll::engine=debug`).
///
/// # Errors
/// A sentence, when the filter cannot be read or logs go somewhere already.
pub fn init(format: Format, filter: &str) -> Result<(), String> {
    subscriber(format, filter, io::stderr().is_terminal(), io::stderr)?
        .try_init()
        .map_err(|error| format!("logs cannot be set up: {error}"))
}

fn subscriber<W>(
    format: Format,
    filter: &str,
    terminal: bool,
    writer: W,
) -> Result<impl Subscriber + Send + Sync, String>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let filter = EnvFilter::try_new(filter).map_err(|error| {
        format!(
            "the log filter '{filter}' cannot be read ({error}); allowed are error, warn, info, debug, trace, off, \
             or directives such as info,plimsoll::engine=debug"
        )
    })?;
    let lines = tracing_subscriber::fmt::layer().with_writer(writer);
    let layer: Box<dyn Layer<_> + Send + Sync> = match format {
        Format::Auto if !terminal => lines.json().flatten_event(true).with_span_list(false).boxed(),
        Format::Json => lines.json().flatten_event(true).with_span_list(false).boxed(),
        Format::Auto | Format::Pretty => lines.with_target(false).with_ansi(terminal).boxed(),
    };
    Ok(tracing_subscriber::registry().with(filter).with(layer))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::units::{Bytes, Micros};

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
    fn written(format: Format, terminal: bool, events: impl FnOnce()) -> String {
        let captured = Captured::default();
        let writer = captured.clone();
        let subscriber = subscriber(format, "info", terminal, move || writer.clone()).expect("a valid filter");
        tracing::subscriber::with_default(subscriber, events);
        let bytes = captured.0.lock().expect("no test panics while it writes").clone();
        String::from_utf8(bytes).expect("logs are text")
    }

    fn one_request() {
        let trace = Traceparent::parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
        let span = request_span("Embed", "minilm", "id\n7", trace.as_ref());
        span.in_scope(|| tracing::warn!(needed = 12, "too large"));
    }

    #[test]
    fn json_lines_carry_the_request_and_its_trace() {
        let text = written(Format::Auto, false, one_request);
        let line: serde_json::Value = serde_json::from_str(text.trim_end()).expect("one JSON object a line");
        assert_eq!(line["level"], "WARN");
        assert_eq!(line["message"], "too large");
        assert_eq!(line["needed"], 12);
        assert_eq!(line["span"]["method"], "Embed");
        assert_eq!(line["span"]["model"], "minilm");
        assert_eq!(line["span"]["request_id"], "id?7");
        assert_eq!(line["span"]["traceparent"], "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    }

    #[test]
    fn a_terminal_gets_lines_for_people() {
        let text = written(Format::Auto, true, one_request);
        assert!(text.contains("too large"), "{text}");
        assert!(serde_json::from_str::<serde_json::Value>(&text).is_err(), "{text}");
        assert_eq!(written(Format::Pretty, false, one_request).lines().count(), 1);
    }

    #[test]
    fn a_ready_model_is_one_line_with_its_bytes_profile_and_largest_batch() {
        let text = written(Format::Json, false, || {
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
    fn a_bad_filter_is_one_sentence_that_says_what_is_allowed() {
        let error = init(Format::Json, "plimsoll=loud").expect_err("loud is no level");
        assert!(error.contains("'plimsoll=loud'") && error.contains("debug"), "{error}");
        let error = "xml".parse::<Format>().expect_err("no such format");
        assert_eq!(error, "'xml' is not one of auto, pretty, json");
    }
}
