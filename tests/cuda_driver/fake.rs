//! Steering the driver that tests/cuda_driver/fake_driver.c is.

use std::ffi::{c_int, c_void};
use std::mem;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use plimsoll::device::cuda::{Card, CardSettings};

/// What can be steered and read; the numbers are those of the C file.
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub(crate) enum Control {
    Capacity = 0,
    Neighbour = 1,
    FailAllocs = 2,
    FailFrees = 3,
    Sticky = 4,
    Allocs = 5,
    Pools = 7,
    Living = 8,
    Trims = 9,
    Mapped = 10,
}

pub(crate) const MIB: u64 = 1 << 20;

fn symbol(name: &std::ffi::CStr) -> *mut c_void {
    // SAFETY: both are C strings; the library stays open.
    let found = unsafe { libc::dlsym(libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW), name.as_ptr()) };
    assert!(!found.is_null(), "the driver is not the fake one: run scripts/test-cuda-rim");
    found
}

pub(crate) fn set(what: Control, value: u64) {
    // SAFETY: the function of that name in the fake driver has this type.
    let set: unsafe extern "C" fn(c_int, u64) = unsafe { mem::transmute(symbol(c"fake_set")) };
    // SAFETY: any number of the list may be set.
    unsafe { set(what as c_int, value) }
}

pub(crate) fn get(what: Control) -> u64 {
    // SAFETY: the function of that name in the fake driver has this type.
    let get: unsafe extern "C" fn(c_int) -> u64 = unsafe { mem::transmute(symbol(c"fake_get")) };
    // SAFETY: any number of the list may be read.
    unsafe { get(what as c_int) }
}

/// The process's card, for one test at a time, with nothing failing and nobody beside us.
pub(crate) fn card() -> (&'static Card, MutexGuard<'static, ()>) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    set(Control::Capacity, 4 << 30);
    for what in [Control::Neighbour, Control::FailAllocs, Control::FailFrees, Control::Sticky] {
        set(what, 0);
    }
    let card = Card::open(CardSettings::of(0)).expect("the fake driver has a card");
    card.context().bind_to_thread().expect("it works");
    (card, guard)
}

/// Runs `test` in a process of its own with this environment, and `body` there. A process has one card.
pub(crate) fn in_a_process(test: &str, environment: &[(&str, &str)], body: impl FnOnce()) {
    const MARK: &str = "PLIMSOLL_TEST_CHILD";
    if std::env::var_os(MARK).is_some_and(|name| name == test) {
        body();
        return;
    }
    let output = Command::new(std::env::current_exe().expect("the test knows where it is"))
        .args(["--exact", test, "--nocapture"])
        .env(MARK, test)
        .envs(environment.iter().copied())
        .output()
        .expect("the test can be started again");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
}
