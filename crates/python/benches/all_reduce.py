"""The time of an all_reduce of NumPy arrays, to be compared with the command's: docs/python.md says how.

    ironrail run -n 2 -- python crates/python/benches/all_reduce.py [BYTES] [PLUGIN]
"""

import sys
import time

import ironrail
import numpy

ROUNDS, WARM_UP = 40, 5


def mean(group, data):
    """The time of the slowest rank, in microseconds."""
    for _ in range(WARM_UP):
        group.all_reduce(data)
    group.barrier()
    begun = time.perf_counter()
    for _ in range(ROUNDS):
        group.all_reduce(data)
    took = numpy.array([(time.perf_counter() - begun) / ROUNDS * 1e6])
    group.all_reduce(took, "max")
    return took[0]


size = int(sys.argv[1]) if len(sys.argv) > 1 else 16 << 20
with ironrail.init(net=sys.argv[2] if len(sys.argv) > 2 else None) as group:
    array = numpy.ones(size // 4, "float32")
    registered = numpy.frombuffer(group.memory(size), "float32")
    registered[:] = 1
    times = [mean(group, data) for data in (array, registered)]
    if group.rank == 0:
        print(f"all_reduce of {size} bytes: {times[0]:.0f} µs in an array, {times[1]:.0f} µs in registered memory")
