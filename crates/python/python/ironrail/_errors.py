"""What calls raise. Every class says in its text what happened, and whom it is about."""


class Error(Exception):
    """Any failure of a group, the rendezvous or the plugin."""


class InvalidArgument(Error, ValueError):
    """An argument that no call takes. Nothing has moved, and the group goes on."""


class PeerLost(Error):
    """A rank died, left, or cannot be reached any more. `rank` is its number."""

    rank: int


class Timeout(Error, TimeoutError):
    """Nothing moved for the timeout. `peers` are the ranks that did not come, where that is known."""

    peers = ()


class Aborted(Error):
    """A rank ended every call of the group. `rank` is its number."""

    rank: int


class Cancelled(Error):
    """A rank dropped an exchange or a halo's round before its end. `rank` is its number."""

    rank: int


class Mismatch(Error):
    """A rank calls another collective, or the same one with another size. `rank` is its number."""

    rank: int


class TooLong(Error):
    """A message of `bytes` from `source` with `tag` came to a receive of `room`. It is gone; the next one can be received."""

    source: int
    tag: int
    bytes: int
    room: int


class OtherType(Error):
    """A message from `source` with `tag` has elements of another type than its receive. It is gone; the next one can be received."""

    source: int
    tag: int


for _class in (Error, InvalidArgument, PeerLost, Timeout, Aborted, Cancelled, Mismatch, TooLong, OtherType):
    _class.__module__ = "ironrail"
