//! Reductions of f16 and bf16: elements are widened to f32, reduced, and rounded to nearest even.
//!
//! The loops are compiled for several sets of CPU features, and each call chooses the best set that this CPU has: compilers do not
//! vectorise conversions that check features every few elements. All loops give the same bits.

use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};

/// A type whose elements are reduced as f32.
pub(super) trait Half: Sized {
    fn widened(bits: u16) -> f32;

    fn narrowed(value: f32) -> u16;

    /// `into[i] = f(into[i], terms[i])`, up to the shorter length.
    fn in_place(f: impl Combine, into: &mut [Self], terms: &[Self]);

    /// `out[i] = f(a[i], b[i])`, up to the shortest length.
    fn apart(f: impl Combine, out: &mut [Self], a: &[Self], b: &[Self]);
}

/// An operation on two widened elements.
pub(super) trait Combine: Copy {
    fn combine(self, adder: impl Adder, a: f32, b: f32) -> f32;
}

impl<F: Fn(f32, f32) -> f32 + Copy> Combine for F {
    #[inline(always)]
    fn combine(self, _: impl Adder, a: f32, b: f32) -> f32 {
        self(a, b)
    }
}

#[derive(Clone, Copy)]
pub(super) struct Sum;

impl Combine for Sum {
    #[inline(always)]
    fn combine(self, adder: impl Adder, a: f32, b: f32) -> f32 {
        adder.add(a, b)
    }
}

/// How a loop adds.
pub(super) trait Adder: Copy {
    fn add(self, a: f32, b: f32) -> f32;
}

#[derive(Clone, Copy)]
struct Plain;

impl Adder for Plain {
    #[inline(always)]
    fn add(self, a: f32, b: f32) -> f32 {
        a + b
    }
}

/// Adds by `1 * a + b`, which is rounded once, as `a + b` is. Zen 4 adds and converts in two of its four pipes, and multiplies and adds in
/// the other two. Only for AVX-512: Zen 3 is no faster with it.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct Fused {
    /// 1, which the compiler must not know: otherwise it would use an addition.
    one: f32,
}

#[cfg(target_arch = "x86_64")]
impl Fused {
    fn new() -> Self {
        Self { one: std::hint::black_box(1.0) }
    }
}

#[cfg(target_arch = "x86_64")]
impl Adder for Fused {
    /// In a loop without the feature `fma` this would be a call.
    #[inline(always)]
    fn add(self, a: f32, b: f32) -> f32 {
        a.mul_add(self.one, b)
    }
}

/// Both forms for a function of blocks of `$len` elements, compiled for given CPU features. The function returns `None` for a block with
/// rare values that it does not round correctly.
macro_rules! forms {
    ($name:ident, $half:ty, $len:expr, $block:path, $adder:expr $(, $features:literal)?) => {
        pub(in crate::loader::halves) mod $name {
            use super::Combine;

            const LEN: usize = $len;
            /// Where blocks are written: a store across cache lines takes as long as two.
            const ALIGN: usize = if LEN < 32 { 2 * LEN } else { 64 };

            $(#[target_feature(enable = $features)])?
            pub(in crate::loader::halves) fn in_place(
                f: impl Combine,
                into: &mut [u16],
                terms: &[u16],
            ) {
                let len = into.len().min(terms.len());
                let head = into.as_ptr().align_offset(ALIGN).min(len);
                let (into_head, into) = into[..len].split_at_mut(head);
                let (terms_head, terms) = terms[..len].split_at(head);
                let (into, into_rest) = into.as_chunks_mut();
                let (terms, terms_rest) = terms.as_chunks();
                blocks(f, into, terms);
                for (into, terms) in [(into_head, terms_head), (into_rest, terms_rest)] {
                    into.copy_from_slice(&end(f, into, terms)[..into.len()]);
                }
            }

            $(#[target_feature(enable = $features)])?
            pub(in crate::loader::halves) fn apart(
                f: impl Combine,
                out: &mut [u16],
                a: &[u16],
                b: &[u16],
            ) {
                let adder = $adder;
                let fast = |a, b| f.combine(adder, a, b);
                let len = out.len().min(a.len()).min(b.len());
                let head = out.as_ptr().align_offset(ALIGN).min(len);
                let (out_head, out) = out[..len].split_at_mut(head);
                let (a_head, a) = a[..len].split_at(head);
                let (b_head, b) = b[..len].split_at(head);
                let (out, out_rest) = out.as_chunks_mut();
                let (a, a_rest) = a.as_chunks();
                let (b, b_rest) = b.as_chunks();
                for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
                    match $block(&fast, a, b) {
                        Some(block) => *out = block,
                        None => *out = super::one_by_one::<$half, LEN>(f, a, b),
                    }
                }
                for (out, a, b) in [(out_head, a_head, b_head), (out_rest, a_rest, b_rest)] {
                    out.copy_from_slice(&end(f, a, b)[..out.len()]);
                }
            }

            /// The only loop in place, so that the block is inlined into it.
            $(#[target_feature(enable = $features)])?
            fn blocks(f: impl Combine, into: &mut [[u16; LEN]], terms: &[[u16; LEN]]) {
                let adder = $adder;
                let fast = |a, b| f.combine(adder, a, b);
                for (into, terms) in into.iter_mut().zip(terms) {
                    match $block(&fast, into, terms) {
                        Some(block) => *into = block,
                        None => *into = super::one_by_one::<$half, LEN>(f, into, terms),
                    }
                }
            }

            /// Reduces less than a block.
            $(#[target_feature(enable = $features)])?
            fn end(f: impl Combine, a: &[u16], b: &[u16]) -> [u16; LEN] {
                let mut block = filled(a);
                if !a.is_empty() {
                    blocks(f, std::array::from_mut(&mut block), &[filled(b)]);
                }
                block
            }

            /// `part`, padded with zeros.
            fn filled(part: &[u16]) -> [u16; LEN] {
                let mut bits = [0; LEN];
                bits[..part.len()].copy_from_slice(part);
                bits
            }
        }
    };
}

forms!(f16_anywhere, half::f16, super::F16_LANES, super::block_f16, super::Plain);
forms!(bf16_anywhere, half::bf16, super::BF16_LANES, super::block_bf16, super::Plain);

/// As many as the crate `half` converts at a time.
const F16_LANES: usize = 8;

fn block_f16(
    f: &impl Fn(f32, f32) -> f32,
    a: &[u16; F16_LANES],
    b: &[u16; F16_LANES],
) -> Option<[u16; F16_LANES]> {
    let widened = |bits: &[u16]| {
        let mut wide = [0.0; F16_LANES];
        bits.reinterpret_cast::<f16>().convert_to_f32_slice(&mut wide);
        wide
    };
    let (a, b) = (widened(a), widened(b));
    let wide: [f32; F16_LANES] = std::array::from_fn(|lane| f(a[lane], b[lane]));
    let mut bits = [0; F16_LANES];
    bits.reinterpret_cast_mut::<f16>().convert_from_f32_slice(&wide);
    Some(bits)
}

/// Few enough for a cheap check for NaN: four vectors of 256 bits and the constants for rounding fit the 16 registers.
const BF16_LANES: usize = 32;

/// The conversions of bf16 are a few integer operations, which the compiler vectorises. Two elements are read as one word, in which each is
/// already in or beside the upper half of an f32, so that no lane moves. A NaN would need a check per element.
#[inline(always)]
fn block_bf16(
    f: &impl Fn(f32, f32) -> f32,
    a: &[u16; BF16_LANES],
    b: &[u16; BF16_LANES],
) -> Option<[u16; BF16_LANES]> {
    const WORDS: usize = BF16_LANES / 2;
    let (a, b): ([u32; WORDS], [u32; WORDS]) = (bytemuck::cast(*a), bytemuck::cast(*b));
    let mut words = [0_u32; WORDS];
    let mut has_nan = false;
    for (word, out) in words.iter_mut().enumerate() {
        let upper = f(f32::from_bits(a[word] & UPPER), f32::from_bits(b[word] & UPPER));
        let lower = f(f32::from_bits(a[word] << 16), f32::from_bits(b[word] << 16));
        has_nan |= upper.is_nan() | lower.is_nan();
        *out = nearest(upper) & UPPER | nearest(lower) >> 16;
    }
    (!has_nan).then(|| bytemuck::cast(words))
}

/// The half of an f32 that is a bf16.
const UPPER: u32 = 0xFFFF_0000;

/// Bits whose upper half is the bf16 nearest to a number. A NaN with its payload in the lower half only becomes an infinity.
#[inline(always)]
fn nearest(value: f32) -> u32 {
    let bits = value.to_bits();
    bits.wrapping_add(0x7FFF + (bits >> 16 & 1))
}

/// The block for all values.
#[cold]
#[inline(never)]
fn one_by_one<T: Half, const LEN: usize>(
    f: impl Combine,
    a: &[u16; LEN],
    b: &[u16; LEN],
) -> [u16; LEN] {
    std::array::from_fn(|lane| {
        T::narrowed(f.combine(Plain, T::widened(a[lane]), T::widened(b[lane])))
    })
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::is_x86_feature_detected;
    use std::arch::x86_64::{
        __m256, __m512, _MM_FROUND_TO_NEAREST_INT, _mm256_cvtph_ps, _mm256_cvtps_ph,
        _mm512_castps256_ps512, _mm512_cvtne2ps_pbh, _mm512_cvtps_ph, _mm512_fpclass_ps_mask,
        _mm512_insertf32x8, _mm512_permutexvar_epi16,
    };

    use super::{BF16_LANES, Combine, UPPER, block_bf16, one_by_one};

    forms!(
        f16_avx2,
        half::f16,
        super::LANES_F16,
        super::block_f16,
        super::super::Plain,
        "avx2,f16c"
    );
    forms!(
        f16_avx512,
        half::f16,
        super::LANES_WIDE,
        super::block_f16_wide,
        super::super::Fused::new(),
        "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c,fma"
    );
    forms!(
        bf16_avx2,
        half::bf16,
        super::BF16_LANES,
        super::block_bf16,
        super::super::Plain,
        "avx2"
    );
    forms!(
        bf16_avx512,
        half::bf16,
        super::BF16_LANES,
        super::block_bf16,
        super::super::Fused::new(),
        "avx512f,avx512bw,avx512dq,avx512vl,fma"
    );
    forms!(
        bf16_avx512_bf16,
        half::bf16,
        super::LANES_BF16,
        super::block_bf16_by_conversion,
        super::super::Fused::new(),
        "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma"
    );

    /// Of one conversion.
    const LANES: usize = 8;

    /// Four conversions that do not wait for each other: one in each turn of the loop takes 1.5 times as long on Zen 3.
    const LANES_F16: usize = 4 * LANES;

    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    fn block_f16(
        f: &impl Fn(f32, f32) -> f32,
        a: &[u16; LANES_F16],
        b: &[u16; LANES_F16],
    ) -> Option<[u16; LANES_F16]> {
        let (a, b): ([[u16; LANES]; 4], [[u16; LANES]; 4]) =
            (bytemuck::cast(*a), bytemuck::cast(*b));
        let mut bits = [[0_u16; LANES]; 4];
        for part in 0..4 {
            let wide = wide_f16(f, a[part], b[part]);
            bits[part] = bytemuck::cast(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(wide));
        }
        Some(bytemuck::cast(bits))
    }

    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    fn wide_f16(f: &impl Fn(f32, f32) -> f32, a: [u16; LANES], b: [u16; LANES]) -> __m256 {
        let a: [f32; LANES] = bytemuck::cast(_mm256_cvtph_ps(bytemuck::cast(a)));
        let b: [f32; LANES] = bytemuck::cast(_mm256_cvtph_ps(bytemuck::cast(b)));
        let mut wide = [0.0_f32; LANES];
        for lane in 0..LANES {
            wide[lane] = f(a[lane], b[lane]);
        }
        bytemuck::cast(wide)
    }

    const LANES_WIDE: usize = 2 * LANES;

    /// Widens by eight, and narrows sixteen: Zen 4 needs no move between lanes to widen eight that it loads.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c,fma")]
    #[inline]
    fn block_f16_wide(
        f: &impl Fn(f32, f32) -> f32,
        a: &[u16; LANES_WIDE],
        b: &[u16; LANES_WIDE],
    ) -> Option<[u16; LANES_WIDE]> {
        let (a, b): ([[u16; LANES]; 2], [[u16; LANES]; 2]) =
            (bytemuck::cast(*a), bytemuck::cast(*b));
        let (low, high) = (wide_f16(f, a[0], b[0]), wide_f16(f, a[1], b[1]));
        let wide = _mm512_insertf32x8::<1>(_mm512_castps256_ps512(low), high);
        Some(bytemuck::cast(_mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(wide)))
    }

    const LANES_BF16: usize = 32;

    /// As [`block_bf16`], by the CPU's conversion, which turns subnormal numbers into zeros. It keeps NaN, but of two NaN a fused addition may
    /// take another than [`one_by_one`]: the bits would depend on what else is in the block, and so on where memory is aligned.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")]
    #[inline]
    fn block_bf16_by_conversion(
        f: &impl Fn(f32, f32) -> f32,
        a: &[u16; LANES_BF16],
        b: &[u16; LANES_BF16],
    ) -> Option<[u16; LANES_BF16]> {
        const WORDS: usize = LANES_BF16 / 2;
        /// Subnormal numbers, and quiet and signalling NaN.
        const RARE: i32 = 0x20 | 0x01 | 0x80;
        /// The conversion puts all lower halves before all upper ones.
        const IN_TURNS: [u16; LANES_BF16] = {
            let mut order = [0; LANES_BF16];
            let mut lane = 0_u16;
            while (lane as usize) < LANES_BF16 {
                order[lane as usize] = lane / 2 + lane % 2 * 16;
                lane += 1;
            }
            order
        };
        let (a, b): ([u32; WORDS], [u32; WORDS]) = (bytemuck::cast(*a), bytemuck::cast(*b));
        let (mut upper, mut lower) = ([0.0_f32; WORDS], [0.0_f32; WORDS]);
        for word in 0..WORDS {
            upper[word] = f(f32::from_bits(a[word] & UPPER), f32::from_bits(b[word] & UPPER));
            lower[word] = f(f32::from_bits(a[word] << 16), f32::from_bits(b[word] << 16));
        }
        let (uppers, lowers): (__m512, __m512) = (bytemuck::cast(upper), bytemuck::cast(lower));
        let rare = _mm512_fpclass_ps_mask::<RARE>(uppers) | _mm512_fpclass_ps_mask::<RARE>(lowers);
        if rare != 0 {
            return None;
        }
        let apart = bytemuck::cast(_mm512_cvtne2ps_pbh(uppers, lowers));
        Some(bytemuck::cast(_mm512_permutexvar_epi16(bytemuck::cast(IN_TURNS), apart)))
    }

    // Whether this CPU has the features of each set.

    pub(super) fn has_avx2() -> bool {
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c")
    }

    pub(super) fn has_avx512() -> bool {
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("fma")
            && has_avx2()
    }

    pub(super) fn has_avx512_bf16() -> bool {
        is_x86_feature_detected!("avx512bf16") && has_avx512()
    }
}

/// The best form first.
macro_rules! halves {
    ($($type:ty: $($has:ident => $form:ident),*; $anywhere:ident;)*) => {$(
        impl Half for $type {
            fn widened(bits: u16) -> f32 {
                Self::from_bits(bits).to_f32()
            }

            fn narrowed(value: f32) -> u16 {
                Self::from_f32(value).to_bits()
            }

            fn in_place(f: impl Combine, into: &mut [Self], terms: &[Self]) {
                let (into, terms) = (into.reinterpret_cast_mut(), terms.reinterpret_cast());
                $(
                    #[cfg(target_arch = "x86_64")]
                    if x86::$has() {
                        // SAFETY: the CPU has the features that the function is compiled for.
                        return unsafe { x86::$form::in_place(f, into, terms) };
                    }
                )*
                $anywhere::in_place(f, into, terms);
            }

            fn apart(f: impl Combine, out: &mut [Self], a: &[Self], b: &[Self]) {
                let out = out.reinterpret_cast_mut();
                let (a, b) = (a.reinterpret_cast(), b.reinterpret_cast());
                $(
                    #[cfg(target_arch = "x86_64")]
                    if x86::$has() {
                        // SAFETY: as above.
                        return unsafe { x86::$form::apart(f, out, a, b) };
                    }
                )*
                $anywhere::apart(f, out, a, b);
            }
        }
    )*};
}

halves! {
    f16: has_avx512 => f16_avx512, has_avx2 => f16_avx2; f16_anywhere;
    bf16: has_avx512_bf16 => bf16_avx512_bf16, has_avx512 => bf16_avx512, has_avx2 => bf16_avx2; bf16_anywhere;
}

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
                let mut found = [bf16::ZERO];
                bf16::apart(move |_, _| value, &mut found, &[bf16::ONE], &[bf16::ONE]);
                assert_eq!(found[0].to_bits(), bf16::from_f32(value).to_bits(), "{value:?}");
            }
        }
        for count in [1, 7, 8, 9, 31, 127, 128, 129] {
            let mut sums = vec![f16::from_f32(1.5); count];
            f16::in_place(|a, b| a + b, &mut sums, &vec![f16::from_f32(2.25); count]);
            assert_eq!(sums, vec![f16::from_f32(3.75); count]);
        }
    }

    #[test]
    fn a_slice_that_begins_anywhere_is_reduced_whole_and_alone() {
        for (start, count) in
            (0..70).flat_map(|start| [0, 1, 31, 33, 300].map(|count| (start, count)))
        {
            let mut sums = vec![f16::from_f32(1.5); start + count + 3];
            f16::in_place(Sum, &mut sums[start..start + count], &vec![f16::from_f32(2.0); count]);
            let mut apart = vec![bf16::from_f32(1.5); start + count + 3];
            let (ones, twos) = (vec![bf16::ONE; count + 1], vec![bf16::from_f32(2.0); count]);
            bf16::apart(Sum, &mut apart[start..start + count], &ones[1..], &twos);
            for place in 0..sums.len() {
                let is_in = (start..start + count).contains(&place);
                let (sum, other) = if is_in { (3.5, 3.0) } else { (1.5, 1.5) };
                assert_eq!((sums[place].to_f32(), apart[place].to_f32()), (sum, other), "{place}");
            }
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
            // Finite numbers, so that most blocks of bf16 have no NaN; a third are around the smallest; each 500th has any bits.
            let bits = seed.to_le_bytes();
            let bits = u16::from_le_bytes([bits[2], bits[3]]);
            match seed % 500 {
                0 => bits,
                1..166 => bits & 0x81FF,
                _ => bits & 0xBBFF,
            }
        };
        let a: Vec<u16> = (0..100_007).map(|_| random()).collect();
        let b: Vec<u16> = (0..100_007).map(|_| random()).collect();
        same_bits(Sum, &a, &b);
        same_bits(|a, b| a * b, &a, &b);
        same_bits(|a, b| a / b, &a, &b);
    }

    /// Blocks begin where memory is aligned, so that what is beside a value changes with its address.
    #[test]
    fn the_bits_of_a_nan_depend_neither_on_its_place_nor_on_its_neighbours() {
        macro_rules! check {
            ($type:ident, $quiet:expr, $f:expr) => {
                nans_are_alike($quiet, &|out, a, b| {
                    let (a, b) = (a.reinterpret_cast(), b.reinterpret_cast());
                    $type::apart($f, out.reinterpret_cast_mut(), a, b);
                });
                nans_are_alike($quiet, &|out, a, b| {
                    out.copy_from_slice(a);
                    $type::in_place($f, out.reinterpret_cast_mut(), b.reinterpret_cast());
                });
            };
        }
        check!(f16, 0x7E00, Sum);
        check!(f16, 0x7E00, |a, b| a * b);
        check!(bf16, 0x7FC0, Sum);
        check!(bf16, 0x7FC0, |a, b| a * b);
    }

    /// NaNs with two payloads, some beside subnormal numbers. The bits of a quiet NaN without a payload are `quiet`.
    fn nans_are_alike(quiet: u16, form: Form<'_>) {
        let inputs = |payload: u16| -> Vec<u16> {
            let is_nan = |place: usize| place % 100 >= 50 || place.is_multiple_of(5);
            (0..300).map(|place| if is_nan(place) { quiet | payload } else { payload }).collect()
        };
        let (a, b) = (inputs(3), inputs(5));
        for begin in 0..64 {
            let mut out = vec![0; begin + a.len()];
            form(&mut out[begin..], &a, &b);
            let nans: Vec<_> = out.iter().filter(|bits| *bits & quiet == quiet).collect();
            assert!(nans.len() == 180 && nans.iter().all(|bits| *bits == nans[0]), "{nans:x?}");
        }
    }

    fn same_bits(f: impl Combine, a: &[u16], b: &[u16]) {
        let made = |form: Form<'_>| {
            let mut out = vec![0; a.len()];
            form(&mut out, a, b);
            out
        };
        let f16s = made(&|out, a, b| f16_anywhere::apart(f, out, a, b));
        let bf16s = made(&|out, a, b| bf16_anywhere::apart(f, out, a, b));
        for place in 0..a.len() {
            let (x, y) = (f16::from_bits(a[place]).to_f32(), f16::from_bits(b[place]).to_f32());
            let expected = f16::from_f32(f.combine(Plain, x, y));
            assert!(is_same(f16s[place], expected.to_bits(), 0x7C00));
            let (x, y) = (bf16::from_bits(a[place]).to_f32(), bf16::from_bits(b[place]).to_f32());
            let expected = bf16::from_f32(f.combine(Plain, x, y));
            assert!(is_same(bf16s[place], expected.to_bits(), 0x7F80));
        }
        #[cfg(target_arch = "x86_64")]
        {
            macro_rules! check {
                ($has:ident, $form:ident, $expected:ident, $infinity:expr) => {
                    if x86::$has() {
                        let found = made(&|out, a, b| {
                            // SAFETY: the CPU has the features.
                            unsafe { x86::$form::apart(f, out, a, b) }
                        });
                        for (found, expected) in found.into_iter().zip(&$expected) {
                            let name = stringify!($form);
                            let is_same = is_same(found, *expected, $infinity);
                            assert!(is_same, "{name}: {found:x} {expected:x}");
                        }
                    }
                };
            }
            check!(has_avx2, f16_avx2, f16s, 0x7C00);
            check!(has_avx512, f16_avx512, f16s, 0x7C00);
            check!(has_avx2, bf16_avx2, bf16s, 0x7F80);
            check!(has_avx512, bf16_avx512, bf16s, 0x7F80);
            check!(has_avx512_bf16, bf16_avx512_bf16, bf16s, 0x7F80);
        }
    }

    /// The CPU decides which of two NaNs is the result.
    fn is_same(a: u16, b: u16, infinity: u16) -> bool {
        let is_nan = |bits: u16| bits & 0x7FFF > infinity;
        a == b || is_nan(a) && is_nan(b)
    }
}
