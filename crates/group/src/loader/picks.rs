//! Minima and maxima of f16 and bf16. The elements are compared as integers, so nothing is widened to f32. A NaN is picked before all
//! numbers.
//!
//! As in [`halves`](super::halves), the loops are compiled for several sets of CPU features.

use half::slice::HalfFloatSliceExt;

/// Which of two elements is the result.
pub(super) trait Pick: Copy {
    /// `infinity`: the bits of the type's infinity; those of NaNs are greater.
    fn pick(self, infinity: u16, a: u16, b: u16) -> u16;
}

#[derive(Clone, Copy)]
pub(super) struct Least;

impl Pick for Least {
    #[inline(always)]
    fn pick(self, infinity: u16, a: u16, b: u16) -> u16 {
        // Positive NaNs come last in the order. The addition wraps around, so that they come first.
        let place = |bits| order(bits).wrapping_add_unsigned(0x7FFF - infinity);
        if place(b) < place(a) { b } else { a }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Greatest;

impl Pick for Greatest {
    #[inline(always)]
    fn pick(self, infinity: u16, a: u16, b: u16) -> u16 {
        let place = |bits| order(bits).wrapping_sub_unsigned(0x7FFF - infinity);
        if place(b) > place(a) { b } else { a }
    }
}

/// The bits as an integer that is ordered as the number is.
#[inline(always)]
fn order(bits: u16) -> i16 {
    let signs = bits.cast_signed() >> 15;
    bits.cast_signed() ^ (signs & 0x7FFF)
}

/// `in_place` and `apart`, compiled for the given CPU features.
macro_rules! forms {
    ($name:ident $(, $features:literal)?) => {
        mod $name {
            use super::Pick;

            $(#[target_feature(enable = $features)])?
            pub(super) fn in_place(
                which: impl Pick,
                infinity: u16,
                into: &mut [u16],
                terms: &[u16],
            ) {
                for (into, term) in into.iter_mut().zip(terms) {
                    *into = which.pick(infinity, *into, *term);
                }
            }

            $(#[target_feature(enable = $features)])?
            pub(super) fn apart(
                which: impl Pick,
                infinity: u16,
                out: &mut [u16],
                a: &[u16],
                b: &[u16],
            ) {
                for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
                    *out = which.pick(infinity, *a, *b);
                }
            }
        }
    };
}

forms!(anywhere);
#[cfg(target_arch = "x86_64")]
forms!(avx2, "avx2");

/// Picks `into[i]` from `into[i]` and `terms[i]`, up to the shorter length.
pub(super) fn in_place<T>(which: impl Pick, infinity: u16, into: &mut [T], terms: &[T])
where
    [T]: HalfFloatSliceExt,
{
    let (into, terms) = (into.reinterpret_cast_mut(), terms.reinterpret_cast());
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has the features that the function is compiled for.
        return unsafe { avx2::in_place(which, infinity, into, terms) };
    }
    anywhere::in_place(which, infinity, into, terms);
}

/// Picks `out[i]` from `a[i]` and `b[i]`, up to the shortest length.
pub(super) fn apart<T>(which: impl Pick, infinity: u16, out: &mut [T], a: &[T], b: &[T])
where
    [T]: HalfFloatSliceExt,
{
    let (out, a, b) = (out.reinterpret_cast_mut(), a.reinterpret_cast(), b.reinterpret_cast());
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: as above.
        return unsafe { avx2::apart(which, infinity, out, a, b) };
    }
    anywhere::apart(which, infinity, out, a, b);
}

#[cfg(test)]
mod tests {
    use half::slice::HalfBitsSliceExt;
    use half::{bf16, f16};

    use super::*;

    macro_rules! check {
        ($type:ty, $bits:ident, $other:ident) => {
            let infinity = <$type>::INFINITY.to_bits();
            let others = vec![$other; $bits.len()];
            let (mut least, mut greatest) = ($bits.clone(), $bits.clone());
            anywhere::in_place(Least, infinity, &mut least, &others);
            anywhere::apart(Greatest, infinity, &mut greatest, &others, &$bits);
            let mut found: Vec<$type> = $bits.reinterpret_cast().to_vec();
            in_place(Least, infinity, &mut found, others.reinterpret_cast());
            assert_eq!(found.reinterpret_cast(), least);
            let (others, all) = (others.reinterpret_cast(), $bits.reinterpret_cast());
            apart(Greatest, infinity, &mut found, others, all);
            assert_eq!(found.reinterpret_cast(), greatest);
            for (place, bits) in $bits.iter().enumerate() {
                let (a, b) = (<$type>::from_bits(*bits), <$type>::from_bits($other));
                let found = [least[place], greatest[place]].map(<$type>::from_bits);
                let ordered = if a.total_cmp(&b).is_le() { [a, b] } else { [b, a] };
                let is_right = if a.is_nan() || b.is_nan() {
                    found[0].is_nan() && found[1].is_nan()
                } else {
                    found.map(<$type>::to_bits) == ordered.map(<$type>::to_bits)
                };
                assert!(is_right, "{found:?} of {a} and {b}");
            }
        };
    }

    #[test]
    fn a_pick_is_a_nan_or_the_least_or_the_greatest_of_both() {
        let all: Vec<u16> = (0..=u16::MAX).collect();
        let others = [0, 1, 0x3C00, 0x7BFF, 0x7C00, 0x7C01, 0x7E00, 0x7F80, 0x7F81, 0x7FFF];
        for other in others.into_iter().flat_map(|bits: u16| [bits, bits | 0x8000]) {
            check!(f16, all, other);
            check!(bf16, all, other);
        }
    }
}
