"""Zygotes and shims killed at random while jobs run: no double start, no wrong end, nothing left running."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import Any

import pytest

from corral.agent import jobdir, shim, trees
from tests.agent.node import Node, Zygote, until
from tests.agent.test_once import starts

BODIES = (
    "exit {code}",
    "sleep 0.02; exit {code}",
    "(setsid sleep 1000 &) ; exit {code}",
    "trap '' TERM; (setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' &) ; sleep 0.01; exit {code}",
    "head -c 100000 /dev/zero; exit {code}",
)


class Torturer:
    def __init__(self, node: Node, rng: random.Random) -> None:
        self.node = node
        self.rng = rng
        self.codes: dict[str, int] = {}
        self.seen: Counter[str] = Counter()

    def begin(self, token: str) -> None:
        code = self.codes[token] = self.rng.randrange(1, 100)
        body = self.rng.choice(BODIES).format(code=code)
        self.node.accept(token, "sh", "-c", f"echo start >> {self.node.root}/mark-{token}; {body}")

    def ask(self, token: str) -> None:
        crash = f"{self.rng.choice(shim.CRASH_POINTS)}:1" if self.rng.random() < 0.25 else None
        requests = [self.node.request(token, crash) | {"copy": copy} for copy in range(self.rng.randrange(1, 3))]
        try:
            self.node.zygote.send(*requests)
            if self.rng.random() < 0.1:
                self.node.zygote.kill()
                self.seen["zygote killed"] += 1
            for _ in requests:
                self.node.zygote.answer()
        except (ConnectionError, BrokenPipeError):
            self.node.zygote.kill()
            self.node.zygote = Zygote()

    def harm(self, token: str) -> None:
        choice = self.rng.random()
        if choice < 0.2 and self.node.kill_shim(token):
            self.seen["shim killed"] += 1
        elif choice < 0.3:
            self.node.tell(token, jobdir.STOP, reason="cancelled", grace_s=0.05)
            self.seen["stopped"] += 1
        elif choice < 0.35 and jobdir.void(self.node.folder(token), "test", "cancelled"):
            self.seen["voided"] += 1

    def settle(self, token: str) -> bool:
        """What an agent does on each look: ask again while undecided, judge the dead, wait for the living."""
        folder = self.node.folder(token)
        if jobdir.decision_of(folder) is None:
            if not jobdir.probe_lock(folder):
                self.ask(token)
            return False
        return self.node.ended(token)

    def check(self, token: str) -> None:
        decision = jobdir.decision_of(self.node.folder(token))
        began = starts(self.node, token)
        assert began <= (1 if decision == "run" else 0), token
        assert trees.tree_is_empty(self.node.containment, token), token
        result: dict[str, Any] | None = self.node.read(token, jobdir.RESULT)
        ended = self.node.read(token, jobdir.EXIT)
        assert (ended is None) == (decision == "void"), token
        self.seen[ended["reason"] if ended else "void"] += 1
        if ended and ended["reason"] == "exited":
            assert result, token
        if result and result["exit_code"] is not None and not result["killed"]:
            assert result["exit_code"] in (self.codes[token], 143), token
            assert began == 1, token


@pytest.mark.chaos
def test_random_deaths(each_node: Node, long: bool) -> None:
    seed = time.time_ns() % 10**6 if long else 1
    torturer = Torturer(each_node, random.Random(seed))
    jobs = 2000 if long else 60
    waiting: list[str] = []
    begun = 0
    give_up = time.monotonic() + (1500 if long else 100)
    while (begun < jobs or waiting) and time.monotonic() < give_up:
        while len(waiting) < 8 and begun < jobs:
            begun += 1
            torturer.begin(f"1-t-{begun}-0")
            torturer.ask(f"1-t-{begun}-0")
            waiting.append(f"1-t-{begun}-0")
        torturer.harm(torturer.rng.choice(waiting))
        waiting = [token for token in waiting if not torturer.settle(token)]
    assert not waiting, f"seed {seed}: never settled {waiting}"
    for token in torturer.codes:
        until(lambda token=token: not jobdir.probe_lock(each_node.folder(token)), f"{token} let go")
        torturer.check(token)
    print(f"seed {seed}: {dict(torturer.seen)}")
    assert {"exited", "supervisor_lost", "shim killed", "zygote killed"} <= torturer.seen.keys()
