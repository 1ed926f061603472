"""The validator's answers about partitions for TensorRT 8.6. TensorRT-RTX's parser takes the place of TensorRT's."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
import torch
from torch.export import Dim

from tests.stages.program.test_text import Call, program_of
from tests.store.memory_store import MemoryStore
from trtbuild.core.model.spec import PartitionSettings
from trtbuild.core.planning.jobs import PartitionJob
from trtbuild.core.recipes.keys import LAST_DOWNGRADED_OPSET
from trtbuild.core.recipes.record import Record
from trtbuild.driver.project.environment import torch_versions
from trtbuild.driver.workers.validator import Validator
from trtbuild.stages.program.text import program_text
from trtbuild.toolchain.libraries import table


def refusal(factor: int, largest: int, store: MemoryStore | None = None) -> str | None:
    """Return the reason why the validator refuses a module, or None if it accepts the module.

    The module multiplies the number of each row by `factor`. It has at most `largest` rows. New conversions are published
    in `store`."""
    stand_in = table.stand_in("tensorrt", "8.6.0")
    assert stand_in is not None
    job = PartitionJob(
        program="",
        graph_kind="program",
        settings=PartitionSettings(),
        toolchain="tensorrt",
        toolchain_version="8.6.0",
        opset=LAST_DOWNGRADED_OPSET,
        versions=torch_versions() or {},
        stand_in=asdict(stand_in),
    )
    rows = Dim("rows", min=2, max=largest)
    module = Call(lambda x, y: x + torch.arange(x.shape[0])[:, None] * factor + y)
    program = program_of(module, torch.ones(4, 3), torch.ones(3), dynamic={"x": {0: rows}, "y": None})
    store = store or MemoryStore()
    validator = Validator(store, job)
    refused = validator.refusal(program, program_text(program))
    for conversion in validator.new_conversions.values():
        store.put_record(Record.from_bytes(conversion.record.encode()), replace=True)
    return None if refused is None else refused.text


def test_refuses_a_product_that_does_not_fit_32_bits() -> None:
    text = refusal(2_000_000_000, 8)
    assert text is not None and "int64 is not a type that an engine computes in" in text


def test_products_are_checked_at_the_largest_size_of_the_dim() -> None:
    assert refusal(1_000_000, 2000) is None
    assert refusal(1_000_000, 3000) is not None


@pytest.mark.parametrize("origins", [b"5", b"[5]", b"[" * 100_000])
def test_an_unreadable_conversion_is_made_again(origins: bytes) -> None:
    """Another machine may have stored it."""
    store = MemoryStore()
    assert refusal(1_000_000, 2000, store) is None
    (document,) = store.records.values()
    record = Record.from_bytes(document)
    damaged = replace(record, outputs={**record.outputs, "origins": store.put_bytes(origins)})
    store.put_record(damaged, replace=True)
    assert refusal(1_000_000, 2000, store) is None
    assert list(store.records.values()) != [damaged.to_bytes()]
