//! Which memory outlives its step: results on their way to the host.
//!
//! Who computes them says so ([`lasting`]); an allocator that places blocks by themselves asks ([`is_lasting`]) and keeps
//! them out of the places that the next steps need.

use std::cell::Cell;

thread_local! {
    // `const` and without a destructor: an allocator may read it at any time.
    static LASTING: Cell<bool> = const { Cell::new(false) };
}

/// Runs `body`: what it allocates on this thread may be alive when the next steps run.
#[cfg(any(feature = "cuda", test))]
pub(crate) fn lasting<R>(body: impl FnOnce() -> R) -> R {
    struct Back(bool);
    impl Drop for Back {
        fn drop(&mut self) {
            LASTING.set(self.0);
        }
    }
    let _back = Back(LASTING.replace(true));
    body()
}

/// Whether what the calling thread allocates now outlives its step.
pub(crate) fn is_lasting() -> bool {
    LASTING.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_inside_alone() {
        assert!(!is_lasting());
        lasting(|| {
            lasting(|| assert!(is_lasting()));
            assert!(is_lasting());
        });
        let caught = std::panic::catch_unwind(|| lasting(|| panic!("a step may")));
        assert!(caught.is_err() && !is_lasting());
    }
}
