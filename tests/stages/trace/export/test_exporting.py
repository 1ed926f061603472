"""Dims and inputs whose declaration contradicts the model are errors. Other dynamic dims are symbols of the program."""

from __future__ import annotations

import pytest
import torch

from trtbuild.core.model.spec import Input, NamedDim
from trtbuild.errors import SourceError

DYNAMIC_BATCH = {"image": ((1, 4, 4), (8, 4, 4), (64, 4, 4))}
TWO_INPUTS = {"query": ((1, 4), (6, 4), (64, 4)), "key": ((1, 4), (6, 4), (65, 4))}


def error_of(traced, job_of, function, shapes, **job_fields) -> SourceError:
    with pytest.raises(SourceError) as caught:
        traced(function, job_of(shapes, **job_fields))
    return caught.value


def test_the_error_about_a_multiple_names_input_and_dim_and_suggests_multiple_of(traced, job_of) -> None:
    error = error_of(
        traced, job_of, lambda x: x.view(-1, 2, 4, 4), DYNAMIC_BATCH, dims=[NamedDim("batch", (("image", 0),))]
    )
    assert error.code == "constraint"
    assert "dim 'batch' (image.0) may have any size, but the model needs a multiple of 2" in error.text
    assert error.hint == (
        "write dims: {batch: {at: [image.0], multiple_of: 2}}; if the model pads the size to a multiple inside a branch, "
        "pad by -n % 2 without the branch; the size is declared at trtbuild.yaml:20"
    )
    assert error.file == "tests/stages/trace/export/test_exporting.py"


def test_the_error_about_a_branch_that_pads_suggests_to_pad_without_it(traced, job_of) -> None:
    def pads_in_a_branch(x):
        rest = x.shape[1] % 8
        return (torch.nn.functional.pad(x, (0, 8 - rest)) if rest else x).exp()

    error = error_of(traced, job_of, pads_in_a_branch, {"x": ((2, 4), (2, 7), (2, 20))})
    assert "the model only works where (x.1 % 8) != 0" in error.text
    assert "pad by -n % 8 without the branch" in error.hint


def test_a_model_may_pad_to_whole_windows_if_the_example_has_one_window(traced, job_of) -> None:
    def windows(x):
        length = (x.shape[1] + 7) // 8 * 8
        padded = torch.nn.functional.pad(x, (0, length - x.shape[1]))
        return padded.view(2, length // 8, 8).softmax(2)

    traced(windows, job_of({"x": ((2, 4), (2, 7), (2, 20))}))  # the trace also compares both ends of the range


def test_the_error_about_two_equal_dims_suggests_one_name(traced, job_of) -> None:
    error = error_of(traced, job_of, lambda q, k: q + k, TWO_INPUTS)
    assert error.code == "constraint"
    assert "axis key.0 must always be as long as axis query.0" in error.text
    assert "dims: {query_0: {at: [query.0, key.0]}}" in error.hint


def test_the_error_about_a_fixed_size_suggests_a_static_axis(traced, job_of) -> None:
    error = error_of(traced, job_of, lambda x: x + torch.ones(8, 4, 4), DYNAMIC_BATCH)
    assert error.code == "constraint"
    assert "axis image.0 is declared dynamic, but the model fixes it to 8" in error.text
    assert "write 8 as min, opt and max of image.0 in every profile" in error.hint
    assert error.hint.endswith("the size is declared at trtbuild.yaml:10")
    assert error.file == "tests/stages/trace/export/test_exporting.py"


def test_the_error_about_a_size_that_torch_fixes_without_a_report_names_the_cause(traced, job_of) -> None:
    def resize(x):
        rows = x.shape[2] // 16
        tokens = torch.nn.functional.conv2d(x, torch.ones(4, 3, 16, 16), stride=16).flatten(2)
        return torch.nn.functional.interpolate(tokens.reshape(2, 4, rows, -1), size=(int(rows * 16), 64))

    image = {"image": ((2, 3, 32, 64), (2, 3, 64, 64), (2, 3, 96, 64))}
    error = error_of(traced, job_of, resize, image, dims=[NamedDim("height", (("image", 2),), 32)])
    assert error.text == "dim 'height' (image.2) is declared dynamic, but the traced program has 64 there"
    assert "keep the model from turning this size into a Python number (int()" in error.hint


def test_a_fixed_size_is_reported_as_a_size_not_as_a_number_of_multiples(traced, job_of) -> None:
    shapes = {"image": ((32, 4), (64, 4), (320, 4))}
    error = error_of(
        traced, job_of, lambda x: x + torch.ones(64, 4), shapes, dims=[NamedDim("height", (("image", 0),), 32)]
    )
    assert "fixes it to 64" in error.text


def test_a_range_that_the_model_does_not_support_is_an_error(traced, job_of) -> None:
    error = error_of(traced, job_of, lambda x: x if x.shape[0] > 4 else x * 2, DYNAMIC_BATCH)
    assert "is declared 1..64, but the model needs at least 5" in error.text
    assert "change the profiles so that image.0 is at least 5" in error.hint


def test_an_unsupported_relation_is_reported_with_the_manifests_names(traced, job_of) -> None:
    shapes = {"query": ((1, 4), (6, 4), (64, 4)), "key": ((2, 4), (7, 4), (65, 4))}
    error = error_of(traced, job_of, lambda q, k: q + k[1:], shapes)
    assert "axis key.0 must always be query_0 + 1" in error.text  # query_0 is the generated name of the axis query.0


def test_a_branch_on_one_size_is_reported_with_the_manifests_names(traced, job_of) -> None:
    error = error_of(traced, job_of, lambda x: x + 1 if x.shape[0] == 5 else x, DYNAMIC_BATCH)
    assert "image.0 != 5" in error.text and "trtdim" not in error.text and "L[" not in error.text


def test_a_branch_on_values_names_the_users_line(traced, job_of) -> None:
    def branch(x):
        if x.sum() > 0:  # the error names this line
            return x
        return x * 2

    error = error_of(traced, job_of, branch, DYNAMIC_BATCH)
    assert error.code == "data-dependent"
    assert error.file == "tests/stages/trace/export/test_exporting.py"
    assert error.line == branch.__code__.co_firstlineno + 1


def test_an_error_in_forward_shows_the_users_frames_only(traced, job_of) -> None:
    def broken(x):
        return x @ torch.ones(3, 3)

    error = error_of(traced, job_of, broken, DYNAMIC_BATCH)
    assert error.line == broken.__code__.co_firstlineno + 1
    assert "in broken: return x @ torch.ones(3, 3)" in error.text
    assert "site-packages" not in error.text and "trtbuild/stages" not in error.text


def test_inputs_that_do_not_match_forward_are_an_error_with_the_signature(traced, job_of) -> None:
    class Model(torch.nn.Module):
        def forward(self, image, *, mask):
            return image * mask

    with pytest.raises(SourceError) as caught:
        traced(Model().eval(), job_of(DYNAMIC_BATCH))
    assert caught.value.code == "signature"
    assert caught.value.text == "forward needs 'mask', which the manifest's inputs do not give"
    assert "`mask: {keyword: true}`" in caught.value.hint and "takes (image, *, mask)" in caught.value.hint


def test_a_shared_dim_is_one_symbol_and_a_static_axis_is_a_number(traced, job_of) -> None:
    job = job_of(
        {"query": ((1, 1, 4), (2, 6, 4), (3, 9, 4)), "key": ((1, 1, 4), (2, 6, 4), (3, 9, 4))},
        dims=[NamedDim("seq", (("query", 1), ("key", 1))), NamedDim("batch", (("query", 0), ("key", 0)))],
    )
    interface = traced(lambda q, k: q @ k.transpose(1, 2), job).interface
    assert [entry["shape"] for entry in interface["inputs"]] == [[["sym", 0], ["sym", 1], 4]] * 2
    assert interface["outputs"][0]["shape"] == [["sym", 0], ["sym", 1], ["sym", 1]]


def test_the_symbol_of_a_dim_with_multiple_of_counts_the_multiples(traced, job_of) -> None:
    job = job_of({"image": ((32, 4), (64, 4), (320, 4))}, dims=[NamedDim("height", (("image", 0),), 32)])
    result = traced(lambda x: x.view(-1, 32, 4), job)
    assert result.interface["inputs"][0]["shape"] == [["mul", 32, ["sym", 0]], 4]
    assert result.interface["outputs"][0]["shape"] == [["sym", 0], 32, 4]
    assert result.interface["symbols"] == [{"name": "height", "min": 32, "max": 320, "multiple_of": 32}]
    assert "symbol 0 in 1..10\n" in result.graph


def test_keyword_inputs_keep_the_manifests_order(traced, job_of) -> None:
    class Model(torch.nn.Module):
        def forward(self, x, *, mask):
            return x - mask

    shapes = {"mask": ((1, 5), (2, 5), (8, 5)), "x": ((1, 5), (3, 5), (9, 5))}
    inputs = [Input("mask", keyword=True), Input("x")]
    with pytest.raises(SourceError, match=r"fails at the example shapes: mask \[2, 5\], x \[3, 5\]"):
        traced(Model().eval(), job_of(shapes, inputs=inputs))
    static = {"mask": (1, 5), "x": ((1, 5), (3, 5), (9, 5))}
    interface = traced(Model().eval(), job_of(static, inputs=inputs)).interface
    assert [(entry["name"], entry["keyword"], entry["shape"]) for entry in interface["inputs"]] == [
        ("mask", True, [1, 5]),
        ("x", False, [["sym", 0], 5]),
    ]


def test_a_dim_with_opt_1_stays_dynamic(traced, job_of) -> None:
    result = traced(lambda x: x * 2, job_of({"x": ((1, 4), (1, 4), (8, 4))}))
    assert result.interface["outputs"][0]["shape"] == [["sym", 0], 4]
    assert "symbol 0 in 1..8\n" in result.graph


class Forwards(torch.nn.Module):
    """A wrapper that passes keyword arguments on."""

    def forward(self, x, *rest, **kwargs):
        return self.scaled(x, **kwargs)

    def scaled(self, x, mask, scale=2.0):
        return x * mask * scale if x.shape[0] > 1 else x * mask


@pytest.mark.parametrize("low", [2, 4], ids=["dynamic", "static"])
def test_forward_may_take_an_input_in_kwargs(traced, job_of, low) -> None:
    shape = ((low, 4), (4, 4), (8 if low == 2 else 4, 4))
    inputs = [Input("x"), Input("mask", keyword=True)]
    module = Forwards().eval()
    result = traced(module, job_of({"x": shape, "mask": shape}, inputs=inputs))
    assert [entry["name"] for entry in result.interface["inputs"]] == ["x", "mask"]
    assert "forward" not in vars(module)


def test_a_guard_about_an_input_in_kwargs_is_checked(traced, job_of) -> None:
    shape = ((1, 4), (4, 4), (8, 4))
    inputs = [Input("x"), Input("mask", keyword=True)]
    error = error_of(traced, job_of, Forwards().eval(), {"x": shape, "mask": shape}, inputs=inputs)
    assert error.code == "frozen-branch" and "x.0 = mask.0 = 1" in error.text


def test_the_last_input_may_be_a_scalar(traced, job_of) -> None:
    class Scaled(torch.nn.Module):
        def forward(self, x, scale):
            return x * scale

    recorded = traced(Scaled().eval(), job_of({"x": ((1, 4), (2, 4), (8, 4)), "scale": ((), (), ())})).interface
    assert recorded["inputs"][1]["shape"] == []
