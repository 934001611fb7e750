"""The part `conform` of scripts/matrix: NCCL's contract, by every table and provider; the counts as a table at its end."""

import itertools
import os
import re
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

from rows import AT_ONCE, IRONRAIL, NET, REGIONS, RUNTIMES, on_vfabric, second

# Behaviours that only plugins which take the memory of a GPU have.
GPUS = (
    "gpu-memory-registers,gpu-dmabuf-registers,gpu-memory-carries-messages,gpu-memory-in-groups,gpu-flush-makes-visible,"
    "gpu-buffer-on-many-comms,gpu-address-used-again,gpu-deregister-in-flight"
)
LARGE = "register-two-gib,message-of-a-gib"


def run(m):
    tables, counts = range(6, 13), {}

    def contract(row, table, arguments, settings):
        """Behaviours that need a GPU, two devices or global regions may be skipped."""
        name, begun = f"{row},v{table}", monotonic()
        # Selected by name, they get the driver that stands in for CUDA's.
        skipped = "properties-ports-differ,hints-are-taken,ll128-flag-comes-after-its-data" + ("" if "--only" in arguments else f",{GPUS}")
        # By v8 no region is global: NCCL 2.21 and 2.22 would register buffers twice.
        skipped += ",properties-global-regions-are-global" if table == 8 else ""
        rules = m.folder / f"{name}.rules"
        rules.mkdir()
        # Each process that opens the virtual fabric reports the rules that it broke.
        command = f"timeout 1800 {IRONRAIL} conform --net {NET} --no-skip --timeout 60 --except {skipped}".split()
        code, text = m.run(f"{name}.log", {"VFABRIC_REPORT": f"{rules}/%p", **settings}, *command, *arguments)
        if m.listing:
            return
        broken = [line for file in rules.iterdir() for line in file.read_text().splitlines() if line.startswith("violation ")]
        last = (text.splitlines() or ["nothing was printed"])[-1]
        counts[row, table] = re.sub(r"(\d+) passed, (\d+) failed, (\d+) skipped", r"\1/\2/\3", last)
        print(f"{name:<28} {last}, {monotonic() - begun:.0f} s", flush=True)
        if code or broken:
            m.fail("\n".join(sorted(broken) + [line for line in text.splitlines() if not line.startswith("pass")]), lines=10**6)

    software, rows = {"net": [LARGE, "memory-is-flat"], "tcp;ofi_rxm": [LARGE], "sockets": [LARGE], "shm": [LARGE, "memory-is-flat", "death-under-load-is-reported"]}, []
    # Memory that net and shm keep, and that no call frees; over shm, writes to a dead process never end (docs/testing.md).
    for (provider, lacking), table in itertools.product(software.items(), tables):
        settings = {"IRONRAIL_PROVIDER": provider, "IRONRAIL_RAILS": "" if provider == "shm" else "127.0.0.1", "IRONRAIL_PEER_TIMEOUT_MS": "4000"}
        rows.append((provider, table, ["--abi", str(table), "--death", "30", "--except", ",".join(lacking)], settings))
    for profile in REGIONS:
        # The provider remembers closed connections, to recognise duplicates; of two ranks in one process neither ends.
        lacking = [LARGE, "memory-is-flat", "exit-right-after-the-last-send"]
        # Where bytes land in no order NCCL is kept from LL.
        lacking += [] if profile == "tcp" else ["ll-flag-comes-with-its-data"]
        # Regions that are bound to endpoints are not global.
        lacking += ["properties-global-regions-are-global"] if profile in ("cxi", "adversary") else []
        for table in 8, 12:
            rows.append((f"vfabric {profile}", table, ["--threads", "--abi", str(table), "--except", ",".join(lacking)], on_vfabric(profile, 2)))
    # What is about GPUs, with the driver without a GPU (docs/testing.md). 1.17 has no dmabufs, nor do two profiles.
    driver = m.folder / "driver"
    driver.mkdir()
    library = ["-o", f"{driver}/libcuda.so.1", "crates/gpu/tests/support/cuda.c", "-lpthread", "-ldl"]
    m.failed |= m.run("cc", {}, "cc", *"-std=gnu11 -O2 -shared -fPIC -Wl,-soname,libcuda.so.1".split(), *library)[0] != 0
    path = ":".join(filter(None, [str(driver), os.environ.get("LD_LIBRARY_PATH")]))
    for profile, runtime, table in itertools.product(REGIONS, RUNTIMES, tables):
        if (profile, runtime) == ("efa", "1.17"):
            # GPU memory goes through the host.
            continue
        has_dmabufs = runtime != "1.17" and profile not in ("tcp", "adversary")
        only = GPUS if has_dmabufs else GPUS.replace("gpu-dmabuf-registers,", "")
        settings = {"LD_LIBRARY_PATH": path, **on_vfabric(profile, 2), "VFABRIC_HMEM": "1", **second(runtime)}
        rows.append((f"gpus {profile} {runtime}", table, ["--threads", "--abi", str(table), "--only", only], settings))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda row: contract(*row), rows))
    contract("gigabytes", 12, ["--large", "--only", LARGE], {"IRONRAIL_PROVIDER": "net", "IRONRAIL_RAILS": "127.0.0.1"})
    if not m.listing:
        print(f"{'passed/failed/skipped':<21}" + "".join(f"{f'v{table}':>10}" for table in tables))
        for row in dict.fromkeys([row[0] for row in rows] + ["gigabytes"]):
            print(f"{row:<21}" + "".join(f"{counts.get((row, table), ''):>10}" for table in tables))
