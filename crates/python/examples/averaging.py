"""Data-parallel averaging: every rank computes a gradient of its own data, and all take the mean of them.

    ironrail run -n 4 -- python averaging.py
"""

import sys

import ironrail
import numpy

with ironrail.init(net=sys.argv[1] if len(sys.argv) > 1 else None) as group:
    # Points of the line y = 3x + 1, a few for each rank, and a model that knows nothing yet.
    x = (numpy.arange(64) * group.size + group.rank) / 64.0
    y = 3.0 * x + 1.0
    model = numpy.zeros(2)
    group.broadcast(model)
    rate = 0.5 / (1 + group.size**2 / 3)
    for _ in range(500):
        wrong = model[0] * x + model[1] - y
        gradient = numpy.array([2.0 * (wrong * x).mean(), 2.0 * wrong.mean()])
        group.all_reduce(gradient, "avg")
        model -= rate * gradient
    print(f"rank {group.rank} of {group.size}: y = {model[0]:.3f} x + {model[1]:.3f}")
