"""Complete a model: apply the defaults, look up names, and make paths relative to the project.

Checks that need an invalid field (`INVALID`) are skipped, because the field has a problem already.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from trtbuild.core.model.builder_settings import BuilderSettings
from trtbuild.core.model.plugins import Plugins
from trtbuild.core.model.precisions import Precisions, module_precisions
from trtbuild.core.model.quantization import Quantization
from trtbuild.core.model.spec import Model, Origin, PartitionSettings, Profile, Source, Target
from trtbuild.core.values.nearest import suggestion
from trtbuild.manifest.contradictions import check_graph, check_plugins, check_state, check_turing
from trtbuild.manifest.declared import INVALID, DeclaredModel, LocatedValue, NamedEntry
from trtbuild.manifest.format.fields import ModelFields, TargetFields
from trtbuild.manifest.namespace import Namespace
from trtbuild.manifest.outputs import OutputPath, resolve_outputs
from trtbuild.manifest.paths import ProjectPaths, check_readable, folder_of
from trtbuild.manifest.plugins import resolve_plugins
from trtbuild.manifest.quantization import check_targets, resolve_quantization
from trtbuild.manifest.shapes import Shapes, check_shapes, resolve_dims, resolve_inputs, resolve_profile
from trtbuild.manifest.source import resolve_source
from trtbuild.manifest.yaml_text.problems import Problems

#: An operating system's name for a kind of processor → trtbuild's name.
_CPUS = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}
#: Required field → the hint if it is missing.
_HINT_IF_MISSING = {
    "source": 'write `source: {python: "module:callable"}`',
    "inputs": "name each tensor that the model takes, such as `image: {dtype: float32}`",
    "profiles": "name at least one profile, such as `profiles: [photo]`",
    "targets": "name at least one target, in the model or in `defaults`, such as `targets: [ada]`",
}


def this_platform() -> str:
    """``<os>-<cpu>`` of this machine, such as linux-x86_64."""
    cpu = platform.machine().lower()
    return f"{platform.system().lower()}-{_CPUS.get(cpu, cpu)}"


def resolve_model(
    declared: DeclaredModel, namespace: Namespace, paths: ProjectPaths, outputs: list[OutputPath], problems: Problems
) -> Model | None:
    """The complete model, or None if a needed field is invalid or missing. Adds all problems of the model.

    A model with other problems is returned, too: `load_project` raises the error later. In each case the model's outputs
    are added to `outputs`, to compare them with the outputs of other models.
    """
    return _Resolver(declared, namespace, paths, problems).resolve(outputs)


class _Resolver:
    """Completes one model (`resolve_model`)."""

    def __init__(self, declared: DeclaredModel, namespace: Namespace, paths: ProjectPaths, problems: Problems) -> None:
        self._name = declared.name
        self._declared = declared
        self._namespace = namespace
        self._paths = paths
        self._problems = problems
        self._fields = {**namespace.defaults, **declared.fields}
        #: The name of a field, such as ``inputs.x`` → its place in the manifest.
        self._places = {name: located.name_origin for name, located in self._fields.items()}

    def resolve(self, outputs: list[OutputPath]) -> Model | None:
        source = self._source()
        shapes = self._shapes()
        targets = self._targets()
        weights = self._weights()
        quantization = self._quantization(source)
        if quantization is not None and targets is not None:
            place = self._places.get("quantize.format", self._declared.name_origin)
            check_targets(quantization, targets, self._name, place, self._problems)
        plugins = self._plugins(source)
        if source is not None:
            check_graph(self._fields, self._name, source, self._problems)
        model_outputs = resolve_outputs(self._declared, self._fields.get("outputs"), targets or (), self._problems)
        outputs += model_outputs
        self._places.update({f"outputs.{output.kind}": output.origin for output in model_outputs})
        if (state := self._fields.get("state")) is not None and state.value is not INVALID and state.value:
            self._places["state"] = state.name_origin
            check_state(self._name, model_outputs, self._problems)
        if plugins is not None:
            check_plugins(self._name, model_outputs, self._problems)
        precision = self._precision()
        has_invalid_field = any(located.value is INVALID for located in self._fields.values())
        if has_invalid_field or source is None or shapes is None or targets is None or precision is None:
            return None
        return Model(
            name=self._name,
            source=source,
            inputs=shapes.inputs,
            profiles=shapes.profiles,
            targets=targets,
            origin=self._declared.name_origin,
            dims=shapes.dims,
            weights=weights,
            precision=precision.default,
            module_precisions=precision.modules,
            reference=self._value("reference"),
            quantization=quantization,
            state=tuple(self._value("state")),
            plugins=plugins,
            partition=self._settings(PartitionSettings(), "partition"),
            builder=self._settings(BuilderSettings(), "builder"),
            outputs=tuple((output.kind, output.path) for output in model_outputs),
            places=self._places,
        )

    def _value(self, name: str) -> Any:
        """The value of a field, or pydantic's default."""
        located = self._fields.get(name)
        return located.value if located else ModelFields.model_fields[name].default

    def _settings(self, settings: Any, group: str) -> Any:
        changed = {
            name.removeprefix(f"{group}."): tuple(located.value) if isinstance(located.value, list) else located.value
            for name, located in self._fields.items()
            if name.startswith(f"{group}.")
        }
        return replace(settings, **changed)

    def _optional(self, name: str) -> LocatedValue | None:
        """A field that may be missing or null; None if it is, or if it is invalid."""
        located = self._fields.get(name)
        return None if located is None or located.value is INVALID or located.value is None else located

    def _required(self, name: str) -> LocatedValue | None:
        """A required field, or None if it is invalid, missing or empty. If it is missing or empty, adds the problem."""
        located = self._fields.get(name)
        if located is not None and located.value:
            return None if located.value is INVALID else located
        problem = "is missing" if located is None else "is empty"
        origin = located.name_origin if located else self._declared.name_origin
        self._problems.add(origin, f"the field `{name}` of model {self._name!r} {problem}", _HINT_IF_MISSING[name])
        return None

    def _named_entries(
        self, field: str, table: dict[str, NamedEntry[Any]]
    ) -> Sequence[tuple[NamedEntry[Any], Origin]] | None:
        """The targets or profiles that a field names, each with the place in the field. Adds the problems of names."""
        located = self._required(field)
        if located is None:
            return None
        noun = field.removesuffix("s")
        entries: dict[str, tuple[NamedEntry[Any], Origin]] = {}
        for name, element in zip(located.value, located.node.elements, strict=True):
            if name not in table and field in self._namespace.incomplete_sections:
                continue  # the entry may be in the part that could not be read, which has a problem already
            if name not in table:
                self._problems.add(element.origin, f"unknown {noun} {name!r}", suggestion(name, table, field))
            elif name in entries:
                self._problems.add(element.origin, f"{noun} {name!r} is named twice", "keep it once")
            else:
                entries[name] = (table[name], element.origin)
                self._places[f"{field}.{name}"] = table[name].name_origin
        return list(entries.values())

    def _source(self) -> Source | None:
        located = self._required("source")
        if located is None:
            return None
        self._places.update({f"source.{name}": key for name, key in located.node.keys.items()})
        return resolve_source(located, self._name, self._paths, self._problems)

    def _weights(self) -> str | None:
        located = self._optional("weights")
        if located is None:
            return None
        name = self._paths.name_of(located.value, folder_of(located.node.file))
        check_readable(self._paths, name, "the weights file", located.node.origin, self._problems)
        return name

    def _quantization(self, source: Source | None) -> Quantization | None:
        located = self._optional("quantize")
        if located is None:
            return None
        self._places.update({f"quantize.{name}": key for name, key in located.node.keys.items()})
        if (data := located.node.items.get("calibration")) is not None:
            self._places.update({f"quantize.calibration.{name}": key for name, key in data.keys.items()})
        weights = self._fields.get("weights")
        if weights is not None and weights.value is not None:
            self._problems.add(
                weights.name_origin,
                f"model {self._name!r} has `quantize` and `weights`, but scales are computed without the weights file",
                "load them in the function that builds the model, and remove `weights`",
            )
        return resolve_quantization(located, self._name, source, self._paths, self._problems)

    def _plugins(self, source: Source | None) -> Plugins | None:
        located = self._optional("plugins")
        if located is None:
            return None
        self._places["plugins"] = located.name_origin
        self._places.update({f"plugins.{name}": key for name, key in located.node.keys.items()})
        if (operators := located.node.items.get("operators")) is not None:
            self._places.update({f"plugins.operators.{name}": key for name, key in operators.keys.items()})
        return resolve_plugins(located, self._name, source, self._paths, self._problems)

    def _shapes(self) -> Shapes | None:
        located = self._required("inputs")
        entries = self._named_entries("profiles", self._namespace.profiles)
        if located is None:
            return None
        inputs = resolve_inputs(located, self._problems)
        self._places.update({f"inputs.{name}": key for name, key in located.node.keys.items()})
        dims_field = self._fields.get("dims")
        if dims_field and dims_field.value is INVALID:
            dims_field = None
        dims = resolve_dims(dims_field, inputs, self._problems)
        self._places.update({f"dims.{name}": key for name, key in (dims_field.node.keys if dims_field else {}).items()})
        profiles: list[Profile] = []
        for entry, use_origin in entries or ():
            self._places.update({f"profiles.{entry.name}.{name}": key for name, key in entry.node.keys.items()})
            profile = resolve_profile(entry, self._name, use_origin, inputs, self._problems)
            profiles += [profile] if profile else []
        if not profiles:
            return None
        node = dims_field.node if dims_field else None
        check_shapes(inputs, dims, profiles, self._namespace.profiles, node, self._problems)
        return Shapes(inputs, dims, tuple(profiles))

    def _precision(self) -> Precisions | None:
        located = self._fields.get("precision")
        if located is None or located.value is INVALID:
            return Precisions() if located is None else None
        precision_of: dict[str, str] = {}
        for name, patterns in located.value.patterns.items():
            list_node = located.node.items.get(name)
            for number, pattern in enumerate(patterns):
                # A single pattern may be written without a list. Then its place is that of the field.
                is_list = list_node is not None and bool(list_node.elements)
                origin = list_node.elements[number].origin if list_node and is_list else located.node.keys[name]
                if precision_of.setdefault(pattern, name) != name:
                    self._problems.add(
                        origin,
                        f"{pattern!r} is listed under `{precision_of[pattern]}` and `{name}`",
                        "a module computes in one precision: keep one of the two",
                    )
                self._places[f"precision.{pattern}"] = origin
        return Precisions(located.value.default, module_precisions(located.value.patterns))

    def _targets(self) -> tuple[Target, ...] | None:
        entries = self._named_entries("targets", self._namespace.targets)
        model_toolchain = self._value("toolchain")
        if entries is None or model_toolchain is INVALID:
            return None
        targets = []
        for entry, use_origin in entries:
            target: TargetFields | None = entry.fields
            if target is not None:
                toolchain = target.toolchain or model_toolchain
                runs_on = target.platform or this_platform()
                targets.append(Target(entry.name, target.sm, toolchain, target.version, target.compatibility, runs_on))
                check_turing(self._fields, self._name, targets[-1], use_origin, self._problems)
        return tuple(targets)
