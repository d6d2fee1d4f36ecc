"""Corral's own history as a trace: what `corral ps --all -o json` prints, as one array or one session a line."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime
from typing import Any

from corral.model.faults import Invalid
from corral.model.resources import MAX_AMOUNT, WHOLE_GPU_MILLI, GpuRequest, Resources
from corral.model.spec import MAX_RANKS
from corral.sim.fleets import PerNode
from corral.sim.jobs import Job, Trace, shape_of

LEAST = {"cpus": 0.0, "memory_mib": 0.0, "gpus": 0.0, "vram_mib": 0.0, "nodes": 1.0, "ranks": 1.0, "time_limit_s": 0.0,
         "priority": -float(MAX_AMOUNT)}  # fmt: skip


def corral(name: str, text: str, per_node: PerNode) -> Trace:
    """Every session that ran and ended, with the request it made and the time it took. Times from the first submit."""
    del per_node  # a session says itself how many nodes it wants
    jobs: list[Job] = []
    left_out: Counter[str] = Counter()
    for place, one in _sessions(name, text):
        try:
            unread = bool(one.get("error"))  # its record is broken: what it asked for is not known
            job = None if unread else _job(one)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            why = f"no {error.args[0]!r}" if isinstance(error, KeyError) else str(error)
            raise Invalid("bad_row", f"{place}: not a session as `corral ps -o json` shows it: {why}") from None
        if job is None:
            left_out["its record cannot be read" if unread else "not run to an end"] += 1
        else:
            jobs.append(job)
    zero = min((job.submitted_s for job in jobs), default=0.0)
    return Trace(name, tuple(_since(zero, job) for job in jobs), left_out)


def _since(zero: float, job: Job) -> Job:
    return Job(job.id, job.submitted_s - zero, job.run_s, job.shape, job.limit_s, job.owner, job.project, job.priority)


def _sessions(name: str, text: str) -> list[tuple[str, Any]]:
    try:
        if text.lstrip().startswith("["):
            return [(f"{name}, session {number}", one) for number, one in enumerate(json.loads(text), 1)]
    except (ValueError, RecursionError) as error:
        raise Invalid("bad_row", f"{name}: not JSON: {error}") from None
    found: list[tuple[str, Any]] = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            if line.strip():
                found.append((f"{name}, line {number}", json.loads(line)))
        except (ValueError, RecursionError) as error:
            raise Invalid("bad_row", f"{name}, line {number}: not JSON: {error}") from None
    return found


def _job(one: Any) -> Job | None:
    if one["started_at"] is None or one["ended_at"] is None:
        return None
    began, ended = _at(one["started_at"]), _at(one["ended_at"])
    asked = one["resources"]
    ranks, nodes = int(_number(one, "ranks")), int(_number(one, "nodes"))
    if ranks % nodes or ranks > MAX_RANKS:
        raise ValueError(f"{ranks} ranks on {nodes} nodes")
    shape = shape_of(
        Resources(round(_number(asked, "cpus") * 1000), int(_number(asked, "memory_mib")), _gpu(asked)),
        nodes, ranks // nodes, _word(one, "group"),
    )  # fmt: skip
    limit_s = None if one["time_limit_s"] is None else _number(one, "time_limit_s")
    return Job(str(one["id"]), _at(one["submitted_at"]), max(0.0, ended - began), shape, limit_s,
               str(one["owner"]), str(one["project"]), int(_number(one, "priority")))  # fmt: skip


def _gpu(asked: Any) -> GpuRequest | None:
    if asked["gpus"] is None:
        return None
    milli = round(_number(asked, "gpus") * WHOLE_GPU_MILLI)
    vram_mib = 0 if asked["vram_mib"] is None else int(_number(asked, "vram_mib"))
    model, arch = _word(asked, "gpu_model"), _word(asked, "gpu_arch")
    if milli < WHOLE_GPU_MILLI:
        return GpuRequest(1, milli, vram_mib, model, arch)
    return GpuRequest(milli // WHOLE_GPU_MILLI, WHOLE_GPU_MILLI, vram_mib, model, arch)


def _number(one: Any, field: str) -> float:
    value = one[field]
    if isinstance(value, bool) or not isinstance(value, int | float) or not LEAST[field] <= value <= MAX_AMOUNT:
        raise ValueError(f"{field} {value!r} is not a number, {LEAST[field]:g} or more")
    return float(value)


def _word(one: Any, field: str) -> str | None:
    value = one[field]
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{field} {repr(value)[:40]} is not a word")
    return value


def _at(text: Any) -> float:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return moment.timestamp()
