"""`trtbuild.load` of the ``.pt2`` files that `trtbuild.save` writes."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import trtbuild
from trtbuild import Input
from trtbuild.errors import NoFittingTarget, PackageDamaged, PackageMissing, PackageTooNew, UsageError


@pytest.fixture(scope="module")
def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU()).eval()


@pytest.fixture(scope="module")
def saved(net: torch.nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A function that saves the model and its reference program under a name, once, and returns the file's path."""
    folder = tmp_path_factory.mktemp("saved")

    def save(name: str) -> Path:
        if not (folder / name).exists():
            rows = Input(min_shape=(1, 8), opt_shape=(4, 8), max_shape=(16, 8))
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("XDG_CACHE_HOME", str(folder / "state"))
                model = trtbuild.compile(net, [rows], target=89, device="cpu", cache_dir=folder / "cache")
            model.save(folder / name)
        return folder / name

    return save


@pytest.mark.parametrize("name", ["net.pt2", "net.ep"])
def test_a_file_is_loaded_like_a_package(saved: Callable[..., Path], net: torch.nn.Module, name: str) -> None:
    with trtbuild.load(saved(name), device="cpu") as loaded:
        assert (loaded.model, loaded.target, loaded.device) == ("Sequential", "sm89", "cpu")
        module = loaded.module()
        for rows in (1, 7, 16):
            torch.testing.assert_close(module(torch.ones(rows, 8)), net(torch.ones(rows, 8)))
    assert isinstance(loaded.exported, torch.export.ExportedProgram)
    assert "target 'sm89'" in repr(loaded)


def rewrite(path: Path, other: Path, change: Callable[[str, bytes], bytes | None]) -> Path:
    """Copy an archive. `change` returns the new content of each file, or None to leave the file out."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(other, "w") as new:
        for name in old.namelist():
            data = change(name, old.read(name))
            if data is not None:
                new.writestr(name, data)
    return other


def test_rejects_a_file_that_trtbuild_did_not_write(net: torch.nn.Module, tmp_path: Path) -> None:
    torch.export.save(torch.export.export(net, (torch.ones(2, 8),)), tmp_path / "other.pt2")
    with pytest.raises(UsageError, match="trtbuild did not write") as caught:
        trtbuild.load(tmp_path / "other.pt2", device="cpu")
    assert "torch.export.load" in str(caught.value.hint)


def test_rejects_damaged_and_missing_files(saved: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(PackageMissing, match="there is no file"):
        trtbuild.load(tmp_path / "no.pt2", device="cpu")
    (tmp_path / "short.pt2").write_bytes(saved("net.pt2").read_bytes()[:-100])
    with pytest.raises(PackageDamaged, match=r"is not a \.pt2 file, or it is truncated"):
        trtbuild.load(tmp_path / "short.pt2", device="cpu")
    broken = rewrite(
        saved("net.pt2"), tmp_path / "broken.pt2", lambda name, data: data[:40] if name.endswith("model.json") else data
    )
    with pytest.raises(PackageDamaged, match=r"torch\.export\.load of torch .* cannot read"):
        trtbuild.load(broken, device="cpu")


def test_rejects_a_file_with_damaged_compressed_data(saved: Callable[..., Path], tmp_path: Path) -> None:
    path = tmp_path / "damaged.pt2"
    with zipfile.ZipFile(saved("net.pt2")) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        (name,) = [name for name in old.namelist() if name.endswith("trtbuild.json")]
        new.writestr(name, old.read(name))
    data = bytearray(path.read_bytes())
    data[30 + len(name)] |= 0b110  # the first byte after the zip header: deflate has no such block type
    path.write_bytes(data)
    with pytest.raises(PackageDamaged, match=r"is not a \.pt2 file, or it is truncated: Error -3"):
        trtbuild.load(path, device="cpu")


@pytest.mark.parametrize(("text", "error"), [(b"[]", PackageDamaged), (b'{"schema": "trtbuild.pt2/2"}', PackageTooNew)])
def test_rejects_a_file_of_another_format(
    saved: Callable[..., Path], tmp_path: Path, text: bytes, error: type[Exception]
) -> None:
    path = rewrite(
        saved("net.pt2"), tmp_path / "other.pt2", lambda name, data: text if name.endswith("trtbuild.json") else data
    )
    with pytest.raises(error):
        trtbuild.load(path, device="cpu")


def test_rejects_devices_and_targets_that_the_file_is_not_for(saved: Callable[..., Path]) -> None:
    with pytest.raises(UsageError, match="is for the target 'sm89', not 'sm90'"):
        trtbuild.load(saved("net.pt2"), device="cpu", target="sm90")
    with pytest.raises(UsageError, match="is not a device"):
        trtbuild.load(saved("net.pt2"), device="tpu")
    if not torch.cuda.is_available():
        with pytest.raises(NoFittingTarget, match="there is no GPU 0") as caught:
            trtbuild.load(saved("net.pt2"))
        assert 'device="cpu"' in str(caught.value.hint)


def test_rejects_the_cpu_for_a_file_without_a_reference(saved: Callable[..., Path], tmp_path: Path) -> None:
    def without_reference(name: str, data: bytes) -> bytes:
        if not name.endswith("model.json"):
            return data
        text = data.decode()
        start = text.index('\\"reference\\":') + len('\\"reference\\":')
        end = text.index(",", start)
        return (text[:start] + "null" + text[end:]).encode()

    path = rewrite(saved("net.pt2"), tmp_path / "gpu.pt2", without_reference)
    with pytest.raises(NoFittingTarget, match="has no reference program"):
        trtbuild.load(path, device="cpu")
