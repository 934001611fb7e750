"""Ranks, messages and collectives on NumPy arrays, over network plugins for NCCL. docs/python.md is the guide.

    import ironrail, numpy

    with ironrail.init() as group:
        data = numpy.full(4, group.rank, "float32")
        group.all_reduce(data)
"""

import atexit
import pathlib

from . import _native
from ._errors import Aborted, Cancelled, Error, InvalidArgument, Mismatch, OtherType, PeerLost, Timeout, TooLong
from ._native import Coming, Exchange, FixedHalo1d, Group, Halo1d, Memory, ObjectBatch, Received, Request

__all__ = [
    "Aborted", "Cancelled", "Coming", "Error", "Exchange", "FixedHalo1d", "Group", "Halo1d", "InvalidArgument", "Memory", "Mismatch", "ObjectBatch",
    "OtherType", "PeerLost", "Received", "Request", "Timeout", "TooLong", "init", "path",
]  # fmt: skip


def path():
    """The folder of the plugin for NCCL that this package carries, for LD_LIBRARY_PATH."""
    return str(pathlib.Path(__file__).resolve().parent / "plugin")


def init(
    coordinator=None,
    rank=None,
    size=None,
    *,
    net=None,
    device=None,
    timeout=60.0,
    token=None,
    progress_thread=False,
    allow_pickle=False,
):
    """Joins the group that meets at `coordinator`, "host:port" of rank 0, as rank `rank` of `size`. All its ranks call it.

    Without these three, the variables of `ironrail run`, torchrun, MLX, OpenMPI, PMI or Slurm say them; docs/group.md has the list.

    net: the plugin, a file or a word as in NCCL_NET_PLUGIN; the one of this package where none is named.
    device: the plugin's device; the rank, modulo the number of devices, where none is.
    timeout: seconds in which nothing moves until a call is given up, with Timeout. The other ranks have as long to come, and 30 at least.
    token: a word that all ranks of a job share, which keeps other jobs out; IRONRAIL_GROUP_TOKEN where none is given.
    progress_thread: whether a thread polls every 50 µs while this rank computes, so that others' messages move on; else every 2 ms.
    allow_pickle: whether send_obj and recv_obj work: a process that can send to a rank that receives objects can run code in it.
    """
    plugin = str(pathlib.Path(path()) / "libnccl-net-ironrail.so") if net is None else str(net)
    return _native.init(
        plugin,
        coordinator=coordinator,
        rank=rank,
        size=size,
        device=device,
        timeout=timeout,
        token=token,
        progress_thread=progress_thread,
        allow_pickle=allow_pickle,
    )


# What something still holds when the interpreter ends, as a thread does, would never say farewell: a group, one that was split from it, a halo, a
# request.
atexit.register(_native.leave_all)
