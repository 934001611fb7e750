"""The exceptions that calls raise. The text of each says what happened, and which rank is the cause."""


class Error(Exception):
    """Any failure of a group, the rendezvous or the plugin."""


class InvalidArgument(Error, ValueError):
    """An invalid argument. No data has moved, and the group can still be used."""


class PeerLost(Error):
    """A rank died, left, or cannot be reached any more. `rank` is its number."""

    rank: int


class Timeout(Error, TimeoutError):
    """There was no progress for the timeout. `peers` are the ranks that did not arrive, if they are known."""

    peers = ()


class Aborted(Error):
    """A rank ended every call of the group. `rank` is its number."""

    rank: int


class Cancelled(Error):
    """A rank dropped an exchange, or a halo, before its end. `rank` is its number."""

    rank: int


class Mismatch(Error):
    """A rank calls another collective, or the same one with another size. `rank` is its number."""

    rank: int


class TooLong(Error):
    """A message of `bytes` bytes from `source` with `tag` is longer than its receive of `room` bytes. It is lost; the next one can be received."""

    source: int
    tag: int
    bytes: int
    room: int


class OtherType(Error):
    """A message from `source` with `tag` has elements of another type than its receive. It is lost; the next one can be received."""

    source: int
    tag: int


for _class in (Error, InvalidArgument, PeerLost, Timeout, Aborted, Cancelled, Mismatch, TooLong, OtherType):
    _class.__module__ = "ironrail"
