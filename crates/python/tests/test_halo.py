"""Sparse exchanges and halos."""


def test_borders_of_any_length_go_round_after_round_in_a_row_and_in_a_ring(ranks):
    ranks(4, """
        def border(sender, number, side):
            length = (sender * 7 + number * 1013) % 5000
            return None if number % 5 == sender else np.full(length, 100 * sender + 10 * side + number % 7, "float32")

        def same(got, wanted):
            if wanted is None:
                return got is None
            return (np.frombuffer(got, "float32") == wanted).all() and len(got) == 4 * len(wanted)

        row, ring = group.halo("float32"), group.halo("float32", ring=True)
        for number in range(40):
            left, right = row.round(border(rank, number, 0), border(rank, number, 1))
            assert same(left, border(rank - 1, number, 1) if rank > 0 else None), number
            assert same(right, border(rank + 1, number, 0) if rank < 3 else None), number
            left, right = ring.round(border(rank, number, 2), border(rank, number, 3))
            assert same(left, border((rank - 1) % 4, number, 3)), number
            assert same(right, border((rank + 1) % 4, number, 2)), number
        with raises(ironrail.InvalidArgument) as refused:
            row.round(np.zeros(3))
        assert "left is of float64, and this halo of float32" in str(refused.exception), refused.exception
        group.barrier()
    """)  # fmt: skip


def test_a_halos_type_is_named_as_in_numpy(ranks):
    ranks(1, """
        # Other types in NumPy than in the group library, which has NCCL's names: int64, float64, int64.
        for name in "i8", "float", "int":
            for make in group.halo, lambda dtype: group.fixed_halo(1, 1, dtype):
                with raises(ironrail.InvalidArgument) as refused:
                    make(name)
                names = "int64, uint64, float16, bfloat16, float32, float64, complex64"
                assert f"{name} is none of " in str(refused.exception) and names in str(refused.exception), refused.exception
        for name in "int8", "uint16", "float16", "bfloat16", "float32", "float64", "complex64":
            halo = group.halo(name, ring=True)
            if name == "bfloat16":
                continue
            left, right = halo.round(np.ones(3, name), np.zeros(2, name))
            assert (np.frombuffer(left, name) == np.zeros(2)).all() and (np.frombuffer(right, name) == np.ones(3)).all()
    """)  # fmt: skip


def test_borders_of_fixed_lengths_go_into_rows_of_a_grid(ranks):
    ranks(3, """
        def row(sender, number, side):
            return np.arange(500, dtype="float32") + 1000 * sender + 100 * side + number

        halo = group.fixed_halo(500, 500, "float32")
        ring = group.fixed_halo(500, 500, dtype="float32", ring=True)
        assert halo.neighbours == ((None, 1), (0, 2), (1, None))[rank]
        assert ring.neighbours == group.halo(ring=True).neighbours == ((rank - 1) % 3, (rank + 1) % 3)
        grid = np.zeros((4, 500), "float32")
        for number in range(30):
            grid[:] = -1
            grid[1], grid[2] = row(rank, number, 0), row(rank, number, 1)
            halo.round(grid[1], grid[2], grid[0], grid[3])
            assert (grid[0] == (row(rank - 1, number, 1) if rank > 0 else -1)).all(), number
            assert (grid[3] == (row(rank + 1, number, 0) if rank < 2 else -1)).all(), number
            ring.begin(row(rank, number, 2), row(rank, number, 3))
            if number % 7 == rank:
                # The round goes on, and its borders are dropped.
                continue
            ring.end(grid[0], grid[3])
            assert (grid[0] == row((rank - 1) % 3, number, 3)).all() and (grid[3] == row((rank + 1) % 3, number, 2)).all()
        group.barrier()
    """)  # fmt: skip


def test_a_fixed_halo_refuses_what_does_not_fit_and_names_what_is_silent_or_gone(ranks):
    ranks(2, """
        def refused(why, call, *arguments):
            try:
                call(*arguments)
            except ironrail.InvalidArgument as error:
                assert why in str(error), error
            else:
                raise AssertionError(why)

        refused("rank 0 swaps 4 elements of double with rank 1, which swaps 3", group.fixed_halo, 3, 4)
        halo = group.fixed_halo(4, 4)
        four, name = np.ones(4), ("right", "left")[rank]
        sides = (None, four) if rank == 0 else (four, None)
        refused("no round yet", halo.end)
        refused(f"{name} is missing: rank {1 - rank} waits for it", halo.round)
        refused(f"{name} has 5 elements, and this border 4", halo.begin, np.ones(5), np.ones(5))
        refused(f"{name} is of float32, and this halo of float64", halo.begin, *(side if side is None else np.ones(4, "float32") for side in sides))
        there, nowhere = (("from_right", "from_left"), ("from_left", "from_right"))[rank]
        assert halo.neighbours == ((None, 1), (0, None))[rank]
        refused(f"{there} has 5 elements", lambda: halo.round(*sides, **{there: np.ones(5)}))
        wrong = np.zeros(5, "float32")
        halo.round(*(wrong if side is None else side for side in sides), **{there: four, nowhere: wrong})
        assert (wrong == 0).all() and (four == 1).all()
        # Only one of them is written.
        halo.round(*sides, four, four)
        ring = group.fixed_halo(4, 4, ring=True)
        refused("share memory", ring.round, four, four, four, four)
        del ring
        if rank == 0:
            try:
                halo.round(*sides)
            except ironrail.Timeout as error:
                assert error.peers == (1,), error
            else:
                raise AssertionError
            group.barrier()
            halo.end(None, four)
            assert (four == 5).all()
            del halo
            gc.collect()
        else:
            time.sleep(2)
            group.barrier()
            halo.round(four * 5)
            try:
                halo.round(four)
            except ironrail.Cancelled as error:
                assert error.rank == 0
            else:
                raise AssertionError
        group.barrier()
    """, options="timeout=4.0")  # fmt: skip


def test_an_exchange_takes_messages_from_any_thread_and_keeps_their_order(ranks):
    ranks(3, """
        others = [other for other in range(3) if other != rank]
        exchange = group.exchange(others, others)

        def insert(other):
            for number in range(16):
                exchange.insert(other, np.full(number * 600, rank), bytes([number]))

        threads = [threading.Thread(target=insert, args=(other,)) for other in others]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        exchange.finish()
        exchange.wait()
        assert exchange.test()
        for other in others:
            messages = exchange.take(other)
            assert [meta for meta, _ in messages] == [bytes([number]) for number in range(16)]
            for number, (_, data) in enumerate(messages):
                assert (np.frombuffer(data, "int64") == other).all() and len(data) == number * 600 * 8
        group.barrier()
    """)  # fmt: skip


def test_a_dropped_exchange_is_cancelled_on_all_ranks(ranks):
    ranks(2, """
        exchange = group.exchange([1 - rank], [1 - rank])
        if rank == 0:
            exchange.insert(1, b"half")
            del exchange
        else:
            exchange.finish()
            try:
                exchange.wait()
            except ironrail.Cancelled as error:
                assert error.rank == 0
            else:
                raise AssertionError
        group.barrier()
    """)  # fmt: skip
