//! Machines and modes that need a process of their own.

use cudarc::driver::CudaSlice;
use plimsoll::device::cuda::{Card, CardSettings, Scope, Unusable};
use plimsoll::device::pools::{Failures, Mode};
use plimsoll::device::{Choice, Need, StartOptions, start};
use plimsoll::units::{Bytes, ModelId};

use crate::fake::{Control, MIB, get, in_a_process};

const MODEL: ModelId = ModelId::new(3);

/// A step that allocates the same twice, and how many calls of the driver that took.
fn calls_of_two_equal_blocks(card: &'static Card) -> u64 {
    let allocator = card.allocator();
    let stream = card.context().new_stream().unwrap();
    let weights = allocator.open_model(MODEL);
    let step = allocator.begin_step(MODEL, Need::up_to(Bytes::mib(64))).unwrap();
    let before = get(Control::Allocs);
    {
        let _scope = Scope::enter(step);
        for _ in 0..2 {
            let block: CudaSlice<u8> = stream.alloc_zeros(10 << 20).unwrap();
            assert_eq!(allocator.live(step), 10 * MIB);
            drop(block);
        }
        assert!(stream.alloc_zeros::<u8>(65 << 20).is_err(), "the ceiling holds");
    }
    let books = allocator.end_step(step);
    assert_eq!((books.used.peak, books.used.allocated), (Bytes::mib(10), 2));
    allocator.close_model(weights);
    get(Control::Allocs) - before
}

#[test]
fn a_card_without_pools_is_served_from_a_cache_of_ours() {
    in_a_process("modes::a_card_without_pools_is_served_from_a_cache_of_ours", &[("FAKE_CUDA_POOLS", "0")], || {
        let card = Card::open(CardSettings::of(0)).unwrap();
        assert_eq!(card.allocator().mode(), Mode::Plain);
        assert_eq!(calls_of_two_equal_blocks(card), 1, "the second comes from the cache");
        assert_eq!(card.allocator().trim_workspace(Bytes::ZERO), Bytes::mib(10));
        assert_eq!(get(Control::Living), 0);
    });
}

#[test]
fn the_drivers_own_way_keeps_the_books() {
    in_a_process("modes::the_drivers_own_way_keeps_the_books", &[], || {
        let card = Card::open(CardSettings { mode: Mode::Driver, ..CardSettings::of(0) }).unwrap();
        assert_eq!(get(Control::Pools), 0, "no pool is made");
        assert_eq!(calls_of_two_equal_blocks(card), 2);
        assert_eq!(get(Control::Living), 0);
    });
}

#[test]
fn a_process_has_one_card() {
    in_a_process("modes::a_process_has_one_card", &[("FAKE_CUDA_DEVICES", "2")], || {
        let first = Card::open(CardSettings::of(1)).unwrap();
        assert!(std::ptr::eq(first, Card::open(CardSettings::of(1)).unwrap()));
        assert_eq!(Card::open(CardSettings::of(0)).err(), Some(Unusable::Taken { ordinal: 1 }));
    });
}

#[test]
fn a_card_that_is_not_there_is_refused_with_the_number() {
    in_a_process("modes::a_card_that_is_not_there_is_refused_with_the_number", &[], || {
        assert_eq!(Card::open(CardSettings::of(3)).err(), Some(Unusable::NoSuchCard { ordinal: 3, count: 1 }));
    });
}

#[test]
fn a_driver_without_a_card_leaves_the_work_to_the_cpu() {
    in_a_process("modes::a_driver_without_a_card_leaves_the_work_to_the_cpu", &[("FAKE_CUDA_DEVICES", "0")], || {
        let now = std::time::Instant::now();
        let explicit = start(StartOptions::alone(Choice::Cuda(0)), now, |_| ()).err().expect("there is no card");
        assert!(explicit.to_string().contains("--device cpu"), "{explicit}");
        let device = start(StartOptions::alone(Choice::Auto), now, |_| ()).unwrap();
        assert!(device.name().starts_with("cpu"), "{}", device.name());
    });
}

#[test]
fn failures_on_purpose_do_not_keep_a_card_from_opening() {
    in_a_process("modes::failures_on_purpose_do_not_keep_a_card_from_opening", &[], || {
        let failures = Failures::Random { probability: 0.5, seed: 3 };
        let card = Card::open(CardSettings { failures, ..CardSettings::of(0) }).unwrap();
        let allocator = card.allocator();
        let stream = card.context().new_stream().unwrap();
        let step = {
            allocator.open_model(MODEL);
            allocator.begin_step(MODEL, Need::WHATEVER).unwrap()
        };
        {
            let _scope = Scope::enter(step);
            for _ in 0..100 {
                drop(stream.alloc_zeros::<u8>(1 << 20));
            }
        }
        let books = allocator.end_step(step);
        // Half of the first calls fail, and half of their retries.
        let hits = allocator.driver().hits().workspace;
        assert!((50..100).contains(&hits), "{hits}");
        assert!(books.shortfall.is_some() && (10..45).contains(&books.used.retried), "{books:?}");
        assert_eq!(get(Control::Living), 0);
    });
}
