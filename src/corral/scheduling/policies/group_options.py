"""The options that every resource group has, whatever its policies: declared once, read by whoever they concern."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corral.model.faults import Invalid
from corral.model.node import ResourceGroup
from corral.scheduling.policies.options import Options, complete

GROUP_OPTIONS: Options = {}
OF_GROUPS = "of resource groups"


def group_options(group: ResourceGroup) -> Mapping[str, Any]:
    """Every option's value. Of a group whose options cannot be read, the defaults: it takes no sessions anyway."""
    try:
        return complete(GROUP_OPTIONS, group.options, OF_GROUPS)
    except Invalid:
        return complete(GROUP_OPTIONS, {}, OF_GROUPS)
