//! A driver that refuses, reports errors where nobody listens, or is broken for good.

use cudarc::driver::CudaSlice;
use plimsoll::device::Need;
use plimsoll::device::cuda::Scope;
use plimsoll::device::pools::{Cause, PoolDriver, Slot};
use plimsoll::units::{Bytes, ModelId};

use crate::fake::{Control, MIB, card, get, in_a_process, set};

const MODEL: ModelId = ModelId::new(2);

#[test]
fn one_refusal_is_cured_by_a_trim_and_two_are_told() {
    let (card, _guard) = card();
    let allocator = card.allocator();
    let stream = card.context().new_stream().unwrap();
    let weights = allocator.open_model(MODEL);
    for (refusals, cured) in [(1, true), (2, false)] {
        // What is cached is not asked for.
        allocator.return_everything();
        let step = allocator.begin_step(MODEL, Need::WHATEVER).unwrap();
        let _scope = Scope::enter(step);
        let trims = allocator.snapshot().trims;
        set(Control::FailAllocs, refusals);
        let result = stream.alloc_zeros::<u8>(1 << 20);
        assert_eq!(result.is_ok(), cured, "{refusals} refusals");
        assert_eq!(allocator.snapshot().trims, trims + 1);
        drop(result);
        let books = allocator.end_step(step);
        match books.shortfall {
            None => assert!(cured && books.used.retried == 1),
            Some(record) => assert!(!cured && record.cause == Cause::Driver && record.requested == Bytes::mib(1)),
        }
    }
    allocator.close_model(weights);
    assert_eq!(get(Control::Living), 0);
}

#[test]
fn a_neighbour_that_fills_the_card_is_survived() {
    let (card, _guard) = card();
    let allocator = card.allocator();
    let stream = card.context().new_stream().unwrap();
    let weights = allocator.open_model(MODEL);
    let step = allocator.begin_step(MODEL, Need::WHATEVER).unwrap();
    {
        let _scope = Scope::enter(step);
        drop(stream.alloc_zeros::<u8>(256 << 20).unwrap());
        // All that is left; what we have cached is still ours.
        set(Control::Neighbour, card.memory().unwrap().free);
        drop(stream.alloc_zeros::<u8>(256 << 20).unwrap());
        assert!(stream.alloc_zeros::<u8>(300 << 20).is_err());
    }
    assert_eq!(allocator.end_step(step).shortfall.unwrap().cause, Cause::Driver);
    set(Control::Neighbour, 0);
    let step = allocator.begin_step(MODEL, Need::WHATEVER).unwrap();
    {
        let _scope = Scope::enter(step);
        drop(stream.alloc_zeros::<u8>(300 << 20).unwrap());
    }
    assert_eq!(allocator.end_step(step).shortfall, None);
    allocator.close_model(weights);
}

#[test]
fn an_error_of_a_free_reaches_nobody_elses_call() {
    // Pools of ours have no such errors: nobody is asked.
    let name = "failures::an_error_of_a_free_reaches_nobody_elses_call";
    in_a_process(name, &[("FAKE_CUDA_VIRTUAL", "0")], || {
        let (card, _guard) = card();
        assert!(!card.has_arenas());
        let stream = card.context().new_stream().unwrap();
        let held: CudaSlice<u8> = stream.alloc_zeros(1 << 20).unwrap();
        set(Control::FailFrees, 1);
        drop(held);
        // cudarc would report the error of a drop from the next call of anybody.
        let next: CudaSlice<u8> = stream.alloc_zeros(1 << 20).expect("the drop's error is not this call's");
        drop(next);
        assert!(card.allocator().fault().is_some(), "but it is not lost");
        assert_eq!(card.allocator().fault(), None);
        assert_eq!(get(Control::Living), 0);
    });
}

#[test]
fn a_broken_card_says_so_on_every_call() {
    const ILLEGAL_ADDRESS: u64 = 700;
    let (card, _guard) = card();
    let stream = card.context().new_stream().unwrap();
    set(Control::Sticky, ILLEGAL_ADDRESS);
    let error = stream.alloc_zeros::<u8>(1 << 20).unwrap_err();
    assert_eq!(error.0 as u64, ILLEGAL_ADDRESS, "passed on as it is");
    assert_eq!(card.allocator().take_shortfall(Slot::NOBODY), None, "it is not for lack of memory");
    assert!(card.driver().synchronize().is_err() && card.memory().is_err());
    set(Control::Sticky, 0);
    let _ = card.allocator().fault();
    assert_eq!(card.allocator().live(Slot::NOBODY), 0, "what failed is not charged");
    drop(stream.alloc_zeros::<u8>(1 << 20).unwrap());
}

#[test]
fn a_model_is_loaded_although_the_driver_refuses_now_and_then() {
    let (card, _guard) = card();
    let allocator = card.allocator();
    let stream = card.context().new_stream().unwrap();
    for nth in 0..12 {
        let weights = allocator.open_model(MODEL);
        let mut tensors: Vec<CudaSlice<u8>> = Vec::new();
        {
            let _scope = Scope::enter(weights);
            for tensor in 0..12 {
                set(Control::FailAllocs, if tensor == nth { 3 } else { 0 });
                tensors.push(stream.alloc_zeros((1 + tensor) << 20).unwrap());
            }
        }
        assert_eq!(allocator.take_shortfall(weights), None);
        assert_eq!(allocator.live(weights), (1..=12).sum::<u64>() * MIB);
        drop(tensors);
        assert_eq!(allocator.close_model(weights), Bytes::ZERO);
    }
    assert_eq!(get(Control::Living), 0);
}
