"""Requests: when they end, what they hold, and what becomes of those that are dropped."""


def test_a_pending_receive_exports_its_memory_until_it_has_ended_or_is_taken_back(ranks):
    ranks(2, """
        def exported(memory):
            try:
                memory.append(0)
            except BufferError:
                return True
            memory.pop()
            return False

        for end in "cancel", "drop", "wait":
            memory = bytearray(8)
            request = group.irecv(memory, 1 - rank, 5)
            assert not request.test() and exported(memory)
            if end == "cancel":
                assert request.cancel() and not request.cancel() and request.wait() is None
            elif end == "drop":
                del request
            else:
                with raises(ironrail.Timeout) as late:
                    request.wait(0.01)
                assert isinstance(late.exception, TimeoutError) and late.exception.peers == ()
                group.barrier()
                group.send(b"eightbyt", 1 - rank, 5)
                assert request.wait(30).count == 8 and memory == b"eightbyt" and request.test()
            assert not exported(memory), end
        group.barrier()
    """)  # fmt: skip


def test_a_request_waits_for_a_time_of_any_length(ranks):
    ranks(2, """
        for limit in 1e9, 1e19, 1e300, float("inf"):
            memory = bytearray(2)
            request = group.irecv(memory, 1 - rank, 5)
            group.send(b"me", 1 - rank, 5)
            assert request.wait(limit).count == 2
        for limit in -1.0, float("nan"):
            try:
                group.irecv(memory, 1 - rank, 6).wait(limit)
            except ironrail.InvalidArgument as error:
                assert "no number of seconds" in str(error)
            else:
                assert False, limit
        group.barrier()
    """)  # fmt: skip


def test_a_long_send_whose_request_and_array_are_dropped_still_arrives_whole(ranks):
    ranks(2, """
        length = 1 << 20
        if rank == 0:
            group.isend(np.arange(length), 1, 1)
            gc.collect()
            noise = [np.full(length, 7) for _ in range(8)]
            group.send(b"now", 1, 2)
        else:
            group.recv(bytearray(3), 0, 2)
            out = np.zeros(length, "int64")
            group.recv(out, 0, 1)
            assert (out == np.arange(length)).all()
        group.barrier()
    """)  # fmt: skip


def test_closing_waits_for_sends_that_were_dropped(ranks):
    ranks(2, """
        length = 1 << 20
        if rank == 0:
            group.isend(np.arange(length), 1)
            group.close()
            with raises(ironrail.InvalidArgument) as refused:
                group.barrier()
            assert "closed" in str(refused.exception)
        else:
            out = np.zeros(length, "int64")
            assert group.recv(out).source == 0 and (out == np.arange(length)).all()
    """)  # fmt: skip


def test_other_threads_run_while_a_call_waits(ranks):
    ranks(2, """
        if rank == 0:
            out = np.zeros(1)
            group.recv(out, 1, 1)
            group.send(out, 1, 2)
        else:
            # The main thread waits for an answer to what only the other one sends.
            entered = threading.Event()

            def ask():
                entered.wait()
                group.send(np.full(1, 4.0), 0, 1)

            thread = threading.Thread(target=ask)
            thread.start()
            out = np.zeros(1)
            entered.set()
            group.recv(out, 0, 2)
            thread.join()
            assert out == 4
    """)  # fmt: skip


def test_a_message_to_oneself_needs_a_request(ranks):
    ranks(2, """
        out = np.zeros(3)
        receive = group.irecv(out, rank)
        group.isend(np.arange(3.0), rank).wait()
        assert receive.wait().count == 3 and list(out) == [0, 1, 2]
        with raises(ironrail.InvalidArgument) as refused:
            group.send(out, rank)
        assert "needs a group or a request" in str(refused.exception)
    """)  # fmt: skip


def test_sends_to_oneself_without_a_receive_keep_no_rank_from_leaving(ranks):
    ranks(2, """
        group.isend(np.arange(1 << 20), rank)
        group.isend_obj(np.arange(1 << 20), rank)
        begun = time.monotonic()
        group.close()
        assert time.monotonic() - begun < 15
    """, options="allow_pickle=True")  # fmt: skip


def test_a_send_to_oneself_without_a_receive_keeps_no_array_after_its_group_is_closed(ranks):
    ranks(1, """
        part, own = group.split(0), bytearray(8)
        part.isend(own, 0, 1)
        try:
            own.append(0)
            raise SystemExit("its memory may move")
        except BufferError:
            pass
        part.close()
        own.append(0)
    """)  # fmt: skip


def test_a_message_that_is_probed_says_what_receives_it_and_one_of_no_elements_arrives(ranks):
    ranks(2, """
        sent = [np.zeros(0, "float32"), np.arange(3, dtype="float64"), np.arange(5, dtype="float16"), np.array([True])]
        if rank == 0:
            for data in sent:
                group.send(data, 1, 3)
        else:
            for data, dtype in zip(sent, ("float32", "float64", "float16", "uint8")):
                coming = group.probe()
                assert (coming.source, coming.tag, coming.bytes, coming.dtype) == (0, 3, data.nbytes, dtype), coming
                out = np.empty(coming.bytes // np.dtype(coming.dtype).itemsize, coming.dtype)
                came = group.recv(out)
                assert (came.source, came.tag, came.count) == (0, 3, len(data)) and (out == data).all()
        group.barrier()
    """)  # fmt: skip


def test_other_threads_run_while_the_last_request_of_a_dropped_group_is_dropped(ranks):
    ranks(2, """
        import pathlib

        def await_file(name):
            deadline = time.monotonic() + 30
            while not pathlib.Path(name).exists():
                assert time.monotonic() < deadline, name
                time.sleep(0.005)

        group.barrier()
        if rank == 0:
            request = group.isend(np.zeros(1 << 20), 1)
            entered, done = threading.Event(), threading.Event()

            def tell():
                entered.wait()
                pathlib.Path("asked").touch()
                await_file("answered")
                done.set()
                pathlib.Path("done").touch()

            thread = threading.Thread(target=tell)
            thread.start()
            del group
            # The main thread keeps the interpreter unless it lets go of it.
            sys.setswitchinterval(60)
            entered.set()
            # This drop waits until the other rank has left.
            del request
            assert done.is_set()
            sys.setswitchinterval(0.005)
            thread.join()
        else:
            await_file("asked")
            pathlib.Path("answered").touch()
            await_file("done")
            group.recv(np.empty(1 << 20), 0)
    """, options="timeout=5.0")  # fmt: skip


def test_messages_for_a_dropped_request_of_objects_keep_no_rank_waiting(ranks):
    ranks(2, """
        numbers = np.ones(300_000)
        begins = [
            lambda: group.iall_reduce_obj(numbers),
            lambda: group.iall_gather_obj(numbers),
            lambda: group.ibroadcast_obj(numbers if rank == 0 else None),
        ]
        for begin in begins:
            if rank == 0:
                begin().wait()
                group.send(b"1", 1, 1)
            else:
                ready = group.irecv(bytearray(1), 0, 1)
                # The request is dropped at once. The wait below makes no progress for the group.
                begin()
                ready.wait(30)
        group.barrier()
    """, options="timeout=8.0, allow_pickle=True")  # fmt: skip
