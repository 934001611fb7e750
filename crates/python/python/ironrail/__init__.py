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

    Without these three, the variables of `ironrail run`, torchrun, MLX, OpenMPI, PMI or Slurm give them; docs/group.md lists these variables.

    net: the plugin, a file or a word as in NCCL_NET_PLUGIN; by default the plugin of this package.
    device: the plugin's device; by default the rank, modulo the number of devices.
    timeout: seconds without progress after which a call raises Timeout. The other ranks have as long to join, and at least 30 seconds.
    token: a word that all ranks of a job share, which keeps other jobs out; by default IRONRAIL_GROUP_TOKEN.
    progress_thread: whether a thread polls every 50 µs while this rank computes, so that messages of other ranks progress; otherwise every 2 ms.
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


# At the end of the interpreter, a thread for instance may still hold a group, a split group, a halo or a request. Without this call the group would
# never send its farewell.
atexit.register(_native.leave_all)
