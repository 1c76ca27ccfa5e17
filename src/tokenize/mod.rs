//! Text to token ids, off the async threads.
