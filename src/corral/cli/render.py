"""What the control plane answers, as people read it. Takes JSON, answers text; prints nothing."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from corral.cli.tables import WIDTH, listing, table
from corral.cli.values import age, mebibytes, moment, pairs, reason_of, when, yes_or_no
from corral.model.wording import length, number_of, size, span

Record = Mapping[str, Any]
MOST_COMMAND = 60
MEMORIES = (("memory_mib", "memory"), ("vram_mib", "GPU memory"))
COUNTED = {"domain": ("project in a domain", "projects in domains")}
NOT_FOR_ROOM = ("quota_", "group_", "array_", "preempting", "held", "begin_not_reached", "dependency", "backing_off")


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
    return [when(one["planned_start"]), one["phase"], one["outcome"], one["exit_code"], one["attempt"], one["owner"],
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
    parts = ", ".join(f"{count} {name}" for name, count in counts.items())
    told = f"{number_of(one['array']['size'], 'member')}: {parts}"
    why = one["refusals"][0] if one["refusals"] else one["reason"]
    return f"{told}; {why['message'] or why['code']}" if why else told


def show_session(one: Record) -> str:
    resources, each = one["resources"], " per rank" * (one["ranks"] > 1)
    facts = listing([
        ("id", one["id"]), ("name", one["name"]), ("state", state_of(one)), ("phase", one["phase"]),
        ("outcome", one["outcome"]), ("exit class", one["exit_class"]), ("exit code", one["exit_code"]),
        ("reason", reason_of(one["reason"])), ("cause", reason_of(one["cause"])), ("error", one["error"]),
        *_array(one), ("wanted", one["wanted"]),
        ("attempt", one["attempt"]),
        ("continuation", _of_at_most(one["continuations"], one["most_continuations"])),
        ("again of", one["requeue_of"]), ("kind", one["kind"]),
        ("owner", one["owner"]), ("project", one["project"]), ("group", one["group"]), ("priority", one["priority"]),
        ("position", one["position"]), ("prefers", " ".join(one["prefer"])), ("labels", pairs(one["labels"])),
        ("script", one["script"]),
        ("command", command_of(one)), ("nodes", one["nodes"]), ("ranks", one["ranks"]),
        ("cpus", f"{resources['cpus']:g}{each}"), ("memory", mebibytes(resources["memory_mib"], each)),
        ("gpus", gpus_of(one)), ("vram", mebibytes(resources["vram_mib"], each)),
        ("time limit", one["time_limit_s"] and length(one["time_limit_s"])), ("submitted", when(one["submitted_at"])),
        ("planned start", when(one["planned_start"])), ("started", when(one["started_at"])),
        ("ended", when(one["ended_at"])),
        ("in Slurm", one["slurm_state"]),
        ("preemptible", yes_or_no(one["preemptible"])),
        ("preempted", number_of(one["preemptions"], "time") if one["preemptions"] else None),
        ("stopped for", one["preempted_for"]),
        *[("waits for", reason_of(refusal)) for refusal in one["refusals"]],
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
    stops = plan["estimate"] and plan["estimate"]["basis"] == "stops"
    room = "when others have made way" if stops else "when there is room"
    now = "never here" if plan["infeasible"] else waits if plan["fits_now"] or _is_kept(plan) else room
    blockers = [("blocker", reason_of(one)) for one in plan["blockers"]]
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
    latest = [("at the latest", when(found["latest"]))] if found["latest"] else []
    at = "now" if found["basis"] == "now" else when(found["at"])
    return [("estimated start", f"{at}, {found['message']}"), *latest]


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
    amounts = [number_of(one[name], word) for name, word in (("cpus", "CPU"), ("gpus", "GPU")) if one[name]]
    amounts += [f"{size(one[name])} of {word}" for name, word in MEMORIES if one[name]]
    until = f", until {when(one['until'])}" if one["until"] else ""
    return f"quota {one['quota']}: {who}: {', '.join(amounts)}{until}"


def _preferences(one: Record) -> list[tuple[str, str]]:
    return [("prefers", preference["message"]) for preference in one.get("preferences", [])]


def show_history(events: Iterable[Record]) -> str:
    rows = [(one["seq"], one["at"], one["from"], one["fact"], one["to"], one["attempt"], one["by"],
             pairs(one["detail"])) for one in events]  # fmt: skip
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
        pairs(one["detail"]),
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
    rows = [(step["step"], step["at"], step["by"], pairs(step["detail"])) for step in one["steps"]]
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
                    pairs(one["labels"])]  # fmt: skip
        rows.append(row)
    return table(head + (more if wide else []), rows)


def show_node(found: Record) -> str:
    node = found["node"]
    facts = listing([
        ("name", node["name"]), ("state", node["state"]), ("schedulable", yes_or_no(node["schedulable"])),
        ("group", node["group"]), ("epoch", node["epoch"]), ("address", node["address"]),
        ("cpus used", f"{node['cpus_used']:g} of {node['cpus']:g}"),
        ("memory used", f"{node['memory_used_mib']} of {node['memory_mib']}MiB"), ("labels", pairs(node["labels"])),
        ("runtimes", ", ".join(node["runtimes"])), ("containment", node["containment"]),
        ("agent", node["agent_version"]), ("boot", node["boot_id"]), ("seen", when(node["seen_at"])),
        ("registered", when(node["registered_at"])), ("backs off until", when(node["backoff_until"])),
        ("sessions", ", ".join(found["sessions"])),
        *[("foreign", f"{one['token']}, not known to the ledger; last reported {when(one['seen_at'])}")
          for one in found["foreign"]],
    ])  # fmt: skip
    return f"{facts}\n\n{show_devices(found['devices'], wide=False)}" if found["devices"] else facts


def show_devices(devices: Iterable[Record], *, wide: bool) -> str:
    head = ["NODE", "INDEX", "MODEL", "MEMORY", "USED", "SHARE", "UUID"] + (["ARCH", "PRESENT"] if wide else [])
    rows = [
        [one["node"], one["index"], one["model"], f"{one['capacity_mib']}MiB", f"{one['used_mib']}MiB",
         f"{one['used']:g}", one["uuid"]] + ([one["arch"], yes_or_no(one["present"])] if wide else [])
        for one in devices
    ]  # fmt: skip
    return table(head, rows)


def show_diagnosis(found: Record) -> str:
    counted = ", ".join(
        number_of(count, *COUNTED.get(name, (name,))) for name, count in sorted(found["checked"].items())
    )
    if not found["findings"]:
        return f"clean: every invariant holds\n{_looked_at(counted)}"
    rows = [(one["severity"], one["code"], one["subject"], one["message"]) for one in found["findings"]]
    return f"{table(('SEVERITY', 'CODE', 'SUBJECT', 'MESSAGE'), rows)}\n{_looked_at(counted)}"


def _looked_at(counted: str) -> str:
    return textwrap.fill(f"looked at {counted}", WIDTH)
