"""One model made whole: defaults applied, names looked up, shorthands expanded, paths named by the project.

What a model has comes, field by field, from the model and else from the defaults of its manifest. Every value is kept with
its place. A field that is wrong (`BROKEN`) has been told already, and everything that needs it is left alone.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from trtbuild.core.model.spec import BuilderSettings, Model, Origin, PartitionSettings, Profile, Source, Target
from trtbuild.core.values.nearest import suggestion
from trtbuild.manifest.declared import BROKEN, DeclaredModel, Entry, Picked
from trtbuild.manifest.format.fields import ModelFields, TargetFields
from trtbuild.manifest.namespace import Namespace
from trtbuild.manifest.outputs import Output, resolve_outputs
from trtbuild.manifest.paths import ProjectPaths, check_readable, folder_of
from trtbuild.manifest.shapes import Shapes, check_together, resolve_dims, resolve_inputs, resolve_profile
from trtbuild.manifest.source import resolve_source
from trtbuild.manifest.yaml_text.problems import Problems

#: How platforms call the processors that trtbuild names in one way.
_CPUS = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}
#: What to write where a model lacks a field that it must have.
_REQUIRED = {
    "source": 'write `source: {python: "module:callable"}`',
    "inputs": "name each tensor that the model takes, such as `image: {dtype: float32}`",
    "profiles": "name at least one profile, such as `profiles: [photo]`",
    "targets": "name at least one target, in the model or in `defaults`, such as `targets: [ada]`",
}


def this_platform() -> str:
    """``<os>-<cpu>`` of this machine, such as linux-x86_64."""
    cpu = platform.machine().lower()
    return f"{platform.system().lower()}-{_CPUS.get(cpu, cpu)}"


def resolve(
    declared: DeclaredModel, space: Namespace, paths: ProjectPaths, outputs: list[Output], problems: Problems
) -> Model | None:
    """The model, or None where something about it is wrong, which is then among the problems.

    Its outputs are added to `outputs` in any case, to be compared with those of other models.
    """
    return _Resolver(declared, space, paths, problems).resolve(outputs)


class _Resolver:
    def __init__(self, declared: DeclaredModel, space: Namespace, paths: ProjectPaths, problems: Problems) -> None:
        self._name = declared.name
        self._declared = declared
        self._space = space
        self._paths = paths
        self._problems = problems
        self._fields = {**space.defaults, **declared.picked}
        self._places = {name: picked.key for name, picked in self._fields.items()}

    def resolve(self, outputs: list[Output]) -> Model | None:
        source = self._source()
        shapes = self._shapes()
        targets = self._targets()
        weights = self._weights()
        if source is not None:
            self._check_form(source)
        own = resolve_outputs(self._declared, self._fields.get("outputs"), self._problems)
        outputs += own
        self._places.update({f"outputs.{output.kind}": output.origin for output in own})
        broken = any(picked.value is BROKEN for picked in self._fields.values())
        if broken or source is None or shapes is None or targets is None:
            return None
        return Model(
            name=self._name,
            source=source,
            inputs=shapes.inputs,
            profiles=shapes.profiles,
            targets=targets,
            origin=self._declared.key,
            dims=shapes.dims,
            weights=weights,
            precision=self._value("precision"),
            reference=self._value("reference"),
            partition=self._settings(PartitionSettings(), "partition"),
            builder=self._settings(BuilderSettings(), "builder"),
            outputs=tuple((output.kind, output.path) for output in own),
            places=self._places,
        )

    def _value(self, name: str) -> Any:
        """A field's value, or what it is without being said."""
        picked = self._fields.get(name)
        return picked.value if picked else ModelFields.model_fields[name].default

    def _settings(self, settings: Any, group: str) -> Any:
        """The fields of a group that are said; the rest are the defaults of `core.model.spec`."""
        said = {
            name.removeprefix(f"{group}."): tuple(picked.value) if isinstance(picked.value, list) else picked.value
            for name, picked in self._fields.items()
            if name.startswith(f"{group}.")
        }
        return replace(settings, **said)

    def _required(self, name: str) -> Picked | None:
        """A field that a model must have; None where it is wrong, or where it is missing, which is said here."""
        picked = self._fields.get(name)
        if picked is not None and picked.value:
            return None if picked.value is BROKEN else picked
        what = "is missing" if picked is None else "is empty"
        origin = picked.key if picked else self._declared.key
        self._problems.add(origin, f"the field `{name}` of model {self._name!r} {what}", _REQUIRED[name])
        return None

    def _named(self, field: str, table: dict[str, Entry[Any]]) -> Sequence[tuple[Entry[Any], Origin]] | None:
        """The entries that a list of names is about, each with the place of its name. An unknown name is said."""
        picked = self._required(field)
        if picked is None:
            return None
        what = field.removesuffix("s")
        found: dict[str, tuple[Entry[Any], Origin]] = {}
        for name, element in zip(picked.value, picked.node.elements, strict=True):
            if name not in table and field in self._space.unread:
                continue  # it may be declared where nothing could be read, which has been said
            if name not in table:
                self._problems.add(element.origin, f"unknown {what} {name!r}", suggestion(name, table, field))
            elif name in found:
                self._problems.add(element.origin, f"{what} {name!r} is named twice", "keep it once")
            else:
                found[name] = (table[name], element.origin)
                self._places[f"{field}.{name}"] = table[name].key
        return list(found.values())

    def _source(self) -> Source | None:
        picked = self._required("source")
        self._places.update({f"source.{name}": key for name, key in (picked.node.keys if picked else {}).items()})
        return resolve_source(picked, self._name, self._paths, self._problems) if picked else None

    def _check_form(self, source: Source) -> None:
        """What is done to a PyTorch model cannot be done to one that comes as another graph."""
        if source.form == "program":
            return
        kind = f"model {self._name!r} comes from `{source.kind}`"
        refused: list[tuple[str, object, str, str]] = [
            ("precision", "float32", "`precision` rewrites a PyTorch model", "make the model in that type instead"),
            ("weights", None, "`weights` are bound to a PyTorch model", "the model has its weights with it"),
            ("partition.granularity", ["model"], "`granularity` cuts a PyTorch model", "the model is one engine"),
            ("partition.torch_executed_ops", [], "`torch_executed_ops` stay in PyTorch", "the model is one engine"),
        ]
        if source.kind == "network":
            refused.append(
                ("reference", False, "a package's `reference` runs on a CPU", "only TensorRT runs a network")
            )
        for field, allowed, text, reason in refused:
            picked = self._fields.get(field)
            if picked is not None and picked.value is not BROKEN and picked.value != allowed:
                name = field.rpartition(".")[2]
                write = "model" if name == "granularity" else json.dumps(allowed).strip('"')
                self._problems.add(picked.key, f"{text}, and {kind}", f"{reason}: write `{name}: {write}` in it")

    def _weights(self) -> str | None:
        picked = self._fields.get("weights")
        if picked is None or picked.value is BROKEN or picked.value is None:
            return None
        named = self._paths.named(picked.value, folder_of(picked.node.file))
        check_readable(self._paths, named, "the weights file", picked.node.origin, self._problems)
        return named

    def _shapes(self) -> Shapes | None:
        picked = self._required("inputs")
        entries = self._named("profiles", self._space.profiles)
        if picked is None:
            return None
        inputs = resolve_inputs(picked, self._problems)
        self._places.update({f"inputs.{name}": key for name, key in picked.node.keys.items()})
        dims_field = self._fields.get("dims")
        if dims_field and dims_field.value is BROKEN:
            dims_field = None
        dims = resolve_dims(dims_field, inputs, self._problems)
        self._places.update({f"dims.{name}": key for name, key in (dims_field.node.keys if dims_field else {}).items()})
        profiles: list[Profile] = []
        for entry, reference in entries or ():
            self._places.update({f"profiles.{entry.name}.{name}": key for name, key in entry.node.keys.items()})
            profile = resolve_profile(entry, self._name, reference, inputs, self._problems)
            profiles += [profile] if profile else []
        if not profiles:
            return None
        # Also where some profile is wrong: what the others say is wrong, is wrong.
        node = dims_field.node if dims_field else None
        check_together(inputs, dims, profiles, self._space.profiles, node, self._problems)
        return Shapes(inputs, dims, tuple(profiles))

    def _targets(self) -> tuple[Target, ...] | None:
        entries = self._named("targets", self._space.targets)
        toolchain = self._value("toolchain")
        if entries is None or toolchain is BROKEN:
            return None
        targets = []
        for entry, reference in entries:
            given: TargetFields | None = entry.fields
            if given is not None:
                chosen = given.toolchain or toolchain
                runs_on = given.platform or this_platform()
                targets.append(Target(entry.name, given.sm, chosen, given.version, given.compatibility, runs_on))
                self._check_turing(targets[-1], reference)
        return tuple(targets)

    def _check_turing(self, target: Target, reference: Origin) -> None:
        # A fact about the product: TensorRT-RTX 1.7 refuses the network, after a trace and a conversion.
        source = self._fields.get("source")
        comes_whole = source is not None and source.value is not BROKEN and (source.value.onnx or source.value.network)
        if comes_whole:  # it says its types itself
            return
        if self._value("precision") == "float32" and target.toolchain == "tensorrt-rtx" and target.sm == 75:
            picked = self._fields.get("precision")
            self._problems.add(
                picked.node.origin if picked else reference,
                f"model {self._name!r} has precision float32, and TensorRT-RTX has no float32 matrix products on Turing "
                f"(target {target.name!r}, SM 75: FP32 GEMM is not supported)",
                "write `precision: float16`, or leave the target out",
            )
