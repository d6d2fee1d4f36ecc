"""#SBATCH options in our words."""

import pytest

from corral.cli import scripts
from corral.model.faults import Invalid

TABLE = [
    ("--job-name=x", ["--name", "x"]), ("-J x", ["--name", "x"]), ("-Jx", ["--name", "x"]),
    ("-N2", ["--nodes", "2"]), ("--nodes 2 --ntasks-per-node 4", ["--nodes", "2", "--ranks-per-node", "4"]),
    ("--nodes=2 --ntasks=4", ["--nodes", "2", "--ranks-per-node", "2"]), ("-n 3", ["--ranks-per-node", "3"]),
    ("-n 4 --ntasks-per-node=2 -N 2", ["--ranks-per-node", "2", "--nodes", "2"]),
    ("-c 4", ["--cpus", "4"]), ("--mem=4G", ["--memory", "4096MiB"]), ("--mem=500", ["--memory", "500MiB"]),
    ("--mem=512K", ["--memory", "1MiB"]),
    ("--mem=4G --ntasks-per-node=2", ["--memory", "2048MiB", "--ranks-per-node", "2"]),
    ("--mem-per-cpu=1G -c 4", ["--memory", "4096MiB", "--cpus", "4"]),
    ("--gres=gpu:2", ["--gpus", "2"]), ("--gres=gpu", ["--gpus", "1"]), ("--gres=gpu:a100:2", ["--gpus", "a100:2"]),
    ("--gres=gpu:4 --ntasks-per-node=2", ["--gpus", "2", "--ranks-per-node", "2"]),
    ("-G 4 -N 2 --ntasks-per-node=2", ["--gpus", "1", "--nodes", "2", "--ranks-per-node", "2"]),
    ("--gpus-per-task=a100:1", ["--gpus", "a100:1"]), ("--gpus-per-node=2", ["--gpus", "2"]),
    ("-t 90", ["--time", "5400s"]), ("-t 1:30", ["--time", "90s"]), ("-t 2:00:00", ["--time", "7200s"]),
    ("-t 1-12", ["--time", "129600s"]), ("-t 1-12:30", ["--time", "131400s"]), ("-t 1-0:0:5", ["--time", "86405s"]),
    ("--time=UNLIMITED", []), ("-p gpu", ["--group", "gpu"]), ("-A vision", ["--project", "vision"]),
    ("--exclusive --requeue -H", ["--exclusive", "--requeue", "--hold"]), ("--no-requeue", ["--no-requeue"]),
    ("-w n1,n2", ["--node", "n1", "--node", "n2"]),
    ("-x n3", ["--not-node", "n3"]), ("-D /data", ["--workdir", "/data"]),
    ("--signal=B:USR1@60", ["--signal", "USR1@60"]), ("--export=ALL", ["--env-all"]), ("--export=NONE", []),
    ("--export=ALL,A=b,C", ["--env-all", "--env", "A=b", "--env", "C"]),
    ("-d afterok:1:2,afterany:3", ["--after", "1:ok", "--after", "2:ok", "--after", "3:any"]),
    ("--array=0-9%2", ["--array", "0-9%2"]), ("--begin=now", ["--begin", "now"]), ("--priority=3", ["--priority", "3"]),
]  # fmt: skip


def read(line: str) -> scripts.Script:
    return scripts.read("job.sh", f"#!/bin/sh\n#SBATCH {line}\ntrue\n".encode())


@pytest.mark.parametrize(("line", "words"), TABLE)
def test_an_option_is_translated(line: str, words: list[str]) -> None:
    script = read(line)
    assert [word for directive in script.directives for word in directive.words] == words


@pytest.mark.parametrize("line", ["--mail-type=END", "-o out.%j", "-e err", "-C skylake", "--gres=lic:2", "--mem=0"])
def test_what_means_nothing_here_is_left_out(line: str) -> None:
    script = read(line)
    assert (script.directives, len(script.ignored)) == ([], 1)


@pytest.mark.parametrize(
    "line",
    ["-t soon", "--mem=much", "-n 0", "--nodes=2 -n 3", "--gres=gpu:x:y:z", "-G 3 -N 2", "-w n[1-3]", "--job-name",
     "-d whenever:1", "-d afterok", "job.sh", "--time=-5"],
)  # fmt: skip
def test_what_cannot_be_read_names_its_line(line: str) -> None:
    with pytest.raises(Invalid, match=r"job\.sh line 2: "):
        read(line)


def test_lines_count_up_to_the_first_command() -> None:
    script = scripts.read("job.sh", b"#!/bin/sh\n\n# remark\n  #SBATCH -c 2\nset -e\n#SBATCH -c 9\n")
    assert [directive.words for directive in script.directives] == [["--cpus", "2"]]
