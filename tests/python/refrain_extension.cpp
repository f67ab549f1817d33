// SPDX-License-Identifier: BSD-3-Clause
// A Python extension that uses Refrain: what coexistence_test.py imports.
#include <refrain/refrain.hpp>

#include <ATen/ATen.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <memory>

namespace {

std::atomic<int> runs = 0;

at::Tensor plain(const at::Tensor& x, const at::Tensor& w) {
  ++runs;
  return x.mm(w).sin().mm(w).exp();
}

at::Tensor quiet(const at::Tensor& x, const at::Tensor& w) {
  return refrain::checkpoint([w](const at::Tensor& input) { return plain(input, w); })(x);
}

/// A region whose body is Python: the replay takes the interpreter's lock for itself.
at::Tensor quiet_call(const py::function& body, const at::Tensor& x) {
  const auto release = [](py::function* function) {
    const py::gil_scoped_acquire lock;
    delete function;
  };
  const std::shared_ptr<py::function> shared(new py::function(body), release);
  const auto call = [shared](const at::Tensor& input) {
    const py::gil_scoped_acquire lock;
    return (*shared)(input).cast<at::Tensor>();
  };
  return refrain::checkpoint(call)(x);
}

}  // namespace

PYBIND11_MODULE(refrain_extension, module) {
  module.def("plain", &plain);
  module.def("quiet", &quiet);
  module.def("quiet_call", &quiet_call);
  module.def("runs", [] { return runs.exchange(0); }, "Runs of the body since the last question.");
}
