//! The protocol of Ironrail: events in, actions out.
