//! See `plimsoll_fuzz::tokenizer`.
#![no_main]

use std::sync::Mutex;

/// What the last panic said.
static LAST: Mutex<String> = Mutex::new(String::new());

/// The server catches panics of the tokenizers library, which are therefore no findings. One of our own code is, and one
/// that gets out.
fn listen() {
    std::panic::set_hook(Box::new(|panic| {
        if panic.location().is_some_and(|place| place.file().contains("src/tokenize/")) {
            eprintln!("{panic}");
            std::process::abort();
        }
        *LAST.lock().expect("nothing panics under this lock") = panic.to_string();
    }));
}

libfuzzer_sys::fuzz_target!(init: listen(), |data: &[u8]| {
    if std::panic::catch_unwind(|| plimsoll_fuzz::tokenizer(data)).is_err() {
        eprintln!("{}", LAST.lock().expect("nothing panics under this lock"));
        std::process::abort();
    }
});
