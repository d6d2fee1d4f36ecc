"""`python -m benchmarks [NAME …]`: run and print; all of them without a name."""

from __future__ import annotations

import sys

from benchmarks import (
    ahead,
    backfill,
    command_line,
    decisions,
    defragment,
    estimate,
    footprint,
    jct,
    latency,
    openb,
    passes,
    store_path,
    throughput,
)

BENCHMARKS = {
    "throughput": throughput.run,
    "latency": latency.run,
    "footprint": footprint.run,
    "command_line": command_line.run,
    "store_path": store_path.run,
    "openb": openb.run,
    "defragment": defragment.run,
    "jct": jct.run,
    "backfill": backfill.run,
    "decisions": decisions.run,
    "passes": passes.run,
    "ahead": ahead.run,
    "estimate": estimate.run,
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    for name in names or BENCHMARKS:
        numbers = BENCHMARKS[name]()
        print(f"{name}: " + ", ".join(f"{key} {value:,.2f}" for key, value in numbers.items()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
