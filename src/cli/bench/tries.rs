//! Tests of what times come to, on machines that stall.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// More than stalls of a second spoil in a row, also where they take half of all time.
const TRIES: usize = 10;

/// A test whose subject is time holds if it holds in one of several tries: a machine that stalls meanwhile spoils a try,
/// a fault of the program all of them.
///
/// # Panics
/// As the last try does.
pub(super) fn in_some_try(test: impl Fn()) {
    let spoiled = |_| catch_unwind(AssertUnwindSafe(&test)).is_err();
    if (1..TRIES).all(spoiled) {
        test();
    }
}

#[test]
fn what_always_fails_fails_and_what_holds_once_holds() {
    let tries = std::cell::Cell::new(0);
    let holds_in = |which: usize| {
        tries.set(0);
        catch_unwind(AssertUnwindSafe(|| {
            in_some_try(|| {
                tries.set(tries.get() + 1);
                assert!(tries.get() == which, "on purpose");
            })
        }))
    };
    for which in [1, 2, TRIES] {
        assert!(holds_in(which).is_ok());
        assert_eq!(tries.get(), which);
    }
    assert!(holds_in(TRIES + 1).is_err());
    assert_eq!(tries.get(), TRIES);
}
