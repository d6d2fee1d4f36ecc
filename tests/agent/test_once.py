"""At most one start per job directory, for ever: under races, duplicates and kill -9 at every named point."""

from __future__ import annotations

import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from corral.agent import jobdir, shim, trees, zygote
from tests.agent.node import PATIENCE_S, Node, Zygote, until

TOKEN = "1-k3f9x2m4qa-1-0"


def starts(node: Node, token: str) -> int:
    mark = node.root / f"mark-{token}"
    return mark.read_text().count("start\n") if mark.exists() else 0


def script(node: Node, token: str, rest: str = "") -> list[str]:
    return ["sh", "-c", f"echo start >> {node.root}/mark-{token}; {rest}"]


def test_duplicates_start_it_once(each_node: Node) -> None:
    for number in range(1, 11):
        token = f"1-a-{number}-0"
        each_node.accept(token, *script(each_node, token, "sleep 0.02"))
        each_node.zygote.send(*[each_node.request(token) | {"copy": copy} for copy in range(4)])
    for _ in range(40):
        each_node.zygote.answer()
    for number in range(1, 11):
        token = f"1-a-{number}-0"
        assert each_node.finish(token)["exit_code"] == 0
        each_node.spawn(token)
    for number in range(1, 11):
        until(lambda number=number: not jobdir.probe_lock(each_node.folder(f"1-a-{number}-0")), "free")
        assert starts(each_node, f"1-a-{number}-0") == 1


def test_a_void_and_a_start_race_for_one_file(node: Node) -> None:
    seen: set[bool] = set()
    rng = random.Random(7)
    for number in range(1, 61):
        token = f"1-a-{number}-0"
        node.accept(token, *script(node, token))
        node.zygote.send(node.request(token))
        deadline = time.monotonic() + rng.random() * 0.004
        while time.monotonic() < deadline:
            pass
        voided = jobdir.void(node.folder(token), "agent", "cancelled")
        node.zygote.answer()
        seen.add(voided)
        if voided:
            until(lambda token=token: not jobdir.probe_lock(node.folder(token)), "the loser gone")
            assert node.read(token, jobdir.RESULT) is None
        else:
            node.finish(token)
        assert starts(node, token) == (0 if voided else 1)
    assert seen == {True, False}


def test_a_shim_that_meets_a_judge_waits_for_it(node: Node) -> None:
    node.accept(TOKEN, *script(node, TOKEN))
    with jobdir.held_lock(node.folder(TOKEN)) as free:
        assert free
        node.spawn(TOKEN)
        assert jobdir.decision_of(node.folder(TOKEN)) is None
    node.finish(TOKEN)
    assert starts(node, TOKEN) == 1


def test_probing_never_makes_a_shim_fail(node: Node) -> None:
    stop = threading.Event()

    def probe() -> None:
        while not stop.is_set():
            for token in node.tokens():
                jobdir.probe_lock(node.folder(token))

    prober = threading.Thread(target=probe)
    prober.start()
    try:
        for number in range(1, 31):
            token = f"1-a-{number}-0"
            node.launch(token, *script(node, token))
            node.finish(token)
            assert starts(node, token) == 1
    finally:
        stop.set()
        prober.join(10)


BARRIER_POINTS = {"shim.before_ready", "shim.after_ready", "shim.released"}
BEFORE_THE_DECISION = shim.CRASH_POINTS[: shim.CRASH_POINTS.index("shim.after_started")]
BEFORE_THE_COMMAND = shim.CRASH_POINTS[len(BEFORE_THE_DECISION) : shim.CRASH_POINTS.index("shim.after_main")]
AFTER_THE_COMMAND = shim.CRASH_POINTS[shim.CRASH_POINTS.index("shim.main_ended") :]
AFTER_THE_PROOF = ("shim.after_exit",)


@pytest.mark.parametrize("point", shim.CRASH_POINTS)
def test_a_shim_killed_at_any_point_leaves_one_start_and_a_true_end(each_node: Node, point: str) -> None:
    changes: dict[str, Any] = {"barrier": True} if point in BARRIER_POINTS else {}
    argv = script(each_node, TOKEN, "setsid sleep 1000 & exit 7")
    each_node.accept(TOKEN, *argv, **changes)
    if changes:
        jobdir.write_object(each_node.folder(TOKEN), jobdir.GO, {})
    answer = each_node.spawn(TOKEN, crash=f"{point}:1")
    until(lambda: not Path(f"/proc/{answer['pid']}").exists(), f"died at {point}")
    before = jobdir.decision_of(each_node.folder(TOKEN))
    assert before == (None if point in BEFORE_THE_DECISION else "run")
    for _ in range(2):
        each_node.spawn(TOKEN)
    if before is None:
        assert each_node.finish(TOKEN)["exit_code"] == 7
    until(lambda: each_node.ended(TOKEN), "judged")
    ended = each_node.wait_for(TOKEN, jobdir.EXIT)
    lost = before == "run" and point not in AFTER_THE_PROOF
    assert ended["reason"] == ("supervisor_lost" if lost else "exited")
    until(lambda: not jobdir.probe_lock(each_node.folder(TOKEN)), "the duplicates gone")
    began = starts(each_node, TOKEN)
    assert began <= 1
    if point in BEFORE_THE_DECISION or point in AFTER_THE_COMMAND:
        assert began == 1
    if point in BEFORE_THE_COMMAND:
        assert began == 0
    assert trees.tree_is_empty(each_node.containment, TOKEN)
    if point in ("shim.after_result", *AFTER_THE_PROOF):
        assert each_node.result(TOKEN)["exit_code"] == 7


@pytest.mark.parametrize("point", zygote.CRASH_POINTS)
def test_a_zygote_killed_at_its_points_is_replaced(node: Node, point: str) -> None:
    node.zygote.close()
    node.zygote = Zygote(crash=f"{point}:2")
    goes_on = node.root / "goes-on"
    lasts = f"until [ -e {goes_on} ]; do sleep 0.01; done"  # else its shim may be free, and take the second launch
    node.launch("1-first-1-0", *script(node, "1-first-1-0", lasts))
    node.accept(TOKEN, *script(node, TOKEN))
    with pytest.raises(ConnectionError):
        node.spawn(TOKEN)
    assert node.zygote.process.wait(PATIENCE_S) == -signal.SIGKILL
    goes_on.touch()
    node.zygote = Zygote()
    node.spawn(TOKEN)
    for token in (TOKEN, "1-first-1-0"):
        assert node.finish(token)["exit_code"] == 0
        assert starts(node, token) == 1


def test_the_environment_names_a_crash_too(node: Node) -> None:
    node.zygote.close()
    node.zygote = Zygote(crash="shim.after_started")
    node.launch(TOKEN, "true")
    node.wait_for(TOKEN, jobdir.STARTED)
    until(lambda: node.ended(TOKEN), "judged")
    assert node.wait_for(TOKEN, jobdir.EXIT)["reason"] == "supervisor_lost"
