//! Telling a recorder about the blocks of one account.

use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use super::account::AccountId;
use crate::device::trace::{Recorder, Recording};

/// No account has this number: nothing is recorded.
const NONE: u16 = u16::MAX;

/// The account whose blocks are recorded.
static RECORDED: AtomicU16 = AtomicU16::new(NONE);

// The lock is held for the writing of one event, which allocates nothing.
static RECORDER: Mutex<Option<Recorder>> = Mutex::new(None);

/// Records what `id` is charged from now on. Scopes take turns (see [`super::charge`]), so there is one at a time; one
/// that a panic left open ends here. The recorder's own memory is that of whom the calling thread charges.
pub(super) fn begin(id: AccountId) {
    let recorder = Recorder::new();
    let before = RECORDER.lock().unwrap_or_else(PoisonError::into_inner).replace(recorder);
    RECORDED.store(id.0, Relaxed);
    drop(before);
}

/// Ends it.
pub(super) fn end() -> Recording {
    RECORDED.store(NONE, Relaxed);
    let recorder = RECORDER.lock().unwrap_or_else(PoisonError::into_inner).take();
    recorder.map(Recorder::finish).unwrap_or_default()
}

/// A block was charged to `account`.
#[inline]
pub(super) fn allocated(account: AccountId, block: *mut u8, bytes: usize) {
    if is_recorded(account) {
        with(|recorder| recorder.allocated(block as usize, bytes as u64));
    }
}

/// A block of `account` is about to be given back. Called before that: afterwards its address may be another block's.
#[inline]
pub(super) fn freed(account: AccountId, block: *mut u8) {
    if is_recorded(account) {
        with(|recorder| recorder.freed(block as usize));
    }
}

/// A block has moved or has another size.
#[inline]
pub(super) fn resized(account: AccountId, from: *mut u8, to: *mut u8, bytes: usize) {
    if is_recorded(account) {
        with(|recorder| {
            recorder.freed(from as usize);
            recorder.allocated(to as usize, bytes as u64);
        });
    }
}

#[inline]
fn is_recorded(account: AccountId) -> bool {
    account.0 == RECORDED.load(Relaxed)
}

#[cold]
fn with(note: impl FnOnce(&mut Recorder)) {
    if let Some(recorder) = &mut *RECORDER.lock().unwrap_or_else(PoisonError::into_inner) {
        note(recorder);
    }
}
