//! What NCCL sees: one table per API version. Each version file holds only what it changes.
