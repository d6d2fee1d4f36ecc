"""A policy of somebody else's, installed beside a real control plane: found, used, and alone with its trouble."""

from pathlib import Path

from tests.end_to_end.control_plane import Plane, plane, wait_until

SOURCE = """
from corral.scheduling.policies.order import OrderPolicy

def by_name(view):
    for waiting in sorted(view.waiting, key=lambda one: (-one.priority, one.ordinal)):
        yield waiting

def failing(view):
    raise RuntimeError("out of ideas")
    yield

order = OrderPolicy("mine", by_name, "Mine.")
failing = OrderPolicy("failing", failing, "Fails.")
"""


def install(folder: Path) -> None:
    info = folder / "my_policies-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-policies\nVersion: 1.0\n")
    points = ("order.mine = my_policies:order", "order.failing = my_policies:failing", "order.gone = my_policies:no",
              "best = my_policies:order")  # fmt: skip
    (info / "entry_points.txt").write_text("[corral.policies]\n" + "\n".join(points) + "\n")
    (folder / "my_policies.py").write_text(SOURCE)


def submit(running: Plane, *words: str) -> str:
    return running.run("submit", "-q", "--cpus", "2", *words, "--", "true").out.strip()


def test_an_installed_policy_orders_and_a_broken_one_is_told(tmp_path: Path, monkeypatch) -> None:
    install(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    with plane(tmp_path / "plane", "--cpus", "2") as running:
        assert "best" in running.log()
        assert running.run("group", "set", "default", "--order", "mine").code == 0
        running.run("queue", "pause", "default")
        low, high = submit(running), submit(running, "--priority", "3")
        running.run("queue", "resume", "default")
        for id_ in (low, high):
            assert running.run("wait", id_).code == 0
        started = {one["id"]: one["started_at"] for one in running.run("ps", "-a", "-o", "json").json()}
        assert started[high] < started[low]
        gone = running.run("group", "set", "default", "--order", "gone")
        assert gone.code == 2 and "cannot be loaded" in gone.err
        assert running.run("group", "set", "default", "--order", "failing").code == 0
        held_back = submit(running)

        def told() -> bool:
            return "out of ideas" in running.run("show", held_back).out

        wait_until(told, "the session says why its group does not start it")
        assert running.run("group", "set", "default", "--order", "fifo").code == 0
        assert running.run("wait", held_back).code == 0
