"""The heat equation on a plate: every rank has some rows, and gets its neighbours' outermost ones, the halos, before each step.

    ironrail run -n 4 -- python heat.py heat.ppm

Rank 0 writes the picture. The number of ranks divides 256.
"""

import sys

import ironrail
import numpy

SIDE, STEPS = 256, 2000
UP, DOWN = 1, 2


def step(group, heat, new):
    """One step of `heat`, whose first and last rows are halos, into `new`."""
    above, below = group.rank - 1, group.rank + 1
    requests = []
    if above >= 0:
        requests += [group.irecv(heat[0], above, DOWN), group.isend(heat[1], above, UP)]
    if below < group.size:
        requests += [group.irecv(heat[-1], below, UP), group.isend(heat[-2], below, DOWN)]
    for request in requests:
        request.wait()
    new[1:-1, 1:-1] = (heat[:-2, 1:-1] + heat[2:, 1:-1] + heat[1:-1, :-2] + heat[1:-1, 2:]) / 4


if len(sys.argv) < 2:
    sys.exit("usage: ironrail run -n 4 -- python heat.py PICTURE.ppm [NET]")
with ironrail.init(net=sys.argv[2] if len(sys.argv) > 2 else None) as group:
    if SIDE % group.size:
        sys.exit(f"{SIDE} rows cannot be divided evenly among {group.size} ranks: start 1, 2, 4, 8 …")
    rows = SIDE // group.size
    # The upper edge of the plate is hot; its other edges, and the plate itself, are cold.
    heat = numpy.zeros((rows + 2, SIDE + 2))
    if group.rank == 0:
        heat[0] = 1.0
    new = heat.copy()
    for _ in range(STEPS):
        step(group, heat, new)
        heat, new = new, heat
    own = numpy.ascontiguousarray(heat[1:-1, 1:-1])
    plate = numpy.empty((SIDE, SIDE)) if group.rank == 0 else None
    group.gather(own, plate)
    if plate is not None:
        shades = numpy.sqrt(plate)[:, :, None] * [255, 120, 60] + (1 - numpy.sqrt(plate))[:, :, None] * [0, 0, 90]
        with open(sys.argv[1], "wb") as picture:
            picture.write(b"P6\n%d %d\n255\n" % (SIDE, SIDE))
            picture.write(shades.astype("uint8").tobytes())
        print(f"{group.size} ranks, {STEPS} steps: {sys.argv[1]}")
