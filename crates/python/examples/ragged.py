"""A ragged gather of record batches: every rank has a table with its own number of measurements, and rank 0 gathers all tables.

    pip install pyarrow
    ironrail run -n 3 -- python crates/python/examples/ragged.py
"""

import pyarrow

import ironrail


def stream_of(batch):
    """The batch and its schema, as Arrow's IPC has them."""
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


with ironrail.init() as group:
    rank, others = group.rank, list(range(1, group.size))
    rows = range(rank * 1000 + 1)
    columns = {"sensor": [f"sensor {row % 7}" for row in rows], "value": [None if row % 10 == 3 else row / 2 for row in rows]}
    batch = pyarrow.record_batch(columns)
    # An exchange takes messages of any length, so ranks need not agree on the lengths first.
    exchange = group.exchange(others if rank == 0 else [], [0] if rank else [])
    if rank:
        exchange.insert(0, stream_of(batch))
    exchange.finish()
    exchange.wait()
    if rank == 0:
        batches = [batch]
        for source in others:
            [(_, data)] = exchange.take(source)
            # The columns refer to the memory that was received.
            batches += pyarrow.ipc.open_stream(pyarrow.py_buffer(data))
        for source, batch in enumerate(batches):
            value = batch.column("value")
            print(f"rank {source}: {batch.num_rows} rows, {value.null_count} nulls, sum {value.sum().as_py():g}")
