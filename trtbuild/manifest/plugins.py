"""Check a model's field ``plugins:``, which names operators that become TensorRT plugins, and the plugins' library."""

from __future__ import annotations

import math
import re

from trtbuild.core.model.plugins import NAMESPACE_ATTRIBUTE, TORCH_NAMESPACES, VERSION_ATTRIBUTE, Plugin, Plugins
from trtbuild.core.model.spec import Source
from trtbuild.manifest.declared import LocatedValue
from trtbuild.manifest.format.fields import PluginFields, PluginsFields
from trtbuild.manifest.paths import ProjectPaths, check_readable, folder_of
from trtbuild.manifest.yaml_text.problems import Problems

_OPERATOR = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*(\.\w+)?")
_NAME_HINT = "write the name with which it is registered, such as `mylib::roi`"


def resolve_plugins(
    located: LocatedValue, model: str, source: Source | None, paths: ProjectPaths, problems: Problems
) -> Plugins | None:
    """The plugins that a model declares. If they are invalid, returns None and adds the problems."""
    declared: PluginsFields = located.value
    node, problems_before = located.node, len(problems)
    if source is not None and not source.graph.is_lowered:
        problems.add(
            located.name_origin,
            f"`plugins` are for operators of a PyTorch model, and model {model!r} comes from `{source.kind}`",
            "remove `plugins`",
        )
    library = declared.library
    if library is not None:
        library = paths.name_of(library, folder_of(node.file))
        check_readable(paths, library, "the library of plugins", node.items["library"].origin, problems)
    if not declared.operators:
        problems.add(located.name_origin, "`plugins` has no operators", 'write `operators: {"mylib::roi": RoiPlugin}`')
    operators = []
    for name, entry in declared.operators.items():
        origin = node.items["operators"].keys[name]
        fields = PluginFields.model_validate({"plugin": entry}) if isinstance(entry, str) else entry
        if not _OPERATOR.fullmatch(name):
            problems.add(origin, f"{name!r} is not the name of an operator", _NAME_HINT)
        elif name.partition("::")[0] in TORCH_NAMESPACES or name.startswith("trtbuild"):
            problems.add(
                origin,
                f"{name!r} is an operator of PyTorch, and `plugins` are for operators from outside PyTorch",
                "call a function of `torch.library.custom_op` in the model, and name this operator",
            )
        reserved = {*fields.attributes, *(field for field in fields.arguments.values() if field)} & {
            VERSION_ATTRIBUTE,
            NAMESPACE_ATTRIBUTE,
        }
        if reserved:
            problems.add(
                origin,
                f"{min(reserved)} cannot be a field of a plugin: TensorRT's parser reads it itself",
                "write `version` and `namespace` for the operator",
            )
        for field, value in fields.attributes.items():
            if not _is_constant(value):
                problems.add(
                    origin, f"the field {field!r} is {value!r:.40}", "write a number, text, or a list of either"
                )
        operators.append(
            Plugin(name, fields.plugin, fields.version, fields.namespace, fields.arguments, fields.attributes)
        )
    return Plugins(tuple(operators), library) if len(problems) == problems_before else None


def _is_constant(value: object) -> bool:
    """Whether a value is text, a boolean, a finite number, or a list of text, integers or finite floats.

    All elements of a list have the same type, and it has at least one element."""
    if isinstance(value, list):
        kinds = {type(entry) for entry in value}
        return len(kinds) == 1 and kinds < {int, float, str} and all(map(_is_constant, value))
    return isinstance(value, str | int | float) and not (isinstance(value, float) and not math.isfinite(value))
