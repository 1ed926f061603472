"""Packages with plugins: their index, and the permission to load the library."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.recipe_values import MODEL, PLUGINS, Build, D
from trtbuild.core.model.custom_operators import CustomOperator
from trtbuild.core.packages.package_index import PackageIndex
from trtbuild.core.packages.package_indexing import package_index
from trtbuild.core.packages.package_reading import read_index
from trtbuild.core.packages.package_writing import index_to_bytes
from trtbuild.core.recipes.record import Output
from trtbuild.driver.packages.custom_plugins import require_permission
from trtbuild.errors import PackageDamaged, PluginsNotLoaded


def index_of(build: Build) -> PackageIndex:
    return read_index(index_to_bytes(package_index(build.contents(), Output(D, 10))))


@pytest.fixture
def index() -> PackageIndex:
    return index_of(Build(replace(MODEL, plugins=PLUGINS)))


def test_the_library_is_a_file_of_the_package(index: PackageIndex) -> None:
    assert index.plugins is not None and index.plugins.library is not None
    assert index.plugins.plugins == (("RoiPlugin", "1", ""),)
    assert index.files[index.plugins.library] == Output(D, 10)


def test_a_library_is_loaded_with_permission_only(index: PackageIndex) -> None:
    with pytest.raises(PluginsNotLoaded, match=r"TensorRT plugins of the library libroi\.so in the package") as raised:
        require_permission(index, load_plugins=False)
    assert "load with `load_plugins=True`" in (raised.value.hint or "")
    require_permission(index, load_plugins=True)


def test_plugins_of_tensorrt_need_no_permission() -> None:
    index = index_of(Build(replace(MODEL, plugins=replace(PLUGINS, library=None))))
    assert index.plugins is not None and index.plugins.library is None
    require_permission(index, load_plugins=False)
    assert index_of(Build()).plugins is None


def test_a_package_without_its_plugin_library_counts_as_damaged(index: PackageIndex) -> None:
    assert index.plugins is not None and index.plugins.library is not None
    data = index_to_bytes(index).replace(f'"library": "{index.plugins.library}"'.encode(), b'"library": "plugins/x.so"')
    with pytest.raises(PackageDamaged, match="library of plugins is not a file"):
        read_index(data)


def test_with_plugins_a_target_needs_only_the_operators_that_its_torch_partitions_call(index: PackageIndex) -> None:
    inside, outside = (CustomOperator(f"mylib.{name}.default", "s") for name in ("roi", "other"))
    target = next(iter(index.targets.values()))
    # an operator with a reason stays in PyTorch
    first, last = target.partitions.partitions
    partitions = replace(target.partitions, partitions=(first, replace(last, reasons={outside.name: "so"})))
    target = replace(target, partitions=partitions)
    assert replace(index, operators=(inside, outside)).operators_for(target) == (outside,)
    # without plugins, no engine contains a custom operator
    assert replace(index, operators=(inside,), plugins=None).operators_for(target) == (inside,)
