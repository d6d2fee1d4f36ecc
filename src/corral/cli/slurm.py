"""`#SBATCH` options in our own words. Slurm counts per node or per job what we count per rank, minutes where we count
seconds, and MiB where nothing is said.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from corral.cli.directives import Directive
from corral.model.faults import Invalid

SHORT = {
    "J": "job-name", "N": "nodes", "n": "ntasks", "c": "cpus-per-task", "G": "gpus", "t": "time", "p": "partition",
    "A": "account", "w": "nodelist", "x": "exclude", "D": "chdir", "d": "dependency", "a": "array", "H": "hold",
    "b": "begin", "o": "output", "e": "error", "C": "constraint", "q": "qos", "L": "licenses",
}  # fmt: skip
FLAGS = {"exclusive": "--exclusive", "requeue": "--requeue", "no-requeue": "--no-requeue", "hold": "--hold"}
SAME = {
    "job-name": "--name", "nodes": "--nodes", "ntasks-per-node": "--ranks-per-node", "cpus-per-task": "--cpus",
    "priority": "--priority", "partition": "--group", "account": "--project", "chdir": "--workdir",
    "begin": "--begin", "array": "--array",
}  # fmt: skip
PER_RANK = ("ntasks", "mem", "mem-per-cpu", "gres", "gpus", "gpus-per-node", "gpus-per-task")
DEPENDENCIES = {"afterok": ":ok", "afternotok": ":notok", "afterany": ":any"}
MINUTE, HOUR, DAY = 60, 3600, 86400


class Asked(NamedTuple):
    line: int
    option: str
    value: str


def translate(name: str, lines: Sequence[Directive]) -> tuple[list[Directive], list[str]]:
    """Our own words for every option that means something here; the others as they were written."""
    asked = [one for line, words in lines for one in _options(name, line, words)]
    counts = {one.option: one.value for one in asked}
    ours: list[Directive] = []
    ignored: list[str] = []
    for one in asked:
        try:
            words = _translated(one, counts)
        except ValueError as error:
            raise Invalid("bad_directive", f"{name} line {one.line}: #SBATCH --{one.option}: {error}") from None
        if words is None:
            ignored.append(f"#SBATCH --{one.option}")
        else:
            ours.append(Directive(one.line, words))
    return ours, ignored


def _options(name: str, line: int, words: Sequence[str]) -> list[Asked]:
    asked: list[Asked] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        long = re.fullmatch(r"--([a-z-]+)(?:=(.*))?", word, re.DOTALL)
        short = re.fullmatch(r"-([A-Za-z])(.*)", word, re.DOTALL)
        if long:
            option, value = long.groups()
        elif short:
            option, value = SHORT.get(short[1], short[1]), short[2] or None
        else:
            raise Invalid("bad_directive", f"{name} line {line}: {word!r} is no option of #SBATCH")
        if value is None and option not in FLAGS and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        asked.append(Asked(line, option, value or ""))
    return asked


def _translated(asked: Asked, counts: dict[str, str]) -> list[str] | None:
    option, value = asked.option, asked.value
    if option in FLAGS:
        return [FLAGS[option]]
    if option in SAME:
        return [SAME[option], _given(value)]
    if option in PER_RANK:
        return _per_rank(option, _given(value), counts)
    return _OTHERS[option](_given(value)) if option in _OTHERS else None


def _per_rank(option: str, value: str, counts: dict[str, str]) -> list[str] | None:
    nodes = _whole(counts.get("nodes", "1"))
    per_node = _whole(counts["ntasks-per-node"]) if "ntasks-per-node" in counts else 0
    if option == "ntasks":
        return None if per_node else ["--ranks-per-node", str(_divided(_whole(value), nodes, "tasks", "nodes"))]
    ranks = per_node or _divided(_whole(counts.get("ntasks", str(nodes))), nodes, "tasks", "nodes")
    if option == "mem":
        return None if value == "0" else ["--memory", f"{-(-_mib(value) // ranks)}MiB"]
    if option == "mem-per-cpu":
        return ["--memory", f"{_mib(value) * _whole(counts.get('cpus-per-task', '1'))}MiB"]
    gpus = re.fullmatch(r"(?:gpu:)?(?:([A-Za-z][\w.-]*):)?(\d+)", value, re.ASCII)
    if option == "gres" and value.partition(":")[0] != "gpu":
        return None
    if value == "gpu":
        return ["--gpus", "1"]
    if not gpus:
        raise ValueError(f"{value!r} is not a number of GPUs")
    share = {"gpus": ranks * nodes, "gpus-per-task": 1}.get(option, ranks)
    count = _divided(int(gpus[2]), share, "GPUs", "tasks")
    return ["--gpus", f"{gpus[1]}:{count}" if gpus[1] else str(count)]


def _time(value: str) -> list[str]:
    if value.upper() in ("UNLIMITED", "INFINITE", "0"):
        return []
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", value, re.ASCII)
    if not match:
        raise ValueError(
            f"{value!r} is not a time; write minutes, minutes:seconds, hours:minutes:seconds or days-hours"
        )
    days, first, second, third = (int(part) if part else 0 for part in match.groups())
    if match[1] or match[4]:  # days-hours[:minutes[:seconds]], or hours:minutes:seconds
        return ["--time", f"{days * DAY + first * HOUR + second * MINUTE + third}s"]
    return ["--time", f"{first * MINUTE + second}s"]


def _export(value: str) -> list[str]:
    words: list[str] = []
    for part in value.split(","):
        if part == "ALL":
            words.append("--env-all")
        elif part and part != "NONE":
            words += ["--env", part]
    return words


def _dependency(value: str) -> list[str]:
    words: list[str] = []
    for part in value.split(","):
        kind, *ids = part.split(":")
        if kind not in DEPENDENCIES or not ids:
            raise ValueError(f"{part!r} is no dependency that means something here; write afterok:ID")
        words += [word for id_ in ids for word in ("--after", id_ + DEPENDENCIES[kind])]
    return words


def _nodes(option: str) -> Callable[[str], list[str]]:
    def each(value: str) -> list[str]:
        if "[" in value:
            raise ValueError("ranges of nodes are not read; name each node")
        return [word for name in value.split(",") if name for word in (option, name)]

    return each


def _signal(value: str) -> list[str]:
    return ["--signal", value.removeprefix("R:").removeprefix("B:")]


_OTHERS: dict[str, Callable[[str], list[str]]] = {
    "time": _time,
    "export": _export,
    "dependency": _dependency,
    "nodelist": _nodes("--node"),
    "exclude": _nodes("--not-node"),
    "signal": _signal,
}


def _given(value: str) -> str:
    if not value:
        raise ValueError("it needs a value")
    return value


def _mib(value: str) -> int:
    match = re.fullmatch(r"(\d+)([KMGT]?)B?", value, re.IGNORECASE | re.ASCII)
    if not match:
        raise ValueError(f"{value!r} is not an amount of memory")
    return -(-int(match[1]) * 1024 ** "KMGT".index(match[2].upper() or "M") // 1024)


def _whole(value: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,8}", value, re.ASCII):
        raise ValueError(f"{value!r} is not a whole number above 0")
    return int(value)


def _divided(amount: int, by: int, what: str, among: str) -> int:
    if amount % by:
        raise ValueError(f"{amount} {what} cannot be shared evenly among {by} {among}")
    return amount // by
