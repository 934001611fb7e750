//! Reductions of f16 and bf16: elements are widened to f32, reduced, and rounded to nearest even.
//!
//! The loops are compiled for several sets of CPU features, of which each call checks the best one that is here: compilers do not vectorise
//! conversions that check them every few elements. All of them give the same bits.

use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};

/// A type whose elements are reduced as f32.
pub(super) trait Half: Sized {
    /// `into[i] = f(into[i], terms[i])`, up to the shorter length.
    fn in_place(f: impl Fn(f32, f32) -> f32, into: &mut [Self], terms: &[Self]);

    /// `out[i] = f(a[i], b[i])`, up to the shortest length.
    fn apart(f: impl Fn(f32, f32) -> f32, out: &mut [Self], a: &[Self], b: &[Self]);
}

/// Both forms for a function of blocks of `$len` elements, compiled for given CPU features. The last block is padded with zeros.
macro_rules! forms {
    ($name:ident, $len:expr, $block:path $(, $features:literal)?) => {
        mod $name {
            const LEN: usize = $len;

            $(#[target_feature(enable = $features)])?
            pub(super) fn in_place(
                f: impl Fn(f32, f32) -> f32,
                into: &mut [u16],
                terms: &[u16],
            ) {
                let len = into.len().min(terms.len());
                let (into, into_rest) = into[..len].as_chunks_mut::<LEN>();
                let (terms, terms_rest) = terms[..len].as_chunks::<LEN>();
                for (into, terms) in into.iter_mut().zip(terms) {
                    *into = $block(&f, into, terms);
                }
                let last = $block(&f, &filled(into_rest), &filled(terms_rest));
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
                let (out, out_rest) = out[..len].as_chunks_mut::<LEN>();
                let (a, a_rest) = a[..len].as_chunks::<LEN>();
                let (b, b_rest) = b[..len].as_chunks::<LEN>();
                for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
                    *out = $block(&f, a, b);
                }
                let last = $block(&f, &filled(a_rest), &filled(b_rest));
                out_rest.copy_from_slice(&last[..out_rest.len()]);
            }

            fn filled(rest: &[u16]) -> [u16; LEN] {
                let mut bits = [0; LEN];
                bits[..rest.len()].copy_from_slice(rest);
                bits
            }
        }
    };
}

forms!(f16_anywhere, super::F16_LANES, super::block_f16);
#[cfg(target_arch = "x86_64")]
forms!(f16_avx2, super::x86::LANES_AVX2, super::x86::block_avx2, "avx2,f16c");
#[cfg(target_arch = "x86_64")]
forms!(f16_avx512, super::x86::LANES_AVX512, super::x86::block_avx512, "avx512f");

forms!(bf16_anywhere, super::BF16_LANES, super::block_bf16);
#[cfg(target_arch = "x86_64")]
forms!(bf16_avx2, super::BF16_LANES, super::block_bf16, "avx2");
#[cfg(target_arch = "x86_64")]
forms!(bf16_avx512, super::BF16_LANES, super::block_bf16, "avx512f,avx512bw,avx512dq,avx512vl");

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::is_x86_feature_detected;
    use std::arch::x86_64::{
        _MM_FROUND_TO_NEAREST_INT, _mm256_cvtph_ps, _mm256_cvtps_ph, _mm512_cvtph_ps,
        _mm512_cvtps_ph,
    };

    /// A block of f16 by the conversions of a set of CPU features.
    macro_rules! block {
        ($name:ident, $lanes:expr, $widen:ident, $narrow:ident, $features:literal) => {
            #[target_feature(enable = $features)]
            #[inline]
            pub(super) fn $name(
                f: &impl Fn(f32, f32) -> f32,
                a: &[u16; $lanes],
                b: &[u16; $lanes],
            ) -> [u16; $lanes] {
                let a: [f32; $lanes] = bytemuck::cast($widen(bytemuck::cast(*a)));
                let b: [f32; $lanes] = bytemuck::cast($widen(bytemuck::cast(*b)));
                let mut wide = [0.0_f32; $lanes];
                for lane in 0..$lanes {
                    wide[lane] = f(a[lane], b[lane]);
                }
                bytemuck::cast($narrow::<_MM_FROUND_TO_NEAREST_INT>(bytemuck::cast(wide)))
            }
        };
    }

    pub(super) const LANES_AVX2: usize = 8;
    block!(block_avx2, LANES_AVX2, _mm256_cvtph_ps, _mm256_cvtps_ph, "avx2,f16c");
    pub(super) const LANES_AVX512: usize = 16;
    block!(block_avx512, LANES_AVX512, _mm512_cvtph_ps, _mm512_cvtps_ph, "avx512f");

    /// Whether this CPU has the features of each level.
    pub(super) fn has_avx2() -> bool {
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c")
    }

    pub(super) fn has_avx512() -> bool {
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
    }
}

/// As many as the crate `half` converts at a time.
const F16_LANES: usize = 8;

fn block_f16(
    f: &impl Fn(f32, f32) -> f32,
    a: &[u16; F16_LANES],
    b: &[u16; F16_LANES],
) -> [u16; F16_LANES] {
    let widened = |bits: &[u16]| {
        let mut wide = [0.0; F16_LANES];
        bits.reinterpret_cast::<f16>().convert_to_f32_slice(&mut wide);
        wide
    };
    let (a, b) = (widened(a), widened(b));
    let wide: [f32; F16_LANES] = std::array::from_fn(|lane| f(a[lane], b[lane]));
    let mut bits = [0; F16_LANES];
    bits.reinterpret_cast_mut::<f16>().convert_from_f32_slice(&wide);
    bits
}

/// Enough that a block's one check for NaN costs little.
const BF16_LANES: usize = 128;

/// The conversions of bf16 are a few integer operations, which the compiler vectorises. Two elements are one word, of which each is a half
/// already where an f32 has its upper one, so that no lane moves. A NaN would need a check per element; a block that has one is done again.
#[inline(always)]
fn block_bf16(
    f: &impl Fn(f32, f32) -> f32,
    a: &[u16; BF16_LANES],
    b: &[u16; BF16_LANES],
) -> [u16; BF16_LANES] {
    const WORDS: usize = BF16_LANES / 2;
    let (a, b): ([u32; WORDS], [u32; WORDS]) = (bytemuck::cast(*a), bytemuck::cast(*b));
    let reduced = |word: usize| {
        let upper = f(f32::from_bits(a[word] & UPPER), f32::from_bits(b[word] & UPPER));
        let lower = f(f32::from_bits(a[word] << 16), f32::from_bits(b[word] << 16));
        (upper, lower)
    };
    let mut words = [0_u32; WORDS];
    let mut has_nan = false;
    for (word, out) in words.iter_mut().enumerate() {
        let (upper, lower) = reduced(word);
        has_nan |= upper.is_nan() | lower.is_nan();
        *out = nearest(upper) & UPPER | nearest(lower) >> 16;
    }
    if has_nan {
        for (word, out) in words.iter_mut().enumerate() {
            let (upper, lower) = reduced(word);
            *out = rounded(upper) & UPPER | rounded(lower) >> 16;
        }
    }
    bytemuck::cast(words)
}

/// The half of an f32 that is a bf16.
const UPPER: u32 = 0xFFFF_0000;

/// Bits whose upper half is the bf16 nearest to a number.
#[inline(always)]
fn nearest(value: f32) -> u32 {
    let bits = value.to_bits();
    bits.wrapping_add(0x7FFF + (bits >> 16 & 1))
}

/// The same, also for NaN: one with its payload in the lower half only would become an infinity.
#[inline(always)]
fn rounded(value: f32) -> u32 {
    if value.is_nan() { value.to_bits() | 0x40_0000 } else { nearest(value) }
}

macro_rules! halves {
    ($($type:ty: $anywhere:ident $avx2:ident $avx512:ident),*) => {$(
        impl Half for $type {
            fn in_place(f: impl Fn(f32, f32) -> f32, into: &mut [Self], terms: &[Self]) {
                let (into, terms) = (into.reinterpret_cast_mut(), terms.reinterpret_cast());
                #[cfg(target_arch = "x86_64")]
                if x86::has_avx512() {
                    // SAFETY: the CPU has what the function is compiled for.
                    return unsafe { $avx512::in_place(f, into, terms) };
                } else if x86::has_avx2() {
                    // SAFETY: as above.
                    return unsafe { $avx2::in_place(f, into, terms) };
                }
                $anywhere::in_place(f, into, terms);
            }

            fn apart(f: impl Fn(f32, f32) -> f32, out: &mut [Self], a: &[Self], b: &[Self]) {
                let out = out.reinterpret_cast_mut();
                let (a, b) = (a.reinterpret_cast(), b.reinterpret_cast());
                #[cfg(target_arch = "x86_64")]
                if x86::has_avx512() {
                    // SAFETY: as above.
                    return unsafe { $avx512::apart(f, out, a, b) };
                } else if x86::has_avx2() {
                    // SAFETY: as above.
                    return unsafe { $avx2::apart(f, out, a, b) };
                }
                $anywhere::apart(f, out, a, b);
            }
        }
    )*};
}

halves!(f16: f16_anywhere f16_avx2 f16_avx512, bf16: bf16_anywhere bf16_avx2 bf16_avx512);

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
        for count in [1, 7, 8, 9, 31, 127, 128, 129] {
            let mut sums = vec![f16::from_f32(1.5); count];
            f16::in_place(|a, b| a + b, &mut sums, &vec![f16::from_f32(2.25); count]);
            assert_eq!(sums, vec![f16::from_f32(3.75); count]);
        }
    }

    /// `apart` of a type, compiled for some CPU features.
    type Form<'a> = &'a dyn Fn(&mut [u16], &[u16], &[u16]);

    /// Random bits of all kinds, and what each compiled form makes of them.
    #[test]
    fn every_set_of_cpu_features_gives_the_same_bits() {
        let mut seed = 11_u64;
        let mut random = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            // Finite numbers, so that most blocks of bf16 have no NaN; each 500th value is whatever comes.
            let bits = seed.to_le_bytes();
            let bits = u16::from_le_bytes([bits[2], bits[3]]);
            if seed.is_multiple_of(500) { bits } else { bits & 0xBBFF }
        };
        let a: Vec<u16> = (0..10_007).map(|_| random()).collect();
        let b: Vec<u16> = (0..10_007).map(|_| random()).collect();
        let ops: [fn(f32, f32) -> f32; 3] =
            [|a, b| a + b, |a, b| a * b, |a, b| if b < a { b } else { a }];
        for op in ops {
            let made = |form: Form<'_>| {
                let mut out = vec![0; a.len()];
                form(&mut out, &a, &b);
                out
            };
            let f16s = made(&|out, a, b| f16_anywhere::apart(op, out, a, b));
            let bf16s = made(&|out, a, b| bf16_anywhere::apart(op, out, a, b));
            for place in 0..a.len() {
                let (x, y) = (f16::from_bits(a[place]).to_f32(), f16::from_bits(b[place]).to_f32());
                let expected = f16::from_f32(op(x, y));
                let found = f16::from_bits(f16s[place]);
                assert!(
                    found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan()
                );
                let (x, y) =
                    (bf16::from_bits(a[place]).to_f32(), bf16::from_bits(b[place]).to_f32());
                let expected = bf16::from_f32(op(x, y));
                let found = bf16::from_bits(bf16s[place]);
                assert!(
                    found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan()
                );
            }
            #[cfg(target_arch = "x86_64")]
            {
                let forms: [(bool, &[u16], Form<'_>); 4] = [
                    // SAFETY: `has_avx2` says that the CPU has the features, here and below.
                    (x86::has_avx2(), &f16s, &|out, a, b| unsafe {
                        f16_avx2::apart(op, out, a, b)
                    }),
                    // SAFETY: as above.
                    (x86::has_avx2(), &bf16s, &|out, a, b| unsafe {
                        bf16_avx2::apart(op, out, a, b)
                    }),
                    // SAFETY: as above, by `has_avx512`.
                    (x86::has_avx512(), &f16s, &|out, a, b| unsafe {
                        f16_avx512::apart(op, out, a, b)
                    }),
                    // SAFETY: as above.
                    (x86::has_avx512(), &bf16s, &|out, a, b| unsafe {
                        bf16_avx512::apart(op, out, a, b)
                    }),
                ];
                for (which, (is_here, expected, form)) in forms.into_iter().enumerate() {
                    if is_here {
                        assert_eq!(made(form), expected, "form {which}");
                    }
                }
            }
        }
    }
}
