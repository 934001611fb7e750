"""Runs the contenders in turns and prints the table; scripts/versus-mpi sets up what is named here.

The time of a run is the mean of its iterations, which run back to back: where a root sends without waiting for the others, a single one
says little. Of several runs the median counts, and of the ratio that of the rounds: a machine that is slow for seconds is so for all contenders of a round.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys

COLLECTIVES = [
    "all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter", "reduce_scatter", "alltoall", "barrier",
]
# Rounds of borders in a ring, which `--collectives` asks for: ours of fixed lengths beside MPI_Sendrecv twice, and beside
# MPI_Neighbor_alltoall; `any_` before it: ours of any lengths, beside these and beside MPI_Probe, with which a rank of an MPI needs no lengths either.
HALOS = {
    "halo_sendrecv": "fixed_halo", "halo_neighbor": "fixed_halo", "any_halo_sendrecv": "halo", "any_halo_neighbor": "halo", "any_halo_probe": "halo",
}
# Whose size is that of all ranks' parts together: none is smaller than one element per rank.
DEALT = {"all_gather", "gather", "scatter", "reduce_scatter", "alltoall"}
SIZES = [8 * 8**power for power in range(8)] + [64 << 20]
# From this size on a group of two must not be behind; below it within the second figure.
LARGE, SLACK = 32 << 10, 1.2
# Up to which size there are how many iterations.
ITERATIONS = [(4 << 10, 10000), (32 << 10, 5000), (1 << 20, 400), (2 << 20, 100)]
# A run that takes longer hangs. At real-time priority nothing else has the CPUs meanwhile.
LIMIT_S = 60


def iterations(size):
    """The same for all contenders. From 4 KiB on several times as many bytes as sockets buffer: else a rank that only sends would be finished
    before its receiver has begun."""
    return next((count for most, count in ITERATIONS if size <= most), 20)


class Contender:
    """One contender: its command, and the times of its runs."""

    def __init__(self, name, options):
        self.name, self.options, self.times, self.failed = name, options, {}, {}

    def run(self, ranks, collective, count, sizes):
        """One run: for each of its sizes a time is added, or None if the run fails."""
        found = dict(self.measured(ranks, collective, count, sizes))
        for size in sizes:
            self.times.setdefault((collective, size), []).append(found.get(size))

    def measured(self, ranks, collective, count, sizes):
        command, environment = self.command(ranks, collective, count, sizes)
        prefix = os.environ.get("VERSUS_PREFIX", "").split()
        try:
            ended = subprocess.run(
                prefix + command, env=os.environ | environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return self.fails(collective, sizes, f"no end within {LIMIT_S} s")
        if ended.returncode != 0:
            last = (ended.stderr or ended.stdout).strip().splitlines()[-1:] or ["nothing said"]
            return self.fails(collective, sizes, f"code {ended.returncode}: {last[0]}")
        if "WRONG" in ended.stdout:
            return self.fails(collective, sizes, "wrong data")
        found = self.parse(ended.stdout)
        # The library cuts a size down to whole elements for each rank, and a barrier has none.
        return list(zip(sizes, found)) if len(found) == len(sizes) else self.fails(collective, sizes, "no times")

    def fails(self, collective, sizes, why):
        self.failed[collective] = why
        print(f"{self.name}, {collective} of {sizes}: {why}", file=sys.stderr)
        return []

    def median(self, collective, size):
        times = [time for time in self.times[collective, size] if time is not None]
        return statistics.median(times) if times else None


class Ours(Contender):
    # MPI_Bcast has one buffer; out of place the root would copy its own data as well.
    in_place = False

    def command(self, ranks, collective, count, sizes):
        options = self.options
        self.in_place = collective == "broadcast"
        # Sizes of one run are a sequence for the command.
        factor = sizes[1] // sizes[0] if len(sizes) > 1 else 2
        command = [
            f"{options.target}/ironrail", "perf", HALOS.get(collective, collective), "-r", str(ranks), "--net",
            f"{options.target}/libnccl-net-ironrail.so", "-b", str(sizes[0]), "-e", str(sizes[-1]), "-f", str(factor),
            "-n", str(count), "-w", str(count // 10 + 5), "--json",
        ]
        if self.in_place:
            command += ["--in-place"]
        if options.tuning and collective == "all_reduce":
            command += ["--tuning", options.tuning]
        if options.cpus != "any":
            command += ["--cpus", options.cpus]
        return command, {"IRONRAIL_PROVIDER": "tcp", "IRONRAIL_RAILS": "127.0.0.1"}

    def parse(self, text):
        results = json.loads(text)["results"]
        rows = [row["in_place" if self.in_place else "out_of_place"] for row in results]
        return [] if any(row["nwrong"] for row in rows) else [row["time"] for row in rows]


class Mpi(Contender):
    def arguments(self, collective, count, sizes):
        return [f"{self.options.home}/collectives-{self.kind}", collective.removeprefix("any_"), self.options.cpus, str(count), *map(str, sizes)]

    def parse(self, text):
        return [float(found) for found in re.findall(r"^\d+ ([0-9.]+)$", text, re.MULTILINE)]


class OpenMpi(Mpi):
    kind = "openmpi"

    def command(self, ranks, collective, count, sizes):
        command = [f"{self.options.home}/openmpi/bin/mpirun", "-n", str(ranks), "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"]
        if not self.options.shared:
            command += ["--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", "mtl_ofi_provider_include", "tcp"]
            command += ["--mca", "coll", "^sm,han"]
        else:
            command += ["--mca", "pml", "ob1", "--mca", "btl", "sm,self"]
        allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return command + self.arguments(collective, count, sizes), allowed


class Mpich(Mpi):
    kind = "mpich"

    def command(self, ranks, collective, count, sizes):
        command = [f"{self.options.home}/mpich/bin/mpiexec", "-n", str(ranks)]
        without = {"MPIR_CVAR_CH4_NETMOD": "ofi", "MPIR_CVAR_NOLOCAL": "1", "FI_PROVIDER": "tcp"}
        return command + self.arguments(collective, count, sizes), {} if self.options.shared else without


def classes(ranks, collective, sizes):
    """Sizes that run together: those with as many iterations, in sequences of one factor."""
    if collective == "barrier":
        return [[8]]
    if collective in DEALT:
        sizes = sorted({max(size, 4 * ranks) for size in sizes})
    groups = []
    for size in sizes:
        last = groups[-1] if groups else []
        steady = len(last) < 2 or size * last[-2] == last[-1] * last[-1]
        if last and iterations(last[0]) == iterations(size) and steady and size % last[-1] == 0:
            last.append(size)
        else:
            groups.append([size])
    return groups


def time(us):
    return "-" if us is None else f"{us:.1f}" if us < 100 else f"{us:.0f}"


def verdict(ranks, size, ratio):
    if ratio is None:
        return "not measured"
    bound = SLACK if ranks == 2 and size < LARGE else 1.0
    return "" if ratio <= bound else f"**behind** ({bound:g})"


def to_the_faster(ours, others, row):
    """Our time to that of the MPI whose median is lower, of each round in which both have one."""
    times = [who.times[row] for who in others if who.median(*row)]
    faster = min(times, key=lambda times: statistics.median(filter(None, times)), default=[])
    return [own / other for own, other in zip(ours.times[row], faster) if own and other]


def table(options, ranks):
    contenders = [Ours("Ironrail", options), OpenMpi("OpenMPI", options), Mpich("MPICH", options)]
    how = "shared memory for the MPIs, tcp for Ironrail" if options.shared else "tcp, no shared memory"
    print(f"\n{ranks} ranks on CPUs {options.cpus}, {how}, medians of {options.rounds} runs, µs\n")
    print("| | bytes | Ironrail | OpenMPI | MPICH | to the faster | |\n|---|---|---|---|---|---|---|", flush=True)
    rows = []
    for collective in options.collectives:
        for sizes in classes(ranks, collective, options.sizes):
            for round_number in range(options.rounds):
                for place in range(len(contenders)):
                    who = contenders[(place + round_number) % len(contenders)]
                    who.run(ranks, collective, iterations(sizes[0]), sizes)
            for size in sizes:
                ours, *theirs = (who.median(collective, size) for who in contenders)
                ratios = to_the_faster(contenders[0], contenders[1:], (collective, size))
                ratio = statistics.median(ratios) if ratios else None
                shown = f"{ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else "-"
                bytes_ = "" if collective == "barrier" else size
                word = "" if options.shared else verdict(ranks, size, ratio)
                cells = [collective, bytes_, time(ours), *map(time, theirs), shown, word]
                print("| " + " | ".join(map(str, cells)) + " |", flush=True)
                runs = {who.name: who.times[collective, size] for who in contenders}
                rows.append({"ranks": ranks, "collective": collective, "bytes": size, "ratio": ratio, "us": runs})
    return rows


def main():
    numbers = lambda text: [int(number) for number in text.split(",")]
    parser = argparse.ArgumentParser()
    parser.add_argument("--home", required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--ranks", type=numbers, default=[2, 4])
    parser.add_argument("--cpus", default="0,1")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shared", action="store_true")
    parser.add_argument("--collectives", type=lambda text: text.split(","), default=COLLECTIVES)
    parser.add_argument("--sizes", type=numbers, default=SIZES)
    parser.add_argument("--tuning")
    parser.add_argument("--json")
    options = parser.parse_args()
    rows = [row for ranks in options.ranks for row in table(options, ranks)]
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"format": "ironrail-versus-mpi/1", "arguments": sys.argv[1:], "results": rows}, file, indent=1)
    # A table that has gaps is not whole.
    sys.exit(1 if any(row["ratio"] is None for row in rows) else 0)


main()
