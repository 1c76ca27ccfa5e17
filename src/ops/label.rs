//! What a thread is computing: what an allocation trace says about each block.
//!
//! Layers and operations say where they are ([`layer`], [`operation`]); an allocator that records a step asks
//! ([`current`]). While nothing is recorded, which is nearly always, saying so costs the reading of one flag.

use std::cell::Cell;
use std::sync::{Mutex, PoisonError};

/// A place in a model's forward pass. Copied into every recorded event, so that recording allocates nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label {
    /// The kind of layer; empty outside of all.
    pub layer: &'static str,
    /// Its number among layers of its kind, where there are several.
    pub index: Option<u32>,
    /// The operation inside the layer; empty between operations.
    pub operation: &'static str,
    /// Shape of what the operation makes, the slowest dimension first; unused ones at the end are 0.
    pub shape: [u32; 4],
}

impl Label {
    /// Outside of all layers.
    pub const NONE: Label = Label { layer: "", index: None, operation: "", shape: [0; 4] };
}

thread_local! {
    // `const` and without destructors: an allocator may read them at any time.
    static TRACED: Cell<bool> = const { Cell::new(false) };
    static CURRENT: Cell<Label> = const { Cell::new(Label::NONE) };
}

/// The label of the traced thread, for those that compute for it. There is one traced step in the process at a time.
static SHARED: Mutex<Label> = Mutex::new(Label::NONE);

/// Runs `body` with its labels known to [`current`], on this thread and on those that compute for it.
pub fn traced<R>(body: impl FnOnce() -> R) -> R {
    struct Untraced;
    impl Drop for Untraced {
        fn drop(&mut self) {
            TRACED.set(false);
            set(Label::NONE);
        }
    }
    set(Label::NONE);
    TRACED.set(true);
    let _untraced = Untraced;
    body()
}

/// Runs `body` as the layer `name`, the `index`-th of its kind if there are several.
pub fn layer<R>(name: &'static str, index: Option<usize>, body: impl FnOnce() -> R) -> R {
    within(|| Label { layer: name, index: index.map(|index| index as u32), ..Label::NONE }, body)
}

/// Runs `body` as the operation `name` of the layer around it; `shape` is that of its result, of which the first four
/// dimensions are kept.
pub fn operation<R>(name: &'static str, shape: &[usize], body: impl FnOnce() -> R) -> R {
    let label = || {
        let mut kept = [0; 4];
        kept.iter_mut().zip(shape).for_each(|(kept, size)| *kept = u32::try_from(*size).unwrap_or(u32::MAX));
        Label { operation: name, shape: kept, ..CURRENT.get() }
    };
    within(label, body)
}

/// Where the calling thread is; for one that is not traced itself, where the traced one is.
pub fn current() -> Label {
    if TRACED.get() { CURRENT.get() } else { *SHARED.lock().unwrap_or_else(PoisonError::into_inner) }
}

fn within<R>(label: impl FnOnce() -> Label, body: impl FnOnce() -> R) -> R {
    struct Back(Label);
    impl Drop for Back {
        fn drop(&mut self) {
            set(self.0);
        }
    }
    if !TRACED.get() {
        return body();
    }
    let _back = Back(CURRENT.get());
    set(label());
    body()
}

fn set(label: Label) {
    CURRENT.set(label);
    *SHARED.lock().unwrap_or_else(PoisonError::into_inner) = label;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_nest_and_end_with_what_they_label() {
        let inside = || operation("softmax", &[2, 3], current);
        assert_eq!(layer("layer", Some(4), inside).operation, "", "nothing is said while nothing is traced");
        traced(|| {
            assert_eq!(current(), Label::NONE);
            layer("layer", Some(4), || {
                let expected = Label { layer: "layer", index: Some(4), operation: "softmax", shape: [2, 3, 0, 0] };
                assert_eq!(inside(), expected);
                assert_eq!(current(), Label { layer: "layer", index: Some(4), ..Label::NONE });
            });
            let panicked = std::panic::catch_unwind(|| layer("head", None, || panic!("on purpose")));
            assert!(panicked.is_err());
            assert_eq!(current(), Label::NONE, "also after a panic");
        });
    }
}
