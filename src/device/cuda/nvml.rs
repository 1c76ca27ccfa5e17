//! A second opinion on the card's memory: NVML, where the system has it.
//!
//! It is the only one that says how much of the card each process has. Inside containers the numbers of processes are
//! often not those of the process itself: a process that is not found is unknown, never zero.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::{mem, process};

type Handle = *mut c_void;

/// As in nvml.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct MemoryInfo {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// As in nvml.h, since version 2 of the call.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ProcessInfo {
    pid: c_uint,
    used_gpu_memory: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// What NVML writes where it does not know.
const NOT_AVAILABLE: c_ulonglong = c_ulonglong::MAX;

/// Processes that one look can see. A card with more has other problems.
const PROCESSES_MAX: usize = 128;

type ByBusId = unsafe extern "C" fn(*const c_char, *mut Handle) -> c_int;
type Memory = unsafe extern "C" fn(Handle, *mut MemoryInfo) -> c_int;
type Processes = unsafe extern "C" fn(Handle, *mut c_uint, *mut ProcessInfo) -> c_int;

/// One card in NVML.
pub struct Nvml {
    card: usize,
    memory: Memory,
    processes: Processes,
}

impl Nvml {
    /// The card with this PCI bus id; `None` where NVML is missing or does not know it.
    pub(super) fn open(bus_id: &CStr) -> Option<Nvml> {
        // SAFETY: the name is a C string; the library is never closed.
        let library = unsafe { libc::dlopen(c"libnvidia-ml.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return None;
        }
        let symbol = |name: &CStr| {
            // SAFETY: `library` is open; the name is a C string.
            let found = unsafe { libc::dlsym(library, name.as_ptr()) };
            (!found.is_null()).then_some(found)
        };
        let (init, by_bus_id) = (symbol(c"nvmlInit_v2")?, symbol(c"nvmlDeviceGetHandleByPciBusId_v2")?);
        let memory = symbol(c"nvmlDeviceGetMemoryInfo")?;
        let processes = symbol(c"nvmlDeviceGetComputeRunningProcesses_v3")
            .or_else(|| symbol(c"nvmlDeviceGetComputeRunningProcesses_v2"))?;
        let mut card: Handle = std::ptr::null_mut();
        // SAFETY: the functions of those names, whose signatures nvml.h gives as here; `card` lives through the call.
        unsafe {
            let init = mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(init);
            let by_bus_id = mem::transmute::<*mut c_void, ByBusId>(by_bus_id);
            if init() != 0 || by_bus_id(bus_id.as_ptr(), &mut card) != 0 {
                return None;
            }
            Some(Nvml {
                card: card as usize,
                memory: mem::transmute::<*mut c_void, Memory>(memory),
                processes: mem::transmute::<*mut c_void, Processes>(processes),
            })
        }
    }

    /// Bytes that nobody has.
    pub fn free(&self) -> Option<u64> {
        let mut info = MemoryInfo::default();
        // SAFETY: the card's handle is valid until NVML is shut down, which nobody does; `info` lives through the call.
        let result = unsafe { (self.memory)(self.card as Handle, &mut info) };
        (result == 0).then_some(info.free)
    }

    /// Bytes that the driver counts as this process's, its context included. `None` if it does not see the process
    /// under the number that the process has for itself.
    pub fn used_by_this_process(&self) -> Option<u64> {
        let mut found = [ProcessInfo::default(); PROCESSES_MAX];
        let mut count = PROCESSES_MAX as c_uint;
        // SAFETY: as above; there is room for `count` entries.
        let result = unsafe { (self.processes)(self.card as Handle, &mut count, found.as_mut_ptr()) };
        if result != 0 {
            return None;
        }
        let own = |info: &&ProcessInfo| info.pid == process::id() && info.used_gpu_memory != NOT_AVAILABLE;
        found[..(count as usize).min(PROCESSES_MAX)].iter().find(own).map(|info| info.used_gpu_memory)
    }
}
