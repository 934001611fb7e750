"""What the wheel carries, how ranks find each other, and the examples."""

import ast
import inspect
import os
import pathlib
import re
import subprocess
import sys

import ironrail
import pytest
from conftest import HANGS, ROOT, free_port

EXAMPLES = ROOT / "crates/python/examples"


def run_all(commands, variables, folder):
    """Runs processes at once: their outputs, all of which end well."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    clean["IRONRAIL_RAILS"] = "127.0.0.1"
    started = [
        subprocess.Popen(command, env=clean | own, cwd=folder, **pipes) for command, own in zip(commands, variables)
    ]
    try:
        outputs = [process.communicate(timeout=HANGS) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * len(started), outputs
    return [out for out, _ in outputs]


def by_torchrun(size, command, folder):
    at = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(size)}
    return run_all([command] * size, [at | {"RANK": str(rank)} for rank in range(size)], folder)


def test_the_package_carries_the_plugin_and_says_where():
    said = subprocess.run([sys.executable, "-m", "ironrail", "--path"], check=True, capture_output=True, text=True)
    folder = pathlib.Path(said.stdout.strip())
    assert str(folder) == ironrail.path()
    content = (folder / "libnccl-net-ironrail.so").read_bytes()
    assert content.startswith(b"\x7fELF") and b"ncclNetPlugin_v8" in content
    assert [file.name for file in folder.iterdir()] == ["libnccl-net-ironrail.so"], "a loader finds nothing else there"


def test_the_package_carries_the_licences_of_what_is_linked_into_it():
    folder = pathlib.Path(ironrail.__file__).parent / "licences"
    assert sorted(file.name for file in folder.iterdir()) == ["LICENSE", "NOTICE", "THIRD-PARTY"]
    texts = (folder / "THIRD-PARTY").read_text()
    for name in "env_logger", "libc", "log", "postcard", "pyo3":
        assert re.search(rf"^{name} \d", texts, re.MULTILINE), name


def test_the_stubs_have_what_the_package_has_and_all_of_it_is_documented():
    folder = pathlib.Path(ironrail.__file__).parent
    assert (folder / "py.typed").exists()
    stubs = {}
    for node in ast.parse((folder / "__init__.pyi").read_text()).body:
        if isinstance(node, ast.ClassDef):
            stubs[node.name] = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
        elif isinstance(node, ast.FunctionDef):
            stubs[node.name] = set()
    assert set(ironrail.__all__) == {name for name in stubs if not name.startswith("_")}
    for name in ironrail.__all__:
        assert getattr(ironrail, name).__doc__, name
    for name in "Group", "Request", "ObjectBatch", "Received", "Coming", "Exchange", "Halo1d", "FixedHalo1d":
        owner = getattr(ironrail, name)
        members = {member for member in vars(owner) if not member.startswith("_")}
        assert members == {member for member in stubs[name] if not member.startswith("_")}, name
        if name not in ("Received", "Coming"):
            assert all(getattr(owner, member).__doc__ for member in members), name


def arguments_of_stub(node):
    """Names of a function's arguments and their defaults, as the stubs say them."""
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    defaults = [None] * (len(node.args.args) - len(node.args.defaults)) + node.args.defaults + node.args.kw_defaults
    named = [(one.arg, ast.literal_eval(default) if default else inspect.Parameter.empty) for one, default in zip(every, defaults)]
    return [one for one in named if one[0] != "self"]


def test_the_stubs_have_the_arguments_that_calls_take():
    calls = {}
    for node in ast.parse((pathlib.Path(ironrail.__file__).parent / "__init__.pyi").read_text()).body:
        if isinstance(node, ast.FunctionDef):
            calls[node.name] = (getattr(ironrail, node.name), node)
        elif isinstance(node, ast.ClassDef) and hasattr(ironrail, node.name):
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and not item.decorator_list and not item.name.startswith("_"):
                    calls[f"{node.name}.{item.name}"] = (getattr(getattr(ironrail, node.name), item.name), item)
    assert len(calls) > 50
    for name, (call, node) in calls.items():
        taken = inspect.signature(call).parameters.values()
        taken = [(one.name, one.default) for one in taken if one.name != "self"]
        assert taken == arguments_of_stub(node), name


def test_init_says_what_is_missing(tmp_path):
    for arguments, why in [
        ("", "no variable says which rank this is"),
        ("'127.0.0.1:1', rank=0", "give all of coordinator, rank and size, or none"),
        ("'127.0.0.1:1', 2, 2", "rank is 2, and by size there are 2 ranks"),
        ("'127.0.0.1:1', 0, 0", "size is 0, and a group has 1 to 1024 ranks"),
        ("'nowhere', 0, 2", "coordinator is \"nowhere\", which is no address with a port"),
        ("'127.0.0.1:1', 0, 2, timeout=-1.0", "no number of seconds"),
        (f"'127.0.0.1:{free_port()}', 0, 1, net='/no/such/plugin'", "cannot be opened"),
    ]:
        program = f"import ironrail\ntry: ironrail.init({arguments})\nexcept ironrail.Error as error: print(error)"
        (said,) = run_all([[sys.executable, "-c", program]], [{}], tmp_path)
        assert why in said, said


def test_an_interrupt_ends_the_wait_for_other_ranks(net, tmp_path):
    program = (
        "import ironrail, os, signal, threading\n"
        "threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        f"try: ironrail.init('127.0.0.1:{free_port()}', 0, 2, net={net and str(net)!r})\n"
        "except KeyboardInterrupt: print('interrupted')"
    )
    (said,) = run_all([[sys.executable, "-c", program]], [{}], tmp_path)
    assert said == "interrupted\n"


@pytest.mark.parametrize("rank", [0, 1])
def test_an_interrupt_of_init_leaves_no_thread_and_no_listener_behind(net, tmp_path, rank):
    port = free_port()
    program = f"""
import os, pathlib, signal, socket, threading, time, ironrail

def joining():
    for task in pathlib.Path("/proc/self/task").iterdir():
        try:
            yield (task / "comm").read_text().strip()
        except OSError:
            pass

def await_that(reached):
    end = time.monotonic() + 30
    while not reached(set(joining())):
        assert time.monotonic() < end, set(joining())
        time.sleep(0.01)

def interrupt():
    await_that(lambda there: "join" in there)
    os.kill(os.getpid(), signal.SIGINT)

interrupter = threading.Thread(target=interrupt)
try:
    interrupter.start()
    ironrail.init("127.0.0.1:{port}", {rank}, 2, net={net and str(net)!r})
except KeyboardInterrupt:
    interrupter.join()
await_that(lambda there: not there & {{"join", "hub", "mail"}})
try:
    socket.create_connection(("127.0.0.1", {port}))
except ConnectionRefusedError:
    print("nothing is left")
"""
    (said,) = run_all([[sys.executable, "-c", program]], [{}], tmp_path)
    assert said == "nothing is left\n"


def test_an_interrupt_as_the_group_comes_about_waits_for_no_other_rank(net, tmp_path):
    port, *own = (free_port() for _ in range(3))
    program = f"""
import os, pathlib, signal, socket, sys, threading, time, ironrail

rank, free = int(sys.argv[1]), pathlib.Path("free")

def await_that(reached):
    end = time.monotonic() + 20
    while not reached():
        assert time.monotonic() < end, "it waits for the other rank"
        time.sleep(0.001)

def join():
    return ironrail.init("127.0.0.1:{port}", rank, 2, net={net and str(net)!r})

# The plugin is loaded.
ironrail.init(f"127.0.0.1:{{{own}[rank]}}", 0, 1, net={net and str(net)!r}).close()
if rank == 1:
    # Rank 0 looks for signals every 50 ms only, and the group comes about sooner.
    await_that(pathlib.Path("ready").exists)
    os.kill(int(pathlib.Path("ready").read_text()), signal.SIGINT)
    try:
        group = join()
    except ironrail.Error:
        pass
    await_that(free.exists)
    os._exit(0)

def listening():
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", {port})) == 0

def says():
    await_that(listening)
    pathlib.Path("said").write_text(str(os.getpid()))
    os.rename("said", "ready")

def is_free():
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", {port}))
        except OSError:
            return False
        return True

saying = threading.Thread(target=says)
try:
    saying.start()
    group = join()
except KeyboardInterrupt:
    saying.join()
    await_that(is_free)
    free.touch()
    print("free")
"""
    commands = [[sys.executable, "-c", program, str(rank)] for rank in range(2)]
    assert run_all(commands, [{}, {}], tmp_path) == ["free\n", ""]


def test_all_ranks_report_why_one_rank_cannot_join(net, tmp_path):
    for culprit in 0, 2:
        at = f"127.0.0.1:{free_port()}"
        programs = [
            f"import ironrail\ntry: ironrail.init({at!r}, {rank}, 3, net={net and str(net)!r}, device={99 if rank == culprit else None})\n"
            "except ironrail.Error as error: print(error)"
            for rank in range(3)
        ]
        commands = [[sys.executable, "-c", program] for program in programs]
        for said in run_all(commands, [{}] * 3, tmp_path):
            assert "device 99 was asked for" in said, said


def test_ranks_of_torchruns_variables_average_a_model(net, tmp_path):
    for said in by_torchrun(2, [sys.executable, EXAMPLES / "averaging.py", *([net] if net else [])], tmp_path):
        assert "y = 3.000 x + 1.000" in said, said


def test_the_heat_of_four_ranks_is_that_of_one_and_a_picture(net, tmp_path):
    pictures = []
    for size in 1, 4:
        folder = tmp_path / str(size)
        folder.mkdir()
        by_torchrun(size, [sys.executable, EXAMPLES / "heat.py", "heat.ppm", *([net] if net else [])], folder)
        pictures.append((folder / "heat.ppm").read_bytes())
    assert pictures[0] == pictures[1] and pictures[0].startswith(b"P6\n256 256\n255\n")
    assert len(set(pictures[0])) > 50, "it shows a gradient"


def test_the_heat_without_a_file_for_its_picture_says_how_it_is_used(tmp_path):
    ended = subprocess.run([sys.executable, EXAMPLES / "heat.py"], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 1 and ended.stderr.startswith("usage: ") and ended.stderr.count("\n") == 1, ended.stderr


COMMAND = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "debug/ironrail"


@pytest.mark.skipif(not COMMAND.exists(), reason="the command is not built: cargo build -p ironrail-cli")
def test_ironrail_run_starts_ranks_of_python(net, tmp_path):
    program = f"import ironrail\nwith ironrail.init(net={net and str(net)!r}) as group: group.barrier(); print(group)"
    (said,) = run_all([[COMMAND, "run", "-n", "2", "--", sys.executable, "-c", program]], [{}], tmp_path)
    lines = sorted(said.splitlines())
    assert lines == [f"[{rank}] <ironrail.Group rank {rank} of 2>" for rank in range(2)]
