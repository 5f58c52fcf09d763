// A trial's bundle: the folder that edge/bundle.py writes. Every file is checked when it is opened.
//
// Letters: P points and D directions per call, q queries per step, W addresses per direction, B examples per point,
// K rows per example, N = P * B * K rows per call, T tokens, A places per row, S slots per row.
#pragma once

#include <cstdint>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

// An error that ends the program with one line.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The rows of a split, padded to `width` tokens.
struct Split {
  size_t rows = 0, width = 0;
  std::vector<int32_t> ids;       // [rows, width]
  std::vector<uint32_t> lengths;  // [rows], tokens without the padding
  std::vector<int32_t> columns;   // [rows, A]
  std::vector<int32_t> tokens;    // [rows, A, S]
  std::vector<float> weights;     // [rows, A, S]
  std::vector<float> bias;        // [rows, S]
};

struct Bundle {
  std::string folder, digest;  // the SHA-256 of settings.txt, which holds those of all other files
  std::string trial_id, seed;
  size_t steps = 0, queries = 0, points = 0, directions = 0, batch = 0, rows_per_example = 0, places = 0, slots = 0;
  size_t multiple = 0;  // T of a call is rounded up to a multiple of it
  double eps = 0, clip = 0;
  std::vector<std::pair<std::string, size_t>> parameters;  // name, elements; in the space's order
  size_t stride = 0;          // from one direction's start to the next, in both cycles; 0: parameters have hashes
  size_t cycles[2] = {0, 0};  // their lengths
  std::set<size_t> evaluations;                            // steps after which dev is scored
  std::vector<double> rates;                               // [steps], learning rate of each step
  std::vector<uint32_t> order;                             // [steps, B], examples of each step; their number: none
  std::vector<uint32_t> gold;                              // [examples of train], slot of the gold candidate
  std::vector<float> mass;                                 // [examples of train], share of the loss, up to its sum
  Split train, dev, test;

  bool both_signs() const { return points == 2 * directions; }
  size_t addresses() const { return stride ? 1 : parameters.size(); }  // W
  size_t rows_per_call() const { return points * batch * rows_per_example; }
  const Split& split(const std::string& name) const;
};

// Read a bundle and verify the size and SHA-256 of every file. Throws Failure.
Bundle read_bundle(const std::string& folder);
