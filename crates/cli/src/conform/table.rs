//! All behaviours, in the order in which they run.

use super::behaviour::Behaviour;
use super::behaviours;

/// The chapters and their behaviours.
pub(super) const CHAPTERS: &[(&str, &[Behaviour])] = &[
    ("Loading", behaviours::loading::ALL),
    ("Properties", behaviours::properties::ALL),
    ("Connections", behaviours::connections::ALL),
    ("Registration", behaviours::registration::ALL),
    ("Messages", behaviours::messages::ALL),
    ("Requests", behaviours::requests::ALL),
    ("Groups", behaviours::groups::ALL),
    ("Short and long", behaviours::mixed::ALL),
    ("LL and LL128", behaviours::lines::ALL),
    ("Flush", behaviours::flush::ALL),
    ("GPU memory", behaviours::gpu::ALL),
    ("Close", behaviours::closing::ALL),
    ("Threads", behaviours::threads::ALL),
    ("Silence and death", behaviours::silence::ALL),
];

pub(super) fn all() -> impl Iterator<Item = &'static Behaviour> {
    CHAPTERS.iter().flat_map(|(_, behaviours)| behaviours.iter())
}

pub(super) fn find(id: &str) -> Option<&'static Behaviour> {
    all().find(|behaviour| behaviour.id == id)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn there_are_at_least_sixty_and_no_id_twice() {
        let ids: HashSet<&str> = all().map(|behaviour| behaviour.id).collect();
        assert_eq!(ids.len(), all().count());
        assert!(ids.len() >= 60, "{}", ids.len());
    }

    #[test]
    fn ids_are_kebab_case_and_every_behaviour_says_what_and_where() {
        for behaviour in all() {
            let allowed = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
            assert!(
                behaviour.id.split('-').all(|word| word.chars().all(allowed) && !word.is_empty())
            );
            assert!(behaviour.expects.len() > 20 && !behaviour.expects.contains('\n'));
            assert!(behaviour.source.contains("NCCL"), "{}", behaviour.id);
            assert!(behaviour.tables.0 <= behaviour.tables.1, "{}", behaviour.id);
        }
    }
}
