"""Power loss at every moment: what was not fsynced is lost, wholly or in part, and the next run is right.

A layer over the system calls of `output/files.py` records a run. Every prefix of that log is then replayed as what a
disk may hold after a power loss there: a file's content is safe once the file was fsynced, a name once its folder was.
Everything later is lost, or there, or partly there: files of the new length full of zeros, names in any order.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fineweb_stream.memory import guard
from fineweb_stream.output import files, lock, shuffle, spool
from fineweb_stream.pipeline import run, samples

from .helpers import System, prepare_in_blocks, write_jsonl

pytestmark = pytest.mark.skipif(os.name == "nt", reason="no fsync of folders, other calls")


class Step(NamedTuple):
    """One thing that a run did to its folder: `what` with the file number (or the name) it was done to."""

    what: str
    inode: int
    name: str = ""
    data: bytes = b""
    at: int = 0


@dataclass
class Disk:
    """What the run sees: names -> numbers of files (inodes) -> their bytes; and its log."""

    folder: Path
    names: dict[str, int] = field(default_factory=dict)
    log: list[Step] = field(default_factory=list)
    open_files: dict[int, int | None] = field(default_factory=dict)  # file descriptor -> inode; None is the folder
    n_inodes: int = 0
    start: int = 0  # so many steps of the log are of what was there before

    def add(self, what: str, inode: int, name: str = "", data: bytes = b"", at: int = 0) -> None:
        self.log.append(Step(what, inode, name, data, at))


class RecordingOs(System):
    """Stands in for `os` in `files.py`: calls it, and records what changes the folder."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        fd, d = os.open(path, flags, mode), self._disk
        name = Path(path).name
        if Path(path) == d.folder:
            d.open_files[fd] = None
        elif Path(path).parent == d.folder:
            if name not in d.names:
                d.n_inodes += 1
                d.names[name] = d.n_inodes
                d.add("link", d.n_inodes, name)
            d.open_files[fd] = d.names[name]
            if flags & os.O_TRUNC:
                d.add("truncate", d.names[name], at=0)
        return fd

    def close(self, fd: int) -> None:
        self._disk.open_files.pop(fd, None)
        os.close(fd)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        at = os.lseek(fd, 0, os.SEEK_CUR)
        n = os.write(fd, data)
        self._disk.add("write", self._inode(fd), data=bytes(data[:n]), at=at)
        return n

    def ftruncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)
        self._disk.add("truncate", self._inode(fd), at=length)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)
        inode = self._disk.open_files[fd]
        self._disk.add("sync folder" if inode is None else "sync", inode or 0)

    def replace(self, source: Path, target: Path) -> None:
        os.replace(source, target)
        names = self._disk.names
        names[Path(target).name] = inode = names.pop(Path(source).name)
        self._disk.add("rename", inode, f"{Path(source).name}/{Path(target).name}")

    def _inode(self, fd: int) -> int:
        inode = self._disk.open_files[fd]
        assert inode is not None
        return inode


@contextlib.contextmanager
def recording(folder: Path) -> Iterator[Disk]:
    """Record all that `files.py` does to a folder, which may have files of an earlier run."""
    recorded = Disk(folder)
    for path in sorted(folder.iterdir()):
        recorded.n_inodes += 1
        recorded.names[path.name] = recorded.n_inodes
        recorded.add("link", recorded.n_inodes, path.name)
        recorded.add("write", recorded.n_inodes, data=path.read_bytes())
        recorded.add("sync", recorded.n_inodes)
    recorded.add("sync folder", 0)
    recorded.start = len(recorded.log)
    unlink = Path.unlink

    def unlink_recorded(path: Path, missing_ok: bool = False) -> None:
        if path.parent == folder and path.name in recorded.names:
            recorded.add("unlink", recorded.names.pop(path.name), path.name)
        unlink(path, missing_ok)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "os", RecordingOs(recorded))
        patch.setattr(Path, "unlink", unlink_recorded)
        yield recorded
    assert state_after(recorded.log, KEPT) == read_folder(folder), "the layer does not see all that is done"


class Loss(NamedTuple):
    """What a power loss leaves of what was not durable: which content steps and which name steps are kept."""

    content: Callable[[list[Step]], list[Step]]
    names: Callable[[list[Step]], list[Step]]
    has_zeros: bool = False


def all_of(steps: list[Step]) -> list[Step]:
    return steps


def none_of(steps: list[Step]) -> list[Step]:
    return []


def some_losses(seed: int) -> list[Loss]:
    """Losses of every kind; the random ones are the same for the same seed."""
    rng = random.Random(seed)

    def some_of(steps: list[Step]) -> list[Step]:
        return [step for step in steps if rng.random() < 0.5]  # in any order: a journal is not promised

    def torn(steps: list[Step]) -> list[Step]:
        kept = steps[: rng.randint(0, len(steps))]
        return [*kept[:-1], kept[-1]._replace(data=kept[-1].data[: len(kept[-1].data) // 2])] if kept else kept

    return [
        Loss(none_of, none_of),
        Loss(none_of, all_of),
        Loss(all_of, none_of),
        Loss(none_of, all_of, has_zeros=True),
        Loss(torn, some_of),
        Loss(some_of, some_of),
        KEPT,
    ]


KEPT = Loss(all_of, all_of)


def state_after(log: list[Step], loss: Loss) -> dict[str, bytes]:
    """Return what a disk holds (names and contents) if the power goes off after the last step of a log."""
    contents: dict[int, bytearray] = {}
    waiting: dict[int, list[Step]] = {}
    names: dict[str, int] = {}
    waiting_names: list[Step] = []
    for step in log:
        if step.what in ("link", "unlink", "rename"):
            waiting_names.append(step)
        elif step.what == "sync folder":
            apply_names(names, waiting_names)
            waiting_names = []
        elif step.what == "sync":
            apply_content(contents.setdefault(step.inode, bytearray()), waiting.pop(step.inode, []))
        else:
            waiting.setdefault(step.inode, []).append(step)
    for inode, steps in waiting.items():
        content = contents.setdefault(inode, bytearray())
        if loss.has_zeros:  # the length was written, the data were not
            steps = [step._replace(data=bytes(len(step.data))) for step in steps]
            apply_content(content, steps)
        else:
            apply_content(content, loss.content(steps))
    apply_names(names, loss.names(waiting_names))
    return {name: bytes(contents.get(inode, b"")) for name, inode in names.items()}


def apply_content(content: bytearray, steps: list[Step]) -> None:
    for step in steps:
        if step.what == "truncate":
            content[step.at :] = bytes(max(step.at - len(content), 0))
        else:
            content.extend(bytes(max(step.at - len(content), 0)))
            content[step.at : step.at + len(step.data)] = step.data


def apply_names(names: dict[str, int], steps: list[Step]) -> None:
    for step in steps:
        if step.what == "rename":
            source, target = step.name.split("/")
            names.pop(source, None)
            names[target] = step.inode
        elif step.what == "link":
            names[step.name] = step.inode
        elif names.get(step.name) == step.inode:
            del names[step.name]


def read_folder(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != lock.LOCK_NAME}


RUNS: dict[str, tuple[dict[str, Any], float, str | None, int]] = {  # options, COMMIT_SECONDS, where to stop, states
    "commit after every block": ({}, 0.0, None, 150),
    "shards kept": ({"keep_shards": True}, 60.0, None, 160),
    "shards merged": ({}, 0.0, None, 220),
    "llm.c's files": ({"layout": "llmc"}, 0.0, None, 160),
    "NumPy's files, continued": ({"layout": "npy"}, 60.0, "prepare.json:3", 60),
    "shuffled, from buckets": ({"shuffle": True}, 60.0, None, 150),
    "shuffled, llm.c's files, continued": ({"shuffle": True, "layout": "llmc"}, 60.0, "prepare.json:4", 60),
    "continued while encoding": ({}, 0.0, "prepare.json:12", 70),
    "continued while merging": ({"keep_shards": True}, 60.0, "train.bin:2", 40),
    "shards merged, continued": ({}, 60.0, "train.bin:2", 40),
}


@pytest.mark.slow
@pytest.mark.usefixtures("no_hash_threads")
@pytest.mark.parametrize("name", RUNS)
def test_power_loss(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """After a power loss at any moment the same command makes the same bytes; no final name was ever incomplete."""
    options, commit_seconds, stop, min_states = RUNS[name]
    options = {"shard_tokens": 300, "skip_bad": True, "workers": 1, "engine": "tiktoken"} | options
    if name.startswith("shards merged"):
        request.getfixturevalue("shards_merged")
    path = write_jsonl(tmp_path / "c.jsonl", [f"Document {i} is {'very ' * (i % 13)}short." for i in range(150)])
    path.write_bytes(path.read_bytes().replace(b'{"id": 50,', b'["id": 50,').replace(b'{"id": 9,', b'["id": 9,'))

    def prepare(folder: Path) -> None:
        prepare_in_blocks(600, path, folder, **options)

    prepare(tmp_path / "expected")
    expected = read_folder(tmp_path / "expected")
    prepare_in_blocks(600, path, tmp_path / "shards", **options | {"keep_shards": True})
    finals = {name: data for name, data in read_folder(tmp_path / "shards").items() if name.endswith((".bin", ".npy"))}
    monkeypatch.setattr(run, "COMMIT_SECONDS", commit_seconds)
    monkeypatch.setattr(run, "plan_shuffle", lambda guard: 5000)
    monkeypatch.setattr(shuffle, "MOST_BUCKETS", 3)
    for module in (spool, shuffle):
        monkeypatch.setattr(module, "PIECE_TOKENS", 400)
    monkeypatch.setattr(shuffle, "COMMIT_TOKENS", 800)
    # These are most of the time, and write nothing.
    monkeypatch.setattr(samples, "sample", lambda *args: None)
    monkeypatch.setattr(run, "forget_encoders", lambda: None)
    monkeypatch.setattr(shuffle, "_N_SLOTS", 64)
    monkeypatch.setattr(guard.MemoryGuard, "read", lambda self: guard.Reading(0, 1 << 40))
    (tmp_path / "recorded").mkdir()
    if stop:
        stop_at(stop, lambda: prepare(tmp_path / "recorded"))
    with recording(tmp_path / "recorded") as recorded:
        prepare(tmp_path / "recorded")
    seen: set[frozenset[tuple[str, bytes]]] = set()
    for n in range(recorded.start, len(recorded.log) + 1):
        for loss in some_losses(n):
            state = state_after(recorded.log[:n], loss)
            if frozenset(state.items()) in seen:
                continue
            seen.add(frozenset(state.items()))
            check_state(state, tmp_path / "out", expected, finals, prepare)
    print(f"{name}: {len(seen)} states of {len(recorded.log)} steps")
    assert len(seen) >= min_states


def stop_at(stop: str, prepare: Callable[[], None]) -> None:
    """Run until the n-th write or copy to a file, and leave everything as it is then, as SIGKILL would."""
    name, n = stop.split(":")
    left = int(n)

    def dying(function: Callable[..., Any], path_of: Callable[[Any], Path]) -> Callable[..., Any]:
        def wrapped(first: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= path_of(first).name == name
            if left <= 0:
                raise KeyboardInterrupt
            return function(first, *args, **kwargs)

        return wrapped

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(files, "write_whole", dying(files.write_whole, lambda path: path))
        patch.setattr(files.Part, "copy_from", dying(files.Part.copy_from, lambda part: part.path))
        prepare()


def check_state(
    state: dict[str, bytes],
    folder: Path,
    expected: dict[str, bytes],
    finals: dict[str, bytes],
    prepare: Callable[[Path], None],
) -> None:
    """Run the same command on `state`, which a power loss has left."""
    for name, data in state.items():
        assert not name.endswith((".bin", ".npy")) or data == finals[name], f"{name} is not complete"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, data in state.items():
        (folder / name).write_bytes(data)
    prepare(folder)
    found = read_folder(folder)
    record = json.loads(found.pop("prepare.json"))
    assert record["status"] == "done"
    assert found == {name: data for name, data in expected.items() if name != "prepare.json"}
