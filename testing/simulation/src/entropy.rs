//! Where randomness comes from in a simulation: the seed, and nothing else.
//!
//! The standard library draws the keys of hash maps from the system, Tokio draws from those which
//! branch of a `select!` is looked at first, and `rand` seeds its thread's generator from the system.
//! All of them call `getrandom`, and the standard library looks that function up weakly in order
//! that it can be replaced. This module replaces it.
//!
//! Each thread has a stream of its own that begins with the seed, so that no thread's numbers depend
//! on when another one runs.

use std::cell::Cell;
use std::ffi::{c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

static SEED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static STREAM: Cell<Option<u64>> = const { Cell::new(None) };
}

/// From here on new threads draw from `seed`. To be called first of all in a process; it makes sure
/// that the replacement is part of the program.
pub fn seed(seed: u64) {
    SEED.store(seed, Ordering::SeqCst);
    STREAM.set(None);
    std::hint::black_box(getrandom as extern "C" fn(_, _, _) -> _);
}

/// The next number of this thread (SplitMix64).
fn next() -> u64 {
    let state = STREAM
        .get()
        .unwrap_or_else(|| SEED.load(Ordering::SeqCst))
        .wrapping_add(0x9e37_79b9_7f4a_7c15);
    STREAM.set(Some(state));
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Takes the place of the C library's function of this name in the whole program.
#[allow(unsafe_code)]
// SAFETY: the signature is that of getrandom(2) in every C library, and it has its contract: it
// fills the buffer and answers how much of it was filled.
#[unsafe(no_mangle)]
extern "C" fn getrandom(buffer: *mut c_void, length: usize, _flags: c_uint) -> isize {
    if buffer.is_null() {
        return -1;
    }
    // SAFETY: by getrandom's contract the caller owns `length` writable bytes at `buffer`.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&next().to_le_bytes()[..chunk.len()]);
    }
    isize::try_from(length).unwrap_or(isize::MAX)
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher, RandomState};

    use super::*;

    fn drawn_in_a_new_thread() -> (u64, u64) {
        std::thread::spawn(|| (RandomState::new().hash_one(1), rand::random())).join().unwrap()
    }

    #[test]
    fn everything_random_comes_from_the_seed() {
        seed(1);
        let first = drawn_in_a_new_thread();
        assert_eq!(drawn_in_a_new_thread(), first);
        seed(2);
        let other = drawn_in_a_new_thread();
        assert_ne!(other.0, first.0);
        assert_ne!(other.1, first.1);
    }
}
