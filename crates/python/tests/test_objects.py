"""Picklable objects."""


def test_objects_go_to_a_rank_and_come_from_any(ranks):
    ranks(2, """
        sent = {"name": ["a", 1, None], "long": np.arange(100_000), "short": np.arange(5.0), "none": np.zeros(0), "bytes": b"b" * 70_000}
        if rank == 0:
            group.send_obj(sent, 1, 9)
            group.send_obj(sent["long"].reshape(100, 1000).T, 1, 8)
            # Messages of elements are not received as objects.
            group.send(np.ones(3), 1, 7)
        else:
            got = group.recv_obj()
            assert got.keys() == sent.keys() and got["name"] == sent["name"] and got["bytes"] == sent["bytes"]
            for name in "long", "short", "none":
                assert (got[name] == sent[name]).all() and got[name].dtype == sent[name].dtype
                # They have memory of their own, and may be changed.
                got[name][:1] = 7
            assert (group.recv_obj(0, 8) == sent["long"].reshape(100, 1000).T).all()
            coming = group.probe()
            assert (coming.source, coming.tag, coming.bytes) == (0, 7, 24), coming
            group.recv(np.zeros(3), 0, 7)
    """, options="allow_pickle=True")  # fmt: skip


def test_an_object_is_received_into_the_arrays_of_another(ranks):
    ranks(2, """
        def tree(seed, rows=1000):
            return {"step": seed, "long": np.full((rows, 100), seed, "float32"), "also": np.full(60_000, -seed), "short": np.full(3, seed)}

        def same(one, other):
            return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)

        def at(array):
            return array.__array_interface__["data"][0]

        if rank == 0:
            for seed in 1, 2:
                group.send_obj(tree(seed), 1)
            group.send_obj(tree(3, 2000), 1)
            group.send_obj(tree(4), 1)
            group.send_obj(tree(5), 1)
        else:
            kept = tree(0)
            arrays = [kept[name] for name in ("long", "also", "short")]
            for seed in 1, 2:
                got = group.recv_obj_into(kept, 0)
                assert same(got, tree(seed))
                assert [at(got[name]) for name in ("long", "also", "short")] == [at(array) for array in arrays]
                # So other references to these arrays show the new values.
                assert (arrays[0] == seed).all() and (arrays[1] == -seed).all() and (arrays[2] == seed).all()
            # An array of another length has memory of its own.
            got = group.recv_obj_into(kept, 0)
            assert same(got, tree(3, 2000)) and (arrays[0] == 2).all() and (arrays[1] == -3).all()
            assert at(got["long"]) != at(arrays[0]) and at(got["also"]) == at(arrays[1])
            # So has an array whose only match is read-only, or shared by two arrays.
            arrays[0].flags.writeable = False
            got = group.recv_obj_into({"long": arrays[0], "also": arrays[1], "again": arrays[1][:]}, 0)
            assert same(got, tree(4)) and (arrays[0] == 2).all()
            assert at(got["also"]) == at(arrays[1])
            # An object without arrays offers nothing.
            assert same(group.recv_obj_into(None, 0), tree(5))
        group.barrier()
    """, options="allow_pickle=True")  # fmt: skip


def test_none_is_an_object(ranks):
    ranks(2, """
        assert group.broadcast_obj(None if rank == 0 else 5) is None
        assert group.ibroadcast_obj(None).wait() is None
    """, options="allow_pickle=True")  # fmt: skip


def test_arrays_of_the_same_length_are_received_in_their_order_though_some_come_ahead_of_others(ranks):
    ranks(2, """
        # The first arrays of an object, up to 64 KiB, come with the pickle.
        for count, length in (2, 10_000), (4, 5_000), (3, 20_000), (9, 1_000):
            sent = [np.full(length, 1 + number, "float32") for number in range(count)]
            if rank == 0:
                group.send_obj(sent, 1)
                group.send_obj(sent, 1)
                continue
            kept = [np.zeros(length, "float32") for _ in sent]
            got = group.recv_obj_into(kept, 0)
            assert all(np.array_equal(one, other) for one, other in zip(got, sent)), (count, length)
            assert all(np.array_equal(one, other) for one, other in zip(kept, sent)), (count, length)
            # With memory for one of them, the first one is there.
            kept = [np.zeros(length, "float32")]
            got = group.recv_obj_into(kept, 0)
            assert all(np.array_equal(one, other) for one, other in zip(got, sent)), (count, length)
            assert np.array_equal(kept[0], sent[0]), (count, length)
        group.barrier()
    """, options="allow_pickle=True")  # fmt: skip


def test_collectives_of_objects(ranks):
    ranks(3, """
        def of(rank):
            return {"rank": rank, "data": np.full(10 + rank * 20_000, rank)}

        def same(got, rank):
            return got["rank"] == rank and (got["data"] == of(rank)["data"]).all()

        gathered = group.all_gather_obj(of(rank))
        assert len(gathered) == 3 and all(same(got, other) for other, got in enumerate(gathered))
        gathered = group.gather_obj(of(rank), root=2)
        assert (gathered is None) == (rank != 2)
        assert gathered is None or all(same(got, other) for other, got in enumerate(gathered))
        own = of(1)
        got = group.broadcast_obj(own if rank == 1 else None, root=1)
        assert same(got, 1) and (rank != 1 or got is own)
        # Arguments of other ranks are not read: this one could not be pickled.
        assert same(group.broadcast_obj(own if rank == 1 else threading.Lock(), 1), 1)
        # The array is not exported any more.
        own["data"].resize(5)
        assert same(group.sendrecv_obj(of(rank), (rank + 1) % 3, (rank - 1) % 3), (rank - 1) % 3)
        assert same(group.sendrecv_obj(of(rank), rank), rank)
        with raises(TypeError) as refused:
            group.send_obj(threading.Lock(), 0)
        assert "pickle" in str(refused.exception)
        group.barrier()
    """, options="allow_pickle=True")  # fmt: skip


def test_an_object_that_one_rank_cannot_pickle_is_an_error_of_all_and_the_next_collective_works(ranks):
    ranks(3, """
        own = threading.Lock() if rank == 1 else rank
        calls = [
            (lambda: group.all_gather_obj(own), True), (lambda: group.gather_obj(own, 2), rank == 2), (lambda: group.broadcast_obj(own, 1), True),
            (lambda: group.iall_gather_obj(own).wait(), True), (lambda: group.igather_obj(own, 2).wait(), rank == 2),
            (lambda: group.ibroadcast_obj(own, 1).wait(), True), (lambda: group.gather_obj(own, 1), False),
        ]
        for call, waits in calls:
            try:
                got = call()
                assert rank != 1 and not waits, got
            except TypeError as error:
                assert rank == 1 and "pickle" in str(error), error
            except ironrail.Mismatch as error:
                assert rank != 1 and error.rank == 1 and "cannot be encoded" in str(error), error
            assert group.all_gather_obj(rank) == [0, 1, 2]
    """, options="allow_pickle=True, timeout=10.0")  # fmt: skip


def test_a_rank_that_does_not_allow_pickles_is_named_at_once_on_all_ranks_that_call_with_it(ranks):
    ranks(3, """
        for call in [
            lambda: group.send_obj(1, 1), lambda: group.isend_obj(1, 1), lambda: group.recv_obj(1), lambda: group.irecv_obj(1),
            lambda: group.recv_obj_into(1, 1), lambda: group.sendrecv_obj(1, 1, 2), lambda: group.sendrecv_obj(1, 2, 1),
            lambda: group.object_batch().send(1, 1), lambda: group.object_batch().recv(1),
            lambda: group.broadcast_obj(1), lambda: group.ibroadcast_obj(1), lambda: group.gather_obj(1), lambda: group.igather_obj(1),
            lambda: group.all_gather_obj(1), lambda: group.iall_gather_obj(1),
        ]:
            try:
                raise SystemExit(f"{call()} was the result")
            except ironrail.InvalidArgument as error:
                assert ("rank 1" in str(error)) == (rank != 1) and "allow_pickle" in str(error), error
        # The others may, in groups of their own too.
        pair = group.split(rank % 2)
        if rank != 1:
            assert pair.all_gather_obj(rank) == [0, 2]
            assert group.sendrecv_obj(rank, 2 - rank) == 2 - rank
        group.barrier()
    """, options="allow_pickle=sys.argv[2] != '1', timeout=10.0")  # fmt: skip


def test_objects_are_sent_and_received_by_requests_and_their_collectives_begun_before_any_is_waited_for(ranks):
    ranks(3, """
        class Broken:
            def __reduce__(self):
                return eval, ("1 / 0",)

        def of(rank):
            return {"rank": rank, "data": np.full(10 + rank * 20_000, rank)}

        def same(got, rank):
            return got["rank"] == rank and (got["data"] == of(rank)["data"]).all()

        own, right, left = of(rank), (rank + 1) % 3, (rank - 1) % 3
        gathered, everyone = group.igather_obj(own, root=2), group.iall_gather_obj(own)
        broadcast = group.ibroadcast_obj(own if rank == 1 else None, root=1)
        early, coming = group.irecv_obj(left, 9), group.irecv_obj(left, 3)
        assert not early.test()
        sending = group.isend_obj(own, right, 3)
        got = coming.wait(30)
        assert same(got, left) and coming.wait() is got and coming.test()
        assert sending.wait() is None
        # A receive that was taken back takes no message.
        assert early.cancel() and early.wait() is None
        group.send_obj("nine", right, 9)
        assert group.recv_obj(left, 9) == "nine"
        assert same(broadcast.wait(), 1)
        assert all(same(one, other) for other, one in enumerate(everyone.wait()))
        found = gathered.wait()
        assert (found is None) == (rank != 2) and (found is None or all(same(one, other) for other, one in enumerate(found)))
        # A send whose request is dropped still arrives.
        group.isend_obj(of(2), right, 5)
        gc.collect()
        assert same(group.recv_obj(left, 5), 2)
        batch = group.object_batch()
        for peer in range(3):
            batch.recv(peer, 7)
        for peer in reversed(range(3)):
            batch.send({"to": peer, **own}, peer, 7)
        got = batch.execute()
        assert all(same(one, peer) and one["to"] == rank for peer, one in enumerate(got)) and len(got) == 3
        assert batch.execute() == []
        # Objects that came before and after an error are not lost with it.
        for peer, tag in (left, 1), (left, 2), (left, 3):
            batch.recv(peer, tag)
        for sent, tag in ("first", 1), (Broken(), 2), ("last", 3):
            batch.send(sent, right, tag)
        with raises(ZeroDivisionError) as failed:
            batch.execute()
        assert failed.exception.received == ["first", None, "last"]
        # A batch keeps its group.
        batch = group.split(rank, 0).object_batch()
        batch.recv(0, 1)
        batch.send("mine", 0, 1)
        batch.send("never received", 1, 1)
        with raises(ironrail.InvalidArgument) as failed:
            batch.execute()
        assert failed.exception.received == ["mine"]
        group.barrier()
    """, options="allow_pickle=True")  # fmt: skip


def test_every_number_of_an_object_is_reduced_and_another_shape_is_refused_everywhere(ranks):
    ranks(3, """
        import array, collections
        Point = collections.namedtuple("Point", "x y")

        def of(rank):
            pairs = [("loss", 0.5 * rank), ("steps", [rank, 2 * rank, True, None])]
            whole = {
                "grad": np.full((2, 3), rank, "float32"), "turned": np.arange(6).reshape(2, 3).T + rank,
                "point": Point(rank, 1.0), "scalar": np.float16(rank), "raw": array.array("i", [rank, 1]), "zero": np.array(rank),
            }
            return dict(pairs + list(whole.items()) if rank % 2 else list(whole.items()) + pairs)

        own = of(rank)
        got = group.all_reduce_obj(own)
        assert list(got) == list(own) and got["loss"] == 1.5 and got["steps"] == [3, 6, True, None]
        assert (got["grad"] == 3).all() and got["grad"].dtype == "float32" and (own["grad"] == rank).all()
        assert (got["turned"] == 3 * np.arange(6).reshape(2, 3).T + 3).all()
        assert got["point"] == Point(3, 3.0) and type(got["point"]) is Point
        assert got["scalar"] == 3 and type(got["scalar"]) is np.float16 and got["raw"].tolist() == [3, 3] and got["zero"] == 3
        assert group.all_reduce_obj((2 * rank, 1.5 * rank), "avg") == (2, 1.5)
        assert group.reduce_obj([rank], "max", root=1) == ([2] if rank == 1 else None)
        try:
            group.all_reduce_obj([1] * (1 + rank))
            raise SystemExit("another length was taken")
        except ironrail.Mismatch as error:
            assert error.rank == 1 and "shape" in str(error)
        try:
            group.all_reduce_obj({"name": "text" if rank == 1 else 1})
            raise SystemExit("a string was taken")
        except ironrail.InvalidArgument as error:
            assert rank == 1 and "object['name'] is a str" in str(error)
        except ironrail.Mismatch as error:
            assert rank != 1 and error.rank == 1
        group.barrier()
    """)  # fmt: skip


def test_a_reduced_dict_has_the_class_of_the_one_that_was_given(ranks):
    ranks(2, """
        import collections
        own = {
            "state": collections.OrderedDict([("b", 1.5), ("a", np.full(2, rank + 1))]),
            "counts": collections.Counter("xxy"),
            "found": collections.defaultdict(list, {"one": [rank]}),
        }
        for got in group.all_reduce_obj(own), group.iall_reduce_obj(own).wait():
            assert {name: type(part) for name, part in got.items()} == {name: type(part) for name, part in own.items()}, got
            assert list(got["state"]) == ["b", "a"] and got["state"]["b"] == 3 and got["state"]["a"].tolist() == [3, 3]
            assert got["counts"] == {"x": 4, "y": 2} and got["found"] == {"one": [1]} and got["found"]["other"] == []
        assert own["counts"]["x"] == 2 and own["found"] == {"one": [rank]} and own["state"]["a"].tolist() == [rank + 1] * 2
    """)  # fmt: skip


def test_an_array_that_cannot_be_reduced_is_refused_before_the_other_ranks_reduce(ranks):
    ranks(3, """
        import itertools

        class Tensor:
            # As PyTorch's, of which one cannot be copied, and one has gradients.
            dtype, shape = "float64", (3,)

            def __init__(self, at_clone=None, at_export=None):
                self.at_clone, self.at_export, self.array = at_clone, at_export, np.ones(3)

            def clone(self):
                if self.at_clone:
                    raise self.at_clone
                return self

            def contiguous(self):
                return self

            def __dlpack_device__(self):
                return 1, 0

            def __dlpack__(self, **version):
                if self.at_export:
                    raise self.at_export
                return self.array.__dlpack__(**version)

        no_copy = Tensor(at_clone=RuntimeError("no memory"))
        gradients = Tensor(at_export=BufferError("it requires gradients"))

        endless = []
        endless.append(endless)
        reductions = [
            lambda whole: group.all_reduce_obj(whole),
            lambda whole: group.reduce_obj(whole, root=2),
            lambda whole: group.iall_reduce_obj(whole).wait(),
        ]
        wrong = [
            (gradients, "object[1]['x'] gives no tensor of DLPack: it requires gradients"), (no_copy, "no memory"),
            (np.zeros(3, "datetime64[s]"), "object[1]['x'] gives no tensor"), (np.zeros(3, "complex128"), "object[1]['x'] has elements of"), (np.zeros(3, "bool"), "bool has no sum"),
            (endless, "recursion"),
        ]
        for reduce, (part, why), culprit in itertools.product(reductions, wrong, (0, 1)):
            with raises(ironrail.InvalidArgument if rank == culprit else ironrail.Mismatch) as refused:
                reduce([1.0, {"x": part if rank == culprit else Tensor()}])
            error = refused.exception
            assert why in str(error) if rank == culprit else error.rank == culprit, error
        for reduce in reductions:
            # All have the same object, which none can reduce.
            try:
                reduce([gradients])
                raise SystemExit("it was taken")
            except ironrail.InvalidArgument as error:
                assert "object[0] gives no tensor" in str(error)
        assert group.all_reduce_obj([1, np.ones(3)])[0] == 3
    """, options="timeout=5.0")  # fmt: skip


def test_reductions_of_objects_in_which_ranks_differ_are_refused_on_all_of_them(ranks):
    ranks(2, """
        class Key:
            def __repr__(self):
                return "key"

        mine = "sum" if rank == 0 else "max"
        twice = {Key(): rank, Key(): 10 * rank}
        for reduce, kind, why in [
            (lambda: group.all_reduce_obj([1], mine), ironrail.Mismatch, "object"),
            (lambda: group.reduce_obj([1], mine), ironrail.Mismatch, "object"),
            (lambda: group.reduce_obj([1], root=rank), ironrail.Mismatch, "object"),
            (lambda: group.iall_reduce_obj([1], mine).wait(), ironrail.Mismatch, "object"),
            (lambda: group.all_reduce_obj(twice), ironrail.InvalidArgument, "object has two keys that look the same"),
            (lambda: group.iall_reduce_obj(twice).wait(), ironrail.InvalidArgument, "object has two keys that look the same"),
        ]:
            try:
                raise SystemExit(f"{reduce()} was the result")
            except kind as error:
                assert why in str(error), error
        assert group.all_reduce_obj({"a": 1, "b": 2}) == {"a": 2, "b": 4}
    """, options="timeout=5.0")  # fmt: skip


def test_reductions_of_objects_begin_together_and_a_wait_raises_the_refusal(ranks):
    ranks(3, """
        import array

        def of(rank):
            return {
                "loss": 0.5 * rank, "steps": [rank, (2 * rank, None)], "zero": np.array(rank), "scalar": np.float16(rank),
                "long": np.full((300, 200), rank, "float32"), "turned": np.arange(6).reshape(2, 3).T + rank, "raw": array.array("i", [rank, 1]),
            }

        own = of(rank)
        whole, least, at_root = group.iall_reduce_obj(own), group.iall_reduce_obj([rank - 5], "min"), group.ireduce_obj((rank,), "avg", root=2)
        # Its numbers were read.
        own["long"][:], own["raw"][0] = -1, -1
        assert at_root.wait() == ((1,) if rank == 2 else None)
        assert least.wait(30) == [-5] and least.test() and least.wait() is least.wait()
        got = whole.wait()
        assert list(got) == list(own) and got["loss"] == 1.5 and got["steps"] == [3, (6, None)] and got["zero"] == 3
        assert got["scalar"] == 3 and type(got["scalar"]) is np.float16 and got["raw"].tolist() == [3, 3]
        assert (got["long"] == 3).all() and got["long"].dtype == "float32" and (got["turned"] == 3 * np.arange(6).reshape(2, 3).T + 3).all()
        assert got["long"].shape == (300, 200) and not whole.cancel()
        refused, after = group.iall_reduce_obj({"name": "text" if rank == 1 else 1}), group.iall_reduce_obj(1)
        try:
            refused.wait()
            raise SystemExit("a string was taken")
        except ironrail.InvalidArgument as error:
            assert rank == 1 and "object['name'] is a str" in str(error)
        except ironrail.Mismatch as error:
            assert rank != 1 and error.rank == 1
        assert after.wait() == 3
        for wrong in [1] * (1 + rank), {"key": 1} if rank == 1 else {"other": 1}:
            try:
                group.iall_reduce_obj(wrong).wait()
                raise SystemExit("another shape was taken")
            except ironrail.Mismatch as error:
                assert error.rank == 1 and "shape" in str(error)
        truth = np.array([rank == 1])
        assert group.iall_reduce_obj(truth, "max").wait().tolist() == [True]
        for wrong in truth, np.zeros(1, "complex128"), "text":
            refused = group.ireduce_obj(wrong, root=1)
            try:
                while not refused.test():
                    time.sleep(0)
                raise SystemExit(f"{wrong!r} was taken")
            except ironrail.InvalidArgument as error:
                assert "bool" in str(error) or "object" in str(error)
        for own in 1, "text":
            try:
                group.ireduce_obj(own, root=3)
                raise SystemExit("a rank too many was taken")
            except ironrail.InvalidArgument as error:
                assert str(error) == "there is no rank 3 among 3", error
        group.barrier()
    """)  # fmt: skip
