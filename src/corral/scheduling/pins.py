"""Room that is kept for somebody: it is free to that session and taken to all others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from corral.model.node import Device
from corral.scheduling.places import RankPlace
from corral.scheduling.snapshot import Pin


def kept_for(
    pins: Iterable[Pin], devices: Mapping[str, Sequence[Device]], nodes: Collection[str] | None = None
) -> dict[str, list[RankPlace]]:
    """What is kept for each session, on these nodes; parts of devices that are not there any more are nobody's room."""
    found: defaultdict[str, list[RankPlace]] = defaultdict(list)
    for pin in pins:
        if nodes is None or pin.place.node in nodes:
            found[pin.owner].append(present(pin.place, devices.get(pin.place.node, ())))
    return dict(found)


def present(place: RankPlace, devices: Sequence[Device]) -> RankPlace:
    """The place without devices that are gone."""
    if not place.grants:
        return place
    there = {device.uuid for device in devices if device.present}
    return replace(place, grants=tuple(grant for grant in place.grants if grant.uuid in there))
