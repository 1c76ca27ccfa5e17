//! Models give the outputs that other people's libraries give for the same weights.

mod support;
mod tiny;
mod minilm;
mod batching;
mod files;
mod framework;
mod relatives;
