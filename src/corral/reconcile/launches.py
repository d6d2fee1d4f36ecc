"""What a node is told about a kernel, made from the rows: the orders of the desired set. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from corral import wire
from corral.model.array import variables as array_variables
from corral.model.lifecycle import Wanted
from corral.model.node import Node
from corral.model.session import Kernel, Session, StopFor
from corral.ports import Order


def order_for(order: Order, nodes: Mapping[str, Node], url: str, now: float) -> wire.KernelOrder:
    """The desired state of one kernel. `nodes` are its siblings' nodes, `url` where the control plane answers."""
    kernel, session = order.kernel, order.session
    return wire.KernelOrder(
        token=kernel.token,
        run_id=kernel.run_id,
        launch=_launch(order, nodes, url, now) if kernel.accepted_at is None and not kernel.stop_asked else None,
        go=_go(order, nodes) if kernel.go else None,
        stop=_stop(session) if kernel.stop_asked else None,
        time_limit_s=session.time_limit_s,
    )


def _launch(order: Order, nodes: Mapping[str, Node], url: str, now: float) -> wire.Launch:
    kernel, session, spec = order.kernel, order.session, order.session.spec
    hosts = [nodes[sibling.node].address for sibling in order.siblings if sibling.rank % spec.ranks_per_node == 0]
    return wire.Launch(
        session=session.id,
        attempt=kernel.attempt,
        rank=kernel.rank,
        node_epoch=kernel.node_epoch,
        run_id=kernel.run_id,
        command=spec.command,
        environment={**spec.environment, **_environment(session, kernel, hosts, url, now)},
        resources=spec.resources,
        devices=[(held.device, 0, held.vram_mib, held.share_milli) for held in order.holdings if held.device],
        ranks=spec.ranks,
        local_rank=kernel.rank % spec.ranks_per_node,
        hosts=hosts,
        script=spec.script,
        upload=spec.upload,
        bootstrap=spec.bootstrap,
        workdir=spec.workdir,
        mounts=spec.mounts,
        time_limit_s=session.time_limit_s,
        grace_s=spec.grace_s,
        early_signal=spec.early_signal,
        memory_enforced=spec.options.get("memory") == "enforced",
        options=spec.options,
    )


def _environment(session: Session, kernel: Kernel, hosts: list[str], url: str, now: float) -> dict[str, str]:
    """The variables of docs/submitting.md that the control plane knows; those only the node knows are added there."""
    spec = session.spec
    gpus = spec.resources.gpu.count if spec.resources.gpu else 0
    variables = {
        "CORRAL_SESSION_ID": session.id,
        "CORRAL_ATTEMPT": str(kernel.attempt),
        "CORRAL_RANK": str(kernel.rank),
        "CORRAL_LAUNCH_TOKEN": kernel.token,
        "CORRAL_NODE_LIST": ",".join(hosts),
        "CORRAL_GPUS_PER_NODE": str(gpus * spec.ranks_per_node),
        "CORRAL_URL": url,
        "RANK": str(kernel.rank),
        "WORLD_SIZE": str(spec.ranks),
        "LOCAL_RANK": str(kernel.rank % spec.ranks_per_node),
        "LOCAL_WORLD_SIZE": str(spec.ranks_per_node),
        "NODE_RANK": str(kernel.rank // spec.ranks_per_node),
        "MASTER_ADDR": hosts[0],
    }
    variables |= array_variables(session)
    if session.time_limit_s is not None:
        deadline = datetime.fromtimestamp(now, UTC) + timedelta(seconds=session.time_limit_s)
        variables["CORRAL_DEADLINE"] = deadline.isoformat(timespec="seconds").replace("+00:00", "Z")
    for name, port in spec.ports.items():
        variables[f"CORRAL_PORT_{name.upper().replace('-', '_').replace('.', '_')}"] = str(port)
    return variables


def _go(order: Order, nodes: Mapping[str, Node]) -> wire.Go | None:
    """None of a launch that outlived its attempt: the siblings are the next one's, if there are any."""
    attempt = order.kernel.attempt
    main = next((kernel for kernel in order.siblings if kernel.rank == 0 and kernel.attempt == attempt), None)
    return None if main is None else wire.Go(master_address=nodes[main.node].address, master_port=main.port or 0)


def _why(session: Session) -> str:
    if session.room_by is not None:
        return "it is to go on elsewhere, so that others find room; checkpoint, and exit with 85"
    if session.preempted_for is not None:
        return "preempted for another session; checkpoint, and exit with 85"
    return "the control plane stops this attempt"


def _stop(session: Session) -> wire.Stop:
    if session.wanted is Wanted.STOP:
        reason, message = "cancelled", "cancelled by the user"
    elif session.stop_for is not None:
        reason, message = session.stop_for.value, _why(session)
    else:
        reason, message = "decided", "the session's outcome is decided; its other ranks are stopped"
    return wire.Stop(reason=reason, message=message, grace_s=session.spec.grace_s, signal=_signal(session))


def _signal(session: Session) -> str | None:
    """Whoever has a signal for saving its work in time gets it when it makes way, too."""
    makes_way = session.stop_for is StopFor.PREEMPTED and session.wanted is not Wanted.STOP
    early = session.spec.early_signal
    return early.signal if makes_way and early is not None else None
