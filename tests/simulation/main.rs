//! The scheduler, the ledger and the ladder in virtual time: seeded, deterministic, no device.
//!
//! `mixed` drives random load with faults over many seeds and checks the invariants after every event; `cases` replays
//! what users of comparable servers were hit by; `policies` tests promises about time; `golden` pins decisions.

mod rng;
mod truth;
mod coverage;
mod device;
mod world;
mod loads;
mod checks;
mod setup;
mod mixed;
mod cases;
mod policies;
mod golden;
