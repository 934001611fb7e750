"""Rows of scripts/matrix: how one is run and reported, and the parts that are an all-reduce or a test per row."""

import itertools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", "target"))
NET = str(TARGET / "release/libnccl-net-ironrail.so")
IRONRAIL = str(TARGET / "release/ironrail")
SECOND = str(Path(".cache/libfabric-2.5.1/data/lib/mpich/libfabric.so.1").absolute())
RUNTIMES = ("1.17", "2.5.1")
TWO = "127.0.0.1,127.0.0.2"
SMALL = ["-b", "8", "-e", "1M", "-f", "8"]
# What each profile requires of registration, but for addresses, and whether these are offsets (tests/vfabric/mixed.rs).
REGIONS = {
    "cxi": "endpoint,prov_key,allocated",
    "efa": "prov_key,local,allocated",
    "tcp": "none",
    "adversary": "endpoint,local",
}
# Rows at once where most of the time is waits for peers that do not answer.
AT_ONCE = 2


class Matrix:
    """Runs rows, and records whether one has failed."""

    def __init__(self, listing, folder):
        self.listing, self.folder, self.failed = listing, folder, False

    def run(self, log, settings, *command):
        """The exit code, and what it printed, which is left in `log`."""
        if self.listing:
            # In one piece, since some rows run at once.
            sys.stdout.write(shlex.join([f"{name}={value}" for name, value in settings.items()] + list(command)) + "\n")
            return 0, ""
        with open(self.folder / log, "w") as out:
            code = subprocess.run(command, env={**os.environ, **settings}, stdout=out, stderr=subprocess.STDOUT).returncode
        return code, (self.folder / log).read_text(errors="replace")

    def report(self, runtime, provider, rails, words, code, text):
        if self.listing:
            return
        head = f"{runtime:<6} {provider:<12} {rails or '-':<22} {words:<34} "
        print(head + ("ok" if code == 0 else f"FAILED, exit code {code}:"), flush=True)
        self.fail(text) if code else None

    def fail(self, text, lines=20):
        self.failed = True
        for line in text.splitlines()[-lines:]:
            print("   ", line)

    def row(self, runtime, provider, rails, **settings):
        """An all-reduce over a provider of the machine's."""
        given = {"IRONRAIL_PROVIDER": provider, "IRONRAIL_RAILS": rails, **settings, **second(runtime)}
        self.report(runtime, provider, rails, words_of(settings), *self.run("row", given, *all_reduce(*SMALL)))

    def virtual(self, runtime, profile, rails, **settings):
        """An all-reduce over the virtual fabric, whose report must have no broken rule and nothing left open."""
        given = {**on_vfabric(profile, rails), "IRONRAIL_MAX_RAILS": "16", **second(runtime), **settings}
        ran = self.reported(given, *all_reduce(*SMALL, "--threads"))
        self.report(runtime, profile, f"{rails} rails", words_of(settings), *ran)

    def reported(self, settings, *command):
        """As `run`, over the virtual fabric; a broken rule, or what is left open, is exit code 99."""
        report = self.folder / "report"
        report.unlink(missing_ok=True)
        code, text = self.run("row", {**settings, "VFABRIC_REPORT": str(report)}, *command)
        if code == 0 and not self.listing:
            said = report.read_text() if report.exists() else ""
            if "violations 0" not in said.splitlines() or re.search(r"^open [a-z]+ [1-9]", said, re.M):
                code, text = 99, text + "\n".join(re.findall(r"^(?:violation|open).*", said, re.M))
        return code, text

    def mixed(self, runtime, profile, rails, words, **settings):
        """The workload of tests/vfabric/mixed.rs, over the optimised plugin."""
        given = {"MIXED_PROFILE": profile, "MIXED_RAILS": rails, **settings, **second(runtime)}
        code, text = self.run("row", RELEASE | given, *test("vfabric", "mixed::as_configured", "--ignored", limit=3600))
        said = [] if code else re.findall(r"^mixed: (.*)", text, re.M)
        self.report(runtime, profile, f"{rails} rails", ", ".join(filter(None, [words, *said])), code, text)

    def gpus(self, runtime, profile, rails, settings):
        """Messages between host and GPU memory, each way, by a stand-in for CUDA's driver."""
        case = f"{profile} {rails}" + ("" if runtime == "1.17" else " second")
        command = test("gpu_memory", "gpu::messages_of_gpus_as_configured", "--ignored", limit=3600)
        ran = self.run("row", RELEASE | {"GPU_CASE": case, "GPU_FABRIC": settings}, *command)
        self.report(runtime, profile, f"{rails} rails", f"GPU memory, {settings}", *ran)


RELEASE = {"IRONRAIL_TEST_PROFILE": "release"}


def second(runtime):
    return {} if runtime == "1.17" else {"IRONRAIL_LIBFABRIC": SECOND}


def words_of(settings):
    return " ".join(f"{name}={value}" for name, value in settings.items())


def all_reduce(*arguments):
    return ["timeout", "300", IRONRAIL, "perf", "all_reduce", *"--ranks 2 -n 3 -w 1 -c 1 --net".split(), NET, *arguments]


def test(name, case, *arguments, limit=None):
    bound = ["timeout", str(limit)] if limit else []
    return [*bound, "cargo", "test", "--quiet", "--test", name, case, "--", *arguments, "--nocapture"]


def on_vfabric(profile, nics):
    names = ",".join(f"vnic{nic}" for nic in range(nics))
    folder = str((TARGET / "release").resolve())
    return {"FI_PROVIDER_PATH": folder, "FI_PROVIDER": "vfabric", "VFABRIC_PROFILE": profile, "VFABRIC_NICS": str(nics), "IRONRAIL_RAILS": names}


def real(m):
    for settings in {}, {"IRONRAIL_FORCE_FIN": "1"}, {"IRONRAIL_BASIC_REGIONS": "1"}:
        m.row("1.17", "net", "127.0.0.1", **settings)
        for runtime, provider in ("1.17", "net"), ("1.17", "tcp;ofi_rxm"), ("2.5.1", "tcp"), ("2.5.1", "tcp;ofi_rxm"):
            m.row(runtime, provider, TWO, **settings)
    m.row("1.17", "sockets", TWO)
    for runtime in RUNTIMES:
        m.row(runtime, "shm", "")


def vfabric(m):
    both = ("0", "1")
    for runtime, (profile, regions) in itertools.product(RUNTIMES, REGIONS.items()):
        addressed = "virt_addr" if regions == "none" else f"{regions},virt_addr"
        for rails, form, immediates in itertools.product((1, 2, 3, 4, 8), (regions, addressed), both):
            m.virtual(runtime, profile, rails, VFABRIC_REGIONS=form, VFABRIC_IMMEDIATES=immediates)
        # Over efa of 1.17 GPU memory goes through the host.
        by_nic = (runtime, profile) != ("1.17", "efa")
        for rails, immediates in itertools.product((1, 3, 8) if by_nic else (), both):
            m.gpus(runtime, profile, rails, f"immediates={immediates} eagain=50")
        for rails, immediates in itertools.product(("4/2", "1/3", "8/1"), both):
            settings = {"VFABRIC_IMMEDIATES": immediates}
            m.mixed(runtime, profile, rails, words_of(settings), **settings, MIXED_SEEDS="20", MIXED_EAGAIN="50")
        m.virtual(runtime, profile, 4, VFABRIC_CLOCK="virtual", VFABRIC_BANDWIDTH="100000,100000,10000,50000")
    # Bound to endpoints or not, our keys and the user's, on one profile.
    for form in "endpoint,virt_addr,local", "endpoint,virt_addr,prov_key", "virt_addr,prov_key,local", "virt_addr", "none":
        m.virtual("1.17", "cxi", 4, VFABRIC_REGIONS=form)


def posts(m):
    """Every post is refused once, until a run ends before the post that was to be refused."""
    for profile in REGIONS:
        m.mixed("1.17", profile, "2", "", MIXED_POSTS="1", MIXED_EAGAIN="0")


def positions(m):
    """A rail is lost at every operation, one at a time."""
    command = ["cargo", "test", "--quiet", "--test", "vfabric", "rails::"]
    if m.listing:
        return print("IRONRAIL_TEST_EVERY_POSITION=1", *command)
    m.failed |= subprocess.run(command, env={**os.environ, "IRONRAIL_TEST_EVERY_POSITION": "1"}).returncode != 0


def seeds(m, count):
    """Dealt to profiles and rails; each process takes many."""
    spread = ("1", "2", "4", "4/2", "3/8")
    each = -(-count // (len(REGIONS) * len(spread)))
    for profile, (place, rails) in itertools.product(REGIONS, enumerate(spread)):
        first = 1 + place * each
        m.mixed("1.17", profile, rails, f"from {first}", MIXED_EAGAIN="300", MIXED_SEEDS=str(each), MIXED_FIRST=str(first))


def programs(m, count):
    """Random programs of the group library, other ones in each row."""
    command = ["cargo", "test", "--quiet", "-p", "ironrail-group", "--test", "programs", "--", "--nocapture"]
    firsts = itertools.count(int(os.environ.get("GROUP_FIRST", "1000")), count)

    def given(first, number, **settings):
        numbers = {"GROUP_FIRST": str(first), "GROUP_PROGRAMS": str(number)}
        return numbers | {"IRONRAIL_GROUP_TEST_NET": str(Path(NET).absolute()), **settings}

    over = [("1.17", "net", rails) for rails in ("127.0.0.1", TWO)]
    over += [("2.5.1", "tcp", rails) for rails in ("127.0.0.1", TWO)]
    over += [("1.17", "tcp;ofi_rxm", TWO), ("1.17", "sockets", TWO), ("1.17", "shm", "")]
    for (runtime, provider, rails), first in zip(over, firsts):
        settings = given(first, count, IRONRAIL_PROVIDER=provider, IRONRAIL_RAILS=rails, **second(runtime))
        m.report(runtime, provider, rails, f"from program {first}", *m.run("row", settings, *command))
    for (profile, refused), first in zip(itertools.product((*REGIONS, "messages"), ("0", "200")), firsts):
        settings = given(first, count, **on_vfabric(profile, 2), VFABRIC_EAGAIN=refused)
        m.report("1.17", profile, "2 rails", f"from program {first} VFABRIC_EAGAIN={refused}", *m.reported(settings, *command))
    # Where regions are bound to endpoints, a NIC on which writes hang for ever fails the channel.
    losses = [(profile, "kill") for profile in REGIONS] + [(profile, "stall") for profile in ("efa", "tcp")]
    for ((profile, loss), nic), first in zip(itertools.product(losses, (0, 1)), firsts):
        words = f"from program {first} {loss}={nic}"
        # A process for each, since the NIC stays lost.
        for program in range(first, first + max(count // 5, 1)):
            faults = f"{loss}={nic}@{LOST_FROM + program * 379 % LOST_WITHIN}"
            settings = given(program, 1, **on_vfabric(profile, 3), VFABRIC_FAULTS=faults)
            code, text = m.run("row", settings, *command)
            if code:
                words = f"program {program} {faults}"
                break
        m.report("1.17", profile, "3 rails", words, code, text)


# The posts of a program at which a NIC is lost: after those of set-up, before which a device with a lost NIC does not open.
LOST_FROM, LOST_WITHIN = 900, 3000
