"""Ranks, collectives and messages on arrays."""

import pytest


@pytest.mark.parametrize("size", [2, 4])
def test_every_collective_moves_every_type(ranks, size):
    ranks(size, """
        whole = size * (size + 1) // 2
        types = "int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64 complex64".split()
        for kind in types:
            data = np.full((3, 5), rank + 1, kind)
            group.all_reduce(data)
            assert (data == whole).all(), (kind, data)
            data = np.full(7, rank + 1, kind)
            out = np.zeros(7, kind)
            group.all_reduce(data, "prod", out)
            assert (out == np.prod(np.arange(1, size + 1))).all() and (data == rank + 1).all()
            data = np.full(7, rank + 1, kind)
            group.reduce(data, root=1)
            assert (data == (whole if rank == 1 else rank + 1)).all()
            out = np.zeros(7, kind)
            data = np.full(7, rank + 1, kind)
            group.reduce(data, "sum", 0, out if rank == 0 else None)
            assert (out == (whole if rank == 0 else 0)).all()
            data = np.full(9, rank + 1, kind)
            group.broadcast(data, root=1)
            assert (data == 2).all()
            blocks = np.zeros((size, 4), kind)
            group.all_gather(np.full(4, rank + 1, kind), blocks)
            assert (blocks == np.arange(1, size + 1)[:, None]).all()
            blocks[:] = 0
            blocks[rank] = rank + 1
            group.all_gather(blocks)
            assert (blocks == np.arange(1, size + 1)[:, None]).all()
            blocks[:] = 0
            group.gather(np.full(4, rank + 1, kind), blocks if rank == 1 else None, root=1)
            assert (blocks == (np.arange(1, size + 1)[:, None] if rank == 1 else 0)).all()
            out = np.zeros(4, kind)
            source = np.repeat(np.arange(1, size + 1), 4).astype(kind)
            group.scatter(source if rank == 0 else None, out)
            assert (out == rank + 1).all()
            out = np.zeros(4, kind)
            group.reduce_scatter(source, out)
            assert (out == size * (rank + 1)).all()
            out = np.zeros((size, 2), kind)
            group.all_to_all(np.repeat(np.arange(size) + 10 * rank, 2).astype(kind), out)
            assert (out == (10 * np.arange(size) + rank)[:, None]).all()
        group.barrier()
    """)  # fmt: skip


@pytest.mark.parametrize("size", [2, 4])
def test_messages_of_all_lengths_arrive_by_rank_and_tag(ranks, size):
    ranks(size, """
        right, left = (rank + 1) % size, (rank - 1) % size
        for length in 1, 4097, 32768, 1_000_003:
            data = np.arange(length, dtype="int32") + rank
            out = np.zeros(length + 3, "int32")
            receive = group.irecv(out, left, 7)
            send = group.isend(data, right, 7)
            found = receive.wait()
            assert send.wait() is None
            assert (found.source, found.tag, found.count) == (left, 7, length), found
            assert (out[:length] == np.arange(length) + left).all() and (out[length:] == 0).all()
            assert receive.wait().count == length, "asked again, it says the same"
            got = group.sendrecv(data, right, out, left)
            assert got.count == length
        if rank == 0:
            for tag in 1, 2, 3:
                group.send(np.full(3, tag, "float64"), 1, tag)
        if rank == 1:
            out = np.zeros(3)
            for tag in 3, 1:
                group.recv(out, 0, tag)
                assert (out == tag).all()
            assert group.recv(out).tag == 2
    """)  # fmt: skip


def test_two_groups_meet_at_one_address_in_turn(ranks):
    ranks(2, """
        group.barrier()
        if rank == 0:
            time.sleep(0.5)
        group.close()
        with ironrail.init(sys.argv[1], rank, size, net=net) as again:
            again.barrier()
    """)  # fmt: skip


def test_one_program_of_two_ranks_prints_its_sum(ranks):
    said = ranks(2, """
        data = np.ones(1 << 20, "float32")
        group.all_reduce(data)
        print(int(data.sum()))
    """)  # fmt: skip
    assert said == ["2097152\n"] * 2, said
