"""Sparse exchanges and halos."""


def test_borders_of_any_length_go_round_after_round_in_a_row_and_in_a_ring(ranks):
    ranks(4, """
        def border(sender, turn, side):
            length = (sender * 7 + turn * 1013) % 5000
            return None if turn % 5 == sender else np.full(length, 100 * sender + 10 * side + turn % 7, "float32")

        def same(got, wanted):
            if wanted is None:
                return got is None
            return (np.frombuffer(got, "float32") == wanted).all() and len(got) == 4 * len(wanted)

        row, ring = group.halo("float32"), group.halo("float32", ring=True)
        for turn in range(40):
            left, right = row.round(border(rank, turn, 0), border(rank, turn, 1))
            assert same(left, border(rank - 1, turn, 1) if rank > 0 else None), turn
            assert same(right, border(rank + 1, turn, 0) if rank < 3 else None), turn
            left, right = ring.round(border(rank, turn, 2), border(rank, turn, 3))
            assert same(left, border((rank - 1) % 4, turn, 3)), turn
            assert same(right, border((rank + 1) % 4, turn, 2)), turn
        try:
            row.round(np.zeros(3))
        except ironrail.InvalidArgument as error:
            assert "left is of double, and this halo of float" in str(error), error
        group.barrier()
    """)  # fmt: skip


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


def test_an_exchange_that_is_dropped_is_cancelled_and_the_others_are_told(ranks):
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
