"""24 processes use one store, or one shared directory, at the same time: they put, get and collect."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trtbuild.store.collection.check import verify
from trtbuild.store.local.local import LocalStore
from trtbuild.store.trust.action_result import ActionResult

PROCESSES, KEYS = 24, 8

# One process imports all modules and forks the others, so that all begin at the same moment.
PROGRAM = """
import json, os, random, sys, traceback
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.store.collection.collect import collect
from trtbuild.store.layers.layered import LayeredStore
from trtbuild.store.local.local import LocalStore
from trtbuild.store.collection.shared_directory import MIN_GRACE_S, collect_directory
from trtbuild.store.transports.directory import DirectoryTransport
from trtbuild.store.transports.settings import RemoteSettings
from trtbuild.store.remote.store import RemoteStore

root, processes, keys = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
common = random.Random(0).randbytes(600_000)

def plan_of(number):
    return common + b"%d" % number + common

def work(me, store, collections):
    done = {"me": me, "built": [], "read": 0, "removed": 0}
    numbers = list(range(keys))
    random.Random(me).shuffle(numbers)
    for turn, number in enumerate(numbers):
        store.put_bytes(b"of no record: %d %d" % (me, turn))
        recipe = Recipe("engine", 1, (("n", number),))
        with store.session():
            record = store.get_record(recipe.key)
            if record is None:
                with store.building(recipe.key):
                    record = store.get_record(recipe.key)
                    if record is None:
                        done["built"].append(number)
                        outputs = {"plan": store.put_bytes(plan_of(number)), "info": store.put_bytes(b"%d" % number)}
                        record = store.put_record(Record(recipe, outputs, {"who": me}))
            assert store.get_bytes(record.outputs["plan"].sha256) == plan_of(number)
            assert store.get_bytes(record.outputs["info"].sha256) == b"%d" % number
            done["read"] += 1
        if me % 4 == 0:
            done["removed"] += collections()
    return done

def run(me):
    STORE
    return done

go, start = os.pipe()
children = []
for me in range(processes):
    answer, mine = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(start)
        os.read(go, 1)
        try:
            text = json.dumps(run(me))
        except BaseException:
            text = json.dumps({"error": traceback.format_exc()})
        with open(mine, "w") as file:
            file.write(text)
        os._exit(0)
    os.close(mine)
    children.append((child, answer))
os.close(start)  # this ends the read of every child
answers = []
for child, answer in children:
    with open(answer) as file:
        answers.append(json.loads(file.read()))
    assert os.waitpid(child, 0)[1] == 0
print(json.dumps(answers))
"""

ONE_STORE = """
    store = LocalStore(root)
    def collections():
        report = collect(store, slack_s=0)
        return report.blobs_removed
    done = work(me, store, collections)
"""

SHARED = """
    share = f"{root}/share"
    team = RemoteStore(DirectoryTransport(RemoteSettings("team", f"file://{share}")), "team", connections=2)
    local = LocalStore(f"{root}/machine{me % 4}")
    store = LayeredStore(local, [team], [team])
    def collections():
        report = collect_directory(share, grace_s=MIN_GRACE_S)
        return report.condemned + report.blobs_removed
    done = work(me, store, collections)
    store.finish()
    done["warnings"] = store.warnings()
    store.close()
"""


def run(child: Callable[..., Any], root: Path, store: str) -> list[dict[str, Any]]:
    started = child(PROGRAM.replace("    STORE\n", store), root, PROCESSES, KEYS)
    out, _ = started.process.communicate(timeout=120)
    assert started.process.returncode == 0
    answers: list[dict[str, Any]] = json.loads(out)
    errors = "\n".join(answer["error"] for answer in answers if "error" in answer)
    assert not errors, errors
    assert sum(answer["read"] for answer in answers) == PROCESSES * KEYS
    return answers


def test_24_processes_on_one_local_store(tmp_path: Path, child: Callable[..., Any]) -> None:
    answers = run(child, tmp_path, ONE_STORE)
    built = sorted(number for answer in answers for number in answer["built"])
    assert built == list(range(KEYS)), "exactly one process builds each key"
    assert sum(answer["removed"] for answer in answers) > 0, "something was collected at the same time"
    report = verify(LocalStore(tmp_path))
    assert report.damage == () and report.records == KEYS


def test_24_processes_on_one_shared_directory(tmp_path: Path, child: Callable[..., Any]) -> None:
    """The processes use four local stores, as on four machines. At the start, the shared directory contains old files of
    half of the records, but no record. So collections may remove these files while writers look them up."""
    share = tmp_path / "share"
    child(PREPARE_PROGRAM, share, KEYS // 2).finish()
    answers = run(child, tmp_path, SHARED)
    assert [answer["warnings"] for answer in answers] == [[]] * PROCESSES
    built = [(answer["me"] % 4, number) for answer in answers for number in answer["built"]]
    assert len(set(built)) == len(built), "a machine builds a key once"
    assert {number for _, number in built} == set(range(KEYS))
    assert sum(answer["removed"] for answer in answers) > 0, "something was collected at the same time"
    assert list(share.glob("gc/hidden/*/*")), "and something was hidden"
    entries = [ActionResult.from_bytes(path.read_bytes()) for path in share.glob("ac/??/*")]
    assert len(entries) == KEYS
    for entry in entries:
        for _, part in entry.files:
            assert (share / "cas" / part.sha256[:2] / part.sha256).stat().st_size == part.size
    for machine in range(4):
        assert verify(LocalStore(tmp_path / f"machine{machine}")).damage == ()
    assert list((share / "tmp").iterdir()) == []


PREPARE_PROGRAM = """
import json, os, random, sys, time
from trtbuild.store.collection.shared_directory import collect_directory
from trtbuild.store.transports.directory import DirectoryTransport
from trtbuild.store.transports.settings import RemoteSettings
from trtbuild.store.remote.store import RemoteStore
root = sys.argv[1]
store = RemoteStore(DirectoryTransport(RemoteSettings("team", "file://" + root)), "team")
common = random.Random(0).randbytes(600_000)
for number in range(int(sys.argv[2])):
    store.put_bytes(common + b"%d" % number + common)
    store.put_bytes(b"%d" % number)
store.put_bytes(b"unreferenced")
store.close()
long_ago = time.time() - 86400
for folder, _, files in os.walk(root):
    for name in files:
        os.utime(os.path.join(folder, name), (long_ago, long_ago))
assert collect_directory(root).condemned > 4
with open(root + "/gc/condemned") as file:
    found = json.load(file)
found["since"] = {str(int(long_ago * 1e9)): names for names in found["since"].values()}
with open(root + "/gc/condemned", "w") as file:
    json.dump(found, file)
"""
