"""Writes docs/lifecycle.md from the table. Run it after a change of the table; a test holds the two together."""

from pathlib import Path

from corral.model.lifecycle import TABLE, mermaid

INTRO = """# The life of a session

Facts come in, one table moves the phase, effects go out. This page is made from the table in
`src/corral/model/lifecycle.py` (`python tools/lifecycle_doc.py`), and a test keeps the two equal.

A fact is something seen to have happened; what the node reports about single kernels is turned into these session
facts by `reconcile.decide.settle`. A fact of an older attempt is stale and changes nothing. A fact that the table does
not list for the phase is kept with the session's history as `disputed`.

Outcome, exit class and reason are columns of an ended session, progress is detail, a retry is a new attempt.

"""

OTHER_WORDS = """
How the phases read in other systems' words:

| Corral | Slurm | Backend.AI |
|---|---|---|
| pending | PENDING | PENDING |
| placed | CONFIGURING | SCHEDULED, PREPARING, PREPARED |
| starting | CONFIGURING | CREATING |
| running | RUNNING | RUNNING |
| stopping | COMPLETING | TERMINATING |
| ended | COMPLETED, FAILED, CANCELLED, TIMEOUT, OUT_OF_MEMORY, NODE_FAIL | TERMINATED, CANCELLED, ERROR |
"""


def page() -> str:
    rows = ["| from | fact | to | effects |", "|---|---|---|---|"]
    for edge in TABLE:
        effects = ", ".join(edge.effects) or "–"
        rows.append(f"| {', '.join(sorted(edge.sources))} | {edge.fact} | {edge.target} | {effects} |")
    return f"{INTRO}```mermaid\n{mermaid()}\n```\n\n" + "\n".join(rows) + "\n" + OTHER_WORDS


if __name__ == "__main__":
    Path(__file__).parents[1].joinpath("docs", "lifecycle.md").write_text(page())
