//! Ironrail, a network plugin for NCCL.
