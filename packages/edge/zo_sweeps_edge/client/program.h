// The exported program (edge/program.py): its two methods, called with plain arrays.
#pragma once

#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bundle.h"

// The arguments of `forward` that depend on the rows; the shapes are those of edge/program.py.
struct Rows {
  size_t count = 0, width = 0;  // N, T
  std::vector<int64_t> ids, columns, tokens;
  std::vector<float> weights, bias, share;
  std::vector<int64_t> gold;
};

// An update of theta that is not applied yet; gradients of 0 leave theta as it is.
struct Update {
  std::vector<int32_t> past;  // [q, W, 2]
  std::vector<double> grads;  // [q]
  double rate = 0;
};

struct Output {
  std::vector<double> losses;  // [P]
  std::vector<float> scores;   // [N, S]
};

class Program {
 public:
  explicit Program(const Bundle& bundle);

  // Set theta to its initial values.
  void restart();

  // Apply an update; return theta, in which each parameter begins at a multiple of 1024 elements.
  std::vector<float> apply(const Update& update);

  // Apply an update, then evaluate the rows at theta + eps z and theta - eps z (or at theta + eps z alone).
  Output forward(const Rows& rows, const std::vector<int32_t>& words, double eps, const Update& update);

 private:
  std::vector<executorch::runtime::EValue> call(const char* method,
                                                std::vector<executorch::extension::TensorPtr> inputs);
  std::vector<float> apply(const Update& update, int64_t fresh);

  const Bundle& bundle_;
  executorch::extension::Module module_;
};
