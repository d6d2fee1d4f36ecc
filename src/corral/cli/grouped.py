"""Resource groups, policies, quotas and what was changed of them, as people read them. Takes JSON, answers text; but
`tell_deleted` tells it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from corral.cli.tables import WIDTH, listing, table
from corral.cli.terminal import Terminal
from corral.cli.values import pairs, reason_of
from corral.model.wording import length, size

Record = Mapping[str, Any]
DURATION = "duration"
EVERY = ("group", "every", "options")  # the options that a group has whatever its policies
SECTIONS = ("order", "placement")  # each with a policy, and options of its own
LIMITS = {"memory_mib": "memory", "vram_mib": "vram", "time_limit_s": "time"}


def in_spans(one: Record, policies: Iterable[Record]) -> Record:
    """A group, or what was changed of one, with the durations among its options as they can be given again: half_life
    is 7d then. Which these are the policies say."""
    spans = {(by["kind"], by["name"], each["name"]) for by in policies for each in by["options"]
             if each["kind"] == DURATION}  # fmt: skip
    found = dict(one)
    for kind, name, field in [*((kind, one.get(kind), f"{kind}_options") for kind in SECTIONS), EVERY]:
        options = cast("Record", one.get(field) or {})
        found[field] = {key: _span(value) if (kind, name, key) in spans else value for key, value in options.items()}
    return found


def _span(value: Any) -> Any:
    return length(int(value)) if isinstance(value, int | float) and value == int(value) else value


def show_groups(groups: Iterable[Record], *, wide: bool) -> str:
    head = ["NAME", "STATE", "ORDER", "PLACEMENT", "NODES", "VERSION"]
    more = ["BACKEND", "OPTIONS", "NOTE"]
    rows: list[list[object]] = []
    for one in groups:
        row: list[object] = [one["name"], _state(one), one["order"], one["placement"], one["nodes"], one["version"]]
        if wide:
            options = {**one["order_options"], **one["placement_options"], **one["options"]}
            row += [one["backend"], " ".join(_options(options)), one["problem"] and one["problem"]["message"]]
        rows.append(row)
    return table(head + (more if wide else []), rows)


def _state(one: Record) -> str:
    return "broken" if one["problem"] else "paused" if one["paused"] else "open"


def show_group(one: Record, shares: Iterable[Record] = ()) -> str:
    """With each option on a line of its own, as it can be given again."""
    facts = listing([
        ("name", one["name"]), ("state", _state(one)), ("problem", reason_of(one["problem"])),
        ("order", one["order"]), *_lines("order options", one["order_options"]),
        ("placement", one["placement"]), *_lines("placement options", one["placement_options"]),
        *_lines("options", one["options"]),
        ("backend", one["backend"]), ("nodes", one["nodes"]), ("version", one["version"]),
    ])  # fmt: skip
    rows = [(one["project"], one["owner"], f"{one['weight']:g}", f"{one['entitled']:.1%}", f"{one['used']:.1%}",
             f"{one['level']:.3f}") for one in shares]  # fmt: skip
    if not rows:
        return facts
    return f"{facts}\n\n{table(('PROJECT', 'OWNER', 'WEIGHT', 'ENTITLED', 'USED', 'LEVEL'), rows)}"


def _lines(name: str, options: Record) -> Iterator[tuple[str, object]]:
    for number, line in enumerate(_options(options)):
        yield "" if number else name, line


def _options(options: Record) -> list[str]:
    """As they can be given again."""
    return [f"{name}={_value(value)}" for name, value in sorted(options.items())]


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{name}:{weight:g}" for name, weight in cast("Mapping[str, float]", value).items())
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def show_policies(policies: Iterable[Record]) -> str:
    rows: list[tuple[object, ...]] = []
    for one in policies:
        rows.append((one["kind"], one["name"], "", one["problem"]["message"] if one["problem"] else one["help"]))
        rows += [("", "", f"{option['name']}={_default(option)}", option["help"]) for option in one["options"]]
    return table(("KIND", "POLICY", "OPTION", "WHAT IT DOES"), rows, width=WIDTH, nothing="")


def _default(option: Record) -> str:
    return _value(_span(option["default"]) if option["kind"] == DURATION else option["default"])


def show_quotas(quotas: Iterable[Record]) -> str:
    """A line for each limit, of each that is counted apart."""
    rows: list[tuple[object, ...]] = []
    for one in quotas:
        for used in one["used"] or [{"of": one["of"]}]:
            for what, limit in one["limits"].items():
                if limit is not None:
                    rows.append((one["name"], used["of"], LIMITS.get(what, what), _amount(what, used.get(what)),
                                 _amount(what, limit), one["version"]))  # fmt: skip
    return table(("NAME", "OF", "WHAT", "USED", "LIMIT", "VERSION"), rows)


def _amount(what: str, value: Any) -> str | None:
    if value is None:
        return None
    if what.endswith("_mib"):
        return size(value)
    return length(int(value)) if what.endswith("_s") else f"{value:g}"


def show_changes(events: Iterable[Record]) -> str:
    """What was changed of a group, or of a quota, each time by whom."""
    rows = [(one["seq"], one["at"], one["fact"], one["by"], pairs(one["detail"])) for one in events]
    return table(("VERSION", "AT", "CHANGE", "BY", "DETAIL"), rows, width=WIDTH)


def tell_deleted(terminal: Terminal, kind: str, one: Record) -> None:
    """Of a group, a quota or a reservation alike."""
    if terminal.as_json:
        terminal.print_json(one)
    else:
        terminal.print(one["name"] if terminal.output == "name" else f"{kind} {one['name']} is deleted")
