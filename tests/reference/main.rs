//! Models give the outputs that other people's libraries give for the same weights.

mod states;
mod support;
mod tiny;
mod minilm;
mod batching;
mod eight_bit;
mod files;
mod framework;
mod relatives;
mod modernbert;
mod tokens;
