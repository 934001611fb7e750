//! Reductions of f16 and bf16: eight elements at a time are widened to f32, reduced, and rounded to nearest even.
//!
//! Compilers do not vectorise conversions for which the crate `half` checks the CPU's features every eight elements. So the whole loop is
//! compiled for CPUs with AVX2 and F16C, and checked once per call; other CPUs use `half`.

use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};

/// The number of elements widened at a time.
const LANES: usize = 8;
type Bits = [u16; LANES];
type Wide = [f32; LANES];

/// A type whose elements are reduced as f32.
pub(super) trait Half: Sized {
    /// `into[i] = f(into[i], terms[i])`, up to the shorter length.
    fn in_place(f: impl Fn(f32, f32) -> f32, into: &mut [Self], terms: &[Self]);

    /// `out[i] = f(a[i], b[i])`, up to the shortest length.
    fn apart(f: impl Fn(f32, f32) -> f32, out: &mut [Self], a: &[Self], b: &[Self]);
}

/// Both forms, for given conversions and CPU features.
macro_rules! forms {
    ($name:ident, $widen:path, $narrow:path $(, $features:literal)?) => {
        mod $name {
            use super::{Bits, LANES, filled};

            $(#[target_feature(enable = $features)])?
            pub(super) fn in_place(
                f: impl Fn(f32, f32) -> f32,
                into: &mut [u16],
                terms: &[u16],
            ) {
                let len = into.len().min(terms.len());
                let (into, into_rest) = into[..len].as_chunks_mut();
                let (terms, terms_rest) = terms[..len].as_chunks();
                for (into, term) in into.iter_mut().zip(terms) {
                    *into = eight(&f, *into, *term);
                }
                let last = eight(&f, filled(into_rest), filled(terms_rest));
                into_rest.copy_from_slice(&last[..into_rest.len()]);
            }

            $(#[target_feature(enable = $features)])?
            pub(super) fn apart(
                f: impl Fn(f32, f32) -> f32,
                out: &mut [u16],
                a: &[u16],
                b: &[u16],
            ) {
                let len = out.len().min(a.len()).min(b.len());
                let (out, out_rest) = out[..len].as_chunks_mut();
                let ((a, a_rest), (b, b_rest)) = (a[..len].as_chunks(), b[..len].as_chunks());
                for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
                    *out = eight(&f, *a, *b);
                }
                let last = eight(&f, filled(a_rest), filled(b_rest));
                out_rest.copy_from_slice(&last[..out_rest.len()]);
            }

            $(#[target_feature(enable = $features)])?
            #[inline]
            fn eight(f: &impl Fn(f32, f32) -> f32, a: Bits, b: Bits) -> Bits {
                let (a, b) = ($widen(a), $widen(b));
                let mut wide = [0.0; LANES];
                for lane in 0..LANES {
                    wide[lane] = f(a[lane], b[lane]);
                }
                $narrow(wide)
            }
        }
    };
}

forms!(f16_anywhere, super::widen_f16, super::narrow_f16);
#[cfg(target_arch = "x86_64")]
forms!(f16_here, super::f16c::widen, super::f16c::narrow, "avx2,f16c");

/// Both forms for bf16, whose conversions are a few integer operations: the compiler vectorises the loop itself. Two elements are one word, of
/// which each is a half already where an f32 has its upper one, so that no lane moves.
macro_rules! loops {
    ($name:ident $(, $features:literal)?) => {
        mod $name {
            use super::{both, first};

            $(#[target_feature(enable = $features)])?
            pub(super) fn in_place(
                f: impl Fn(f32, f32) -> f32,
                into: &mut [u16],
                terms: &[u16],
            ) {
                let len = into.len().min(terms.len());
                let (into, into_rest) = into[..len].as_chunks_mut::<2>();
                let (terms, terms_rest) = terms[..len].as_chunks();
                for (into, term) in into.iter_mut().zip(terms) {
                    *into = both(&f, *into, *term);
                }
                for (into, term) in into_rest.iter_mut().zip(terms_rest) {
                    *into = first(&f, *into, *term);
                }
            }

            $(#[target_feature(enable = $features)])?
            pub(super) fn apart(
                f: impl Fn(f32, f32) -> f32,
                out: &mut [u16],
                a: &[u16],
                b: &[u16],
            ) {
                let len = out.len().min(a.len()).min(b.len());
                let (out, out_rest) = out[..len].as_chunks_mut();
                let ((a, a_rest), (b, b_rest)) = (a[..len].as_chunks(), b[..len].as_chunks());
                for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
                    *out = both(&f, *a, *b);
                }
                for ((out, a), b) in out_rest.iter_mut().zip(a_rest).zip(b_rest) {
                    *out = first(&f, *a, *b);
                }
            }
        }
    };
}

loops!(bf16_anywhere);
#[cfg(target_arch = "x86_64")]
loops!(bf16_here, "avx2,f16c");

#[cfg(target_arch = "x86_64")]
mod f16c {
    use std::arch::x86_64::{_MM_FROUND_TO_NEAREST_INT, _mm256_cvtph_ps, _mm256_cvtps_ph};

    use super::{Bits, Wide};

    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    pub(super) fn widen(bits: Bits) -> Wide {
        bytemuck::cast(_mm256_cvtph_ps(bytemuck::cast(bits)))
    }

    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    pub(super) fn narrow(wide: Wide) -> Bits {
        bytemuck::cast(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(bytemuck::cast(wide)))
    }

    /// Whether this CPU has the features that it is compiled for.
    pub(super) fn is_here() -> bool {
        std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("f16c")
    }
}

fn widen_f16(bits: Bits) -> Wide {
    let mut wide = [0.0; LANES];
    bits.reinterpret_cast::<f16>().convert_to_f32_slice(&mut wide);
    wide
}

fn narrow_f16(wide: Wide) -> Bits {
    let mut bits = [0; LANES];
    bits.reinterpret_cast_mut::<f16>().convert_from_f32_slice(&wide);
    bits
}

/// Two elements of bf16, in the order of memory.
type Pair = [u16; 2];

#[inline]
fn both(f: &impl Fn(f32, f32) -> f32, a: Pair, b: Pair) -> Pair {
    let (a, b): (u32, u32) = (bytemuck::cast(a), bytemuck::cast(b));
    let upper = rounded(f(f32::from_bits(a & UPPER), f32::from_bits(b & UPPER)));
    let lower = rounded(f(f32::from_bits(a << 16), f32::from_bits(b << 16)));
    bytemuck::cast(upper & UPPER | lower >> 16)
}

/// One element.
#[inline]
fn first(f: &impl Fn(f32, f32) -> f32, a: u16, b: u16) -> u16 {
    let widen = |bits| f32::from_bits(u32::from(bits) << 16);
    (rounded(f(widen(a), widen(b))) >> 16) as u16
}

/// The half of an f32 that is a bf16.
const UPPER: u32 = 0xFFFF_0000;

/// Bits whose upper half is the nearest bf16. Without a branch, so that it is vectorised.
#[inline]
fn rounded(value: f32) -> u32 {
    let bits = value.to_bits();
    // A NaN with its payload in the lower half only would become an infinity.
    if value.is_nan() { bits | 0x40_0000 } else { bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) }
}

/// The last few elements, padded with zeros.
fn filled(rest: &[u16]) -> Bits {
    let mut bits = [0; LANES];
    bits[..rest.len()].copy_from_slice(rest);
    bits
}

macro_rules! halves {
    ($($type:ty: $anywhere:ident $here:ident),*) => {$(
        impl Half for $type {
            fn in_place(f: impl Fn(f32, f32) -> f32, into: &mut [Self], terms: &[Self]) {
                let (into, terms) = (into.reinterpret_cast_mut(), terms.reinterpret_cast());
                #[cfg(target_arch = "x86_64")]
                if f16c::is_here() {
                    // SAFETY: the CPU has what the function is compiled for.
                    return unsafe { $here::in_place(f, into, terms) };
                }
                $anywhere::in_place(f, into, terms);
            }

            fn apart(f: impl Fn(f32, f32) -> f32, out: &mut [Self], a: &[Self], b: &[Self]) {
                let out = out.reinterpret_cast_mut();
                let (a, b) = (a.reinterpret_cast(), b.reinterpret_cast());
                #[cfg(target_arch = "x86_64")]
                if f16c::is_here() {
                    // SAFETY: as above.
                    return unsafe { $here::apart(f, out, a, b) };
                }
                $anywhere::apart(f, out, a, b);
            }
        }
    )*};
}

halves!(f16: f16_anywhere f16_here, bf16: bf16_anywhere bf16_here);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_of_both_types_is_widened_and_narrowed_as_half_does_it() {
        let all: Vec<u16> = (0..=u16::MAX).collect();
        let zeros = vec![0; all.len()];
        let (mut f16s, mut bf16s) = (zeros.clone(), zeros.clone());
        let halves: &[f16] = all.reinterpret_cast();
        f16::apart(|a, _| a, f16s.reinterpret_cast_mut(), halves, zeros.reinterpret_cast());
        let brains: &[bf16] = all.reinterpret_cast();
        bf16::apart(|a, _| a, bf16s.reinterpret_cast_mut(), brains, zeros.reinterpret_cast());
        for (place, value) in all.iter().enumerate() {
            let (half, brain) = (f16::from_bits(*value), bf16::from_bits(*value));
            assert_eq!(f16s[place], f16::from_f32(half.to_f32()).to_bits(), "{value:#x}");
            assert_eq!(bf16s[place], bf16::from_f32(brain.to_f32()).to_bits(), "{value:#x}");
        }
    }

    #[test]
    fn floats_between_two_values_go_to_the_nearest_and_halfway_to_the_even_one() {
        // All exponents, a few mantissas on both sides of and at the middle, both signs.
        for high in 0..=u16::MAX {
            for low in [0_u32, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF] {
                let value = f32::from_bits(u32::from(high) << 16 | low);
                let found = (rounded(value) >> 16) as u16;
                assert_eq!(found, bf16::from_f32(value).to_bits(), "{:#x}", value.to_bits());
            }
        }
        for count in [1, 7, 8, 9, 31] {
            let mut sums = vec![f16::from_f32(1.5); count];
            f16::in_place(|a, b| a + b, &mut sums, &vec![f16::from_f32(2.25); count]);
            assert_eq!(sums, vec![f16::from_f32(3.75); count]);
        }
    }
}
