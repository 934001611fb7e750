"""Ranks that die, stay away, abort or send what was not asked for."""


def test_a_rank_that_dies_is_named(ranks):
    ranks(4, """
        import os
        with raises(ironrail.PeerLost) as lost:
            group.barrier()
            if rank == 2:
                os._exit(3)
            while True:
                group.all_reduce(np.ones(1 << 16))
        assert lost.exception.rank == 2 and "rank 2 is lost" in str(lost.exception), lost.exception
        with raises(ironrail.PeerLost) as lost:
            group.barrier()
        assert lost.exception.rank == 2, "the first cause is said again"
    """, codes=[0, 0, 3, 0])  # fmt: skip


def test_a_rank_that_does_not_come_is_named(ranks):
    # The ranks meet within the same bound, and a loaded machine starts one seconds after the other.
    ranks(2, """
        import pathlib
        done = pathlib.Path("done")
        group.barrier()
        if rank == 0:
            try:
                group.all_reduce(np.ones(4))
            except ironrail.Timeout as error:
                assert error.peers == (1,), error
                assert isinstance(error, TimeoutError)
            else:
                raise AssertionError("there was no other rank")
            done.touch()
        else:
            end = time.monotonic() + 50
            while not done.exists() and time.monotonic() < end:
                time.sleep(0.01)
            assert done.exists()
    """, options="timeout=8.0")  # fmt: skip


def test_an_abort_ends_every_call(ranks):
    ranks(2, """
        try:
            group.barrier()
            if rank == 0:
                group.abort()
            group.recv(np.zeros(4), 1 - rank)
        except ironrail.Aborted as error:
            assert error.rank == 0
        else:
            raise AssertionError
    """)  # fmt: skip


def test_python_handles_a_signal_when_the_call_returns(ranks):
    ranks(2, """
        import os, signal

        line = 0

        def interrupt():
            main, end = threading.main_thread().ident, time.monotonic() + 60
            while sys._current_frames()[main].f_lineno != line and time.monotonic() < end:
                time.sleep(0.01)
            # The main thread is at the call, which takes the lock of the interpreter only for its arguments.
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGINT)
            group.send(np.ones(1), 1, 1)

        if rank == 0:
            interrupting = threading.Thread(target=interrupt)
            interrupting.start()
            try:
                line = sys._getframe().f_lineno + 1
                group.recv(np.zeros(1), 1, 2)
                raise AssertionError("the interrupt is lost")
            except KeyboardInterrupt as interrupted:
                assert interrupted.__traceback__.tb_lineno == line
                interrupting.join()
        else:
            group.recv(np.zeros(1), 0, 1)
            group.send(np.ones(1), 0, 2)
        group.barrier()
    """)  # fmt: skip


def test_a_rank_that_ends_while_a_thread_holds_parts_of_its_group_says_farewell(ranks):
    ranks(2, """
        held = [group.split(0), group.halo(), group.irecv(bytearray(4), 1 - rank, 7)]
        if rank == 1:
            rest = threading.Event().wait
            threading.Thread(target=lambda held: rest(60), args=(held,), daemon=True).start()
            sys.exit()
        with raises(ironrail.PeerLost) as lost:
            group.recv(bytearray(1), 1, 1)
        assert lost.exception.rank == 1
        # The error is that call's alone.
        came = bytearray(1)
        group.sendrecv(b"7", 0, came, 0)
        assert came == b"7"
    """)  # fmt: skip


def test_the_error_of_a_dropped_request_that_no_call_returns_is_reported(ranks):
    ranks(2, """
        reported = []
        sys.unraisablehook = lambda error: reported.append((error.exc_type, error.object))
        if rank == 0:
            group.isend(np.ones(10_000_000), 1)
            gc.collect()
        group.barrier()
        group.close()
        lost = (ironrail.PeerLost, "an operation whose request was dropped")
        assert reported == ([lost] if rank == 0 else []), reported
    """)  # fmt: skip


def test_the_error_of_a_dropped_request_is_reported_by_a_later_call(ranks):
    ranks(2, """
        reported = []
        sys.unraisablehook = lambda error: reported.append(error.exc_type)
        if rank == 0:
            group.isend(np.ones(10_000_000), 1)
            gc.collect()
        group.barrier()
        if rank == 1:
            group.close()
        else:
            end = time.monotonic() + 60
            while not reported and time.monotonic() < end:
                group.sendrecv(np.ones(1), 0, np.zeros(1), 0)
            assert reported == [ironrail.PeerLost], reported
    """)  # fmt: skip


def test_a_call_in_the_last_moments_of_the_interpreter_raises_an_error_of_the_group(ranks):
    said = ranks(2, """
        import os
        class Last:
            def __init__(self, call):
                self.call, self.expected, self.end, self.write = call, ironrail.Error, os._exit, os.write
            def __del__(self):
                try:
                    self.call()
                except BaseException as error:
                    if not isinstance(error, self.expected):
                        self.write(2, repr(error).encode())
                        self.end(9)
                    self.write(1, b"an error of the group\\n")
                else:
                    self.end(8)
        last = Last(group.barrier)
        group.barrier()
    """)  # fmt: skip
    assert said == ["an error of the group\n"] * 2


def test_a_reduction_of_a_split_group_whose_request_was_dropped_ends_before_its_rank_leaves(ranks):
    ranks(2, """
        half = group.split(0)
        request = half.iall_reduce_obj(rank + 1)
        if rank == 0:
            del request
            sys.exit()
        assert request.wait() == 3
    """)  # fmt: skip


def test_processes_end_that_are_rank_0_of_one_group_each(ranks):
    ranks(2, """
        import socket
        port = np.zeros(1, "int32")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port[0] = probe.getsockname()[1]
        group.broadcast(port, 1)
        other = ironrail.init(f"127.0.0.1:{port[0]}", 1 - rank, 2, net=net)
        other.barrier()
    """)  # fmt: skip


def test_a_forked_child_that_ends_leaves_the_group_to_its_parent(ranks):
    ranks(2, """
        import os
        group.barrier()
        child = os.fork()
        if child == 0:
            sys.exit()
        assert os.waitpid(child, 0)[1] == 0
        group.barrier()
        # By a connection that is made now.
        data = np.full(1 << 20, rank)
        if rank == 0:
            group.send(data, 1)
        else:
            group.recv(data, 0)
            assert (data == 0).all()
    """, options="timeout=10.0")  # fmt: skip


def test_a_forked_child_leaves_requests_to_its_parent(ranks):
    ranks(2, """
        import os
        data = np.full(1 << 22, rank)
        group.barrier()
        def sends():
            # One is dropped, and goes on; the other is dropped in the child.
            group.isend(data, 1, 1)
            request = group.isend(data, 1, 2)
            child = os.fork()
            if child == 0:
                for call in group.barrier, group.abort, request.test, lambda: group.send(data, 1, 3):
                    try:
                        call()
                    except ironrail.InvalidArgument as error:
                        assert "was forked from the one that joined" in str(error)
                    else:
                        sys.exit(1)
                sys.exit()
            assert os.waitpid(child, 0)[1] == 0
            group.send(data[:1], 1, 3)
            request.wait()
        if rank == 0:
            sends()
        else:
            group.recv(data[:1], 0, 3)
            for tag in 1, 2:
                data[:] = 1
                group.recv(data, 0, tag)
                assert (data == 0).all()
        group.barrier()
    """, options="timeout=10.0")  # fmt: skip


def test_a_forked_child_leaves_exchanges_and_halos_to_its_parent(ranks):
    ranks(2, """
        import os
        there, one = 1 - rank, np.full(1, rank, "float64")
        def swaps():
            exchange = group.exchange([there], [there])
            row, fixed = group.halo(), group.fixed_halo(1, 1, ring=True)
            exchange.insert(there, b"early")
            child = os.fork()
            if child == 0:
                for call, *arguments in (
                    (exchange.insert, there, b"late"), (exchange.finish,), (exchange.test,), (exchange.wait, 0.1), (exchange.take, there),
                    (row.round, one, one), (fixed.round, one, one), (fixed.begin, one, one), (fixed.end,),
                ):
                    try:
                        call(*arguments)
                    except ironrail.InvalidArgument as error:
                        assert "was forked from the one that joined" in str(error), error
                    else:
                        raise AssertionError(call)
                sys.exit()
            assert os.waitpid(child, 0)[1] == 0
            exchange.finish()
            exchange.wait()
            assert [bytes(data) for _, data in exchange.take(there)] == [b"early"]
            borders = row.round(one, one)
            assert (np.frombuffer(borders[0] or borders[1], "float64") == there).all()
            into = np.zeros(2)
            fixed.round(one, one, into[:1], into[1:])
            assert (into == there).all()
        swaps()
        group.barrier()
    """, options="timeout=10.0")  # fmt: skip


def test_a_message_that_does_not_fit_is_an_error_of_its_own(ranks):
    ranks(2, """
        if rank == 0:
            group.send(np.arange(9, dtype="int32"), 1, 3)
            group.send(np.arange(2, dtype="int32"), 1, 4)
            group.send(np.arange(2, dtype="int32"), 1, 5)
        else:
            out = np.zeros(2, "int32")
            with raises(ironrail.TooLong) as refused:
                group.recv(out, 0, 3)
            error = refused.exception
            assert (error.source, error.tag, error.bytes, error.room) == (0, 3, 36, 8)
            request = group.irecv(np.zeros(2, "float32"), 0, 4)
            with raises(ironrail.OtherType) as refused:
                request.wait()
            error = refused.exception
            assert (error.source, error.tag) == (0, 4) and "int32" in str(error)
            with raises(ironrail.InvalidArgument) as refused:
                request.wait()
            assert "has failed" in str(refused.exception)
            assert (out == 0).all()
            group.recv(out, 0, 5)
            assert list(out) == [0, 1]
        group.barrier()
    """)  # fmt: skip


def test_groups_split_by_color_and_key(ranks):
    ranks(4, """
        half = group.split(rank % 2, key=-rank)
        assert half.size == 2 and half.rank == (1 if rank < 2 else 0)
        data = np.full(3, rank)
        half.all_reduce(data)
        assert (data == (2 if rank % 2 == 0 else 4)).all()
        assert (group.split(0 if rank == 3 else None) is None) == (rank != 3)
        group.barrier()
    """)  # fmt: skip
