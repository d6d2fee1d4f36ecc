"""corral submit --after and --begin, to their ends on a real node."""

from datetime import datetime

from corral.client import Client
from tests.cli.conftest import Corral


def test_after_a_good_end_a_bad_one_and_any(corral: Corral) -> None:
    good = corral("submit", "-q", "--", "true").line
    bad = corral("submit", "-q", "--no-requeue", "--", "false").line
    on_good = corral("submit", "-q", "--after", good, "--", "true").line
    on_bad = corral("submit", "-q", "--after", f"{bad}:notok", "--after", f"{good}:any", "--", "true").line
    never = corral("submit", "-q", "--after", f"{bad}:ok", "--", "true").line
    assert corral("wait", on_good).code == 0
    assert corral("wait", on_bad).code == 0
    assert corral("wait", never).code == 130
    assert "dependency_failed" in corral("show", never).out
    assert corral("submit", "--after", "zzzzzzzzzz", "--", "true").code == 3
    assert corral("submit", "--after", f"{bad}:perhaps", "--", "true").code == 2


def test_a_slurm_script_waits_for_another(corral: Corral, tmp_path) -> None:
    first = corral("submit", "-q", "--hold", "--", "true").line
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/sh\n#SBATCH --dependency=afterok:{first}\ntrue\n")
    second = corral("submit", "-q", str(script)).line
    assert "dependency" in corral("explain", second).out
    corral("release", first)
    assert corral("wait", second).code == 0


def test_begin(corral: Corral, client: Client) -> None:
    id_ = corral("submit", "-q", "--begin", "+1s", "--", "true").line
    later = corral("submit", "-q", "--begin", "2099-01-01", "--", "true").line
    assert corral("wait", id_).code == 0
    session = client.get(id_)
    assert session["started_at"] is not None
    waited = datetime.fromisoformat(session["started_at"]) - datetime.fromisoformat(session["submitted_at"])
    assert waited.total_seconds() >= 1
    assert "begin_not_reached" in corral("show", later).out
    assert "2099" in corral("explain", later).out
    assert corral("cancel", later).code == 0
