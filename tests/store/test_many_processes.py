"""24 processes use one store, or one shared directory, at the same time: they put, get and collect entries."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trtbuild.store.collection.check import verify
from trtbuild.store.local.local import LocalStore
from trtbuild.store.trust.action_result import ActionResult

PROCESSES, KEYS = 24, 8
#: The number of local stores that the processes use in the test of a shared directory.
MACHINES = 4

# The program forks the processes after all imports, so that they begin at the same moment. The test replaces `RUN` by
# statements that call `work`.
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

root, process_count, key_count, machine_count = sys.argv[1], *map(int, sys.argv[2:])
common = random.Random(0).randbytes(600_000)

def plan_of(number):
    return common + b"%d" % number + common

def work(process, store, collect_and_count):
    result = {"process": process, "built": [], "read": 0, "removed": 0}
    numbers = list(range(key_count))
    random.Random(process).shuffle(numbers)
    for turn, number in enumerate(numbers):
        store.put_bytes(b"of no record: %d %d" % (process, turn))
        recipe = Recipe("engine", 1, (("n", number),))
        with store.session():
            record = store.get_record(recipe.key)
            if record is None:
                with store.building(recipe.key):
                    record = store.get_record(recipe.key)
                    if record is None:
                        result["built"].append(number)
                        outputs = {"plan": store.put_bytes(plan_of(number)), "info": store.put_bytes(b"%d" % number)}
                        record = store.put_record(Record(recipe, outputs, {"who": process}))
            assert store.get_bytes(record.outputs["plan"].sha256) == plan_of(number)
            assert store.get_bytes(record.outputs["info"].sha256) == b"%d" % number
            result["read"] += 1
        if process % 4 == 0:
            result["removed"] += collect_and_count()
    return result

def run(process):
    RUN
    return result

start_reader, start_writer = os.pipe()
children = []
for process in range(process_count):
    result_reader, result_writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(start_writer)
        os.read(start_reader, 1)
        try:
            text = json.dumps(run(process))
        except BaseException:
            text = json.dumps({"error": traceback.format_exc()})
        with open(result_writer, "w") as file:
            file.write(text)
        os._exit(0)
    os.close(result_writer)
    children.append((child, result_reader))
os.close(start_writer)  # this ends the read of every child, so that all start
results = []
for child, result_reader in children:
    with open(result_reader) as file:
        results.append(json.loads(file.read()))
    assert os.waitpid(child, 0)[1] == 0
print(json.dumps(results))
"""

RUN_ON_ONE_STORE = """
    store = LocalStore(root)
    def collect_and_count():
        report = collect(store, slack_s=0)
        return report.blobs_removed
    result = work(process, store, collect_and_count)
"""

RUN_ON_A_SHARED_DIRECTORY = """
    share = f"{root}/share"
    team = RemoteStore(DirectoryTransport(RemoteSettings("team", f"file://{share}")), "team", connections=2)
    local = LocalStore(f"{root}/machine{process % machine_count}")
    store = LayeredStore(local, [team], [team])
    def collect_and_count():
        report = collect_directory(share, grace_s=MIN_GRACE_S)
        return report.condemned + report.blobs_removed
    result = work(process, store, collect_and_count)
    store.finish()
    result["warnings"] = store.warnings()
    store.close()
"""


def run(child: Callable[..., Any], root: Path, statements: str) -> list[dict[str, Any]]:
    """Run the program with `statements` in place of `RUN`. Returns the result of each process."""
    program = child(PROGRAM.replace("    RUN\n", statements), root, PROCESSES, KEYS, MACHINES)
    output, _ = program.process.communicate(timeout=120)
    assert program.process.returncode == 0
    results: list[dict[str, Any]] = json.loads(output)
    errors = "\n".join(result["error"] for result in results if "error" in result)
    assert not errors, errors
    assert sum(result["read"] for result in results) == PROCESSES * KEYS
    return results


def test_24_processes_on_one_local_store(tmp_path: Path, child: Callable[..., Any]) -> None:
    results = run(child, tmp_path, RUN_ON_ONE_STORE)
    built = sorted(number for result in results for number in result["built"])
    assert built == list(range(KEYS)), "exactly one process builds each key"
    assert sum(result["removed"] for result in results) > 0, "something was collected at the same time"
    report = verify(LocalStore(tmp_path))
    assert report.damage == () and report.records == KEYS


def test_24_processes_on_one_shared_directory(tmp_path: Path, child: Callable[..., Any]) -> None:
    """The processes use four local stores, as on four machines.

    At the start, the shared directory has old blobs of half of the later records, but no record. So collections can move
    blobs to gc/hidden while writers look for them."""
    share = tmp_path / "share"
    child(PREPARE_PROGRAM, share, KEYS // 2).finish()
    results = run(child, tmp_path, RUN_ON_A_SHARED_DIRECTORY)
    assert [result["warnings"] for result in results] == [[]] * PROCESSES
    built = [(result["process"] % MACHINES, number) for result in results for number in result["built"]]
    assert len(set(built)) == len(built), "each machine builds a key at most once"
    assert {number for _, number in built} == set(range(KEYS))
    assert sum(result["removed"] for result in results) > 0, "something was collected at the same time"
    assert list(share.glob("gc/hidden/*/*")), "a collection has hidden something"
    entries = [ActionResult.from_bytes(path.read_bytes()) for path in share.glob("ac/??/*")]
    assert len(entries) == KEYS
    for entry in entries:
        for _, part in entry.files:
            assert (share / "cas" / part.sha256[:2] / part.sha256).stat().st_size == part.size
    for machine in range(MACHINES):
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
record_count = int(sys.argv[2])
for number in range(record_count):
    store.put_bytes(common + b"%d" % number + common)
    store.put_bytes(b"%d" % number)
store.put_bytes(b"unreferenced")
store.close()
long_ago = time.time() - 86400
for folder, _, files in os.walk(root):
    for name in files:
        os.utime(os.path.join(folder, name), (long_ago, long_ago))
assert collect_directory(root).condemned > 2 * record_count, "each plan, each information, and one more file"
with open(root + "/gc/condemned") as file:
    condemned = json.load(file)
# The next collection moves these files to gc/hidden, because they seem to have been condemned a day ago.
condemned["since"] = {str(int(long_ago * 1e9)): names for names in condemned["since"].values()}
with open(root + "/gc/condemned", "w") as file:
    json.dump(condemned, file)
"""
