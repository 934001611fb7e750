"""What counts as an array, and what is refused before anything moves."""


def test_arguments_that_cannot_be_moved_are_refused_in_a_sentence_and_the_group_goes_on(ranks):
    ranks(2, """
        import ctypes

        def refused(why, call, *arguments):
            try:
                call(*arguments)
            except ironrail.InvalidArgument as error:
                assert why in str(error), error
                assert isinstance(error, ValueError) and isinstance(error, ironrail.Error)
            else:
                raise AssertionError(why)

        ones, four = np.ones(4, "float32"), np.zeros(4, "float32")
        fixed = np.ones(4)
        fixed.flags.writeable = False
        refused("data is not C-contiguous (strides [8])", group.all_reduce, np.ones(8, "float32")[::2])
        refused("data is not C-contiguous", group.all_reduce, np.ones((4, 4)).T)
        refused("data is read-only", group.all_reduce, fixed)
        refused("data is read-only", group.recv, b"four")
        refused('elements of format "Zd"', group.all_reduce, np.ones(4, "complex128"))
        refused('elements of format ">f"', group.all_reduce, np.ones(4, ">f4"))
        refused("data is a list, which has neither", group.all_reduce, [1.0, 2.0])
        refused("data is a c_int without dimensions", group.all_reduce, ctypes.c_int(1))
        refused("complex128", group.send, np.complex128(1), 1 - rank)
        refused("data is read-only", group.all_reduce, np.float32(1))
        refused("data gives no tensor", group.all_reduce, np.zeros(4, "datetime64[s]"))
        refused("not aligned", group.all_reduce, np.zeros(33, "uint8")[1:].view("float32"))
        refused("one array is of float32, the other of float64", group.all_reduce, ones, "sum", np.zeros(4))
        refused("share memory", group.all_reduce, ones, "sum", ones)
        refused("share memory", group.all_gather, ones[:2], ones)
        refused("none of sum, prod, min, max, avg", group.all_reduce, ones, "xor")
        refused("bool has no sum", group.all_reduce, np.ones(4, "bool"))
        refused("complex64 have no max", group.all_reduce, np.ones(4, "complex64"), "max")
        refused("2 blocks of 4 elements are not 4", group.all_gather, ones, four)
        refused("there is no rank 2 among 2", group.send, ones, 2)
        refused("cannot be divided evenly", group.all_to_all, ones[:3], four[:3])
        refused("give both sends and receives, or neither", group.all_to_all, ones, four, [2, 2])
        refused("which can run any code", group.send_obj, {}, 1 - rank)
        refused("which can run any code", group.recv_obj)
        assert (ones == 1).all() and (four == 0).all()
        group.all_reduce(ones)
        assert (ones == 2).all()
    """)  # fmt: skip


def test_objects_with_the_buffer_protocol_are_moved_in_place(ranks):
    ranks(2, """
        import array, ctypes
        text = bytearray(b"abcd") if rank == 0 else bytearray(4)
        group.broadcast(text)
        assert text == b"abcd"
        numbers = array.array("d", [1.5, 2.5])
        group.all_reduce(numbers)
        assert list(numbers) == [3.0, 5.0]
        view = memoryview(bytearray(8)).cast("i")
        group.all_gather(array.array("i", [rank + 5]), view)
        assert list(view) == [5, 6]
        # Scalars are arrays without dimensions.
        got = np.zeros(2, "float32")
        group.all_gather(np.float32(rank + 5), got)
        assert got.tolist() == [5, 6]
        # Without strides.
        whole = (ctypes.c_int * 2)()
        group.all_gather((ctypes.c_int * 1)(rank + 5), whole)
        assert list(whole) == [5, 6]
        if rank == 0:
            group.send(b"bytes", 1)
        else:
            into = bytearray(9)
            assert group.recv(into, 0).count == 5 and into == b"bytes" + bytes(4)
        number, none, truth = np.array(3.0), np.zeros(0), np.array([rank == 0, True])
        group.all_reduce(number)
        group.all_reduce(none)
        group.all_reduce(truth, "min")
        assert number == 6 and list(truth) == [False, True]
        rows = np.zeros((3, 4))
        rows[1] = rank
        group.all_reduce(rows[1])
        assert rows.sum() == 4 and (rows[1] == 1).all()
        wave = np.full(5, rank + 1, "float32")[1:].view("complex64")
        assert wave.flags.aligned and wave.ctypes.data % 8 == 4, "as its parts are"
        group.all_reduce(wave)
        assert (wave == 3 + 3j).all()
        sends, receives = [1, 2 + rank], [1, 1] if rank == 0 else [2, 3]
        out = np.zeros(sum(receives), "int64")
        group.all_to_all(np.arange(3 + rank) + 10 * rank, out, sends, receives)
        assert list(out) == ([0, 10] if rank == 0 else [1, 2, 11, 12, 13])
    """)  # fmt: skip


def test_tensors_with_dlpack_alone_are_moved_in_place(ranks):
    ranks(2, """
        class Tensor:
            def __init__(self, array, versions=True, device=1):
                self.array, self.versions, self.device = array, versions, device

            def __dlpack_device__(self):
                return self.device, 0

            def __dlpack__(self, **version):
                if version and not self.versions:
                    raise TypeError("no such argument")
                return self.array.__dlpack__(**version)

        for versions in True, False:
            for kind in "int8", "uint16", "int64", "float16", "float32", "float64", "complex64":
                data = np.full((2, 3), rank + 1, kind)
                before = sys.getrefcount(data)
                group.all_reduce(Tensor(data, versions))
                assert (data == 3).all(), (kind, data)
                assert sys.getrefcount(data) == before, "the tensor was let go of"
        part = np.zeros(8)
        group.all_gather(Tensor(np.full(2, rank + 1.0)), Tensor(part[2:6]))
        assert list(part) == [0, 0, 1, 1, 2, 2, 0, 0], "an offset counts"
        fixed = np.ones(2)
        fixed.flags.writeable = False
        for tensor, why in [
            (Tensor(np.ones(4), device=2), "lies on a device"),
            (Tensor(np.ones(4)[::2]), "not C-contiguous"),
            (Tensor(fixed), "read-only"),
            (Tensor(np.ones(4, "complex128")), "DLPack's complex128"),
        ]:
            try:
                group.all_reduce(tensor)
            except ironrail.InvalidArgument as error:
                assert why in str(error), error
            else:
                raise AssertionError(why)
        group.barrier()
    """)  # fmt: skip


def test_an_error_of_a_dlpack_producer_is_an_invalid_argument(ranks):
    ranks(1, """
        class Tensor:
            def __init__(self, error, of_device=None):
                self.error, self.of_device = error, of_device

            def __dlpack_device__(self):
                if self.of_device:
                    raise self.of_device
                return 1, 0

            def __dlpack__(self, **_):
                raise self.error

        given = BufferError("it requires gradients")
        for tensor in Tensor(given), Tensor(TypeError("it requires gradients")), Tensor(given, RuntimeError("it requires gradients")):
            try:
                group.all_reduce(tensor)
            except ironrail.InvalidArgument as error:
                assert "data gives no tensor" in str(error) and "it requires gradients" in str(error)
                assert isinstance(error.__cause__, (BufferError, TypeError, RuntimeError))
            else:
                assert False, tensor
        with raises(KeyboardInterrupt):
            group.all_reduce(Tensor(KeyboardInterrupt()))
    """)  # fmt: skip


# NumPy's own capsules point at the first element of memory that there is; other packages' may point at the start of the memory and say how
# far it is, and strides of 0 make any number of elements of a single one.
CAPSULE = """
        import ctypes

        class Described(ctypes.Structure):
            _fields_ = [
                ("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("dimensions", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64),
            ]

        class Managed(ctypes.Structure):
            _fields_ = [("tensor", Described), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]

        class Capsule:
            def __init__(self, array, skip, *shape):
                self.array, self.shape = array, (ctypes.c_int64 * len(shape))(*shape)
                device = (ctypes.c_int32 * 2)(1, 0)
                bytes = skip * array.itemsize
                self.managed = Managed(Described(array.ctypes.data, device, len(shape), 2, 64, 1, self.shape, None, bytes))

            def __dlpack_device__(self):
                return (1, 0)

            def __dlpack__(self, **_):
                new = ctypes.pythonapi.PyCapsule_New
                new.restype = ctypes.py_object
                new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
                return new(ctypes.addressof(self.managed), NAME, None)

        NAME = b"dltensor"
"""


def test_the_byte_offset_of_a_dlpack_tensor_counts(ranks):
    ranks(2, CAPSULE + """
        data = np.arange(6.0)
        group.all_reduce(Capsule(data, 2, 3))
        assert list(data) == [0, 1, 4, 6, 8, 5], data
    """)  # fmt: skip


def test_a_dlpack_shape_that_no_memory_has_room_for_is_refused(ranks):
    ranks(1, CAPSULE + """
        for shape in (2**32, 2**32), (2**62, 2**62, 1), (2**61,), (-1,), (2, -3):
            with raises(ironrail.InvalidArgument) as error:
                group.all_reduce(Capsule(np.ones(1), 0, *shape))
            assert "a shape that no memory has room for" in str(error.exception), error.exception
    """)  # fmt: skip


def test_bfloat16_of_other_packages_is_added_as_such(ranks):
    ranks(2, """
        class Bfloat16:
            def __init__(self, words):
                self.words, self.dtype = words, type("dtype", (), {"name": "bfloat16"})

            def view(self, kind):
                return self.words.view(kind)

        words = np.array([0x3F80, 0x4040], "uint16")  # 1.0 and 3.0
        group.all_reduce(Bfloat16(words))
        assert list(words) == [0x4000, 0x40C0], "2.0 and 6.0"
    """)  # fmt: skip


def test_arrays_in_registered_memory_are_moved_and_outlive_what_they_were_made_of(ranks):
    ranks(2, """
        memory = group.memory(4 << 20)
        assert len(memory) == 4 << 20
        data = np.frombuffer(memory, "float32")
        out = np.frombuffer(group.memory(4 << 20), "float32")
        assert (data == 0).all()
        data[:] = rank + 1
        del memory
        gc.collect()
        group.all_reduce(data, "sum", out)
        assert (out == 3).all() and (data == rank + 1).all()
        request = group.isend(data, 1 - rank)
        del data
        group.recv(out)
        request.wait()
        assert (out == 2 - rank).all()
        group.close()
        out += 1
        assert (out == 3 - rank).all()
    """)  # fmt: skip
