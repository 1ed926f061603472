"""Push, pull, export and import, mostly with the real command line. After a pull or an import, a build runs no step."""

from __future__ import annotations

import json
import os
import shutil
import site
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

from tests.conftest import CommandLine, ran
from tests.projects import copy_project, write_weights
from tests.store.transports import sqlite_transport
from tests.store.transports.memory_transport import MemoryTransport
from tests.store.transports.nginx import running
from trtbuild.cli.screens import transfers
from trtbuild.core.recipes.recipe import Recipe
from trtbuild.core.recipes.record import Record
from trtbuild.core.values.codec import decode
from trtbuild.driver.cache import bundles, transfer
from trtbuild.driver.cache.documents import CacheExport, CacheImport, CachePull, CachePush, RefusedRecord
from trtbuild.driver.project import wiring
from trtbuild.driver.project.workspace import Request
from trtbuild.errors import RemoteFull
from trtbuild.store.collection.check import verify
from trtbuild.store.layers.layered import LayeredStore
from trtbuild.store.local.layout import Kind
from trtbuild.store.local.local import LocalStore
from trtbuild.store.remote.store import RemoteStore
from trtbuild.store.transports.directory import DirectoryTransport
from trtbuild.store.transports.settings import RemoteSettings
from trtbuild.store.trust import action_result
from trtbuild.toolchain.libraries import table

VERSION = table.installed_version("tensorrt-rtx")

#: Changes of the manifest. The manifest must name the toolchain and its version, because some machines of these tests have
#: no toolchain. The first model gets weights and a second target.
CHANGES = (
    ("  ada: {sm: 89}", f'  ada: {{sm: 89, version: "{VERSION}"}}\n  ampere: {{sm: 86, version: "{VERSION}"}}'),
    ("  first:", "  first:\n    weights: net.safetensors\n    targets: [ada, ampere]"),
    ("defaults: {", "defaults: {toolchain: tensorrt-rtx, "),
)
WEIGHTS = {"0.weight": (16, 8), "0.bias": (16,), "2.weight": (8, 16), "2.bias": (8,)}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    base = tmp_path_factory.mktemp("transfer")
    copy_project("two_models", base / "project", *CHANGES)
    write_weights(base / "project" / "net.safetensors", WEIGHTS)
    trtbuild = CommandLine(base / "project", base / "cache", {"TRTBUILD_REMOTES": ""})
    assert ran(trtbuild("build"))["engine"] == 3
    return trtbuild


@pytest.fixture
def share(tmp_path: Path) -> Path:
    (tmp_path / "share").mkdir()
    return tmp_path / "share"


@pytest.fixture
def remote(share: Path) -> dict[str, str]:
    return {"TRTBUILD_REMOTES": f"team=rw:file://{share}"}


@pytest.fixture
def elsewhere(built: CommandLine, tmp_path: Path) -> CommandLine:
    """Another checkout, at another path, with an empty cache."""
    names = ("trtbuild.yaml", "nets.py", "net.safetensors")
    project = tmp_path / "another" / "checkout"
    project.mkdir(parents=True)
    for name in names:
        shutil.copy(built.project / name, project / name)
    return CommandLine(project, tmp_path / "another" / "cache", built.environment)


@pytest.fixture
def without_torch(tmp_path: Path) -> dict[str, str]:
    """Environment variables with which Python finds neither torch nor TensorRT."""
    (folder,) = [path for path in site.getsitepackages() if path.endswith("site-packages")]
    packages = tmp_path / "packages"
    packages.mkdir()
    for entry in os.scandir(folder):
        if not entry.name.lower().startswith(("torch", "onnx", "tensorrt", "nvidia", "numpy", "triton")):
            (packages / entry.name).symlink_to(entry.path)
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "sitecustomize.py").write_text(
        "import sys\n"
        f"sys.path[:] = [path for path in sys.path if not path.endswith('site-packages')] + [{str(packages)!r}]\n"
    )
    return {"PYTHONPATH": str(tmp_path / "bare")}


def check_all_hits(trtbuild: CommandLine, environment: dict[str, str] | None = None) -> None:
    """Check that a build has only hits, that engines of model `first` are written, and that the cache has no damage."""
    document = trtbuild("build", "--frozen", environment=environment)
    assert {each["verdict"] for each in document["steps"]} == {"hit"}
    assert list(trtbuild.project.glob("dist/first/engines/*/*.plan"))
    assert verify(LocalStore(trtbuild.cache)).damage == ()


def _ignore_progress(what: str, done: int, total: int, unit: str) -> None:
    pass


# -- a remote


def test_after_push_and_pull_a_build_runs_nothing(
    built: CommandLine, elsewhere: CommandLine, remote: dict[str, str]
) -> None:
    pushed = built("cache", "push", environment=remote)
    (sent,) = pushed["remotes"]
    assert pushed["ok"] and (sent["name"], sent["records_sent"], sent["records_there"]) == (
        "team",
        pushed["records"],
        0,
    )
    pulled = elsewhere("cache", "pull", environment=remote)
    assert pulled["ok"] and pulled["missing"] == [] and pulled["present"] == 0
    assert [(each["name"], each["records"]) for each in pulled["remotes"]] == [("team", pulled["records"])]
    assert pulled["records"] == pushed["records"]
    assert not (elsewhere.project / "dist").exists()
    check_all_hits(elsewhere)
    second = elsewhere("cache", "pull", environment=remote)
    assert second["ok"] and second["remotes"] == [] and second["present"] == second["records"]


def test_push_and_pull_use_a_kind_of_remote_that_one_table_row_added(
    built: CommandLine, elsewhere: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite_transport.add_row(monkeypatch)
    monkeypatch.setenv("TRTBUILD_REMOTES", f"team=rw:sqlite://{tmp_path}/entries")
    monkeypatch.setenv("TRTBUILD_CACHE_DIR", str(built.cache))
    pushed = transfer.push(Request(built.project), None, _ignore_progress)
    assert pushed.ok and pushed.records > 0
    monkeypatch.setenv("TRTBUILD_CACHE_DIR", str(elsewhere.cache))
    pulled = transfer.pull(Request(elsewhere.project), None, _ignore_progress)
    assert pulled.ok and pulled.present == 0
    assert [(each.name, each.records) for each in pulled.remotes] == [("team", pushed.records)]
    check_all_hits(elsewhere)


def test_a_machine_without_torch_and_tensorrt_pulls_pushes_exports_and_imports(
    built: CommandLine, elsewhere: CommandLine, remote: dict[str, str], without_torch: dict[str, str], tmp_path: Path
) -> None:
    built("cache", "push", environment=remote)
    assert "torch and onnx" in elsewhere.run("build", environment=without_torch).stderr  # torch cannot be imported
    assert elsewhere("cache", "pull", environment={**remote, **without_torch})["ok"]
    check_all_hits(elsewhere, without_torch)
    assert elsewhere("cache", "push", environment={**remote, **without_torch})["ok"]
    exported = elsewhere("cache", "export", str(tmp_path / "bundle"), environment=without_torch)
    # after the import, a machine with torch runs no step, either
    third = CommandLine(elsewhere.project, tmp_path / "third", elsewhere.environment)
    shutil.rmtree(elsewhere.project / "dist")
    shutil.rmtree(elsewhere.project / ".trtbuild")
    assert (
        third("cache", "import", str(tmp_path / "bundle"), environment=without_torch)["records"] == exported["records"]
    )
    check_all_hits(third)


def test_a_machine_without_torch_finds_the_exported_trace_if_another_version_of_torch_traced_last(
    built: CommandLine, elsewhere: CommandLine, without_torch: dict[str, str], tmp_path: Path
) -> None:
    """This happens if a user tries a new version of torch in a second virtual environment with the same cache."""
    machine = CommandLine(built.project, tmp_path / "cache", built.environment)
    shutil.copytree(built.cache, machine.cache)
    local = LocalStore(machine.cache)
    records = [local.get_record(key) for key in set(bundles._all_keys(local))]
    pointers = [record for record in records if record is not None and record.recipe.stage == "trace-any"]
    assert len(pointers) == 2
    for pointer in pointers:
        trace = Record.from_bytes(local.get_bytes(pointer.outputs["record"].sha256))
        parts = dict(trace.recipe.parts)
        parts["versions"] = {**parts["versions"], "torch": "9.9"}
        last = Record(replace(trace.recipe, parts=tuple(parts.items())), trace.outputs)
        local.put_record(Record(pointer.recipe, {"record": local.put_bytes(last.to_bytes())}), replace=True)
    machine("cache", "export", str(tmp_path / "bundle"))
    elsewhere("cache", "import", str(tmp_path / "bundle"))
    check_all_hits(elsewhere, without_torch)


def test_a_package_is_built_from_engines_that_only_a_remote_has(
    built: CommandLine, elsewhere: CommandLine, remote: dict[str, str]
) -> None:
    built("cache", "push", environment=remote)
    manifest = elsewhere.project / "trtbuild.yaml"
    manifest.write_text(manifest.read_text().replace("rows", "lines"))  # the name of a profile is in the package only
    assert ran(elsewhere("build", environment=remote)) == {"package": 2}
    check_all_hits(elsewhere, remote)


@pytest.mark.parametrize("index", [b'{"files": {"../../../stolen": {"sha256": "%s"}}}' % (b"0" * 64), b"[1,"])
def test_a_package_with_a_damaged_index_is_built_again(
    built: CommandLine, elsewhere: CommandLine, share: Path, remote: dict[str, str], index: bytes
) -> None:
    built("cache", "push", environment=remote)
    team = RemoteStore(DirectoryTransport(RemoteSettings("team", f"file://{share}")), "team")
    (key,) = (each["key"] for each in built("plan", "first")["steps"] if each["stage"] == "package")
    record = team.get_record(key)
    assert record is not None
    outputs = {**record.outputs, "index": team.put_bytes(index)}
    team.put_record(Record(record.recipe, outputs, record.provenance), replace=True)
    assert ran(elsewhere("build", environment=remote)) == {"package": 1}
    check_all_hits(elsewhere, remote)
    shared = team.get_record(key)
    assert shared is not None and shared.outputs == record.outputs, "the right record is in the remote again"


def test_a_push_sends_only_what_the_remote_lacks(built: CommandLine, share: Path, remote: dict[str, str]) -> None:
    first = built("cache", "push", environment=remote)["remotes"][0]
    second = built("cache", "push", environment=remote)["remotes"][0]
    assert (second["records_sent"], second["bytes_sent"]) == (0, 0)
    assert (second["records_there"], second["bytes_there"]) == (first["records_sent"], first["bytes_sent"])
    key = next(each["key"] for each in built("plan")["steps"] if each["stage"] == "engine")
    record = LocalStore(built.cache).get_record(key)
    assert record is not None
    (share / "ac" / key[:2] / key).unlink()
    layers = record.outputs["layers"].sha256
    (share / "cas" / layers[:2] / layers).unlink()
    third = built("cache", "push", environment=remote)["remotes"][0]
    assert third["records_sent"] == 1
    assert third["bytes_sent"] == record.outputs["layers"].size, (third, record, first)
    assert (share / "cas" / layers[:2] / layers).is_file()


def test_push_and_pull_through_a_real_server_with_two_logins(
    built: CommandLine, elsewhere: CommandLine, tmp_path: Path
) -> None:
    with running(tmp_path / "nginx") as nginx:
        writing = {"TRTBUILD_REMOTES": f"team=rw:{nginx.url_of('writer')}"}
        reading = {"TRTBUILD_REMOTES": f"team=rw:{nginx.url_of('reader')}"}
        first = built("cache", "push", environment=writing)
        assert first["ok"] and first["remotes"][0]["records_sent"] == first["records"]
        second = built("cache", "push", environment=writing)["remotes"][0]
        assert (second["records_sent"], second["bytes_sent"]) == (0, 0)
        assert elsewhere("cache", "pull", environment=reading)["ok"]
        check_all_hits(elsewhere)
        nginx.empty()
        refused = built("cache", "push", environment=reading, expect=1)
        assert len(refused["not_sent"]) == refused["records"]
        password = nginx.passwords["reader"]
        assert password not in json.dumps(refused)
        puts = [line for line in nginx.log() if " PUT " in line]
        assert any(" 401 " in line for line in puts)  # the server received the request and refused it
        assert not list(nginx.root.glob("ac/*/*"))


def test_only_the_selected_results_are_transferred(
    built: CommandLine, elsewhere: CommandLine, remote: dict[str, str]
) -> None:
    selected = built("cache", "push", "first", "--target", "ada", environment=remote)
    assert selected["ok"]
    failed = elsewhere("cache", "pull", environment=remote, expect=1)
    assert {each["step"] for each in failed["missing"]} == {"first/engine/model@ampere", "second/trace"}
    assert elsewhere("cache", "pull", "first", "--target", "ada", environment=remote)["ok"]
    document = elsewhere("build", "first", "--target", "ada", "--frozen")
    assert {each["verdict"] for each in document["steps"]} == {"hit"}
    complete = built("cache", "push", environment=remote)
    assert 0 < complete["remotes"][0]["records_sent"] < complete["records"]


def test_results_that_no_remote_has_are_listed(
    built: CommandLine, elsewhere: CommandLine, remote: dict[str, str]
) -> None:
    built("cache", "push", environment=remote)
    write_weights(elsewhere.project / "net.safetensors", WEIGHTS, seed=1)
    document = elsewhere("cache", "pull", environment=remote, expect=1)
    assert not document["ok"]
    assert {each["step"].partition("@")[2] for each in document["missing"]} >= {"ada", "ampere"}
    assert all(each["step"].startswith("first/") for each in document["missing"])
    shown = click.unstyle("\n".join(transfers.pull_lines(decode(CachePull, document))))
    assert "missing  first/engine/" in shown and "→ trtbuild build builds them here" in shown
    assert not (elsewhere.project / "dist").exists()


def test_a_push_with_missing_results_fails_and_sends_the_others(
    built: CommandLine, elsewhere: CommandLine, remote: dict[str, str]
) -> None:
    shutil.copytree(built.cache, elsewhere.cache)
    write_weights(elsewhere.project / "net.safetensors", WEIGHTS, seed=1)
    document = elsewhere("cache", "push", environment=remote, expect=1)
    assert document["missing"] and document["not_sent"] == []
    assert document["remotes"][0]["records_sent"] == document["records"] > 0
    assert "not built" in click.unstyle("\n".join(transfers.push_lines(decode(CachePush, document))))


def test_a_push_to_an_unreachable_remote_fails_with_the_reason(built: CommandLine) -> None:
    dead = {"TRTBUILD_REMOTES": "team=rw:http://127.0.0.1:9/cache"}  # no program listens on this port
    document = built("cache", "push", environment=dead, expect=1)
    assert len(document["not_sent"]) == document["records"]
    assert document["warnings"]
    shown = click.unstyle("\n".join(transfers.push_lines(decode(CachePush, document))))
    assert "not sent" in shown and "127.0.0.1:9" in shown
    pulled = built("cache", "pull", environment=dead)  # every result is in the local cache
    assert pulled["ok"] and pulled["present"] == pulled["records"]


def test_the_remote_option_accepts_names_of_suitable_remotes(built: CommandLine, share: Path) -> None:
    two_remotes = {"TRTBUILD_REMOTES": f"team=r:file://{share} mine=w:file://{share}/mine"}
    wrong = built("cache", "push", "--remote", "team", environment=two_remotes, expect=2)
    assert "no remote that may be written is called 'team'" in wrong["errors"][0]["text"]
    wrong = built("cache", "pull", "--remote", "mine", environment=two_remotes, expect=2)
    assert "no remote that may be read is called 'mine'" in wrong["errors"][0]["text"]
    without_remotes = built("cache", "push", expect=2)
    assert without_remotes["errors"][0]["text"] == "no remote is configured that may be written"
    assert "TRTBUILD_REMOTES" in without_remotes["errors"][0]["hint"]
    assert built("cache", "push", "--remote", "mine", environment=two_remotes)["remotes"][0]["name"] == "mine"


def test_a_pull_sends_nothing(built: CommandLine, elsewhere: CommandLine, share: Path, remote: dict[str, str]) -> None:
    shutil.copytree(built.cache, elsewhere.cache)
    write_weights(elsewhere.project / "net.safetensors", WEIGHTS, seed=1)  # so the pull reads the remote
    elsewhere("cache", "pull", environment=remote, expect=1)
    assert not [*share.glob("ac/*/*"), *share.glob("cas/*/*")]


def test_damaged_bytes_are_not_sent(
    built: CommandLine, elsewhere: CommandLine, remote: dict[str, str], share: Path
) -> None:
    shutil.copytree(built.cache, elsewhere.cache)
    key = next(each["key"] for each in elsewhere("plan")["steps"] if each["stage"] == "engine")
    record = LocalStore(elsewhere.cache).get_record(key)
    assert record is not None
    layers = record.outputs["layers"].sha256
    path = elsewhere.cache / "cas" / layers[:2] / layers
    path.chmod(0o644)
    path.write_bytes(bytes(path.stat().st_size))
    document = elsewhere("cache", "push", environment=remote, expect=1)
    assert any("damaged" in each["reason"] for each in document["not_sent"])
    assert not (share / "cas" / layers[:2] / layers).exists() and not (share / "ac" / key[:2] / key).exists()


# -- a bundle


def test_after_export_and_import_a_build_runs_nothing(
    built: CommandLine, elsewhere: CommandLine, tmp_path: Path
) -> None:
    exported = built("cache", "export", str(tmp_path / "all.bundle"))
    assert exported["bytes"] == (tmp_path / "all.bundle").stat().st_size
    imported = elsewhere("cache", "import", str(tmp_path / "all.bundle"))
    assert imported["ok"] and imported["records"] == exported["records"]
    check_all_hits(elsewhere)
    built("cache", "export", str(tmp_path / "again.bundle"))
    assert (tmp_path / "again.bundle").read_bytes() == (tmp_path / "all.bundle").read_bytes()
    shown = click.unstyle("\n".join(transfers.import_lines(decode(CacheImport, imported))))
    assert shown.startswith(f"imported  {tmp_path / 'all.bundle'}  {exported['records']} records")


def test_a_bundle_of_one_target_has_only_its_results(
    built: CommandLine, elsewhere: CommandLine, tmp_path: Path
) -> None:
    built("cache", "export", str(tmp_path / "ada.bundle"), "first", "--target", "ada")
    built("cache", "export", str(tmp_path / "all.bundle"))
    assert (tmp_path / "ada.bundle").stat().st_size < (tmp_path / "all.bundle").stat().st_size
    elsewhere("cache", "import", str(tmp_path / "ada.bundle"))
    document = elsewhere("build", "first", "--target", "ada", "--frozen")
    assert {each["verdict"] for each in document["steps"]} == {"hit"}
    assert elsewhere("build", "--frozen", expect=3)["errors"]


def test_a_bundle_until_a_stage_has_no_results_of_later_stages(
    built: CommandLine, elsewhere: CommandLine, tmp_path: Path
) -> None:
    everything = built("cache", "export", str(tmp_path / "everything"))["records"]
    converted = built("cache", "export", str(tmp_path / "bundle"), "--until", "convert")["records"]
    assert 0 < converted < everything
    elsewhere("cache", "import", str(tmp_path / "bundle"))
    steps = {step["stage"]: step["verdict"] for step in elsewhere("plan")["steps"]}
    assert (steps["convert"], steps["engine"]) == ("hit", "run")


def test_an_export_fetches_results_that_only_a_remote_has(
    built: CommandLine, elsewhere: CommandLine, remote: dict[str, str], tmp_path: Path
) -> None:
    built("cache", "push", environment=remote)
    elsewhere("cache", "export", str(tmp_path / "bundle"), environment=remote)
    third = CommandLine(elsewhere.project, tmp_path / "third", elsewhere.environment)
    third("cache", "import", str(tmp_path / "bundle"))
    check_all_hits(third)


def test_an_export_of_missing_results_is_an_error(elsewhere: CommandLine, tmp_path: Path) -> None:
    document = elsewhere("cache", "export", str(tmp_path / "bundle"), expect=1)
    (error,) = document["errors"]
    assert "first/trace" in error["text"] and "second/trace" in error["text"]
    assert error["hint"] == "trtbuild build, then export again"
    assert not (tmp_path / "bundle").exists()


def test_the_whole_cache_is_exported_without_a_manifest(built: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    source = CommandLine(tmp_path / "nothing", built.cache, built.environment)
    exported = source("cache", "export", str(tmp_path / "bundle"), "--all")
    destination = CommandLine(tmp_path / "nothing", tmp_path / "cache", built.environment)
    assert destination("cache", "import", str(tmp_path / "bundle"))["records"] == exported["records"]
    assert source("cache", "stats")["records"] == destination("cache", "stats")["records"]
    assert exported["left_out"] == []


def test_incomplete_results_are_left_out_and_named(built: CommandLine, elsewhere: CommandLine, tmp_path: Path) -> None:
    shutil.copytree(built.cache, elsewhere.cache)
    key = next(each["key"] for each in elsewhere("plan")["steps"] if each["stage"] == "engine")
    record = LocalStore(elsewhere.cache).get_record(key)
    assert record is not None
    layers = record.outputs["layers"].sha256
    (elsewhere.cache / "cas" / layers[:2] / layers).unlink()
    exported = elsewhere("cache", "export", str(tmp_path / "bundle"), "--all")
    assert key in [each["key"] for each in exported["left_out"]]
    assert exported["records"] == sum(elsewhere("cache", "stats")["records"].values()) - len(exported["left_out"])
    assert f"left out  record {key}" in click.unstyle("\n".join(transfers.export_lines(decode(CacheExport, exported))))


def test_rejects_files_that_are_not_bundles_and_a_model_together_with_all(
    elsewhere: CommandLine, tmp_path: Path
) -> None:
    absent = elsewhere("cache", "import", str(tmp_path / "absent"), expect=2)
    assert "No such file" in absent["errors"][0]["text"]
    (tmp_path / "page").write_text("<html>")
    page = elsewhere("cache", "import", str(tmp_path / "page"), expect=1)
    assert page["errors"][0]["type"] == "BundleRefused"
    both = elsewhere("cache", "export", str(tmp_path / "x"), "first", "--all", expect=2)
    assert "--all exports the whole cache" in both["errors"][0]["text"]


def test_an_export_that_cannot_be_written_is_an_error(built: CommandLine, tmp_path: Path) -> None:
    document = built("cache", "export", str(tmp_path / "no" / "such" / "folder"), expect=1)
    assert "cannot be written: No such file or directory" in document["errors"][0]["text"]


# -- trust


@pytest.fixture
def create_key(elsewhere: CommandLine, tmp_path: Path) -> Callable[[str], tuple[str, str]]:
    """A function: name of a new signing key → its file and its public key."""

    def create(name: str) -> tuple[str, str]:
        file = tmp_path / f"{name}.key"
        document = elsewhere("cache", "keygen", "--name", name, "--out", str(file))
        return str(file), document["public"]

    return create


def signature_counts(cache: Path) -> Counter[str]:
    """Signer → number of its signatures in the records of a cache."""
    counts: Counter[str] = Counter()
    for path in cache.glob("ac/*/*"):
        entry = action_result.ActionResult.from_bytes(path.read_bytes())
        counts.update(signature.signer for signature in entry.signatures)
    return counts


def test_signatures_are_transferred_unchanged_and_only_trusted_records_are_accepted(
    elsewhere: CommandLine, tmp_path: Path, create_key: Callable[[str], tuple[str, str]], remote: dict[str, str]
) -> None:
    file, public = create_key("ci")
    _, other_public = create_key("other")
    signing = {"TRTBUILD_SIGNING_KEY_FILE": file}
    elsewhere("build", "second", environment=signing)
    exported = elsewhere("cache", "export", str(tmp_path / "bundle"), "second", environment=signing)
    assert elsewhere("cache", "push", "second", environment={**remote, **signing})["ok"]

    trusting = CommandLine(elsewhere.project, tmp_path / "trusting", {"TRTBUILD_TRUSTED_KEYS": public})
    assert trusting("cache", "import", str(tmp_path / "bundle"))["records"] == exported["records"]
    assert signature_counts(trusting.cache) == Counter(ci=exported["records"])
    assert {each["verdict"] for each in trusting("build", "second", "--frozen")["steps"]} == {"hit"}

    distrusting = CommandLine(elsewhere.project, tmp_path / "distrusting", {"TRTBUILD_TRUSTED_KEYS": other_public})
    refused = distrusting("cache", "import", str(tmp_path / "bundle"), expect=1)
    assert (refused["ok"], refused["records"], len(refused["untrusted"])) == (False, 0, exported["records"])
    assert all("not trusted" in each["reason"] for each in refused["untrusted"])
    assert not list(distrusting.cache.glob("ac/*/*"))
    pulled = distrusting("cache", "pull", "second", environment=remote, expect=1)
    assert pulled["missing"] and not list(distrusting.cache.glob("ac/*/*"))


def test_records_that_only_this_machine_has_signed_are_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, create_key: Callable[[str], tuple[str, str]]
) -> None:
    monkeypatch.setenv("TRTBUILD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TRTBUILD_TRUSTED_KEYS", create_key("ci")[1])
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TRTBUILD_REMOTES", "")
    local = wiring.open_local(tmp_path, wiring.trust_policy(wiring.load_configuration(tmp_path).trust))
    record = local.put_record(Record(Recipe("engine", 1, (("number", 1),)), {"plan": local.put_bytes(b"plan")}))
    key = record.recipe.key
    assert local.get_record(key) == record
    exported = bundles.export_all(Request(tmp_path), tmp_path / "bundle", _ignore_progress)
    assert (exported.records, exported.left_out) == (0, [RefusedRecord(key=key, reason=transfer.ONLY_MACHINE_KEY)])
    transport = MemoryTransport()
    sender = transfer._Sender(local, RemoteStore(transport, "team", local.trust))
    sender.send([key], _ignore_progress)
    assert sender.failures == {key: transfer.ONLY_MACHINE_KEY}
    assert transport.entries == {}


def test_a_blob_of_several_records_is_sent_once(tmp_path: Path) -> None:
    local = LocalStore(tmp_path / "cache")
    plan = local.put_bytes(np.random.default_rng(0).bytes(5 << 20))
    records = [local.put_record(Record(Recipe("engine", 1, (("number", n),)), {"plan": plan})) for n in range(8)]
    transport = MemoryTransport()
    sender = transfer._Sender(local, RemoteStore(transport, "team"))
    sender.send([record.recipe.key for record in records], _ignore_progress)
    assert sender.failures == {} and sender.summary().bytes_sent == plan.size
    puts = Counter(name for method, kind, name, _ in transport.calls if (method, kind) == ("put", "cas"))
    assert {puts[part.sha256] for part in local.files_of(plan.sha256)} == {1}


def test_pointers_are_sent_after_the_records_that_they_lead_to(tmp_path: Path) -> None:
    """Pointers are, for example, the records of `trace-any`. Machines without a parser or PyTorch look them up."""
    local = LocalStore(tmp_path / "cache")
    records = [
        local.put_record(Record(Recipe(stage, 1, (("number", n),)), {"record": local.put_bytes(bytes([n]) * 9000)}))
        for n in range(12)
        for stage in ("partition", "partition-any", "trace-any")
    ]
    transport = MemoryTransport()
    transfer._Sender(local, RemoteStore(transport, "team")).send(
        [record.recipe.key for record in records], _ignore_progress
    )
    stages = {record.recipe.key: record.recipe.stage for record in records}
    sent = [stages[name] for method, kind, name, _ in transport.calls if (method, kind) == ("put", "ac")]
    assert len(sent) == len(records) and sent[:12] == ["partition"] * 12


def test_a_pointer_is_not_sent_if_another_record_could_not_be_sent(tmp_path: Path) -> None:
    """The pointer would lead to a missing record, and replace a pointer that can be used."""
    local = LocalStore(tmp_path / "cache")
    trace, pointer = (
        local.put_record(Record(Recipe(stage, 1, ()), {"record": local.put_bytes(stage.encode() * 900)}))
        for stage in ("trace", "trace-any")
    )
    transport = MemoryTransport()
    put = transport.put

    def put_all_but_the_trace(kind: Kind, name: str, data: bytes | memoryview, *, once: bool) -> bool:
        if name == trace.outputs["record"].sha256:
            raise RemoteFull("no space is left")
        return put(kind, name, data, once=once)

    transport.put = put_all_but_the_trace  # type: ignore[method-assign]
    sender = transfer._Sender(local, RemoteStore(transport, "team"))
    sender.send([trace.recipe.key, pointer.recipe.key], _ignore_progress)
    assert sender.failures == {trace.recipe.key: "no space is left", pointer.recipe.key: transfer.OTHERS_NOT_SENT}
    assert ("ac", pointer.recipe.key) not in transport.entries


def test_each_document_has_its_schema(built: CommandLine, remote: dict[str, str], tmp_path: Path) -> None:
    documents: dict[str, Any] = {
        "push": built("cache", "push", environment=remote),
        "pull": built("cache", "pull", environment=remote),
        "export": built("cache", "export", str(tmp_path / "bundle")),
        "import": built("cache", "import", str(tmp_path / "bundle")),
    }
    for name, document in documents.items():
        assert document["schema"] == f"trtbuild.cache-{name}/1"
        assert document["ok"] is True


@pytest.mark.parametrize("local_is_accepted", [True, False])
@pytest.mark.parametrize("in_remote", [True, False])
def test_a_pull_takes_the_locked_record_and_otherwise_keeps_a_local_record_that_the_lock_accepts(
    tmp_path: Path, in_remote: bool, local_is_accepted: bool
) -> None:
    recipe = Recipe("engine", 1, (("number", 1),))
    transport = MemoryTransport()
    if in_remote:
        other = LocalStore(tmp_path / "other")
        other.put_record(Record(recipe, {"plan": other.put_bytes(b"locked")}))
        transfer._Sender(other, RemoteStore(transport, "team")).send([recipe.key], _ignore_progress)
    local = LocalStore(tmp_path / "cache")
    local.put_record(Record(recipe, {"plan": local.put_bytes(b"another")}))
    store = LayeredStore(local, [RemoteStore(transport, "team")])

    def refuses(key: str, record: Record, is_last_resort: bool) -> str | None:
        is_locked_record = record.outputs["plan"].size == len(b"locked")
        return None if is_locked_record or (is_last_resort and local_is_accepted) else "not the locked one"

    store.lock_refusal = refuses
    missing, _ = transfer.fetch_incomplete_records(store, [recipe.key], _ignore_progress)
    assert missing == ({} if in_remote or local_is_accepted else {recipe.key: "not the locked one"})
    record = local.get_record(recipe.key)
    assert record is not None and local.get_bytes(record.outputs["plan"].sha256) == (
        b"locked" if in_remote else b"another"
    )
