"""The part `cycles` of scripts/matrix: connections made and aborted in random states, many times."""

import re
from concurrent.futures import ThreadPoolExecutor

from rows import AT_ONCE, REGIONS, RELEASE, test


def run(m, count):
    """One in twenty with a death, under the waits that a user has; the others are dealt to the profiles, one of them with GPU memory, and to net."""
    deaths = -(-count // 20)
    each = -(-(count - deaths) // (len(REGIONS) + 2))

    def over(name, number, **settings):
        code, text = m.run(f"{name}.log", RELEASE | {"CYCLES_COUNT": str(number), **settings}, *test("cycles", name))
        if code:
            # The panic of the part, and not that of the test which started it.
            lines = text.splitlines()
            at = [place for place, line in enumerate(lines) if "panicked at" in line]
            m.fail("\n".join(lines[max(at[-1] - 4, 0) : at[-1] + 5] if at else lines[-20:]))
        said = re.findall(r"^\.*(cycles: .*)", text, re.M)
        print(*said, sep="\n", end="\n" if said else "", flush=True)
        return said

    with ThreadPoolExecutor(AT_ONCE) as pool:
        rows = [(f"aborted_connections_leave_nothing_over_{name}", each) for name in ("cxi", "efa", "tcp", "the_adversary", "gpus", "net")]
        begun = [pool.submit(over, *row) for row in rows]
        # One arena: malloc keeps an arena of each thread that net has ended, and which threads get one varies from run to run.
        begun.append(
            pool.submit(over, "processes_that_die_leave_nothing_over_net", deaths, CYCLES_PATIENCE_MS="1500", MALLOC_ARENA_MAX="1")
        )
        said = [line for row in begun for line in row.result()]
    total = sum(int(line.split()[1]) for line in said)
    # Again: longer than may be at first, on a machine that had others to serve.
    again = sum(int(number) for line in said for number in re.findall(r"(\d+) again", line))
    longest = max(((int(number), line) for line in said for number in re.findall(r"longest (\d+)", line)), default=(0, "none"))
    if not m.listing:
        print(f"{total} cycles in all, {again} again, the longest {longest[0]} ms: {longest[1]}")
