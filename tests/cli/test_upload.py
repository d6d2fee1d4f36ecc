"""--upload: the same tree is the same bytes, .gitignore counts as in Git, and nothing is followed out of the tree."""

import hashlib
import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from corral.cli import upload
from corral.model.faults import Invalid


def packed(root: Path) -> tuple[upload.Packed, dict[str, tarfile.TarInfo]]:
    into = io.BytesIO()
    result = upload.pack(root, into)
    data = into.getvalue()
    assert result.digest == f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert result.size_bytes == len(data)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return result, {member.name: member for member in tar.getmembers()}


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_the_same_tree_is_the_same_bytes(tmp_path: Path) -> None:
    files = {"b.txt": "b", "a/x.py": "x", "a/y.py": "y"}
    write(tmp_path / "one", files)
    write(tmp_path / "two", dict(reversed(files.items())))
    os.utime(tmp_path / "two" / "b.txt", (1, 1))
    (tmp_path / "two" / "b.txt").chmod(0o600)
    assert packed(tmp_path / "one")[0] == packed(tmp_path / "two")[0]
    (tmp_path / "two" / "b.txt").write_text("c")
    assert packed(tmp_path / "one")[0].digest != packed(tmp_path / "two")[0].digest


def test_what_can_be_run_stays_so(tmp_path: Path) -> None:
    write(tmp_path, {"run": "", "data": ""})
    (tmp_path / "run").chmod(0o700)
    _, members = packed(tmp_path)
    assert (members["run"].mode, members["data"].mode) == (0o755, 0o644)


def test_links_stay_links_and_pipes_stay_behind(tmp_path: Path) -> None:
    write(tmp_path, {"real": "r"})
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "loop").symlink_to(".")
    os.mkfifo(tmp_path / "pipe")
    _, members = packed(tmp_path)
    assert sorted(members) == ["link", "loop", "real"]
    assert (members["link"].issym(), members["link"].linkname) == (True, "real")


def test_ignored_is_what_git_ignores(tmp_path: Path) -> None:
    write(tmp_path, {
        ".gitignore": "*.log\n/build/\n!keep.log\nsub/deep/*.tmp\n",
        "a.log": "", "keep.log": "", "build/out": "", "sub/build/out": "", "sub/deep/x.tmp": "", "sub/x.tmp": "",
        "sub/.gitignore": "x.tmp\n!a.log\n/only-here\n", "sub/a.log": "", "sub/only-here": "", "only-here": "",
    })  # fmt: skip
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True, timeout=30)
    listed = subprocess.run(
        ["git", "-C", str(tmp_path), "ls-files", "--others", "--exclude-standard"],
        capture_output=True, text=True, check=True, timeout=30,
    ).stdout.split()  # fmt: skip
    _, members = packed(tmp_path)
    assert sorted(name for name, member in members.items() if member.isfile()) == sorted(listed)


def test_a_tree_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "LIMIT_BYTES", 64 * 1024)
    write(tmp_path, {"big": "x" * 100_000})
    with pytest.raises(Invalid) as refused:
        upload.pack(tmp_path, io.BytesIO())
    assert refused.value.code == "upload_too_large"


def test_what_is_no_tree_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"file": ""})
    for path in (tmp_path / "file", tmp_path / "none"):
        with pytest.raises(Invalid):
            upload.pack(path, io.BytesIO())


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))).write_text("")
    with pytest.raises(Invalid) as refused:
        upload.pack(tmp_path, io.BytesIO())
    assert refused.value.code == "not_text"
