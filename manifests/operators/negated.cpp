// An operator in C++ that relies on contiguous tensors, as many operators do.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

using torch::stable::Tensor;

Tensor negated(Tensor x) {
  Tensor result = torch::stable::new_empty(x, {x.size(0), x.size(1), x.size(2), x.size(3)});
  auto from = static_cast<const float*>(x.const_data_ptr());
  auto to = static_cast<float*>(result.mutable_data_ptr());
  for (int64_t k = 0; k < x.numel(); k++) to[k] = -from[k];
  return result;
}

STABLE_TORCH_LIBRARY_FRAGMENT(boxes, m) { m.def("negated(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(boxes, CPU, m) { m.impl("negated", TORCH_BOX(&negated)); }
