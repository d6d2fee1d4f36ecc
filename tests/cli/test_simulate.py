"""`corral simulate` as people call it: every kind of trace, what it shows, and what is wrong told in one line."""

import csv
import gzip
import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from corral.cli.main import run
from corral.sim.clusters import of_the_last
from tests.cli.conftest import Corral, Done
from tests.end_to_end.control_plane import Plane

MURI = """job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,priority
0,8,0,1000,gpt2,4,100000,0,100,0
1,1,1000,2000,vgg16,16,281000,28000,50,1
2,16,2000,500,a2c,64,255697000,10000,555,0
"""
PHILLY = """timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:02:55,66.0,1,66.0,11cb48
2017-10-09 07:01:55,100.0,12,1200.0,6214e9
"""
OPENB = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
a,12000,16384,1,500,V100|P100,LS,Running,0,100,10
b,1000,1024,2,1000,,BE,Running,5,50,5
c,1000,1024,0,0,,BE,Pending,7,700,
d,1000,1024,0,0,,BE,Failed,8,9,9
"""
SWF = """; Version: 2
; MaxNodes: 4
1 0 -1 100 4 -1 -1 -1 120 -1 1 7 -1 -1 0 -1 -1 -1
2 5 -1 50 2 -1 -1 -1 -1 -1 1 8 -1 -1 0 -1 -1 -1
3 6 -1 -1 2 -1 -1 -1 -1 -1 0 8 -1 -1 0 -1 -1 -1
"""
FLEET = "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,P100\nn1,64000,262144,2,T4\n"


def session(id_: str, started: str | None, ended: str | None, **resources: object) -> dict[str, Any]:
    asked = {
        "cpus": 1.0,
        "memory_mib": 512,
        "gpus": 1,
        "vram_mib": None,
        "gpu_model": None,
        "gpu_arch": None,
    } | resources
    return {
        "id": id_, "owner": "ann", "project": "p", "group": None, "priority": 0, "nodes": 1, "ranks": 1,
        "time_limit_s": None, "submitted_at": "2026-01-01T00:00:00Z", "started_at": started, "ended_at": ended,
        "resources": asked,
    }  # fmt: skip


HISTORY = [
    session("a", "2026-01-01T00:00:10Z", "2026-01-01T00:01:10Z"),
    session("b", "2026-01-01T00:00:10Z", "2026-01-01T00:00:30Z", gpus=0.5),
    session("c", None, None),
]


@pytest.fixture
def simulate(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Runs the command where the files are; there is no control plane."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CORRAL_URL", raising=False)
    lines = "\n".join(json.dumps(one) for one in HISTORY)
    texts = {"muri.csv": MURI, "philly.csv": PHILLY, "openb.csv": OPENB, "small.swf": SWF, "fleet.csv": FLEET,
             "lines.json": lines, "array.json": json.dumps(HISTORY, indent=2)}  # fmt: skip
    for name, text in texts.items():
        (tmp_path / name).write_text(text)

    def command(*words: str) -> Done:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            run(["simulate", *words])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        assert isinstance(ended.value.code, int)
        return Done(ended.value.code, out, err)

    return command


def numbers(done: Done) -> Any:
    assert done.code == 0, done.err
    return done.json()


@pytest.mark.parametrize(
    ("words", "jobs", "completion_s"),
    [
        (["muri.csv", "--nodes", "8x8xV100:32GB"], 3, (101.5 + 101.5 + 500 * 0.555 * 1.015) / 3),
        (["philly.csv", "--nodes", "2x8xV100:32GB"], 2, (100 + 66) / 2),
        (["openb.csv", "--fleet", "fleet.csv"], 2, (90 + 45) / 2),
        (["small.swf"], 2, (100 + 145) / 2),  # the second waits for the first
        (["small.swf", "--nodes", "2x4cpus"], 2, (100 + 50) / 2),
        (["lines.json", "--nodes", "1x2xV100:32GB"], 2, (60 + 20) / 2),
        (["array.json", "--nodes", "1x2xV100:32GB", "--format", "corral"], 2, (60 + 20) / 2),
    ],
)
def test_every_trace_is_read(simulate: Any, words: list[str], jobs: int, completion_s: float) -> None:
    told = numbers(simulate(*words, "-o", "json"))
    assert told["jobs"] == jobs
    (policy,) = told["policies"]
    assert policy["policy"] == "fifo" and policy["all"]["ended"] == jobs
    assert policy["all"]["completion_mean_s"] == pytest.approx(completion_s)


def test_a_packed_trace_is_read_too(simulate: Any) -> None:
    Path("muri.csv.gz").write_bytes(gzip.compress(MURI.encode()))
    assert numbers(simulate("muri.csv.gz", "--nodes", "8x8xV100:32GB", "-o", "json"))["jobs"] == 3


def test_what_nobody_can_run_is_left_out_and_said(simulate: Any) -> None:
    done = simulate("muri.csv", "--nodes", "1x8xV100:32GB")
    assert done.code == 0
    assert "1 of the trace left out: larger than the fleet" in done.err
    assert numbers(simulate("small.swf", "-o", "json"))["left_out"] == {"without a run time": 1}


def test_a_group_that_the_fleet_lacks_pins_nobody(simulate: Any) -> None:
    Path("lines.json").write_text(Path("lines.json").read_text().replace('"group": null', '"group": "gpu"'))
    done = simulate("lines.json", "--nodes", "1x2xV100:32GB")
    assert done.code == 0
    assert "2 of the trace go anywhere: the fleet has no resource group 'gpu'" in done.err
    assert len(numbers(simulate("lines.json", "--nodes", "1x2xV100:32GB", "-o", "json"))["notes"]) == 1
    Path("groups.csv").write_text("name,cpu_milli,memory_mib,gpu,model,group\na,8000,8192,2,T4,x\nb,8000,8192,0,,gpu\n")
    done = simulate("lines.json", "--fleet", "groups.csv")
    assert (done.code, "2 larger than the fleet" in done.error) == (2, True)


def test_processors_are_cpus_on_a_fleet_with_gpus_too(simulate: Any) -> None:
    Path("one.swf").write_text("; MaxProcs: 6\n1 0 -1 100 6 -1 -1 -1 120 -1 1 7 -1 -1 0 -1 -1 -1\n")
    told = numbers(simulate("one.swf", "--nodes", "1x4xV100:32GB+8cpus", "-o", "json"))
    assert told["jobs"] == 1


def test_what_could_not_be_read_is_counted(simulate: Any) -> None:
    """As a list of sessions has one whose record is broken: with nothing where nothing is known."""
    broken = json.loads(Path("array.json").read_text())[0] | {"id": "x", "error": "broken", "nodes": 0, "ranks": 0}
    with Path("lines.json").open("a") as lines:
        lines.write("\n" + json.dumps(broken))
    told = numbers(simulate("lines.json", "--nodes", "1x2xV100:32GB", "-o", "json"))
    assert (told["jobs"], told["left_out"]["its record cannot be read"]) == (2, 1)


def test_what_is_not_said_of_a_fleet_is_asked_for(simulate: Any) -> None:
    told = simulate("philly.csv", "--nodes", "8x8")
    assert (told.code, "8x8xA100:80GB" in told.error, "byte" in told.error) == (2, True, False)


def test_columns_are_told_and_only_those_that_say_something(simulate: Any) -> None:
    fleet = ("--nodes", "1x4cpus")
    plain = simulate("small.swf", *fleet).out
    assert "PREEMPTED" not in plain and "COMPLETION  from submit to end" in plain
    head, line = plain.split("\n\n")[1].splitlines()
    assert head.index("ENDED") + len("ENDED") == line.index(" 2 ") + 2, "numbers stand below one another"


def test_policies_stand_side_by_side(simulate: Any) -> None:
    done = simulate("small.swf", "--policy", "fifo", "--policy", "easy", "--policy", "srtf", "--nodes", "1x4cpus")
    head, *lines = [line.split() for line in done.out.split("\n\n")[1].splitlines()]
    assert head[:3] == ["POLICY", "ENDED", "COMPLETION"]
    assert [line[0] for line in lines] == ["fifo", "easy", "srtf"]


def test_placement_models_and_shares_bind(simulate: Any) -> None:
    """The share wants a V100 or a P100: with only T4 it is larger than the fleet."""
    Path("t4.csv").write_text(FLEET.replace("P100", "T4"))
    told = numbers(simulate("openb.csv", "--fleet", "t4.csv", "-o", "json"))
    assert (told["jobs"], told["left_out"]) == (
        1,
        {"larger than the fleet": 1, "never started": 1, "without a run time": 1},
    )


def test_a_plot_is_a_picture(simulate: Any) -> None:
    assert simulate("muri.csv", "--nodes", "2x8xV100:32GB", "--policy", "easy", "--policy", "srsf",
                    "--plot", "out.svg").code == 0  # fmt: skip
    root = ET.fromstring(Path("out.svg").read_text())
    assert root.tag.endswith("svg")
    lines = [one for one in root.iter() if one.tag.endswith("polyline")]
    assert len(lines) == 6 and all(len(one.attrib["points"].split()) > 1 for one in lines)


def test_what_became_of_each_job(simulate: Any) -> None:
    assert simulate("small.swf", "--policy", "easy", "--jobs", "jobs.csv").code == 0
    rows = list(csv.DictReader(Path("jobs.csv").read_text().splitlines()))
    assert [(row["job"], row["planned_s"], row["started_s"], row["ended_s"]) for row in rows] == [
        ("1", "", "0.0", "100.0"), ("2", "120.0", "100.0", "150.0"),
    ]  # fmt: skip


def test_times_count_from_the_first_submit(simulate: Any) -> None:
    Path("late.swf").write_text(SWF.replace("1 0 -1", "1 1700000000000 -1").replace("2 5 -1", "2 1700000000005 -1"))
    assert simulate("late.swf", "--policy", "newest", "--jobs", "jobs.csv").code == 0
    rows = list(csv.DictReader(Path("jobs.csv").read_text().splitlines()))
    assert [(row["submitted_s"], row["started_s"]) for row in rows] == [("0.0", "0.0"), ("5.0", "100.0")]


def test_nodes_come_and_go(simulate: Any) -> None:
    Path("nodes.csv").write_text("at_s,node,event\n50,node-00000,fail\n60,node-00000,join\n")
    told = numbers(simulate("small.swf", "--nodes", "1x4cpus", "--node-events", "nodes.csv", "-o", "json"))
    assert told["policies"][0]["all"]["failures"] == 1
    assert told["policies"][0]["all"]["completion_mean_s"] == pytest.approx((160 + 205) / 2)


NO_FLEET = ["muri.csv"]
WRONG = [
    (["nothing.csv", "--nodes", "1x1cpus"], 1, "nothing.csv: No such file or directory"),
    ([".", "--nodes", "1x1cpus"], 1, "Is a directory"),
    (NO_FLEET, 2, "does not say what it ran on"),
    (["muri.csv", "--nodes", "8 nodes"], 2, "'8 nodes' is not NODESxGPUSxMODEL:MEMORY"),
    (["muri.csv", "--nodes", "1x8xV100:32GB+8cpus+16cpus"], 2, "says the CPUs of a node twice"),
    (["muri.csv", "--nodes", "1x8xV100:32GB+8GiB+16GiB"], 2, "says the memory of a node twice"),
    (["muri.csv", "--nodes", "0x8xV100:32GB"], 2, "is not NODESxGPUSxMODEL:MEMORY"),
    (["muri.csv", "--nodes", "999999999x8xV100:32GB"], 2, "at most 100000"),
    (["muri.csv", "--nodes", "8x8xV100"], 2, "write for example 4xA100:80GB"),
    (["muri.csv", "--nodes", "1x1cpus", "--fleet", "fleet.csv"], 2, "not both"),
    (["muri.csv", "--nodes", "4x64cpus"], 2, "nothing to run on this fleet: 3 larger than the fleet"),
    (["muri.csv", "--nodes", "8x8xV100:32GB", "--policy", "quick"], 2, "there is no policy 'quick'; there are fifo"),
    (["muri.csv", "--nodes", "8x8xV100:32GB", "--policy", "fifo+quick"], 2, "there is no policy 'fifo+quick'"),
    (["muri.csv", "--nodes", "8x8xV100:32GB", "--placement", "x"], 2, "placement policy 'x' is not installed"),
    (["fleet.csv", "--nodes", "1x1cpus"], 2, "fleet.csv begins like no known trace"),
    (["muri.csv", "--format", "philly", "--nodes", "1x1cpus"], 2, "muri.csv, line 1: there is no column 'timestamp'"),
    (["muri.csv", "--fleet", "muri.csv"], 2, "muri.csv, line 1: there is no column 'sn'"),
    (["muri.csv", "--nodes", "8x8xV100:32GB", "--limit-factor", "-1"], 2, "limit-factor -1.0 is not between"),
    (["muri.csv", "--nodes", "8x8xV100:32GB", "--limit-factor", "nan"], 2, "limit-factor nan is not between"),
    (["muri.csv", "--nodes", "8x8xV100:32GB", "--plot", "no/such/folder.svg"], 1, "No such file or directory"),
    (["muri.csv", "--nodes", "8x8xV100:32GB", "--format", "swf"], 2, "muri.csv, line 1: 1 values where"),
]


@pytest.mark.parametrize(("words", "code", "told"), WRONG)
def test_what_is_wrong_is_one_line(simulate: Any, words: list[str], code: int, told: str) -> None:
    done = simulate(*words)
    assert done.code == code
    assert told in done.error


BROKEN = [
    ("muri.csv", "1,1,1000", "1,one,1000", "muri.csv, line 3: num_gpu 'one' is not a number, 0 or more"),
    ("muri.csv", "1,1,1000", "1,-1,1000", "muri.csv, line 3: num_gpu '-1' is not a number, 0 or more"),
    ("muri.csv", "1,1,1000", "1,1.5,1000", "muri.csv, line 3: num_gpu '1.5' is not a whole number"),
    ("muri.csv", "1,1,1000", "1,1,nan", "muri.csv, line 3: submit_time 'nan'"),
    ("muri.csv", "1,1,1000", "1,99999999999,1000", "GPUs are more than"),
    ("muri.csv", "vgg16,16", "vgg16", "muri.csv, line 3: 9 values for 10 columns"),
    ("philly.csv", "2017-10-09 07:01:55", "yesterday", "philly.csv, line 3: timestamp 'yesterday'"),
    ("openb.csv", "1,500,", "1,1500,", "openb.csv, line 2: gpu_milli 1500 is more than a whole GPU"),
    ("small.swf", "2 5 -1 50 2", "2 5 -1 x 2", "small.swf, line 4: run 'x' is not a number"),
    ("lines.json", '"ranks": 1', '"ranks": 0', "lines.json, line 1: not a session"),
    ("lines.json", '"cpus": 1.0', '"cpus": "x"', "lines.json, line 1: not a session"),
    ("lines.json", '{"id": "b"', "{", "lines.json, line 2: not JSON"),
    ("lines.json", '"priority": 0', '"priority": 1e999', "lines.json, line 1: not a session"),
    ("lines.json", '"priority": 0', '"priority": ' + "9" * 5000, "lines.json, line 1: not JSON"),
    ("lines.json", '"group": null', '"group": ["a"]', "group ['a'] is not a word"),
    ("lines.json", '"gpu_model": null', '"gpu_model": 100', "gpu_model 100 is not a word"),
    ("muri.csv", "priority", "priority" + "y" * 150_000, "muri.csv, line 1: field larger than field limit"),
    ("array.json", "]", "", "array.json: not JSON"),
    ("fleet.csv", "n1,", "n0,", "fleet.csv, line 3: node 'n0' is named twice"),
    ("nodes.csv", "fail", "explode", "nodes.csv, line 2: event 'explode' is none of join, leave, fail"),
    ("nodes.csv", "node-00000", "elsewhere", "nodes.csv, line 2: the fleet has no node 'elsewhere'"),
]


@pytest.mark.parametrize(("name", "old", "new", "told"), BROKEN)
def test_a_broken_row_is_named(simulate: Any, name: str, old: str, new: str, told: str) -> None:
    Path("nodes.csv").write_text("at_s,node,event\n50,node-00000,fail\n")
    text = Path(name).read_text()
    assert old in text
    Path(name).write_text(text.replace(old, new))
    words = {
        "fleet.csv": ["openb.csv", "--fleet", name],
        "nodes.csv": ["small.swf", "--nodes", "1x4cpus", "--node-events", name],
    }.get(name, [name, "--nodes", "8x8xV100:32GB"])
    done = simulate(*words)
    assert done.code == 2
    assert told in done.error


def test_bytes_that_are_no_text_are_told(simulate: Any) -> None:
    Path("bytes.csv").write_bytes(b"\xff\xfe\x00junk")
    assert "not UTF-8 text" in simulate("bytes.csv", "--nodes", "1x1cpus").error
    Path("bytes.csv.gz").write_bytes(b"not gzip")
    assert "not a gzip file" in simulate("bytes.csv.gz", "--nodes", "1x1cpus").error
    Path("empty.csv").write_text("")
    assert simulate("empty.csv", "--nodes", "1x1cpus").code == 2


def test_errors_are_json_where_output_is(simulate: Any) -> None:
    done = simulate("muri.csv", "-o", "json")
    assert (done.code, json.loads(done.error)["code"]) == (2, "no_fleet")


def test_what_the_control_plane_had_is_replayed_on_the_nodes_that_it_has(corral: Corral) -> None:
    for _ in range(2):
        assert corral("run", "--", "true").code == 0
    told = corral("simulate", "--history", "--policy", "fifo", "--policy", "group:fair-share", "-o", "json").json()
    nodes = corral("nodes", "-o", "json").json()
    assert (told["trace"], told["nodes"]) == ("history", len(nodes))
    assert told["jobs"] >= 2 and [one["policy"] for one in told["policies"]] == ["fifo", "group:fair-share"]
    assert all(one["all"]["ended"] == told["jobs"] for one in told["policies"])
    elsewhere = corral("simulate", "--history", "--last", "30d", "--nodes", "1x4xV100:32GB+8cpus", "-o", "json").json()
    assert elsewhere["nodes"] == 1
    assert "one of them" in corral("simulate", "trace.csv", "--history").error
    assert "one of them" in corral("simulate").error
    assert corral("simulate", "--history", "--last", "soon").code == 2


def test_its_database_tells_the_same_while_the_control_plane_has_it_open(corral: Corral, cluster: Plane) -> None:
    assert corral("run", "--", "true").code == 0
    assert corral("submit", "--hold", "--array", "0-9", "--", "true").code == corral("cancel", "last").code == 0
    database = f"sqlite://{cluster.data_dir}/corral.db"
    asked = corral("simulate", "--history", "-o", "json").json()
    stored = corral("simulate", "--history", "--database", database, "-o", "json").json()
    counts = [one.pop("left_out").get("not run to an end", 0) for one in (stored, asked)]
    assert counts[0] < counts[1], "members of arrays that ended before they had a row are counted over REST alone"
    assert stored == asked
    last = corral(
        "simulate", "--history", "--database", database, "--last", "1s", "--nodes", "1x2xA100:80GB+8cpus+16GiB"
    )
    assert last.code == 0
    assert "say --history too" in corral("simulate", "trace.csv", "--database", database).error
    assert "sqlite:///absolute/path" in corral("simulate", "--history", "--database", "corral.db").error
    assert "there is no database" in corral("simulate", "--history", "--database", "sqlite:////nowhere/corral.db").error


def test_only_the_last_of_it_counts_from_the_newest() -> None:
    sessions = [{"submitted_at": f"2026-01-{day:02d}T00:00:00Z"} for day in (9, 8, 2, 1)]
    assert len(json.loads(of_the_last(None, sessions))) == 4
    assert len(json.loads(of_the_last(86400.0, sessions))) == 2
    assert json.loads(of_the_last(86400.0, [])) == []
