"""The conversation when it goes wrong: lost answers, stale ones, managers that are away, a token nobody takes."""

from __future__ import annotations

import itertools
import signal
import socket
import time
from pathlib import Path

import pytest

from corral.model.lifecycle import ExitClass
from corral.model.session import FactKind, Result
from tests.agent.agents import Agent
from tests.agent.manager import ScriptedManager
from tests.agent.node import until

T1, T2 = "1-aaaaaaaaaa-1-0", "1-bbbbbbbbbb-1-0"


def test_facts_are_said_until_an_answer_came(manager: ScriptedManager, agent: Agent) -> None:
    manager.lose_answers = 3
    manager.launch(T1, "sh", "-c", "exit 3")
    manager.wait_for(T1, "exited")
    until(lambda: agent.tokens() == [], "collected once acknowledged")
    assert manager.lose_answers == 0
    assert manager.wait_for(T1, "result").result == Result(3, None, ExitClass.USER)
    pairs = [exchange.nonces for exchange in manager.exchanges]
    for before, after in itertools.pairwise(pairs):
        assert after == before or after[0] == before[1]  # only an answer advances the pair, by one


def test_a_stale_agent_registers_again_and_starts_nothing_till_then(manager: ScriptedManager, agent: Agent) -> None:
    out = agent.root / "ran"
    manager.refuse_registration = (409, "identity_in_use")
    manager.stale_answers = 1
    until(lambda: len(manager.registrations) > 1, "the attempt to register again", 40)
    manager.launch(T1, "touch", str(out))
    tries = len(manager.registrations)
    until(lambda: len(manager.registrations) > tries, "another attempt")
    assert not out.exists()
    manager.refuse_registration = None
    manager.wait_for(T1, "exited")
    assert out.exists()


def test_jobs_go_on_without_a_manager_and_their_ends_are_told_later(manager: ScriptedManager, agent: Agent) -> None:
    out = agent.root / "out"
    manager.launch(T1, "sh", "-c", f"echo begun >{out}; sleep 1; echo ended >>{out}; exit 3")
    until(out.exists, "the command running")
    manager.close()
    until(lambda: out.read_text() == "begun\nended\n", "the command's own end")
    again = ScriptedManager(manager.port)
    try:
        again.registrations, again.nonce, again.boot_id = manager.registrations, manager.nonce, manager.boot_id
        again.wait_for(T1, "exited")
        assert again.wait_for(T1, "result").result == Result(3, None, ExitClass.USER)
    finally:
        again.close()


def test_the_next_manager_is_asked_when_one_does_not_answer(manager: ScriptedManager) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        gone = nobody.getsockname()[1]
    agent = Agent(f"http://127.0.0.1:{gone},{manager.url}")
    try:
        agent.start()
        until(lambda: manager.registrations, "the registration")
        manager.launch(T1, "true")
        manager.wait_for(T1, "exited")
    finally:
        agent.close()


def test_a_silent_manager_is_left_in_time_though_there_is_news_meanwhile(manager: ScriptedManager) -> None:
    """News break a parked request off; the next one to the same manager is not waited for from the start again."""
    other = ScriptedManager()
    agent = Agent(f"{manager.url},{other.url}")
    try:
        agent.start()
        until(lambda: manager.registrations, "the registration")
        manager.launch(T1, "sleep", "9")
        manager.wait_for(T1, "ready")
        manager.frozen = True
        frozen_at = time.monotonic()
        other.wait_for(T1, "exited")
        assert 9 < time.monotonic() - frozen_at < 19
    finally:
        agent.close()
        other.close()


def test_news_break_a_parked_exchange_off(manager: ScriptedManager, agent: Agent) -> None:
    manager.launch(T1, "sleep", "0.5")
    manager.wait_for(T1, "ready")
    began = time.monotonic()
    manager.wait_for(T1, "exited")
    assert time.monotonic() - began < 5  # a parked exchange would have lasted 20 s


def test_an_idle_agent_waits_and_does_not_ask_again_and_again(manager: ScriptedManager, agent: Agent) -> None:
    manager.launch(T1, "sleep", "300")
    manager.wait_for(T1, "ready")
    until(lambda: manager.exchanges[-1].wait_s > 0, "a parked exchange")
    exchanges = len(manager.exchanges)
    time.sleep(2)
    assert len(manager.exchanges) - exchanges <= 1


def test_no_end_is_missed_when_more_hint_than_are_heard(manager: ScriptedManager, agent: Agent) -> None:
    """The queue of hints is short, and a shim never waits for room in it."""
    go = agent.root / "go"
    tokens = [f"1-{number:010d}-1-0" for number in range(30)]
    for token in tokens:
        manager.launch(token, "sh", "-c", f"until [ -e {go} ]; do sleep 0.1; done")
    for token in tokens:
        manager.wait_for(token, "ready")
    assert agent.process is not None
    agent.process.send_signal(signal.SIGSTOP)
    try:
        go.touch()
        until(lambda: all((agent.run / "jobs" / token / "exit.json").exists() for token in tokens), "all ended")
    finally:
        agent.process.send_signal(signal.SIGCONT)
    for token in tokens:
        manager.wait_for(token, "exited")


def test_what_no_manager_names_is_left_alone_and_shown(manager: ScriptedManager, agent: Agent) -> None:
    manager.launch(T1, "sleep", "300")
    manager.wait_for(T1, "ready")
    agent.kill()
    manager.drop(T1)
    agent.start()
    manager.launch(T2, "true")
    manager.wait_for(T2, "exited")
    until(lambda: manager.exchanges[-1].foreign == [T1], "shown as foreign")
    until(lambda: agent.tokens() == [T1], "still there, the other collected")
    manager.stop(T1)
    manager.wait_for(T1, "exited")
    until(lambda: manager.exchanges[-1].foreign == [], "no longer foreign")


# --- wrong from the start


@pytest.mark.parametrize(
    ("changes", "status", "says"),
    [
        ({"--token-file": "/no/such/file"}, 2, "/no/such/file"),
        ({"--name": "no name"}, 2, "no name"),
        ({"--simulate-gpus": "lots"}, 2, "lots"),
        ({"--label": "nothing"}, 2, "nothing"),
        ({"--cpus": "many"}, 2, "many"),
        ({"--memory": "much"}, 2, "much"),
        ({"--state-dir": "/proc/nowhere"}, 1, "/proc/nowhere"),
        ({"--run-dir": "/proc/nowhere"}, 1, "/proc/nowhere"),
        ({"--run-dir": "/tmp/" + "x" * 120}, 2, "run-dir"),
        ({"--manager": "ftp://x"}, 2, "ftp://x"),
        ({"--manager": ","}, 2, "manager"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_option_is_one_clear_line(changes: dict[str, str], status: int, says: str) -> None:
    agent = Agent("http://127.0.0.1:9")
    try:
        agent.options = [word for pair in changes.items() for word in pair]
        agent.start()
        assert agent.ended() == status, agent.output()
        lines = agent.output().strip().splitlines()
        assert len(lines) == 1, lines
        assert says in lines[0]
    finally:
        agent.close()
        Path("/tmp/" + "x" * 120).rmdir() if Path("/tmp/" + "x" * 120).is_dir() else None


def test_a_token_that_no_manager_takes_is_said(manager: ScriptedManager) -> None:
    agent = Agent(manager.url)
    try:
        agent.token_file.write_text("wrong")
        agent.start()
        until(lambda: "no such token" in agent.output(), "the reason said")
        assert not manager.registrations
    finally:
        agent.close()


def test_a_refused_registration_is_said(manager: ScriptedManager) -> None:
    manager.refuse_registration = (409, "hardware_changed")
    agent = Agent(manager.url)
    try:
        agent.start()
        until(lambda: "hardware_changed" in agent.output(), "the reason said")
    finally:
        agent.close()


def test_results_are_durable_before_they_are_told(manager: ScriptedManager, agent: Agent) -> None:
    """Killed between the telling and the answer, it says the same again."""
    go = agent.root / "go"
    manager.launch(T1, "sh", "-c", f"until [ -e {go} ]; do sleep 0.02; done; exit 3")
    manager.wait_for(T1, "ready")
    manager.lose_answers = 1_000_000
    go.touch()
    told = until(lambda: manager.fact(T1, FactKind.EXITED), "told")
    agent.kill()
    manager.lose_answers = 0
    manager.forget_facts()
    agent.start()
    until(lambda: len(manager.registrations) > 1, "registered")
    assert {fact.kind for fact in manager.registrations[-1].facts} >= {FactKind.RESULT, FactKind.EXITED}
    assert manager.wait_for(T1, "exited").token == told.token
