//! The engine's state driven by hand, in virtual time, over a device that only pretends: no thread, no clock.

mod machine;
mod world;
mod requests;
mod loading;
mod evicting;
mod unloading;
mod reloading;
mod failures;
mod profiles;
mod traces;
mod random;
