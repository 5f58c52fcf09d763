// log.jsonl: the only state of a run. Numbers are written so that they are read back to the bit, as Python's json does;
// those that are not finite are NaN, Infinity and -Infinity.
#pragma once

#include <chrono>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bundle.h"

// Another client has the log open.
struct Busy : Failure {
  using Failure::Failure;
};

std::string json(double value);
std::string json(const std::vector<double>& values);
std::string json_rows(const std::vector<float>& values, size_t columns);  // [[...], ...]

class Log {
 public:
  // Open and lock a log, read it, and cut off a torn last line. Throws Busy if another process holds it, and Failure if
  // it belongs to another bundle.
  explicit Log(const Bundle& bundle);
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  std::vector<std::vector<double>> coefs;           // of each completed step
  std::set<std::pair<std::string, size_t>> scored;  // (split, step)
  bool diverged = false;

  // Append one line, given without its newline. It reaches the disk within about half a second, or now.
  void append(const std::string& line, bool now);

 private:
  bool take(const std::string& line, const Bundle& bundle);

  int file_;
  std::string path_;
  std::chrono::steady_clock::time_point synced_;
};
