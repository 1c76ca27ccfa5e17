//! Accounts: a fixed table of counters, so that charging one needs no lock and no allocation.

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::device::{Kind, Owner};
use crate::units::{Bytes, ModelId};

/// Accounts in the table. A model needs two (weights, workspace) and one for each step that left something behind
/// which is still alive; 1,024 of 64 bytes are 64 KiB. When all are taken, [`SHARED`] stands in.
const COUNT: usize = 1024;

/// Number of an account; it is written into every block's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AccountId(pub(super) u16);

/// The server itself: everything that is not the device's. Never given to an owner.
pub(super) const SERVER: AccountId = AccountId(0);

/// Scratch of the compute threads outside of any step, and the stand-in when the table is full.
pub(super) const SHARED: AccountId = AccountId(1);

/// One account. Alone on its cache line: different threads charge different accounts.
#[repr(align(64))]
struct Account {
    /// Bytes asked for and not yet freed. Signed: between the two halves of a transfer it may be off for a moment.
    live: AtomicI64,
    /// Largest `live` since [`reset_peak`].
    peak: AtomicI64,
    allocated: AtomicU64,
    freed: AtomicU64,
    /// Packed owner, see [`pack`]; 0 for an account that is free to be taken.
    owner: AtomicU64,
    /// Bytes that `live` may reach; above it is an overrun.
    ceiling: AtomicI64,
    /// Set when `live` has passed `ceiling`.
    overrun: AtomicU32,
}

#[allow(clippy::declare_interior_mutable_const)] // The initializer of the table below, never used as a value.
const UNUSED: Account = Account {
    live: AtomicI64::new(0),
    peak: AtomicI64::new(0),
    allocated: AtomicU64::new(0),
    freed: AtomicU64::new(0),
    owner: AtomicU64::new(0),
    ceiling: AtomicI64::new(i64::MAX),
    overrun: AtomicU32::new(0),
};

static TABLE: [Account; COUNT] = [UNUSED; COUNT];

/// Threads of the server charge one of these, so that they do not fight for one cache line. A block may be freed on
/// another shard than it was charged on: only the sums mean anything.
static SERVER_SHARDS: [Account; 16] = [UNUSED; 16];

fn of(id: AccountId) -> &'static Account {
    &TABLE[id.0 as usize % COUNT]
}

/// Charges a new block. `shard` tells the server's threads apart.
#[inline]
pub(super) fn charge(id: AccountId, bytes: usize, shard: u8) {
    if id == SERVER {
        let shard = &SERVER_SHARDS[shard as usize % SERVER_SHARDS.len()];
        shard.live.fetch_add(bytes as i64, Relaxed);
        shard.allocated.fetch_add(1, Relaxed);
        return;
    }
    let account = of(id);
    account.allocated.fetch_add(1, Relaxed);
    grow(account, bytes as i64);
}

/// Takes a freed block off the account that its header names.
#[inline]
pub(super) fn discharge(id: AccountId, bytes: usize, shard: u8) {
    let account = if id == SERVER { &SERVER_SHARDS[shard as usize % SERVER_SHARDS.len()] } else { of(id) };
    account.live.fetch_sub(bytes as i64, Relaxed);
    // Release pairs with the Acquire in `is_empty`: who sees the last free sees the account settled.
    account.freed.fetch_add(1, std::sync::atomic::Ordering::Release);
}

/// A block that keeps its account has changed its size.
#[inline]
pub(super) fn adjust(id: AccountId, from: usize, to: usize, shard: u8) {
    let change = to as i64 - from as i64;
    if id == SERVER {
        SERVER_SHARDS[shard as usize % SERVER_SHARDS.len()].live.fetch_add(change, Relaxed);
    } else {
        grow(of(id), change);
    }
}

#[inline]
fn grow(account: &Account, change: i64) {
    let live = account.live.fetch_add(change, Relaxed) + change;
    // The load spares the locked instruction in the common case, in which the peak stands.
    if live > account.peak.load(Relaxed) {
        account.peak.fetch_max(live, Relaxed);
        if live > account.ceiling.load(Relaxed) {
            account.overrun.store(1, Relaxed);
        }
    }
}

/// What an account says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balance {
    /// Bytes alive.
    pub live: Bytes,
    /// Largest `live` since the account was opened or its peak reset.
    pub peak: Bytes,
    /// Blocks handed out, ever.
    pub allocated: u64,
    /// Blocks freed, ever.
    pub freed: u64,
}

pub(super) fn balance(id: AccountId) -> Balance {
    let account = of(id);
    Balance {
        live: positive(account.live.load(Relaxed)),
        peak: positive(account.peak.load(Relaxed)),
        allocated: account.allocated.load(Relaxed),
        freed: account.freed.load(Relaxed),
    }
}

fn positive(bytes: i64) -> Bytes {
    Bytes::new(bytes.max(0) as u64)
}

/// Opens an account for `owner`: one that nobody has, or one that a past owner left and whose blocks are all freed.
/// `None` when every account is in use.
pub(super) fn open(owner: Owner) -> Option<AccountId> {
    // The first two are never given away.
    for (index, account) in TABLE.iter().enumerate().skip(2) {
        let held = account.owner.load(Relaxed);
        if held != 0 && !(is_left_behind(held) && is_empty(account)) {
            continue;
        }
        if account.owner.compare_exchange(held, pack(owner), Relaxed, Relaxed).is_ok() {
            let id = AccountId(index as u16);
            // `live` and the counts are not reset: a compute thread that was late to read the current account may be
            // charging this one right now, and its free will come here too.
            reset_peak(id);
            set_ceiling(id, Bytes::MAX);
            return Some(id);
        }
    }
    None
}

/// Ends an account. If blocks are still charged to it they become `Library` memory of its model, which is what they
/// are: they outlived the scope that allocated them. Nothing is moved; each is still discharged here when it is freed.
/// Returns the bytes left behind.
pub(super) fn close(id: AccountId) -> Bytes {
    let account = of(id);
    if is_empty(account) {
        account.owner.store(0, Relaxed);
        return Bytes::ZERO;
    }
    let owner = unpack(account.owner.load(Relaxed));
    let left = Owner { model: owner.and_then(|owner| owner.model), kind: Kind::Library };
    account.owner.store(pack(left), Relaxed);
    positive(account.live.load(Relaxed))
}

/// What `model` left behind belongs to nobody from now on. Call it when the model is gone.
pub(super) fn disown(model: ModelId) {
    let from = pack(Owner { model: Some(model), kind: Kind::Library });
    let to = pack(Owner { model: None, kind: Kind::Library });
    for account in &TABLE[2..] {
        let _ = account.owner.compare_exchange(from, to, Relaxed, Relaxed);
    }
}

/// Starts a new peak at what is alive now.
pub(super) fn reset_peak(id: AccountId) {
    let account = of(id);
    account.peak.store(account.live.load(Relaxed), Relaxed);
    account.overrun.store(0, Relaxed);
}

/// Whether blocks of this account live for a step at most, and so are worth caching.
#[inline]
pub(super) fn is_workspace(id: AccountId) -> bool {
    id != SERVER && of(id).owner.load(Relaxed) >> 32 == WORKSPACE
}

/// Sets what the account may reach without an overrun being counted.
pub(super) fn set_ceiling(id: AccountId, ceiling: Bytes) {
    of(id).ceiling.store(i64::try_from(ceiling.get()).unwrap_or(i64::MAX), Relaxed);
}

/// Whether the account has been above its ceiling since [`reset_peak`].
pub(super) fn has_overrun(id: AccountId) -> bool {
    of(id).overrun.load(Relaxed) != 0
}

fn is_empty(account: &Account) -> bool {
    // `freed` first: a block counted as freed has been counted as allocated.
    let freed = account.freed.load(std::sync::atomic::Ordering::Acquire);
    account.allocated.load(Relaxed) == freed
}

/// An owner and what its account says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charged {
    /// Who.
    pub owner: Owner,
    /// How much.
    pub balance: Balance,
}

/// Every open account that has an owner, in no particular order, the shared one first. An owner may have several:
/// each step that left something behind has its own.
pub fn accounts() -> impl Iterator<Item = Charged> {
    let shared = Charged { owner: Owner { model: None, kind: Kind::Library }, balance: balance(SHARED) };
    let open = (2..COUNT).filter_map(|index| {
        let owner = unpack(TABLE[index].owner.load(Relaxed))?;
        Some(Charged { owner, balance: balance(AccountId(index as u16)) })
    });
    std::iter::once(shared).chain(open)
}

/// Bytes alive of one model for one purpose.
pub fn live_of(model: ModelId, kind: Kind) -> Bytes {
    let owner = pack(Owner { model: Some(model), kind });
    let owned = TABLE.iter().filter(|account| account.owner.load(Relaxed) == owner);
    owned.map(|account| positive(account.live.load(Relaxed))).sum()
}

/// Bytes alive that the server itself asked for: its queues, its tokenizers, its runtime.
pub fn server_live() -> Bytes {
    positive(SERVER_SHARDS.iter().map(|shard| shard.live.load(Relaxed)).sum())
}

const WEIGHTS: u64 = 1;
const KV: u64 = 2;
const WORKSPACE: u64 = 3;
const LIBRARY: u64 = 4;

// An owner in one word, so that it changes at once: the kind in the upper half (never 0), the model + 1 in the lower.
// The largest model id would collide with "no model"; ids count up from 0, so no process gets there.
fn pack(owner: Owner) -> u64 {
    let kind = match owner.kind {
        Kind::Weights => WEIGHTS,
        Kind::Kv => KV,
        Kind::Workspace => WORKSPACE,
        Kind::Library => LIBRARY,
    };
    (kind << 32) | owner.model.map_or(0, |model| u64::from(model.get().wrapping_add(1)))
}

fn unpack(word: u64) -> Option<Owner> {
    let kind = match word >> 32 {
        WEIGHTS => Kind::Weights,
        KV => Kind::Kv,
        WORKSPACE => Kind::Workspace,
        LIBRARY => Kind::Library,
        _ => return None,
    };
    Some(Owner { model: (word as u32).checked_sub(1).map(ModelId::new), kind })
}

// Only `close` makes an account of this kind, so one that is empty again can be taken.
fn is_left_behind(word: u64) -> bool {
    word >> 32 == LIBRARY
}

#[cfg(test)]
mod tests {
    use super::*;

    // Models of these tests have ids of their own: the table is the process's.
    const MODEL: ModelId = ModelId::new(900_001);

    fn owner(kind: Kind) -> Owner {
        Owner { model: Some(MODEL), kind }
    }

    #[test]
    fn owners_survive_packing() {
        for kind in Kind::ALL {
            for model in [None, Some(ModelId::new(0)), Some(MODEL)] {
                let owner = Owner { model, kind };
                assert_eq!(unpack(pack(owner)), Some(owner));
            }
        }
        assert_eq!(unpack(0), None);
    }

    #[test]
    fn what_outlives_its_account_is_library_and_frees_it() {
        let id = open(owner(Kind::Workspace)).unwrap();
        charge(id, 100, 0);
        charge(id, 50, 0);
        discharge(id, 50, 0);
        assert_eq!(balance(id).peak, Bytes::new(150));
        assert_eq!(close(id), Bytes::new(100));
        let left: Vec<_> = accounts().filter(|charged| charged.owner == owner(Kind::Library)).collect();
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].balance.live, Bytes::new(100));

        discharge(id, 100, 0);
        assert!(is_empty(of(id)), "the account can be taken again");
        disown(MODEL);
        assert!(accounts().all(|charged| charged.owner.model != Some(MODEL)));
    }

    #[test]
    fn a_peak_starts_again_at_what_is_alive() {
        let id = open(owner(Kind::Kv)).unwrap();
        charge(id, 10, 0);
        charge(id, 10, 0);
        discharge(id, 10, 0);
        reset_peak(id);
        assert_eq!(balance(id).peak, Bytes::new(10));
        set_ceiling(id, Bytes::new(15));
        charge(id, 5, 0);
        assert!(!has_overrun(id));
        charge(id, 1, 0);
        assert!(has_overrun(id));
        for bytes in [1, 5, 10] {
            discharge(id, bytes, 0);
        }
        assert_eq!(close(id), Bytes::ZERO);
    }
}
