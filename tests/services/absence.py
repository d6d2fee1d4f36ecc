"""What happens when a real service cannot be had on this machine: a skip that is counted, and in CI a failure."""

import os
import re
from typing import NoReturn

import pytest

NAMED = re.compile(r"absent service: (\w+)")


def absent(service: str, why: str) -> NoReturn:
    message = f"absent service: {service} ({why})"
    if os.environ.get("CI") == "true":
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


def service_named_in(reason: str) -> str | None:
    found = NAMED.search(reason)
    return found[1] if found else None
