// SPDX-License-Identifier: BSD-3-Clause
//
// Checks Refrain on one CUDA device and writes what it found as JSON and as a Markdown table. See
// docs/gpu.md.
#include "checks.hpp"
#include "driver.hpp"
#include "report.hpp"
#include <refrain/memory.hpp>
#include <refrain/version.hpp>

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/util/Exception.h>
#include <torch/cuda.h>
#include <torch/version.h>

#include <CLI/CLI.hpp>
#include <dlfcn.h>
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <filesystem>
#include <string>

namespace gpu_check {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSomethingWrong = 1;
constexpr int kNothingChecked = 77;  // what test programs say when they are skipped

struct Options {
  std::string out = ".";
  std::string only;
  double seconds = 330;
  bool dry_run = false;
  bool list = false;
};

double since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void tell(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);  // so that a run that is killed shows how far it came
}

/// Loads what needs CUDA, and LibTorch's own part of it, before anything asks LibTorch about CUDA:
/// it remembers the answer.
const CudaOnly* load_cuda(std::string& why_not) {
  const auto module =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libgpu_check_cuda.so";
  void* const library = dlopen(module.c_str(), RTLD_LAZY | RTLD_GLOBAL);
  void* const function = library != nullptr ? dlsym(library, "gpu_check_cuda_only") : nullptr;
  if (function == nullptr) {
    const char* const error = dlerror();
    why_not = fmt::format(
        "LibTorch's CUDA libraries cannot be loaded ({}); 'pip install torch=={}' brings them",
        error != nullptr ? error : module.string(), TORCH_VERSION);
    return nullptr;
  }
  if (torch::cuda::device_count() == 0) {
    why_not = "LibTorch sees no CUDA device, though the driver does (is the driver too old?)";
    return nullptr;
  }
  return reinterpret_cast<decltype(&gpu_check_cuda_only)>(function)();
}

void add_facts(Report& report) {
  report.fact("date", fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(std::time(nullptr))));
  report.fact("refrain", fmt::format("{} at {}", refrain::kVersion, REFRAIN_COMMIT));
  report.fact("LibTorch", TORCH_VERSION);
  report.fact("compiler", REFRAIN_COMPILER);
}

void add_device_facts(Report& report, const Driver& driver) {
  const auto& hooks = at::detail::getCUDAHooks();
  report.fact("device", fmt::format("{}, {}", driver.device, driver.memory));
  report.fact("driver", "CUDA " + driver.version);
  report.fact("CUDA runtime", std::to_string(hooks.versionCUDART()));
  if (hooks.hasCuDNN()) report.fact("cuDNN", std::to_string(hooks.versionRuntimeCuDNN()));
}

Outcome outcome_of(const Check& check, const Where& where) {
  try {
    Outcome outcome = check.run(where);
    // Goals are a GPU's.
    if (!where.on_gpu() && outcome.kind == Outcome::Kind::Missed)
      outcome.kind = Outcome::Kind::Passed;
    return outcome;
  } catch (const c10::Error& error) {
    return failed(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return failed(error.what());
  }
}

void run_checks(const Options& options, const Where& where, Report& report) {
  const auto start = Clock::now();
  const Checks checks = all_checks();
  for (const Check& check : checks.all()) {
    const std::string title = check.group + ": " + check.name;
    if (title.find(options.only) == std::string::npos) continue;
    if (options.list) {
      tell(title);
      continue;
    }
    const auto begin = Clock::now();
    const Outcome outcome =
        since(start) > options.seconds
            ? skipped(fmt::format("the {:.0f} seconds of --seconds were over", options.seconds))
            : outcome_of(check, where);
    tell(fmt::format("{:<12}{}{}{}", Report::word(outcome.kind), title,
                     outcome.measured
                         ? fmt::format(" = {} ({})", Report::number(outcome), Report::goal(outcome))
                         : "",
                     outcome.text.empty() ? "" : "\n            " + outcome.text));
    report.add({check.group, check.name, outcome, since(begin)});
  }
}

int finish(const Options& options, const Report& report) {
  report.write(options.out);
  tell(fmt::format("gpu_check: {}", report.summary()));
  if (!report.anything_checked()) return kNothingChecked;
  const bool well = report.count(Outcome::Kind::Failed) + report.count(Outcome::Kind::Missed) == 0;
  return well ? EXIT_SUCCESS : kSomethingWrong;
}

int run(const Options& options) {
  Report report;
  add_facts(report);
  Where where{c10::Device(c10::kCPU), options.out};
  std::filesystem::create_directories(options.out);
  if (options.dry_run || options.list) {
    refrain::count_cpu_memory(refrain::Poison::On);
    report.fact("device", "none: a dry run on the CPU, which says nothing about CUDA");
  } else {
    const Driver driver = Driver::ask();
    std::string why_not = fmt::format("no CUDA device ({})", driver.why_none);
    if (driver.devices > 0) where.cuda = load_cuda(why_not);
    if (where.cuda == nullptr) {
      report.nothing_checked(why_not);
      return finish(options, report);
    }
    where.device = c10::Device(c10::kCUDA, 0);
    add_device_facts(report, driver);
  }
  run_checks(options, where, report);
  return options.list ? EXIT_SUCCESS : finish(options, report);
}

}  // namespace
}  // namespace gpu_check

int main(int argc, char** argv) {
  gpu_check::Options options;
  CLI::App app("Checks Refrain on one CUDA device, within six minutes.");
  app.add_option("--out", options.out, "folder for gpu_check.json and gpu_check.md");
  app.add_option("--only", options.only, "only checks with this in their title");
  app.add_option("--seconds", options.seconds, "after so many, what is left is skipped");
  app.add_flag("--dry-run", options.dry_run, "tries the checks themselves, small, on the CPU");
  app.add_flag("--list", options.list, "prints the checks");
  app.footer(
      "Ends with 0 if all is well, 1 if a check failed or missed its goal, 77 if nothing was "
      "checked.");
  CLI11_PARSE(app, argc, argv);
  // Must be set before cuBLAS is loaded: else two runs may differ in their last bits.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  try {
    return gpu_check::run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "gpu_check: {}\n", error.what());
    return gpu_check::kSomethingWrong;
  }
}
