#include "program.h"

#include <executorch/runtime/platform/platform.h>

#include <cstdio>
#include <initializer_list>

using executorch::aten::ScalarType;
using executorch::extension::from_blob;
using executorch::extension::Module;
using executorch::extension::TensorPtr;
using executorch::runtime::EValue;

namespace {

std::string last_error;  // the runtime's own message about what failed last

// Receive the runtime's messages: its errors become part of ours, everything else is dropped.
void receive(et_timestamp_t, et_pal_log_level_t level, const char*, const char*, size_t, const char* message,
             size_t length) {
  if (level == kError) last_error.assign(message, length);
  if (level == kFatal)
    std::fprintf(stderr, "zo_client: ExecuTorch: %.*s\n", static_cast<int>(length), message);  // it aborts
}

void check(executorch::runtime::Error error, const std::string& what) {
  if (error != executorch::runtime::Error::Ok)
    throw Failure(what + ": ExecuTorch error " + std::to_string(static_cast<uint32_t>(error)) +
                  (last_error.empty() ? "" : ", " + last_error));
}

template <typename T>
constexpr ScalarType kType = ScalarType::Float;
template <>
constexpr ScalarType kType<double> = ScalarType::Double;
template <>
constexpr ScalarType kType<int32_t> = ScalarType::Int;
template <>
constexpr ScalarType kType<int64_t> = ScalarType::Long;

// A tensor over the vector's own memory. The runtime only reads its inputs.
template <typename T>
TensorPtr tensor(const std::vector<T>& values, std::initializer_list<size_t> shape) {
  std::vector<executorch::aten::SizesType> sizes;
  size_t count = 1;
  for (const size_t size : shape) {
    sizes.push_back(static_cast<executorch::aten::SizesType>(size));
    count *= size;
  }
  if (count != values.size()) throw Failure("an argument of the program does not have the elements of its shape");
  return from_blob(const_cast<T*>(values.data()), std::move(sizes), kType<T>);
}

template <typename T>
std::vector<T> values_of(const EValue& value) {
  const auto& output = value.toTensor();
  const auto copy = [&output](const auto* data) { return std::vector<T>(data, data + output.numel()); };
  if (output.scalar_type() == ScalarType::Float) return copy(output.const_data_ptr<float>());
  if (output.scalar_type() == ScalarType::Double) return copy(output.const_data_ptr<double>());
  throw Failure("the program returns neither fp32 nor fp64");
}

}  // namespace

Program::Program(const Bundle& bundle)
    : bundle_(bundle),
      // Both methods use one theta: the arenas of their mutable buffers are shared.
      module_(bundle.folder + "/program.pte", Module::LoadMode::Mmap, nullptr, nullptr, nullptr, true) {
  executorch::runtime::register_pal(executorch::runtime::PalImpl::create(receive, __FILE__));
  for (const char* method : {"forward", "apply"})
    check(module_.load_method(method), bundle.folder + "/program.pte: cannot load method '" + method + "'");
}

std::vector<EValue> Program::call(const char* method, std::vector<TensorPtr> inputs) {
  std::vector<EValue> values;
  for (const TensorPtr& input : inputs) values.emplace_back(*input);
  auto result = module_.execute(method, values);
  check(result.error(), bundle_.folder + "/program.pte: method '" + method + "' failed");
  return std::move(*result);
}

std::vector<float> Program::apply(const Update& update, int64_t fresh) {
  const size_t q = bundle_.queries, W = bundle_.addresses();
  const std::vector<double> rate = {update.rate};
  const std::vector<int64_t> flag = {fresh};
  const auto outputs =
      call("apply", {tensor(update.past, {q, W, 2}), tensor(update.grads, {q}), tensor(rate, {1}), tensor(flag, {1})});
  if (outputs.size() != 1) throw Failure("'apply' does not return theta alone");
  return values_of<float>(outputs[0]);
}

void Program::restart() {
  const size_t q = bundle_.queries, W = bundle_.addresses();
  apply({std::vector<int32_t>(q * W * 2), std::vector<double>(q), 0.0}, 1);
}

std::vector<float> Program::apply(const Update& update) { return apply(update, 0); }

Output Program::forward(const Rows& rows, const std::vector<int32_t>& words, double eps, const Update& update) {
  const size_t N = rows.count, A = bundle_.places, S = bundle_.slots, P = bundle_.points, B = bundle_.batch;
  const size_t D = bundle_.directions, q = bundle_.queries, W = bundle_.addresses();
  const std::vector<float> scale = {static_cast<float>(eps)};
  const std::vector<double> rate = {update.rate};
  const auto outputs =
      call("forward", {tensor(rows.ids, {N, rows.width}), tensor(rows.columns, {N, A}), tensor(rows.tokens, {N, A, S}),
                       tensor(rows.weights, {N, A, S}), tensor(rows.bias, {N, S}), tensor(rows.share, {P, B}),
                       tensor(rows.gold, {P, B}), tensor(words, {D, W, 2}), tensor(scale, {1}),
                       tensor(update.past, {q, W, 2}), tensor(update.grads, {q}), tensor(rate, {1})});
  if (outputs.size() != 2) throw Failure("'forward' does not return losses and scores");
  Output output = {values_of<double>(outputs[0]), values_of<float>(outputs[1])};
  if (output.losses.size() != P || output.scores.size() != N * S)
    throw Failure("'forward' returns losses or scores of other shapes than the bundle's");
  return output;
}
