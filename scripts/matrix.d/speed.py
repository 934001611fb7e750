"""The part `speed` of scripts/matrix: the plugin against bare libfabric on one rail, each ratio beside its bound."""

import itertools
import os
import re
import subprocess
import sys

from rows import IRONRAIL, NET, SECOND


def run(m, pairs):
    """Each row runs in a network namespace of its own with reno, where that is permitted, since BBR paces every run otherwise
    (docs/benchmarks.md); before other processes; and each rank on a CPU of its own."""
    alone, heading = [], None
    for prefix, without in (
        (["scripts/apart"], "no network namespace with reno: on this machine's own loopback"),
        (["chrt", "-r", "50"], "no real-time priority"),
    ):
        tried = subprocess.run([*prefix, "true"], capture_output=True, text=True)
        if tried.returncode == 0:
            alone += prefix
        else:
            print(f"matrix: {without} ({tried.stderr.strip()})", file=sys.stderr)
    # Which two of a virtual machine's CPUs, and which of them sends, changes a figure by a third.
    cpus = os.environ.get("SPEED_CPUS") or ",".join(map(str, sorted(os.sched_getaffinity(0))[-2:]))
    print(f"matrix: ranks on CPUs {cpus}", file=sys.stderr)

    def versus(provider, bound, words, *arguments):
        """The row that `ironrail perf versus-raw` prints, what it says where it refuses a verdict, and its head unless the last row had the
        same. A provider is followed by `@2` where the second libfabric runs it."""
        nonlocal heading
        name, at, _ = provider.partition("@")
        command = [*alone, "timeout", "900", IRONRAIL, "perf", "versus-raw", "--net", NET, "--provider", name]
        command += ["--libfabric", SECOND] if at else []
        command += ["--cpus", cpus, "--precision", os.environ.get("SPEED_PRECISION", "10"), "--bound", bound.split()[1]]
        code, text = m.run("row", {}, *command, "--runs", str(pairs), *" ".join(arguments).split())
        if m.listing:
            return
        rows = re.findall(r"^ *[0-9].*", text, re.M)
        if code or not rows:
            print(f"{provider:<12} {words:<36} FAILED:")
            return m.fail(text)
        # The columns begin behind the provider and the words. The provider is in each row, so the head is one for both.
        head = re.findall(r"^# (?:plugin|TCP).*", text, re.M) + [f"#{'':50}{line}   bound" for line in re.findall(r"^#( *size .*)", text, re.M)]
        if head != heading:
            heading = head
            print(*head, sep="\n")
        print(f"{provider:<12} {words:<36} {chr(10).join(rows)}   {bound}", flush=True)
        for why in re.findall(r"^# \d* bytes, no verdict: (.*)", text, re.M):
            print("    no verdict:", why)

    providers = ("net", "tcp@2", "tcp;ofi_rxm")
    # NCCL's small collectives post one receive at a time: then each message waits for what announces its receive.
    for provider in providers:
        for size in "8", "4K":
            versus(provider, "<= 1.5", "half trip, 1 posted, two-sided", f"--latency --two-sided -b {size} -e {size} -n 5000")
        versus(provider, "<= 1.15", "half trip, 1 posted, rendezvous", "--latency --rendezvous -b 64K -e 64K -n 2000")
        for size, count in ("8", 5000), ("4K", 5000), ("64K", 2000):
            versus(provider, "<= 1.15", "half trip, 8 ahead, writes", f"--latency --ahead 8 -b {size} -e {size} -n {count}")
        versus(provider, "<= 1.45", "half trip, 8 ahead, adverts alone", "--latency --ahead 8 --batch 1 -b 8 -e 8 -n 5000")
    # Bare writes are gone when a socket has them, and that takes megabytes; answered ones keep to the window, as the plugin's do.
    for provider, (size, count), factor in itertools.product(providers, (("64K", 8000), ("512K", 1000), ("4M", 150)), (1, 2)):
        words = f"window 8, receives {factor}x, answered"
        versus(provider, ">= 0.95", words, f"--window 8 --answered --recv-factor {factor} -b {size} -e {size} -n {count}")
    for provider in providers:
        versus(provider, ">= 1.5", "window 32, messages", "--rate --window 32 -b 8 -e 8 -n 100000")
        versus(provider, ">= 0.95", "window 32, two-sided", "--two-sided --window 32 -b 4K -e 4K -n 30000")
