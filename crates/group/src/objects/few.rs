//! Elements so few that an array of an object has them itself.

use crate::loader::{Element, Place};

/// The elements of an array, and their number.
///
/// Their bytes are words that postcard writes as they are, eight bytes each: of all numbers it does so with floats only.
#[derive(Clone, Copy, Default)]
pub(super) struct Few {
    pub(super) words: [f64; WORDS],
    pub(super) count: u8,
}

pub(super) const WORDS: usize = 3;
pub(super) const WORD: usize = size_of::<f64>();

impl Few {
    /// None: there are more.
    pub(super) fn new<T: Element>(elements: &[T]) -> Option<Self> {
        let place = Place::reading(elements);
        if place.len() > WORDS * WORD {
            return None;
        }
        let mut words = [0.0; WORDS];
        Place::writing(&mut words).copy_from(place);
        Some(Self { words, count: u8::try_from(elements.len()).ok()? })
    }

    /// Those words that have bytes of the elements.
    pub(super) fn words<T: Element>(&self) -> &[f64] {
        &self.words[..self.len::<T>().div_ceil(WORD).min(WORDS)]
    }

    pub(super) fn elements<T: Element>(&self) -> &[T] {
        Place::reading(&self.words).part(0, self.len::<T>()).elements()
    }

    pub(super) fn elements_mut<T: Element>(&mut self) -> &mut [T] {
        let len = self.len::<T>();
        Place::writing(&mut self.words).part(0, len).elements_mut()
    }

    fn len<T>(&self) -> usize {
        usize::from(self.count) * size_of::<T>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_elements_are_what_they_were_whatever_their_size() {
        let bytes: Vec<u8> = (0..100_u8).map(|byte| byte.wrapping_mul(37)).collect();
        for len in 0..=WORDS * WORD {
            let mut few = Few::new(&bytes[..len]).unwrap();
            assert_eq!(
                (few.elements::<u8>(), few.words::<u8>().len()),
                (&bytes[..len], len.div_ceil(8))
            );
            few.elements_mut::<u8>().fill(7);
            assert_eq!(few.elements::<u8>(), vec![7; len]);
        }
        assert!(Few::new(&bytes[..=WORDS * WORD]).is_none());
        assert_eq!(Few::new(&[1.5_f64, f64::NAN, -2.5]).unwrap().elements::<f64>()[2], -2.5);
        assert!(Few::new(&[0.0_f64; 4]).is_none());
    }
}
