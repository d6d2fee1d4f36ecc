"""The way to a manager: agent.ports.Link by HTTP, one kept client."""

from __future__ import annotations

import contextlib
from pathlib import Path

import httpx

from corral.agent.ports import Rejected, Unreachable

CONNECT_S = 5.0


class HttpLink:
    """Requests with the agent's token. An answer of 5xx is no answer."""

    def __init__(self, token: str) -> None:
        self._client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
            limits=httpx.Limits(max_connections=32, max_keepalive_connections=8),
            trust_env=False,
        )

    async def post(self, manager: str, path: str, body: bytes, timeout_s: float) -> bytes:
        timeout = httpx.Timeout(timeout_s, connect=CONNECT_S)
        try:
            answer = await self._client.post(manager.rstrip("/") + path, content=body, timeout=timeout)
        except (httpx.HTTPError, OSError) as error:
            raise Unreachable(f"{manager}: {error!r}") from None
        _checked(answer, manager)
        return answer.content

    async def download(self, manager: str, path: str, into: Path, timeout_s: float) -> None:
        """Write the answer to a file, piece by piece. `timeout_s` is how long it may be silent."""
        timeout = httpx.Timeout(timeout_s, connect=CONNECT_S)
        try:
            async with self._client.stream("GET", manager.rstrip("/") + path, timeout=timeout) as answer:
                if answer.status_code >= 400:
                    await answer.aread()
                _checked(answer, manager)
                with into.open("wb") as file:
                    async for piece in answer.aiter_bytes():
                        file.write(piece)
        except httpx.HTTPError as error:
            raise Unreachable(f"{manager}: {error!r}") from None

    async def close(self) -> None:
        await self._client.aclose()


def _checked(answer: httpx.Response, manager: str) -> None:
    if answer.status_code >= 500:
        raise Unreachable(f"{manager}: {answer.status_code}")
    if answer.status_code >= 400:
        code, message = "rejected", answer.text[:300]
        if answer.headers.get("content-type", "").startswith("application/problem+json"):
            with contextlib.suppress(ValueError, AttributeError):
                problem = answer.json()
                code, message = str(problem.get("code")), str(problem.get("detail") or problem.get("title"))
        raise Rejected(answer.status_code, code, message)
