"""What the tests share: ranks as processes of their own over loopback."""

import os
import pathlib
import shutil
import socket
import subprocess
import sys
import textwrap

import pytest

ROOT = pathlib.Path(os.environ["IRONRAIL_TEST_ROOT"])
# Only processes that never end take so long.
HANGS = 45


def _has_libfabric():
    import ctypes

    try:
        ctypes.CDLL("libfabric.so.1")
    except OSError:
        return False
    return True


@pytest.fixture(scope="session")
def net(tmp_path_factory):
    """The wheel's plugin, or the C plugin of the group library's tests where there is no libfabric."""
    if _has_libfabric():
        return None
    file = tmp_path_factory.mktemp("net") / "libnccl-net-loopback.so"
    source = ROOT / "crates/group/tests/plugins/loopback.c"
    compiler = os.environ.get("CC") or shutil.which("cc")
    options = ["-std=gnu11", "-O2", "-shared", "-fPIC"]
    subprocess.run([compiler, *options, "-o", file, source, "-lpthread", "-ldl"], check=True)
    return file


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def ranks(net, tmp_path):
    """Runs a program once per rank, with `group`, `np` and `raises` there: what each has printed, or the codes too."""
    started = []

    def run(size, program, *, codes=None, options=""):
        file = tmp_path / "program.py"
        head = f"""\
            import sys, time, gc, threading, unittest
            import numpy as np
            import ironrail
            net = {net and str(net)!r}
            group = ironrail.init(sys.argv[1], int(sys.argv[2]), {size}, net=net, {options})
            rank, size = group.rank, group.size
            raises = unittest.TestCase().assertRaises
            """
        file.write_text(textwrap.dedent(head) + textwrap.dedent(program))
        at = f"127.0.0.1:{free_port()}"
        variables = os.environ | {"IRONRAIL_RAILS": "127.0.0.1"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        for rank in range(size):
            command = [sys.executable, "-B", str(file), at, str(rank)]
            started.append(subprocess.Popen(command, env=variables, cwd=tmp_path, **pipes))
        outputs = [process.communicate(timeout=HANGS) for process in started]
        found = [process.returncode for process in started]
        assert found == (codes or [0] * size), "\n".join(f"{out}{errors}" for out, errors in outputs)
        return [out for out, _ in outputs]

    yield run
    for process in started:
        process.kill()
        process.wait()
