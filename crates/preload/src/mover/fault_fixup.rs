//! Copies between a program's buffer and a mapped file that end with an error, not with a signal, when a page is gone.
//!
//! Input: two ranges, of which any page may disappear: the file may be shortened, its file system may be full, the buffer may
//! not exist. Output: success, or the report of a fault. Invariant: the handler of SIGBUS and SIGSEGV changes only a thread
//! that executes one of the two copies of this file, and moves it to their failing end; every other fault has the effect
//! that it had before. So a copy keeps no state anywhere, and may be interrupted, left by a jump, or run in many threads.

use super::counters::{COUNTERS, count};
use std::arch::global_asm;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

// The loads and the stores of these copies may fault. They push nothing, so that the failing end can return.
// A store ends with its bytes outside the caches: whole lines by streaming stores, the parts of lines at both ends by clflush.
global_asm!(
    ".pushsection .text.headwater_preload_copies,\"ax\",@progbits",
    ".balign 64",
    ".globl headwater_preload_copies_start",
    ".hidden headwater_preload_copies_start",
    "headwater_preload_copies_start:",
    ".globl headwater_preload_load",
    ".hidden headwater_preload_load",
    "headwater_preload_load:",
    "endbr64",
    "cmp rdx, 64",
    "jb 3f",
    "2:",
    "prefetcht0 byte ptr [rsi + 512]",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + 32]",
    "movups xmm3, [rsi + 48]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + 32], xmm2",
    "movups [rdi + 48], xmm3",
    "add rsi, 64",
    "add rdi, 64",
    "sub rdx, 64",
    "cmp rdx, 64",
    "jae 2b",
    "3:",
    "mov rcx, rdx",
    "rep movsb",
    "xor eax, eax",
    "ret",
    ".globl headwater_preload_store",
    ".hidden headwater_preload_store",
    "headwater_preload_store:",
    "endbr64",
    "mov rcx, rdi",
    "neg rcx",
    "and ecx, 63",
    "jz 4f",
    "cmp rcx, rdx",
    "cmova rcx, rdx",
    "mov r8, rdi",
    "sub rdx, rcx",
    "rep movsb",
    "clflush byte ptr [r8]",
    "4:",
    "cmp rdx, 64",
    "jb 6f",
    "5:",
    "prefetchnta byte ptr [rsi + 512]",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + 32]",
    "movups xmm3, [rsi + 48]",
    "movntps [rdi], xmm0",
    "movntps [rdi + 16], xmm1",
    "movntps [rdi + 32], xmm2",
    "movntps [rdi + 48], xmm3",
    "add rsi, 64",
    "add rdi, 64",
    "sub rdx, 64",
    "cmp rdx, 64",
    "jae 5b",
    "6:",
    "test rdx, rdx",
    "jz 7f",
    "mov r8, rdi",
    "mov rcx, rdx",
    "rep movsb",
    "clflush byte ptr [r8]",
    "7:",
    "sfence",
    "xor eax, eax",
    "ret",
    ".globl headwater_preload_copies_end",
    ".hidden headwater_preload_copies_end",
    "headwater_preload_copies_end:",
    ".globl headwater_preload_copies_fault",
    ".hidden headwater_preload_copies_fault",
    "headwater_preload_copies_fault:",
    "sfence",
    "mov eax, 1",
    "ret",
    ".popsection",
);

unsafe extern "C" {
    static headwater_preload_copies_start: u8;
    static headwater_preload_copies_end: u8;
    static headwater_preload_copies_fault: u8;
    fn headwater_preload_load(to: *mut u8, from: *const u8, bytes: usize) -> usize;
    fn headwater_preload_store(to: *mut u8, from: *const u8, bytes: usize) -> usize;
}

/// The report that a page of a copy was gone: any of its bytes may have been copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageGone;

/// Copies from a mapped file.
///
/// # Safety
/// No byte of `to` belongs to anything but the program that asked for the copy, and `from` is the address of a mapping that
/// nothing else replaces during the call. Either may have no page.
pub(super) unsafe fn load(to: *mut u8, from: *const u8, bytes: usize) -> Result<(), PageGone> {
    // SAFETY: the caller promises the ranges; what faults ends the copy.
    let failed = unsafe { headwater_preload_load(to, from, bytes) };
    if failed == 0 { Ok(()) } else { Err(PageGone) }
}

/// Copies to a mapped file. After success the bytes have left the caches.
///
/// # Safety
/// As for [`load`], with the mapping as the target.
pub(super) unsafe fn store(to: *mut u8, from: *const u8, bytes: usize) -> Result<(), PageGone> {
    // SAFETY: the caller promises the ranges; what faults ends the copy.
    let failed = unsafe { headwater_preload_store(to, from, bytes) };
    if failed == 0 { Ok(()) } else { Err(PageGone) }
}

/// The signals of a page that is gone.
const SIGNALS: [c_int; 2] = [libc::SIGBUS, libc::SIGSEGV];

/// The actions that the process had before, in the order of [`SIGNALS`]: each a leaked `sigaction`.
static PREVIOUS: [AtomicPtr<libc::sigaction>; 2] = [const { AtomicPtr::new(ptr::null_mut()) }; 2];

/// The storage of [`PREVIOUS`].
static PREVIOUS_ACTIONS: ActionStorage = ActionStorage(std::cell::UnsafeCell::new(
    [const {
        // SAFETY: an all-zero action is a valid value.
        unsafe { std::mem::zeroed() }
    }; 2],
));

struct ActionStorage(std::cell::UnsafeCell<[libc::sigaction; 2]>);

// SAFETY: bounds, alignment, lifetime: a static. Aliasing: written once, by the one thread of the start of the program, before
// the handler exists; read by the handler.
unsafe impl Sync for ActionStorage {}

/// Installs the handler for both signals. Returns false if the kernel refuses.
///
/// Runs once, while the program has one thread.
pub(super) fn install() -> bool {
    for (nth, signal) in SIGNALS.into_iter().enumerate() {
        let storage = PREVIOUS_ACTIONS.0.get().cast::<libc::sigaction>().wrapping_add(nth);
        // SAFETY: the kernel fills in a value of the static, which nothing else uses yet.
        if unsafe { libc::sigaction(signal, ptr::null(), storage) } != 0 {
            return false;
        }
        PREVIOUS[nth].store(storage, Ordering::Release);
        // SAFETY: an all-zero action is a valid value.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handle_fault as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        // SAFETY: `action` is a local value that the kernel copies; the handler is a function of a library that is never
        // unloaded, and does only what a signal handler may.
        if unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) } != 0 {
            return false;
        }
    }
    true
}

/// An action as the kernel has it on x86-64.
#[repr(C)]
#[derive(Default)]
struct KernelAction {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// Returns true if a fault of this thread would end a copy: the process still has the handler, and the thread blocks neither
/// signal. Asks the kernel, because a program may change both without the C library.
pub(super) fn is_guarded() -> bool {
    let ours = handle_fault as *const () as usize;
    let has_handler = |signal: c_int| {
        let mut action = KernelAction::default();
        let null = ptr::null::<KernelAction>();
        // SAFETY: the kernel fills in a local value with the layout and the size that it is told.
        let result = unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, null, &raw mut action, 8) };
        result == 0 && action.handler == ours
    };
    let mut blocked = 0_u64;
    // SAFETY: the kernel fills in a local value of 8 bytes.
    let result = unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, ptr::null::<u64>(), &raw mut blocked, 8)
    };
    let faults = SIGNALS.iter().fold(0_u64, |mask, signal| mask | 1 << (signal - 1));
    result == 0 && blocked & faults == 0 && SIGNALS.into_iter().all(has_handler)
}

/// Handles SIGBUS and SIGSEGV.
unsafe extern "C" fn handle_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a value that lives until the handler returns.
    let code = unsafe { (*info).si_code };
    // SAFETY: as above; the registers are those of the interrupted thread, and only this handler accesses them.
    let instruction = unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        &mut registers[libc::REG_RIP as usize]
    };
    let at = usize::try_from(instruction.cast_unsigned()).unwrap_or(0);
    if code > 0
        && (address_of(&raw const headwater_preload_copies_start)
            ..address_of(&raw const headwater_preload_copies_end))
            .contains(&at)
    {
        *instruction = (address_of(&raw const headwater_preload_copies_fault) as u64).cast_signed();
        count(&COUNTERS.kernel_faults, 1);
        return;
    }
    let nth = usize::from(signal == SIGNALS[1]);
    let previous = PREVIOUS[nth].load(Ordering::Acquire);
    // SAFETY: `previous` is a value of a static that the kernel filled in. The call is safe in a signal handler.
    unsafe { libc::sigaction(signal, previous, ptr::null_mut()) };
    if code <= 0 {
        // SAFETY: the call takes no pointer and is safe in a signal handler; the signal arrives after the return.
        unsafe { libc::raise(signal) };
    }
}

fn address_of(symbol: *const u8) -> usize {
    symbol.addr()
}
