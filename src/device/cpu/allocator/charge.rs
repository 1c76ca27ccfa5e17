//! Which account an allocation is charged to.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU8, AtomicU16, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::account::{self, AccountId, Balance, SERVER, SHARED};
use super::{record, regions};
use crate::device::trace::Recording;
use crate::device::{Kind, Owner};
use crate::units::{Bytes, ModelId};

/// What a thread charges.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Payer {
    /// This account.
    Account(AccountId),
    /// Whatever step runs: a thread that computes for the device.
    Step,
}

thread_local! {
    // `const` and without a destructor: reading it never allocates, never registers anything, and works while the
    // thread's other locals are being destroyed.
    static PAYER: Cell<Payer> = const { Cell::new(Payer::Account(SERVER)) };
    static SHARD: Cell<u8> = const { Cell::new(0) };
}

/// The account of the scope that the device's thread is in, for the threads that compute for it.
static STEP: AtomicU16 = AtomicU16::new(SHARED.0);

/// There is one set of compute threads in the process, so one scope at a time can be told from the others. A server
/// has one CPU device and never waits here; tests that run several side by side take turns.
static TURN: Mutex<()> = Mutex::new(());

/// The account that this thread charges now.
#[inline]
pub(super) fn payer() -> AccountId {
    match PAYER.get() {
        Payer::Account(id) => id,
        Payer::Step => AccountId(STEP.load(Relaxed)),
    }
}

/// A small number that differs between most threads.
#[inline]
pub(super) fn shard() -> u8 {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let shard = SHARD.get();
    if shard != 0 {
        return shard;
    }
    // 0 means "none yet", so a thread that draws it stays on it and draws again: harmless.
    let shard = NEXT.fetch_add(1, Relaxed);
    SHARD.set(shard);
    shard
}

/// Makes this thread one that computes for the device: from now on its allocations are charged to the step that runs,
/// and outside of steps to nobody's library memory. The device calls it once on every thread of rayon's and candle's
/// pools. A server's thread must never be marked: its allocations would be taken for a step's.
pub fn mark_compute_thread() {
    PAYER.set(Payer::Step);
}

/// While it lives, what this thread and the compute threads allocate is charged to one account.
pub struct ScopeGuard<'a> {
    account: PhantomData<&'a AccountId>,
    // Also keeps the guard on its thread.
    _turn: MutexGuard<'static, ()>,
}

impl<'a> ScopeGuard<'a> {
    /// # Panics
    /// If this thread is in a scope already: the inner one would hide allocations from the outer one's peak.
    fn enter(account: &'a AccountId, ceiling: Bytes) -> ScopeGuard<'a> {
        assert!(PAYER.get() == Payer::Account(SERVER), "scopes do not nest");
        // A step that panicked has left nothing half done here: the guard's drop ran.
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        regions::begin(ceiling);
        STEP.store(account.0, Relaxed);
        PAYER.set(Payer::Account(*account));
        ScopeGuard { account: PhantomData, _turn: turn }
    }
}

impl Drop for ScopeGuard<'_> {
    fn drop(&mut self) {
        PAYER.set(Payer::Account(SERVER));
        STEP.store(SHARED.0, Relaxed);
        regions::end();
    }
}

/// Runs `body` with what this thread allocates charged to the server, inside a scope.
fn as_server<R>(body: impl FnOnce() -> R) -> R {
    let payer = PAYER.replace(Payer::Account(SERVER));
    let result = body();
    PAYER.set(payer);
    result
}

/// The account of one step's activations.
///
/// Each step opens one of its own. At its end, blocks that are still alive turn into library memory of the model by
/// closing the account: it keeps its blocks, and only its name changes. So the next step starts at zero, and a block
/// that is freed later is taken off the right account whatever has happened in between.
pub struct StepAccount {
    id: AccountId,
    ceiling: Bytes,
    /// What was alive in the account when it was opened: zero, but for the shared one.
    before: Balance,
}

impl StepAccount {
    /// Opens the account of a step that may use `ceiling` bytes.
    pub fn open(model: ModelId, ceiling: Bytes) -> StepAccount {
        // A full table means that a thousand steps have each left something alive; from then on their successors
        // share an account, and the peak is measured from what is alive in it.
        let id = account::open(Owner { model: Some(model), kind: Kind::Workspace }).unwrap_or(SHARED);
        account::reset_peak(id);
        let before = account::balance(id);
        account::set_ceiling(id, before.live + ceiling);
        StepAccount { id, ceiling, before }
    }

    /// Charges this step until the guard is dropped, and takes large blocks from the cache of regions. Meanwhile the
    /// cache gives regions back to the system where it would otherwise hold more than the ceiling.
    pub fn enter(&self) -> ScopeGuard<'_> {
        ScopeGuard::enter(&self.id, self.ceiling)
    }

    /// Runs `body` inside the step as [`StepAccount::enter`] does, and records its blocks.
    pub fn recorded<R>(&self, body: impl FnOnce() -> R) -> (R, Recording) {
        let scope = self.enter();
        // Only now: the recording before this one ended with its scope. What it takes is the server's, not the step's.
        as_server(|| record::begin(self.id));
        let result = body();
        let recording = as_server(record::end);
        drop(scope);
        (result, recording)
    }

    /// The balance of the step so far.
    pub fn balance(&self) -> Balance {
        let now = account::balance(self.id);
        Balance {
            live: now.live.saturating_sub(self.before.live),
            peak: now.peak.saturating_sub(self.before.live),
            allocated: now.allocated - self.before.allocated,
            freed: now.freed - self.before.freed,
        }
    }

    /// Whether more than the ceiling was alive at some moment.
    pub fn has_overrun(&self) -> bool {
        account::has_overrun(self.id)
    }
}

impl Drop for StepAccount {
    fn drop(&mut self) {
        if self.id != SHARED {
            account::close(self.id);
        }
    }
}

/// The account of what a model keeps: its weights. Open from load to unload.
pub struct ResidentAccount {
    id: AccountId,
    model: ModelId,
}

impl ResidentAccount {
    /// Opens it. `None` when the table of accounts is full.
    pub fn open(model: ModelId) -> Option<ResidentAccount> {
        let id = account::open(Owner { model: Some(model), kind: Kind::Weights })?;
        Some(ResidentAccount { id, model })
    }

    /// Whose it is.
    pub fn model(&self) -> ModelId {
        self.model
    }

    /// Charges the model until the guard is dropped.
    pub fn enter(&self) -> ScopeGuard<'_> {
        ScopeGuard::enter(&self.id, Bytes::MAX)
    }

    /// The balance so far.
    pub fn balance(&self) -> Balance {
        account::balance(self.id)
    }
}

impl Drop for ResidentAccount {
    /// Closes it. What is still alive of the model belongs to nobody from then on.
    fn drop(&mut self) {
        account::close(self.id);
        account::disown(self.model);
    }
}
