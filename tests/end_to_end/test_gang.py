"""Sessions of several ranks on several nodes: the barrier, the outcome rules, ranks that find one another."""

import pytest

from tests.end_to_end.control_plane import Plane

RENDEZVOUS = """
import os, socket, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))

def connected():
    while True:
        try:
            return socket.create_connection(address, timeout=20)
        except ConnectionRefusedError:  # rank 0 has begun, and may not listen yet
            time.sleep(0.05)

if rank == 0:
    server = socket.create_server(address)
    total = 0
    for _ in range(size - 1):
        peer, _ = server.accept()
        total += int(peer.recv(64))
        peer.close()
    print("sum", total)
else:
    with connected() as peer:
        peer.sendall(str(rank * 10).encode())
"""


def test_ranks_find_one_another_through_the_master_address(three_nodes: Plane) -> None:
    session = three_nodes.submit("--nodes", "3", "--time", "60s", "--", "python3", "-c", RENDEZVOUS)
    assert three_nodes.run("wait", session).code == 0
    assert three_nodes.run("logs", session, "--rank", "0").out == "sum 30\n"
    shown = three_nodes.show(session)
    assert sorted(kernel["node"] for kernel in shown["kernels"]) == ["node-1", "node-2", "node-3"]
    assert [kernel["exit_code"] for kernel in shown["kernels"]] == [0, 0, 0]


def test_no_rank_begins_before_every_kernel_is_up_and_the_session_runs(three_nodes: Plane) -> None:
    ask = (
        "import os, json, urllib.request as r; "
        "print(os.environ['CORRAL_NODE_LIST'], open(os.environ['CORRAL_HOSTFILE']).read().split())"
    )
    session = three_nodes.submit("--nodes", "3", "--", "python3", "-c", ask)
    assert three_nodes.run("wait", session).code == 0
    history = three_nodes.run("history", session, "-o", "json").json()
    ready = next(line["at"] for line in history if line["fact"] == "ready")
    launches = three_nodes.run("audit-launch", session, "-o", "json").json()["launches"]
    for launch in launches:
        steps = {step["step"]: step["at"] for step in launch["steps"]}
        assert steps["started"] <= ready <= steps["result"]


@pytest.mark.parametrize(
    ("rule", "code", "outcome"),
    [("any-failure", 4, "failed"), ("main-only", 0, "succeeded"), ("all", 4, "failed")],
)
def test_the_outcome_follows_its_rule(three_nodes: Plane, rule: str, code: int, outcome: str) -> None:
    script = 'case $RANK in 0) sleep 1; exit 0;; 1) exit 4;; 2) [ "$RULE" = all ] && exit 0; sleep 300;; esac'
    session = three_nodes.submit(
        "--nodes", "3", "--grace", "1s", "--env", f"RULE={rule}", "--outcome-rule", rule, "--", "sh", "-c", script
    )
    assert three_nodes.run("wait", session).code == code
    assert three_nodes.show(session)["outcome"] == outcome


def test_a_rank_that_ends_well_does_not_end_its_siblings(three_nodes: Plane) -> None:
    session = three_nodes.submit("--nodes", "2", "--", "sh", "-c", '[ "$RANK" = 0 ] || { sleep 1; echo still here; }')
    assert three_nodes.run("wait", session).code == 0
    assert three_nodes.run("logs", session, "--rank", "1").out == "still here\n"


def test_many_short_gangs_all_succeed(three_nodes: Plane) -> None:
    """`make chaos` and the issue's own check run three hundred; here enough to see a lost or doubled one."""
    sessions = [three_nodes.submit("--nodes", "3", "--cpus", "0.1", "--", "true") for _ in range(20)]
    assert three_nodes.run("wait", *sessions, timeout_s=120).code == 0
    for session in sessions:
        shown = three_nodes.show(session)
        assert (shown["outcome"], shown["attempt"]) == ("succeeded", 1)
