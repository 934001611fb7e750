//! Connections: their set-up, their two directions, their end.
