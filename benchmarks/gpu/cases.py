"""The models of a project that is measured: their sizes and inputs, eager PyTorch, and the built packages.

A *point* is one size for each dynamic dimension, with a seed for the input values.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtbuild.core.model.declared_shapes import derive
from trtbuild.core.model.shapes import ShapePlan
from trtbuild.core.model.spec import Model
from trtbuild.core.model.verification import Point, points_of_model


class NoEagerModel(Exception):
    """PyTorch cannot run this model."""


@dataclass(frozen=True)
class Case:
    """One model of a project. Its package exists if the project has been built."""

    project: Path
    model: Model
    shapes: ShapePlan

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def package(self) -> Path:
        """The path of the package that the project's build writes."""
        return self.project / "dist" / self.model.name

    def points(self, count: int) -> tuple[Point, ...]:
        """Return the min, opt and max points and `count` random points of every profile."""
        return points_of_model(self.model, self.shapes, count=count, seed=0)

    def inputs(self, point: Point, device: str = "cuda") -> tuple[list[Any], dict[str, Any]]:
        """Return the positional and the keyword tensors at a point, on `device`."""
        from trtbuild.stages.trace.examples import call_arguments, example_tensors

        values = example_tensors(self.model.inputs, self.shapes.input_shapes(point.sizes), point.seed)
        args, kwargs = call_arguments(self.model.inputs, [value.to(device) for value in values])
        return list(args), kwargs

    def eager(self, device: str = "cuda") -> Any:
        """Return the original model with its weights, in its own precision. For an ONNX file, the result is a function.

        Raises NoEagerModel if PyTorch cannot run the model.
        """
        import torch

        source = self.model.source
        if source.kind == "torchscript":
            return torch.jit.load(self._path(source.target), map_location=device).eval()
        if source.kind == "onnx":
            return _by_onnxruntime(self._path(source.target), device)
        if source.kind == "exported_program":
            from torch.export.passes import move_to_device_pass

            return move_to_device_pass(torch.export.load(self._path(source.target)), device).module()
        name, _, path = source.target.partition(":")
        folder = str((self.project / self.model.origin.file).parent)
        for loaded in [module for module in sys.modules if module.partition(".")[0] == name.partition(".")[0]]:
            del sys.modules[loaded]  # every project has its own `models` package
        sys.path.insert(0, folder)
        try:
            builder: Any = importlib.import_module(name)
        finally:
            sys.path.remove(folder)
        if source.kind == "network":  # `build` returns the PyTorch module that has the network's weights
            if not hasattr(builder, "build"):
                raise NoEagerModel(f"{self.name} is a network of TensorRT's own API")
            path = "build"
        for part in path.split("."):
            builder = getattr(builder, part)
        torch.manual_seed(0)
        module = builder(**source.kwargs).eval()
        self._take_weights(module)
        return module.to(device)

    def _take_weights(self, module: Any) -> None:
        """Copy the package's weights into the parameters of `module` with the same name, shape and dtype.

        Otherwise the random weights may differ: other versions of torch and transformers may draw other random numbers.
        """
        import torch

        file = self.package / "index.json"
        index = json.loads(file.read_text()) if file.exists() else {"weights": {}}
        paths = {entry["sha256"]: path for path, entry in index.get("files", {}).items()}
        parameters = module.state_dict()
        for entry in index["weights"].values():
            parameter = parameters.get(entry["name"])
            if parameter is None or list(parameter.shape) != entry["shape"]:
                continue
            if str(parameter.dtype) == f"torch.{entry['dtype']}":
                data = bytearray((self.package / paths[entry["sha256"]]).read_bytes())
                parameter.copy_(torch.frombuffer(data, dtype=parameter.dtype).view(parameter.shape))

    def describe(self, point: Point) -> str:
        """Return the point as text, such as ``max (batch 32)``."""
        sizes = ", ".join(
            f"{symbol.name} {size}" for symbol, size in zip(self.shapes.symbols, point.sizes, strict=True)
        )
        profile = self.model.profiles[point.profile].name
        return f"{point.which} of {profile} ({sizes})" if len(self.model.profiles) > 1 else f"{point.which} ({sizes})"

    def _path(self, target: str) -> Path:
        beside_manifest = self.project / Path(self.model.origin.file).parent / target
        return beside_manifest if beside_manifest.exists() else self.project / target


def import_file(path: Path) -> Any:
    """Import one Python file. It may have the same module name as a file of another project. Raises ImportError."""
    specification = importlib.util.spec_from_file_location(path.stem, path)
    if specification is None or specification.loader is None:
        raise ImportError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def cases(project: Path) -> Iterator[Case]:
    """Yield every model of the project in the folder `project`, in the order of its manifests.

    Raises ValueError if the shapes of a model are not valid.
    """
    from trtbuild.manifest.project import load_project

    for model in load_project(project).models:
        shapes, problems = derive(model.inputs, model.dims, model.profiles)
        if shapes is None:
            raise ValueError(f"{model.name}: {problems[0].text}")
        yield Case(project, model, shapes)


def _by_onnxruntime(path: Path, device: str) -> Any:
    """Return a function that runs an ONNX file on the CPU. It takes and returns tensors on `device`."""
    import onnxruntime
    import torch

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]

    def run(*args: Any) -> Any:
        arrays = {name: value.cpu().numpy() for name, value in zip(names, args, strict=True)}
        outputs = [torch.from_numpy(output).to(device) for output in session.run(None, arrays)]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    return run


def output_tensors(value: Any) -> list[Any]:
    """Return the tensors in a model's output, in order."""
    import torch.utils._pytree as pytree

    return [leaf for leaf in pytree.tree_leaves(value) if hasattr(leaf, "shape")]
