"""What the control plane answers, as people read it. Takes JSON, answers text; prints nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

from corral.cli.tables import listing, table

Record = Mapping[str, Any]
MOST_COMMAND = 60
NOT_FOR_ROOM = ("quota_", "group_", "array_", "preempting", "held", "begin_not_reached", "dependency", "backing_off")


def age(at: str | None, now: datetime) -> str | None:
    """How long ago, in the largest unit or two."""
    return None if at is None else span((now - moment(at)).total_seconds())


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def span(seconds: float) -> str:
    """A duration as people say it: 12s, 3m04s, 2h10m, 5d."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m" if whole < 2 * 86400 else f"{whole // 86400}d"


def show_sessions(sessions: Sequence[Record], *, wide: bool) -> str:
    now = datetime.now(UTC)
    head = ["ID", "NAME", "STATE", "NODE", "GPUS", "AGE", "RAN", "NOTE"]
    more = ["PLANNED", "PHASE", "OUTCOME", "EXIT", "ATTEMPT", "OWNER", "PROJECT", "GROUP", "PRIORITY", "COMMAND"]
    rows = [_row(one, now) + (_more(one) if wide else []) for one in sessions]
    return table(head + (more if wide else []), rows)


def _row(one: Record, now: datetime) -> list[object]:
    return [one["id"], one["name"], state_of(one), _places(one), gpus_of(one), age(one["submitted_at"], now),
            _ran(one, now), note_of(one)]  # fmt: skip


def _more(one: Record) -> list[object]:
    command = command_of(one)
    return [one["planned_start"], one["phase"], one["outcome"], one["exit_code"], one["attempt"], one["owner"],
            one["project"], one["group"], one["priority"],
            command[:MOST_COMMAND] + "…" * (len(command) > MOST_COMMAND)]  # fmt: skip


def state_of(one: Record) -> str:
    """One word: the outcome once there is one, `held` for what will not start by itself, else the phase."""
    if one["phase"] == "pending" and one["wanted"] == "hold":
        return "held"
    return str(one["outcome"] or one["phase"])


def gpus_of(one: Record) -> str | None:
    """GPUs of all ranks together; shares as how many of which size, since each is of a GPU of its own."""
    resources, ranks = one["resources"], one["ranks"]
    gpus, vram_mib = resources["gpus"], resources["vram_mib"]
    if gpus is None:
        return None
    if gpus >= 1:
        number = f"{gpus * ranks:g}"
    else:
        number = f"{ranks}x" * (ranks > 1) + (f"{gpus:g}" if gpus else f"{vram_mib}MiB")
    return f"{resources['gpu_model']}:{number}" if resources["gpu_model"] else number


def command_of(one: Record) -> str:
    """What it runs; a stored script by the beginning of its digest."""
    script = [f"[script {one['script'].partition(':')[2][:12]}]"] if one["script"] else []
    return " ".join([*script, *one["command"]])


def _places(one: Record) -> str | None:
    names = list(dict.fromkeys(kernel["node"] for kernel in one["kernels"]))
    return ",".join(names[:3]) + f" +{len(names) - 3}" * (len(names) > 3) if names else None


def _ran(one: Record, now: datetime) -> str | None:
    if one["started_at"] is None:
        return None
    end = now if one["ended_at"] is None else moment(one["ended_at"])
    return span((end - moment(one["started_at"])).total_seconds())


def note_of(one: Record) -> str | None:
    """What a reader would ask next: all that it waits for, why it was ended, how it failed."""
    if one["error"]:
        return f"broken: {one['error']}"
    if one.get("array"):
        return members_of(one)
    if one["phase"] == "pending":
        return "; ".join(why["message"] or why["code"] for why in one["refusals"]) or None
    for why in (one["reason"], one["cause"]):
        if why:
            return why["message"] or why["code"]
    if one["preempted_for"]:
        return f"preempted for {one['preempted_for']}"
    return f"exit {one['exit_code']}" if one["exit_code"] else None


def members_of(one: Record) -> str:
    """How many members of an array are how, those that ended by how they did; and what all of them wait for."""
    counts = {**one["array"]["phases"], **one["array"]["outcomes"]}
    counts.pop("ended", None)
    told = f"{one['array']['size']} members: " + ", ".join(f"{count} {name}" for name, count in counts.items())
    why = one["refusals"][0] if one["refusals"] else one["reason"]
    return f"{told}; {why['message'] or why['code']}" if why else told


def show_session(one: Record) -> str:
    resources, each = one["resources"], " per rank" * (one["ranks"] > 1)
    facts = listing([
        ("id", one["id"]), ("name", one["name"]), ("state", state_of(one)), ("phase", one["phase"]),
        ("outcome", one["outcome"]), ("exit class", one["exit_class"]), ("exit code", one["exit_code"]),
        ("reason", _why(one["reason"])), ("cause", _why(one["cause"])), ("error", one["error"]),
        *_array(one), ("wanted", one["wanted"]),
        ("attempt", one["attempt"]),
        ("continuation", _of_at_most(one["continuations"], one["most_continuations"])),
        ("again of", one["requeue_of"]), ("kind", one["kind"]),
        ("owner", one["owner"]), ("project", one["project"]), ("group", one["group"]), ("priority", one["priority"]),
        ("position", one["position"]), ("prefers", " ".join(one["prefer"])), ("labels", _pairs(one["labels"])),
        ("script", one["script"]),
        ("command", command_of(one)), ("nodes", one["nodes"]), ("ranks", one["ranks"]),
        ("cpus", f"{resources['cpus']:g}{each}"), ("memory", f"{resources['memory_mib']} MiB{each}"),
        ("gpus", gpus_of(one)), ("vram", resources["vram_mib"] and f"{resources['vram_mib']} MiB{each}"),
        ("time limit", one["time_limit_s"] and f"{one['time_limit_s']} s"), ("submitted", one["submitted_at"]),
        ("planned start", one["planned_start"]), ("started", one["started_at"]), ("ended", one["ended_at"]),
        ("in Slurm", one["slurm_state"]),
        ("preemptible", {True: "yes", False: "no"}.get(one["preemptible"])),
        ("preempted", f"{one['preemptions']} times" if one["preemptions"] else None),
        ("stopped for", one["preempted_for"]),
        *[("waits for", _why(refusal)) for refusal in one["refusals"]],
    ])  # fmt: skip
    if not one["kernels"]:
        return facts
    head = ("RANK", "NODE", "PHASE", "EXIT", "DEVICES", "TOKEN")
    rows = [(one["rank"], one["node"], one["phase"], one["exit_code"], ",".join(one["devices"]), one["token"])
            for one in one["kernels"]]  # fmt: skip
    return f"{facts}\n\n{table(head, rows)}"


def _of_at_most(number: int, most: int) -> str | None:
    return f"{number} of at most {most}" if number else None


def _array(one: Record) -> list[tuple[str, object]]:
    array = one.get("array")
    if not array:
        return []
    return [("indices", array["indices"]), ("members", members_of(one)), ("at once", array["throttle"])]


def show_plan(plan: Record) -> str:
    waits = "when nothing keeps it any more" if plan["blockers"] else "now"
    now = "never here" if plan["infeasible"] else waits if plan["fits_now"] or _is_kept(plan) else "when there is room"
    blockers = [("blocker", _why(one)) for one in plan["blockers"]]
    members = [("members", plan["members"])] if plan.get("members", 1) > 1 else []
    facts = [
        ("starts", now),
        *_estimate(plan),
        *members,
        ("ranks", plan["ranks"]),
        ("nodes", plan["nodes"]),
        *_preferences(plan),
        *blockers,
        *_changes(plan),
    ]
    return listing(facts) + _classes(plan)


def show_explanation(one: Record) -> str:
    lines = [
        ("session", one["id"]),
        ("phase", one["phase"]),
        ("summary", one["summary"]),
        ("position", one["position"]),
        *_estimate(one),
        *_preferences(one),
    ]
    lines += [("blocker", f"{blocker['code']}: {blocker['message']}") for blocker in one["blockers"]]
    return listing([*lines, *_changes(one), *[("missing", missing) for missing in one["missing"]]]) + _classes(one)


def _classes(one: Record) -> str:
    """What each class of nodes says, below a blank line; nothing where there are no nodes to tell of."""
    rows = [
        (each["name"], each["nodes"], each["fitting"],
         ", ".join(f"{why['code']} {why['counts'].get('nodes', '')}".rstrip() for why in each["blockers"]))
        for each in one.get("classes", [])
    ]  # fmt: skip
    return "\n\n" + table(("CLASS OF NODES", "NODES", "FIT", "REASONS"), rows) if rows else ""


def _estimate(one: Record) -> list[tuple[str, object]]:
    """When it will start, and what says so; that nobody can say where that is so."""
    found = one.get("estimate")
    if not found and _stands_in_line(one):
        return [("estimated start", ": ".join(filter(None, ("unknown", one.get("estimate_unknown")))))]
    if not found:
        return []
    latest = [("at the latest", found["latest"])] if found["latest"] else []
    return [("estimated start", f"{found['at']}, {found['message']}"), *latest]


def _is_kept(one: Record) -> bool:
    """Whether something else than room keeps it."""
    return any(blocker["code"].startswith(NOT_FOR_ROOM) for blocker in one["blockers"])


def _stands_in_line(one: Record) -> bool:
    return not one["infeasible"] and one.get("phase", "pending") == "pending" and not one["fits_now"]


def _changes(one: Record) -> list[tuple[str, str]]:
    """What would start it, and who uses up what keeps it."""
    held = [("held by", _holder(each)) for each in one.get("held_by", [])]
    return [*held, *(("instead", change["message"]) for change in one.get("changes", []))]


def _holder(one: Record) -> str:
    who = f"session {one['session']}" if one["session"] else f"{one['sessions']} other{'s' * (one['sessions'] > 1)}"
    words = {"cpus": "CPUs", "gpus": "GPUs", "memory_mib": "MiB of memory", "vram_mib": "MiB of GPU memory"}
    amounts = [f"{one[name]:g} {word}" for name, word in words.items() if one[name]]
    until = f", until {one['until']}" if one["until"] else ""
    return f"quota {one['quota']}: {who}: {', '.join(amounts)}{until}"


def _preferences(one: Record) -> list[tuple[str, str]]:
    return [("prefers", preference["message"]) for preference in one.get("preferences", [])]


def show_history(events: Iterable[Record]) -> str:
    rows = [(one["seq"], one["at"], one["from"], one["fact"], one["to"], one["attempt"], one["by"],
             _pairs(one["detail"])) for one in events]  # fmt: skip
    return table(("SEQ", "AT", "FROM", "FACT", "TO", "ATTEMPT", "BY", "DETAIL"), rows)


def show_event(one: Record) -> str:
    """One line of the event stream."""
    change = f"{one['from'] or '-'} -> {one['to'] or '-'}"
    parts = (
        one["id"],
        one["at"],
        one["session"] or one.get("group") or "-",
        change,
        one["fact"],
        f"by {one['by']}",
        _pairs(one["detail"]),
    )
    return "  ".join(str(part) for part in parts if part not in (None, ""))


def show_launches(found: Record) -> str:
    """Each launch with its chain of records, and the verdict."""
    parts = [_launch(one) for one in found["launches"]]
    doubles = found["double_starts"]
    verdict = f"STARTED MORE THAN ONCE: {', '.join(doubles)}" if doubles else "no launch began more than once"
    return "\n\n".join([*parts, f"{len(parts)} launch{'' if len(parts) == 1 else 'es'}; {verdict}"])


def _launch(one: Record) -> str:
    title = f"{one['token']}  attempt {one['attempt']}  rank {one['rank']}  on {one['node']}  starts {one['starts']}"
    rows = [(step["step"], step["at"], step["by"], _pairs(step["detail"])) for step in one["steps"]]
    return f"{title}\n{table(('STEP', 'AT', 'BY', 'DETAIL'), rows)}"


def show_nodes(nodes: Iterable[Record], *, wide: bool) -> str:
    now = datetime.now(UTC)
    head = ["NAME", "STATE", "GROUP", "CPUS", "MEMORY", "GPUS", "SEEN"]
    more = ["EPOCH", "ADDRESS", "CONTAINMENT", "RUNTIMES", "AGENT", "LABELS"]
    rows: list[list[object]] = []
    for one in nodes:
        state = one["state"] if one["schedulable"] else f"{one['state']},unschedulable"
        state += f",foreign:{one['foreign']}" * bool(one["foreign"])
        row: list[object] = [
            one["name"], state, one["group"], f"{one['cpus_used']:g}/{one['cpus']:g}",
            f"{one['memory_used_mib']}/{one['memory_mib']}MiB", one["devices"], age(one["seen_at"], now),
        ]  # fmt: skip
        if wide:
            row += [one["epoch"], one["address"], one["containment"], ",".join(one["runtimes"]), one["agent_version"],
                    _pairs(one["labels"])]  # fmt: skip
        rows.append(row)
    return table(head + (more if wide else []), rows)


def show_node(found: Record) -> str:
    node = found["node"]
    facts = listing([
        ("name", node["name"]), ("state", node["state"]), ("schedulable", node["schedulable"]),
        ("group", node["group"]), ("epoch", node["epoch"]), ("address", node["address"]),
        ("cpus used", f"{node['cpus_used']:g} of {node['cpus']:g}"),
        ("memory used", f"{node['memory_used_mib']} of {node['memory_mib']} MiB"), ("labels", _pairs(node["labels"])),
        ("runtimes", ", ".join(node["runtimes"])), ("containment", node["containment"]),
        ("agent", node["agent_version"]), ("boot", node["boot_id"]), ("seen", node["seen_at"]),
        ("registered", node["registered_at"]), ("backs off until", node["backoff_until"]),
        ("sessions", ", ".join(found["sessions"])),
        *[("foreign", f"{one['token']}, not known to the ledger; last reported {one['seen_at']}")
          for one in found["foreign"]],
    ])  # fmt: skip
    return f"{facts}\n\n{show_devices(found['devices'], wide=False)}" if found["devices"] else facts


def show_devices(devices: Iterable[Record], *, wide: bool) -> str:
    head = ["NODE", "INDEX", "MODEL", "MEMORY", "USED", "SHARE", "UUID"] + (["ARCH", "PRESENT"] if wide else [])
    rows = [
        [one["node"], one["index"], one["model"], f"{one['capacity_mib']}MiB", f"{one['used_mib']}MiB",
         f"{one['used']:g}", one["uuid"]] + ([one["arch"], one["present"]] if wide else [])
        for one in devices
    ]  # fmt: skip
    return table(head, rows)


def show_groups(groups: Iterable[Record], *, wide: bool) -> str:
    head = ["NAME", "STATE", "ORDER", "PLACEMENT", "NODES", "VERSION"]
    more = ["BACKEND", "OPTIONS", "NOTE"]
    rows: list[list[object]] = []
    for one in groups:
        row: list[object] = [one["name"], _group_state(one), one["order"], one["placement"], one["nodes"],
                             one["version"]]  # fmt: skip
        if wide:
            options = _option_values({**one["order_options"], **one["placement_options"], **one["options"]})
            row += [one["backend"], options, one["problem"] and one["problem"]["message"]]
        rows.append(row)
    return table(head + (more if wide else []), rows)


def _group_state(one: Record) -> str:
    return "broken" if one["problem"] else "paused" if one["paused"] else "open"


def show_group(found: Record) -> str:
    one = found["group"]
    facts = listing([
        ("name", one["name"]), ("state", _group_state(one)), ("problem", _why(one["problem"])),
        ("order", one["order"]), ("order options", _option_values(one["order_options"])),
        ("placement", one["placement"]), ("placement options", _option_values(one["placement_options"])),
        ("options", _option_values(one["options"])),
        ("backend", one["backend"]), ("nodes", one["nodes"]), ("version", one["version"]),
    ])  # fmt: skip
    if not found["shares"]:
        return facts
    rows = [(one["project"], one["owner"], f"{one['weight']:g}", f"{one['entitled']:.1%}", f"{one['used']:.1%}",
             f"{one['level']:.3f}") for one in found["shares"]]  # fmt: skip
    return f"{facts}\n\n{table(('PROJECT', 'OWNER', 'WEIGHT', 'ENTITLED', 'USED', 'LEVEL'), rows)}"


def show_quotas(quotas: Iterable[Record]) -> str:
    """A line for each limit, of each that is counted apart."""
    rows: list[tuple[object, ...]] = []
    for one in quotas:
        for used in one["used"] or [{"of": one["of"]}]:
            for what, limit in one["limits"].items():
                if limit is not None:
                    now = used.get(what)
                    rows.append((one["name"], used["of"], what, None if now is None else f"{now:g}", f"{limit:g}",
                                 one["version"]))  # fmt: skip
    return table(("NAME", "OF", "WHAT", "USED", "LIMIT", "VERSION"), rows)


def _option_values(options: Mapping[str, Any]) -> str:
    """As they can be given again."""
    return " ".join(f"{name}={_option_value(value)}" for name, value in sorted(options.items()))


def _option_value(value: Any) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{name}:{weight:g}" for name, weight in cast("Mapping[str, float]", value).items())
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def show_policies(policies: Iterable[Record]) -> str:
    rows: list[tuple[object, ...]] = []
    for one in policies:
        rows.append((one["kind"], one["name"], "", one["problem"]["message"] if one["problem"] else one["help"]))
        rows += [("", "", f"{option['name']}={_option_value(option['default'])}", option["help"])
                 for option in one["options"]]  # fmt: skip
    return table(("KIND", "POLICY", "OPTION", "WHAT IT DOES"), rows)


def show_diagnosis(found: Record) -> str:
    counted = ", ".join(f"{count} {name}" for name, count in sorted(found["checked"].items()))
    if not found["findings"]:
        return f"clean: every invariant holds ({counted})"
    rows = [(one["severity"], one["code"], one["subject"], one["message"]) for one in found["findings"]]
    return f"{table(('SEVERITY', 'CODE', 'SUBJECT', 'MESSAGE'), rows)}\nlooked at {counted}"


def _why(why: Record | None) -> str | None:
    return None if why is None else f"{why['code']}: {why['message']}" if why["message"] else why["code"]


def _pairs(values: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={_plain(value)}" for key, value in values.items() if value is not None)


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_plain, cast("list[Any]", value)))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
