"""submit: from a command, a script, a file; what is asked is what is stored."""

import io
import json
from pathlib import Path

import pytest

from corral.client import Client
from tests.cli.conftest import Corral


def test_submit_prints_the_id_and_nothing_else(corral: Corral, client: Client) -> None:
    for words in (["submit", "--", "true"], ["submit", "-q", "--", "true"], ["submit", "-o", "name", "--", "true"]):
        done = corral(*words)
        assert done.code == 0
        assert done.err == ""
        assert client.get(done.line)["command"] == ["true"]


def test_submit_as_json_is_the_session(corral: Corral) -> None:
    session = corral("submit", "-o", "json", "--hold", "--name", "one", "--", "true").json()
    assert (session["name"], session["phase"], session["wanted"]) == ("one", "pending", "hold")


@pytest.mark.parametrize(
    ("options", "field", "stored"),
    [
        (["--name", "train.1"], "name", "train.1"),
        (["--project", "vision"], "project", "vision"),
        (["--priority", "-5"], "priority", -5),
        (["--label", "a=b", "--label", "c=d=e"], "labels", {"a": "b", "c": "d=e"}),
        (["--nodes", "1"], "nodes", 1),
        (["--ranks-per-node", "2"], "ranks_per_node", 2),
        (["--exclusive"], "exclusive", True),
        (["--on", "zone=a"], "on_labels", {"zone": "a"}),
        (["--prefer", "zone=a", "--prefer", "zone=b"], "prefer", [["zone", "a"], ["zone", "b"]]),
        (["--node", "node-1"], "on_nodes", ["node-1"]),
        (["--not-node", "node-9"], "not_nodes", ["node-9"]),
        (["--time", "1h30m"], "time_limit_s", 5400),
        (["--grace", "5s"], "grace_s", 5),
        (["--retries", "3"], "retries", 3),
        (["--continuations", "0"], "continuations", 0),
        (["--no-requeue"], "requeue", False),
        (["--outcome-rule", "main-only"], "outcome_rule", "main-only"),
        (["--env", "A=b=c"], "environment", {"A": "b=c"}),
        (["--workdir", "/"], "workdir", "/"),
        (["--mount", "/srv:/data:ro"], "mounts", [{"source": "/srv", "target": "/data", "read_only": True}]),
        (["--port", "web:8080"], "ports", {"web": 8080}),
        (["--signal", "USR1@120", "--time", "1h"], "early_signal", {"signal": "USR1", "before_s": 120}),
        (["--runtime", "process"], "runtime", "process"),
        (["--hold"], "hold", True),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_an_option_is_stored(corral: Corral, client: Client, options: list[str], field: str, stored: object) -> None:
    id_ = corral("submit", "--hold", *options, "--", "true").line
    assert client.spec(id_)[field] == stored
    client.cancel(id_)


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ([], (1.0, 1024, None, None, None)),
        (["--cpus", "2.5", "--memory", "2GiB"], (2.5, 2048, None, None, None)),
        (["--cpus", "500m", "--memory", "512M"], (0.5, 512, None, None, None)),
        (["--gpus", "A100:2"], (1.0, 1024, 2, "A100", None)),
        (["--gpus", "A100|H100:2"], (1.0, 1024, 2, "A100|H100", None)),
        (["--gpus", "1", "--gpu-model", "L4|A100"], (1.0, 1024, 1, "L4|A100", None)),
        (["--gpus", "2", "--gpu-model", "A100", "--gpu-arch", "sm_80"], (1.0, 1024, 2, "A100", "sm_80")),
        (["--gpus", "0.5"], (1.0, 1024, 0.5, None, None)),
    ],
)
def test_resources_are_read_as_people_write_them(
    corral: Corral, client: Client, options: list[str], asked: tuple[object, ...]
) -> None:
    id_ = corral("submit", "--hold", *options, "--", "true").line
    resources = client.get(id_)["resources"]
    shown = [resources[name] for name in ("cpus", "memory_mib", "gpus", "gpu_model", "gpu_arch")]
    client.cancel(id_)
    assert tuple(shown) == asked


def test_words_after_the_command_are_the_commands_own(corral: Corral, client: Client) -> None:
    id_ = corral("submit", "--hold", "--", "prog", "--name", "x", "-f", "--", "y").line
    assert client.get(id_)["command"] == ["prog", "--name", "x", "-f", "--", "y"]
    client.cancel(id_)


def test_a_script_is_stored_as_it_was(corral: Corral, client: Client, tmp_path: Path) -> None:
    script = tmp_path / "job one.sh"
    script.write_text('#!/bin/sh\necho "was $1 $CORRAL_RANK"\n')
    id_ = corral("submit", "--hold", str(script), "a", "--flag").line
    script.write_text("#!/bin/sh\nexit 9\n")
    corral("release", id_)
    assert corral("wait", id_).code == 0
    assert corral("logs", id_).out == "was a 0\n"
    assert client.get(id_)["command"] == ["a", "--flag"]
    assert client.get(id_)["name"] == "job-one.sh"


def test_a_scripts_own_lines_are_options_that_the_command_line_beats(
    corral: Corral, client: Client, tmp_path: Path
) -> None:
    script = tmp_path / "job.sh"
    script.write_text(
        "#!/bin/sh\n#SBATCH --job-name=slurm --cpus-per-task=3\n#CORRAL --name own --cpus 2\n# a remark\n\n"
        "#CORRAL --label 'k=v w'  # why\ntrue\n#CORRAL --cpus 7\n"
    )
    id_ = corral("submit", "--hold", "--memory", "2GiB", str(script)).line
    session = client.get(id_)
    assert (session["name"], session["resources"]["cpus"], session["labels"]) == ("own", 2.0, {"k": "v w"})
    other = client.get(corral("submit", "--hold", "--cpus", "1", str(script)).line)
    assert other["resources"]["cpus"] == 1.0
    corral("cancel", id_, other["id"])


def test_a_slurm_option_without_a_meaning_is_left_out_aloud(corral: Corral, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#SBATCH --mail-type=ALL -o out.txt --time=1\ntrue\n")
    done = corral("submit", "-o", "json", str(script))
    assert done.json()["time_limit_s"] == 60
    assert [line.split("#SBATCH ")[1].split()[0] for line in done.err.splitlines()] == ["--mail-type", "--output"]


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("#CORRAL --cpsu 3", "--cpsu"),
        ("#CORRAL sleep 3", "'sleep' is no option"),
        ('#CORRAL --name "open', "closing quotation"),
        ("#SBATCH --nodes=2 --ntasks=3", "cannot be shared evenly"),
        ("#SBATCH job.sh", "'job.sh' is no option"),
        ("#SBATCH --mem=lots", "not an amount of memory"),
    ],
)
def test_a_wrong_line_of_a_script_is_named(corral: Corral, tmp_path: Path, line: str, part: str) -> None:
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/sh\n\n{line}\ntrue\n")
    done = corral("submit", str(script))
    assert done.code == 2
    assert "job.sh line 3: " in done.error
    assert part in done.error


def test_a_file_has_the_fields_of_the_rest_body(corral: Corral, client: Client, tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text("command: [sh, -c, 'echo $A $B']\nname: from-file\ngpus: 1\nenv: {A: one, B: two}\nhold: true\n")
    session = client.get(corral("submit", "-f", str(spec), "--name", "from-line", "--env", "B=three").line)
    assert (session["name"], session["resources"]["gpus"]) == ("from-line", 1)
    assert client.spec(session["id"])["environment"] == {"A": "one", "B": "three"}
    client.cancel(session["id"])


@pytest.mark.parametrize(
    "text",
    [
        json.dumps([{"command": ["true"], "name": "one"}, {"command": ["true"], "name": "two"}]),
        json.dumps({"sessions": [{"command": ["true"], "name": "one"}, {"command": ["true"], "name": "two"}]}),
        "command: ['true']\nname: one\n---\ncommand: ['true']\nname: two\n",
        "- command: ['true']\n  name: one\n- {command: ['true'], name: two}\n",
    ],
)
def test_a_file_may_hold_several(corral: Corral, client: Client, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    ids = corral("submit", "-f", "-").out.split()
    assert [client.get(id_)["name"] for id_ in ids] == ["one", "two"]


def test_of_several_all_or_none_are_submitted(corral: Corral, client: Client, tmp_path: Path) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps([{"command": ["true"], "project": "none-of-it"}, {"command": []}]))
    assert corral("submit", "-f", str(spec)).code == 2
    assert client.sessions(project="none-of-it")["sessions"] == []


def test_an_uploaded_tree_is_where_the_command_runs(corral: Corral, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / "run.sh").write_text("#!/bin/sh\ncat data.txt\n")
    (tree / "sub" / "run.sh").chmod(0o755)
    (tree / "data.txt").write_text("from the tree\n")
    (tree / "secret.key").write_text("x")
    (tree / ".gitignore").write_text("*.key\n")
    done = corral("run", "-q", "--upload", str(tree), "--", "sh", "-c", "sub/run.sh; ls")
    assert done.code == 0
    assert done.out.startswith("from the tree\n")
    assert "secret.key" not in done.out


def test_a_bootstrap_runs_first(corral: Corral, tmp_path: Path) -> None:
    bootstrap = tmp_path / "boot.sh"
    bootstrap.write_text("#!/bin/sh\necho ready > made\n")
    assert corral("run", "-q", "--bootstrap", str(bootstrap), "--", "cat", "made").out == "ready\n"
    bootstrap.write_text("#!/bin/sh\nexit 4\n")
    assert corral("run", "-q", "--bootstrap", str(bootstrap), "--", "echo", "never").out == ""


def test_only_the_environment_that_is_given_goes_along(
    corral: Corral, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE", "own")
    monkeypatch.setenv("OTHER", "caller's")
    file = tmp_path / "env"
    file.write_text("# remark\nexport FILED='a b'\nMINE=file\n\n")
    show = ["--", "sh", "-c", 'echo "$MINE|$OTHER|$FILED|$LINE"']
    assert corral("run", "-q", *show).out == "|||\n"
    assert corral("run", "-q", "--env-file", str(file), "--env", "LINE=l", *show).out == "file||a b|l\n"
    assert corral("run", "-q", "--env", "OTHER", *show).out == "|caller's||\n"
    assert corral("run", "-q", "--env-all", "--env", "LINE=l", *show).out == "own|caller's||l\n"


def test_the_callers_token_never_goes_along(corral: Corral, client: Client) -> None:
    id_ = corral("submit", "--hold", "--env-all", "--", "true").line
    stored = client.spec(id_)["environment"]
    assert stored
    assert [name for name in stored if name.startswith("CORRAL_")] == []
    client.cancel(id_)


def test_the_same_key_submits_once(corral: Corral) -> None:
    first = corral("submit", "--idempotency-key", "k1", "--", "true").line
    assert corral("submit", "--idempotency-key", "k1", "--", "true").line == first
    other = corral("submit", "--idempotency-key", "k1", "--", "false")
    assert other.code == 4
    assert "k1" in other.error


def test_a_dry_run_says_what_it_would_wait_for_beside_room(corral: Corral) -> None:
    for option, code in ((("--begin", "+2h"), "begin_not_reached"), (("--hold",), "held")):
        plan = corral("submit", "--dry-run", *option, "--", "true")
        assert plan.code == 0 and code in plan.out and "starts now" not in " ".join(plan.out.split())
        assert "estimated start" not in plan.out


def test_a_dry_run_submits_nothing(corral: Corral, client: Client) -> None:
    done = corral("submit", "--dry-run", "--project", "dry", "--gpus", "1", "--", "true")
    assert done.code == 0
    assert "starts" in done.out
    assert corral("submit", "--dry-run", "-o", "json", "--project", "dry", "--", "true").json()["infeasible"] is False
    assert client.sessions(project="dry")["sessions"] == []


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_what_no_node_can_do_is_refused(corral: Corral, dry: list[str]) -> None:
    done = corral("submit", *dry, "--gpus", "64", "-o", "json", "--", "true")
    assert done.code == 4
    assert json.loads(done.error)["code"] == "infeasible"
