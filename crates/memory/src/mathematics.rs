//! `pow` without the C library's mathematics.
//!
//! Tokio's scheduler raises one number to a power, for a statistic of its own, and nothing else here
//! needs `libm.so`. Loaded for that, half a MiB of it stays resident: a fiftieth of the whole process.
//! What the program brings itself the linker does not look for elsewhere, and the library is not loaded.

/// C's `pow(3)`.
// SAFETY: it is what every caller of that name expects, by name, types and meaning.
#[allow(unsafe_code)]
#[unsafe(no_mangle)]
extern "C" fn pow(base: f64, exponent: f64) -> f64 {
    libm::pow(base, exponent)
}

#[cfg(test)]
mod tests {
    /// By way of the symbol, as tokio calls it.
    #[test]
    fn powers_are_what_they_were() {
        let (base, exponent) = (std::hint::black_box(0.9_f64), std::hint::black_box(7.0));
        assert!((base.powf(exponent) - 0.478_296_9).abs() < 1e-12);
        assert!((std::hint::black_box(2.0_f64).powf(-1.0) - 0.5).abs() < 1e-12);
        assert!(base.powf(0.0).to_bits() == 1.0_f64.to_bits());
    }
}
