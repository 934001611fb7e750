//! Arrays of so few elements that an object's array contains them itself, as words.
//!
//! The bytes of the elements are kept as words of eight bytes. The words are floats, because postcard writes only floats without a change.

use crate::loader::{Element, Place};

pub(super) const WORDS: usize = 3;
pub(super) const WORD: usize = size_of::<f64>();

/// Elements as words. None: there are more than [`WORDS`] words of them.
pub(super) fn packed<T: Element>(elements: &[T]) -> Option<[f64; WORDS]> {
    let place = Place::reading(elements);
    if place.len() > WORDS * WORD {
        return None;
    }
    let mut words = [0.0; WORDS];
    Place::writing(&mut words).copy_from(place);
    Some(words)
}

/// The words that have bytes of the elements.
pub(super) fn used<T: Element>(words: &[f64; WORDS], count: usize) -> &[f64] {
    &words[..bytes::<T>(count).div_ceil(WORD).min(WORDS)]
}

pub(super) fn elements<T: Element>(words: &[f64; WORDS], count: usize) -> &[T] {
    Place::reading(words).part(0, bytes::<T>(count)).elements()
}

pub(super) fn elements_mut<T: Element>(words: &mut [f64; WORDS], count: usize) -> &mut [T] {
    Place::writing(words).part(0, bytes::<T>(count)).elements_mut()
}

fn bytes<T>(count: usize) -> usize {
    count * size_of::<T>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_elements_of_every_size_are_packed_and_unpacked_unchanged() {
        let bytes: Vec<u8> = (0..100_u8).map(|byte| byte.wrapping_mul(37)).collect();
        for len in 0..=WORDS * WORD {
            let (mut words, count) = (packed(&bytes[..len]).unwrap(), len);
            assert_eq!(elements::<u8>(&words, count), &bytes[..len]);
            assert_eq!(used::<u8>(&words, count).len(), len.div_ceil(8));
            elements_mut::<u8>(&mut words, count).fill(7);
            assert_eq!(elements::<u8>(&words, count), vec![7; len]);
        }
        assert!(packed(&bytes[..=WORDS * WORD]).is_none());
        let words = packed(&[1.5_f64, f64::NAN, -2.5]).unwrap();
        assert_eq!(elements::<f64>(&words, 3)[2], -2.5);
        assert!(packed(&[0.0_f64; 4]).is_none());
    }
}
