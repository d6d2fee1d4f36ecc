"""A cluster as its database has it: what `clusters` makes of a control plane's answers, without the control plane."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from corral.api.render import Rows, device_view, session_view
from corral.ports import Reads
from corral.records import SessionFilter
from corral.sim.clusters import Cluster, of_the_last

PAGE = 1000


def cluster_in(reads: Reads, last_s: float | None, *, with_nodes: bool) -> Cluster:
    """Everybody that ended, arrays' members too, or those submitted in so much time before the newest."""
    sessions = of_the_last(last_s, _ended(reads))
    if not with_nodes:
        return Cluster(sessions)
    nodes = [
        {"name": node.name, "group": node.group, "cpus": node.cpu_milli / 1000, "memory_mib": node.memory_mib}
        for node in reads.nodes().values()
    ]
    return Cluster(sessions, nodes, [msgspec.to_builtins(device_view(device)) for device in reads.devices()])


def _ended(reads: Reads) -> Iterator[Mapping[str, Any]]:
    """As `corral ps -o json` prints them, newest first, without what is read beside them."""
    after: int | None = None
    while page := reads.list_sessions(SessionFilter(("ended",), members=True, limit=PAGE, after=after)):
        for session in page:
            yield msgspec.to_builtins(session_view(session, Rows()))
        after = page[-1].ordinal
