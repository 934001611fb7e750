"""Reductions of objects: every number of an object with the same number of all ranks' objects."""

import array
import copy
import hashlib
import sys

from ._errors import InvalidArgument, Mismatch
from ._native import check_reducible

_DIGEST = 8
# In place of the digest of an object that cannot be reduced.
_REFUSED = bytes(_DIGEST)


class _Parts:
    """An object taken apart: its shape, and its numbers if they can be reduced."""

    def __init__(self, whole, op):
        # Integers are 64 bits, as NumPy's default is.
        self.integers, self.floats, self.arrays = array.array("q"), array.array("d"), []
        self._op = op
        try:
            self.shape = self._split(whole, "object")
        except InvalidArgument:
            raise
        except Exception as error:
            # An array that cannot be copied, or an object that contains itself.
            raise InvalidArgument(f"the object cannot be taken apart: {error}") from error

    def _split(self, part, path):
        kind = type(part)
        if part is None or kind is bool:
            return repr(part)
        if isinstance(part, dict):
            # Ranks may have inserted the keys in other orders.
            if len({repr(key) for key in part}) < len(part):
                raise InvalidArgument(f"{path} has two keys that look the same, so that their order is not known")
            return [f"dict of {len(part)}", *((repr(key), self._split(part[key], f"{path}[{key!r}]")) for key in _in_order(part))]
        if isinstance(part, (list, tuple)):
            return [f"{kind.__name__} of {len(part)}", *(self._split(item, f"{path}[{at}]") for at, item in enumerate(part))]
        if kind is int:
            try:
                self.integers.append(part)
            except OverflowError:
                raise InvalidArgument(f"{path} is {part}, which does not fit 64 bits") from None
            return "int"
        if kind is float:
            self.floats.append(part)
            return "float"
        mine = _copied(part)
        if mine is None:
            raise InvalidArgument(f"{path} is a {kind.__name__}, which cannot be reduced")
        check_reducible(mine, path, self._op)
        self.arrays.append(mine)
        shape = getattr(mine, "shape", None)
        return f"{kind.__name__} of {getattr(mine, 'dtype', None) or mine.typecode}, {len(mine) if shape is None else tuple(shape)}"

    def digest(self, root=None):
        """A digest that is equal for objects of one shape that are reduced by one operation to one root."""
        return hashlib.blake2b(repr((self._op, root, self.shape)).encode(), digest_size=_DIGEST).digest()

    def numbers(self):
        return self.integers, self.floats, *self.arrays

    def built(self, part):
        """The object, with the current numbers."""
        return _Build(self).build(part)


class _Build:
    def __init__(self, parts):
        self.integers, self.floats, self.arrays = iter(parts.integers), iter(parts.floats), iter(parts.arrays)

    def build(self, part):
        kind = type(part)
        if part is None or kind is bool:
            return part
        if isinstance(part, dict):
            made = {key: self.build(part[key]) for key in _in_order(part)}
            # A copy has what a subclass of dict has besides the entries, as a defaultdict's factory.
            whole = {} if kind is dict else copy.copy(part)
            for key in part:
                whole[key] = made[key]
            return whole
        if isinstance(part, (list, tuple)):
            items = [self.build(item) for item in part]
            return kind(*items) if hasattr(part, "_fields") else kind(items)
        if kind is int:
            return next(self.integers)
        if kind is float:
            return next(self.floats)
        made = next(self.arrays)
        return made[0] if _is_scalar(part) else made


def _in_order(keys):
    return sorted(keys, key=repr)


def _copied(part):
    """A contiguous copy of an array; of a scalar of NumPy's, an array of one element. None for anything else."""
    if isinstance(part, array.array):
        return copy.copy(part)
    if _is_scalar(part):
        return part.reshape(1).copy()
    numpy = sys.modules.get("numpy")
    if numpy and isinstance(part, numpy.ndarray):
        return part.copy(order="C")
    # Tensors of PyTorch's, and of those that took over its names.
    return part.clone().contiguous() if hasattr(part, "__dlpack__") and hasattr(part, "clone") else None


def _is_scalar(part):
    # Without NumPy there are no scalars of it.
    numpy = sys.modules.get("numpy")
    return bool(numpy) and isinstance(part, numpy.generic)


def _agreed(group, whole, op, root=None):
    """The parts, or an error on all ranks. A rank whose object cannot be reduced takes part as well: other ranks wait for it."""
    try:
        parts, failed = _Parts(whole, op), None
        digest = parts.digest(root)
    except InvalidArgument as error:
        parts, failed, digest = None, error, _REFUSED
    everyone = bytearray(_DIGEST * group.size)
    group.all_gather(digest, everyone)
    if failed:
        raise failed
    digests = [everyone[_DIGEST * rank : _DIGEST * (rank + 1)] for rank in range(group.size)]
    # First, since the digest of rank 0, with which the others are compared below, may be that of an object that cannot be reduced.
    if _REFUSED in digests:
        raise _mismatch(digests.index(_REFUSED), "has an object that cannot be reduced")
    for rank, theirs in enumerate(digests):
        if theirs != digests[0]:
            raise _mismatch(rank, "reduces an object of another shape than rank 0, or in another way")
    return parts


def _mismatch(rank, why):
    error = Mismatch(f"rank {rank} {why}")
    error.rank = rank
    return error


def all_reduce(group, whole, op):
    parts = _agreed(group, whole, op)
    for numbers in parts.numbers():
        group.all_reduce(numbers, op)
    return parts.built(whole)


def reduce(group, whole, op, root):
    parts = _agreed(group, whole, op, root)
    for numbers in parts.numbers():
        group.reduce(numbers, op, root)
    return parts.built(whole) if group.rank == root else None


class Begun:
    """This rank's object in a reduction in progress, which reads `numbers` and writes the results there before it builds the new object."""

    def __init__(self, whole, op):
        self._whole, self._parts = whole, _Parts(whole, op)
        self.digest, self.numbers = int.from_bytes(self._parts.digest(), "little"), self._parts.numbers()

    def built(self):
        return self._parts.built(self._whole)
