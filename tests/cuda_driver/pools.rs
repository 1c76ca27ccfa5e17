//! Scopes, pools and books under cudarc's streams.

use cudarc::driver::CudaSlice;
use plimsoll::device::cuda::{Scope, intercepted};
use plimsoll::device::pools::{Cause, Slot};
use plimsoll::device::{Kind, Need};
use plimsoll::units::{Bytes, ModelId};

use crate::fake::{Control, MIB, card, get, set};

const MODEL: ModelId = ModelId::new(1);

#[test]
fn what_a_stream_allocates_is_charged_to_the_threads_scope() {
    let (card, _guard) = card();
    let allocator = card.allocator();
    let stream = card.context().new_stream().unwrap();
    let weights = allocator.open_model(MODEL);
    let pools = get(Control::Pools);
    let calls = intercepted();

    let scope = Scope::enter(weights);
    let tensor = stream.clone_htod(&vec![3u8; 5 << 20]).unwrap();
    drop(scope);
    assert!(intercepted() > calls);
    assert_eq!(allocator.live(weights), 5 * MIB);
    assert_eq!(get(Control::Pools), pools + 1, "weights have a pool of their own");
    assert_eq!(allocator.resident(weights).weights, Bytes::mib(6), "as much as its chunks of 2 MiB");

    let step = allocator.begin_step(MODEL, Need::up_to(Bytes::mib(64))).unwrap();
    let scope = Scope::enter(step);
    let copy = tensor.try_clone().unwrap();
    assert_eq!(stream.clone_dtoh(&copy).unwrap(), vec![3u8; 5 << 20]);
    drop(copy);
    drop(scope);
    let used = allocator.end_step(step).used;
    assert_eq!((used.peak, used.left, used.allocated, used.freed), (Bytes::mib(5), Bytes::ZERO, 1, 1));

    // Dropped under no scope: a block belongs to whom it was allocated for.
    drop(tensor);
    assert_eq!(allocator.close_model(weights), Bytes::ZERO);
    assert_eq!(get(Control::Pools), pools, "its pool is gone");
    let trims = get(Control::Trims);
    allocator.return_everything();
    assert_eq!((get(Control::Living), get(Control::Mapped)), (0, 0));
    assert!(get(Control::Trims) > trims);
}

#[test]
fn the_driver_does_not_hear_of_what_is_above_a_ceiling() {
    let (card, _guard) = card();
    let allocator = card.allocator();
    let stream = card.context().new_stream().unwrap();
    let weights = allocator.open_model(MODEL);
    let step = allocator.begin_step(MODEL, Need::up_to(Bytes::mib(8))).unwrap();
    let _scope = Scope::enter(step);
    let half: CudaSlice<u8> = stream.alloc_zeros(6 << 20).unwrap();
    let asked = get(Control::Allocs);
    let refused = stream.alloc_zeros::<u8>(3 << 20).unwrap_err();
    assert!(refused.to_string().contains("OUT_OF_MEMORY"), "{refused}");
    assert_eq!(get(Control::Allocs), asked);
    drop(half);
    let shortfall = allocator.end_step(step).shortfall.unwrap();
    assert_eq!((shortfall.cause, shortfall.held, shortfall.requested), (Cause::Ceiling, Bytes::mib(6), Bytes::mib(3)));
    assert_eq!((shortfall.owner.model, shortfall.owner.kind), (Some(MODEL), Kind::Workspace));
    allocator.close_model(weights);
}

#[test]
fn every_byte_of_the_card_has_a_name() {
    let (card, _guard) = card();
    let stream = card.context().new_stream().unwrap();
    let held: CudaSlice<u8> = stream.alloc_zeros(100 << 20).unwrap();
    set(Control::Neighbour, 700 * MIB);
    let parts = card.parts().unwrap();
    let ours = parts.weights + parts.kv + parts.workspace + parts.library + parts.unpooled;
    assert!(parts.library >= 100 * MIB, "{parts:?}");
    assert_eq!(parts.total, parts.free + ours + parts.fixed.bytes + parts.graphs + parts.others);
    assert_eq!((parts.others, ours), (700 * MIB, get(Control::Mapped)));

    // What is taken behind the books is nobody's that is known.
    let pointer = card.driver().alloc_behind_the_books(100 * MIB).unwrap();
    assert_eq!(card.parts().unwrap().others, 800 * MIB);
    card.driver().free_behind_the_books(pointer).unwrap();
    assert_eq!(card.parts().unwrap().others, 700 * MIB);
    drop(held);
    assert_eq!(card.allocator().live(Slot::NOBODY), 0);
}

#[test]
fn what_was_not_given_out_here_goes_to_the_driver() {
    let (card, _guard) = card();
    let stream = card.context().new_stream().unwrap();
    let before = card.allocator().snapshot().foreign_frees;
    let pointer = card.driver().alloc_behind_the_books(MIB).unwrap();
    assert!(plimsoll::device::cuda::free_as_candle_does(&stream, pointer));
    assert!(!plimsoll::device::cuda::free_as_candle_does(&stream, 0x7));
    assert_eq!(card.allocator().snapshot().foreign_frees, before + 2);
    assert_eq!(get(Control::Living), 0);
}

#[test]
fn an_allocation_of_no_bytes_is_nothing() {
    let (card, _guard) = card();
    let stream = card.context().new_stream().unwrap();
    let (asked, live) = (get(Control::Allocs), card.allocator().live(Slot::NOBODY));
    drop(stream.null::<f32>().unwrap());
    assert_eq!((get(Control::Allocs), card.allocator().live(Slot::NOBODY)), (asked, live));
}

#[test]
fn other_threads_are_charged_as_nobody() {
    let (card, _guard) = card();
    let allocator = card.allocator();
    let weights = allocator.open_model(MODEL);
    let _scope = Scope::enter(weights);
    let stream = card.context().new_stream().unwrap();
    let live = std::thread::scope(|threads| {
        let other = threads.spawn(|| {
            let held: CudaSlice<u8> = stream.alloc_zeros(1 << 20).unwrap();
            let live = (allocator.live(weights), allocator.live(Slot::NOBODY));
            drop(held);
            live
        });
        other.join().unwrap()
    });
    assert_eq!(live, (0, MIB));
    allocator.close_model(weights);
}
