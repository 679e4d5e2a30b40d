//! The memory of this process: how its heap grows, and what is returned to the kernel at rest.
//!
//! A kubelet works in bursts (it starts, pods start, a node is drained) between long rests, on threads
//! that come and go. The C library's allocator is made for other programs: it keeps a heap for each
//! thread, up to eight for each core, and returns only what is free at the end of one. With 110 pods
//! that was 16 MiB, of which 6 were in use. One heap costs nothing here, where nobody allocates for a
//! living, and what is free in between is returned at rest.
//!
//! A library that is loaded for one function is memory as well: `mathematics` is in its place.
//!
//! The only crate with `unsafe`: calls that change nothing but where memory comes from, and a function
//! by the name that the C library has for it. With another C library than glibc all is left alone.

#[cfg(target_env = "gnu")]
mod mathematics;

#[cfg(target_env = "gnu")]
mod glibc {
    use std::ffi::c_int;

    /// Heaps at once.
    const ARENAS: c_int = 1;
    /// An allocation of that many bytes or more is a mapping of its own, which goes when it is freed.
    /// Said, the limit stays: by itself it grows with what is freed, up to 32 MiB, and then answers of
    /// the runtime and lists of pods make holes in the heap.
    const OWN_MAPPING: c_int = 128 * 1024;

    #[allow(unsafe_code)]
    pub(crate) fn prefer_small_heap() {
        // SAFETY: mallopt takes two numbers and may be called at any time from any thread.
        let refused = unsafe {
            [(libc::M_ARENA_MAX, ARENAS), (libc::M_MMAP_THRESHOLD, OWN_MAPPING)]
                .map(|(option, value)| libc::mallopt(option, value))
                .contains(&0)
        };
        debug_assert!(!refused, "glibc knows both options");
    }

    #[allow(unsafe_code)]
    pub(crate) fn return_free_heap() -> bool {
        // SAFETY: malloc_trim takes the allocator's own locks and returns only pages in which nothing
        // is allocated.
        unsafe { libc::malloc_trim(0) == 1 }
    }
}

/// Has the heap stay small. For the start of a process, before there are threads: those that have a
/// heap of their own keep it.
pub fn prefer_small_heap() {
    #[cfg(target_env = "gnu")]
    glibc::prefer_small_heap();
}

/// Returns the pages of the heap to the kernel in which nothing is left, and says whether there were
/// any. Takes about a millisecond for ten MiB, in which other threads may have to wait for memory.
pub fn return_free_heap() -> bool {
    #[cfg(target_env = "gnu")]
    return glibc::return_free_heap();
    #[cfg(not(target_env = "gnu"))]
    false
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::*;

    /// Anonymous memory that is resident, in KiB.
    fn resident() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let number = line.and_then(|line| line.split_whitespace().next());
        number.and_then(|number| number.parse().ok()).expect("a number")
    }

    #[test]
    fn what_is_free_between_what_is_used_is_returned() {
        prefer_small_heap();
        let pieces = || vec![0xA5_u8; 1024];
        // Each of the short-lived ones that matter lies between two that stay.
        let mut kept = Vec::new();
        let mut freed = Vec::new();
        for number in 0..32 * 1024_u32 {
            let piece = pieces();
            if number % 64 == 0 { kept.push(piece) } else { freed.push(piece) }
        }
        drop(freed);
        let before = resident();
        assert!(return_free_heap());
        let after = resident();
        assert!(after + 16 * 1024 < before, "{before} KiB before, {after} after");
        assert!(kept.iter().all(|piece| piece.iter().all(|byte| *byte == 0xA5)));
    }
}
