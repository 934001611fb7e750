//! Ranks and collectives over any NCCL net plugin.
