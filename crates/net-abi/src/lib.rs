//! The C tables of NCCL net plugins, v6 to v12.
