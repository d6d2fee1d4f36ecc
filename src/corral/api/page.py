"""The plain page at `/`: how many sessions and nodes there are. No script, no session's name, nothing to sign in to."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from corral import __version__
from corral.model.lifecycle import Phase

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="5"><title>Corral</title>
<style>body{{font:16px/1.5 system-ui;margin:3rem auto;max-width:40rem;padding:0 1rem}}td{{padding-right:2rem}}</style>
<h1>Corral</h1>
<h2>Sessions</h2><table>{sessions}</table>
<h2>Nodes</h2><table>{nodes}</table>
<p><a href="/openapi.json">OpenAPI</a> · <a href="/metrics">metrics</a> · <a href="/readyz">ready?</a></p>
<p>version {version}</p>
</html>
"""


def status_page(sessions: Mapping[str, int], nodes: Mapping[str, int]) -> str:
    by_phase = {str(phase): sessions.get(phase, 0) for phase in Phase}
    return _PAGE.format(sessions=_rows(by_phase), nodes=_rows(nodes or {"none yet": 0}), version=escape(__version__))


def _rows(counts: Mapping[str, int]) -> str:
    return "".join(f"<tr><td>{escape(name)}</td><td>{count}</td></tr>" for name, count in counts.items())
