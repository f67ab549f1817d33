// SPDX-License-Identifier: BSD-3-Clause
//
// Kernels that exist on CUDA only: fused attention in its two kinds, cuDNN's convolution.
#include "models.hpp"
#include "steps.hpp"
#include <refrain/checkpoint.hpp>
#include <refrain/policy/ops.hpp>
#include <refrain/record.hpp>

namespace gpu_check {
namespace {

using refrain::CheckpointOptions;

enum class Attention { Flash, Efficient };

/// Lets LibTorch choose one kind only while it lives.
class Only {
 public:
  explicit Only(Attention kind) { set(kind == Attention::Flash, kind == Attention::Efficient); }
  ~Only() { set(true, true, true); }
  Only(const Only&) = delete;
  Only& operator=(const Only&) = delete;

 private:
  static void set(bool flash, bool efficient, bool rest = false) {
    auto& context = at::globalContext();
    context.setSDPUseFlash(flash);
    context.setSDPUseMemEfficient(efficient);
    context.setSDPUseMath(rest);
    context.setSDPUseCuDNN(rest);
  }
};

Outcome keeps_attention(const Where& where, Attention kind) {
  if (!where.on_gpu() && kind == Attention::Efficient) return skipped("the CPU has no such kernel");
  const Only only(kind);
  const auto kept = CheckpointOptions(refrain::policy::keep_attention());
  for (const auto& options : {CheckpointOptions(), kept}) {
    for (const double drop : {0.0, where.size(0.2, 0.0)}) {
      require_same(where, [&] {
        const auto dtype = where.size(torch::kBFloat16, torch::kFloat);
        const auto x = torch::randn({3, 2, 4, 128, 64}, where.device).to(dtype).requires_grad_();
        const auto attend = refrain::checkpoint(
            [drop](Tensor t) {
              const auto parts = (t * 1.5).unbind(0);
              return at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, drop,
                                                      /*is_causal=*/true)
                  .tanh();
            },
            options);
        loss(attend(x)).backward();
        return std::vector<Tensor>{x.grad()};
      });
    }
  }
  const auto x = torch::randn({3, 2, 4, 128, 64}, where.device)
                     .to(where.size(torch::kBFloat16, torch::kFloat))
                     .requires_grad_();
  const auto ledger = refrain::record([&] {
    const auto attend = refrain::checkpoint(
        [](Tensor t) {
          const auto parts = (t * 1.5).unbind(0);
          return at::scaled_dot_product_attention(parts[0], parts[1], parts[2]).tanh();
        },
        kept);
    loss(attend(x)).backward();
  });
  std::string seen;
  for (const auto& memory : ledger.calls.at(0).kept) {
    if (memory.why == refrain::KeptMemory::Why::Operator) seen += memory.what + "; ";
  }
  const char* const name = kind == Attention::Flash ? "flash_attention" : "efficient_attention";
  require(seen.find(name) != std::string::npos,
          fmt::format("no {} is among what was kept: {}", name, seen.empty() ? "nothing" : seen));
  return passed("kept " + seen);
}

Outcome convolves(const Where& where, at::ScalarType dtype, at::MemoryFormat format) {
  require_same(where, [&] {
    bench::ResBlock block(16);
    block->to(where.device, dtype);
    auto layer = refrain::checkpoint(block);
    const auto x =
        torch::randn({4, 16, 32, 32}, where.device).to(dtype).contiguous(format).requires_grad_();
    const auto y = layer(layer(x));
    loss(y).backward();
    std::vector<Tensor> got{y.detach(), x.grad()};
    note(got, *block);
    return got;
  });
  return passed(where.on_gpu() && !at::globalContext().userEnabledCuDNN() ? "without cuDNN" : "");
}

}  // namespace

void add_kernels(Checks& checks) {
  checks.group("kernels");
  checks.check("flash attention, replayed and kept",
               [](const Where& where) { return keeps_attention(where, Attention::Flash); });
  checks.check("efficient attention, replayed and kept",
               [](const Where& where) { return keeps_attention(where, Attention::Efficient); });
  checks.check("convolution and batch norm", [](const Where& where) {
    return convolves(where, at::kFloat, at::MemoryFormat::Contiguous);
  });
  checks.check("convolution and batch norm, bf16, channels last", [](const Where& where) {
    return convolves(where, at::kBFloat16, at::MemoryFormat::ChannelsLast);
  });
}

}  // namespace gpu_check
