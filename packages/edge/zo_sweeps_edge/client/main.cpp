// zo_client: run the steps of a trial's bundle by calling an exported program, and log their scalars.
//
// One step: the losses at theta + eps z_i and theta - eps z_i, projected gradients g_i = (plus - minus) / (2 eps), one
// line of the log. The update, theta <- theta - lr / q sum_i g_i z_i, is made inside the program: where one call holds
// all points of a step, by the next step's call; else by a call of `apply` before the step. Killed at any moment, the
// next run replays the log with `apply` and continues: theta, and so every later line, has the same bits (of a program
// in the dual form: up to the rounding of its copies).
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "bundle.h"
#include "hashes.h"
#include "log.h"
#include "program.h"

namespace {

enum Status { kDone = 0, kFailed = 1, kUsage = 2, kDiverged = 3, kBusy = 4 };

constexpr char kHelp[] =
    "usage: zo_client BUNDLE [--score dev|test --at STEP]\n"
    "\n"
    "Run the steps of the trial in the folder BUNDLE and append their scalars to BUNDLE/log.jsonl. A run that was\n"
    "stopped in any way continues from its log.\n"
    "\n"
    "  --score SPLIT --at STEP   score a split with the weights after STEP steps of the log, and run no steps\n"
    "\n"
    "exit status: 0 done, 1 error, 2 wrong usage, 3 a loss or score was not finite, 4 another zo_client is running on BUNDLE\n";

constexpr size_t kGroup = 1024;  // each parameter begins at a multiple of it in the program's theta

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point began) { return std::chrono::duration<double>(Clock::now() - began).count(); }

size_t peak_bytes() {
  rusage usage;
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<size_t>(usage.ru_maxrss) * 1024;  // Linux and Android count it in KiB
}

Status diverged(const std::string& what) {
  std::fprintf(stderr, "zo_client: diverged: %s; its line is in log.jsonl\n", what.c_str());
  return kDiverged;
}

// One trial: theta (inside the program), the update that it waits for, and the log.
class Run {
 public:
  Run(const Bundle& bundle, Log& log) : bundle_(bundle), log_(log), program_(bundle) {}

  // Set theta to its value after `step` steps of the log, and log that a run begins there.
  void replay_to(size_t step) {
    const auto began = Clock::now();
    program_.restart();
    for (size_t number = 1; number <= step; ++number) program_.apply(update_of(number));
    done_ = applied_ = step;
    log_.append("{\"type\":\"start\",\"settings\":\"" + bundle_.digest + "\",\"trial_id\":\"" + bundle_.trial_id +
                    "\",\"replayed\":" + std::to_string(step) + ",\"seconds\":" + std::to_string(seconds_since(began)) +
                    "}",
                true);
  }

  // Run all steps that are left. Returns kDone or kDiverged.
  Status train() {
    for (;;) {
      if (bundle_.evaluations.count(done_) && !log_.scored.count({"dev", done_}) && score("dev") == kDiverged)
        return kDiverged;
      if (done_ == bundle_.steps) return kDone;
      if (step() == kDiverged) return kDiverged;
    }
  }

  // Score a split with theta, and log it.
  Status score(const std::string& name) {
    const auto began = Clock::now();
    const Split& split = bundle_.split(name);
    const std::vector<float> theta = program_.apply(flushed());
    const size_t N = bundle_.rows_per_call(), S = bundle_.slots;
    std::vector<size_t> order(split.rows);  // rows of similar length share a call
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&split](size_t a, size_t b) { return split.lengths[a] < split.lengths[b]; });
    std::vector<float> scores(split.rows * S);
    for (size_t first = 0; first < split.rows; first += N) {
      std::vector<size_t> chosen;  // the last call is filled with repeats of the last row
      for (size_t i = 0; i < N; ++i) chosen.push_back(order[std::min(first + i, split.rows - 1)]);
      Rows rows = rows_of(split, chosen);
      rows.share.assign(bundle_.points * bundle_.batch, 0.0f);
      rows.gold.assign(bundle_.points * bundle_.batch, 0);
      const Output output = program_.forward(rows, words_of(done_, 0, bundle_.directions), 0.0, nothing());
      for (size_t i = 0; i < N; ++i)
        std::copy_n(output.scores.begin() + static_cast<ptrdiff_t>(i * S), S,
                    scores.begin() + static_cast<ptrdiff_t>(chosen[i] * S));
    }
    if (std::any_of(scores.begin(), scores.end(), [](float score) { return std::isnan(score); })) {
      log_.append("{\"type\":\"diverged\",\"step\":" + std::to_string(done_) + ",\"split\":\"" + name + "\"}", true);
      return diverged("the scores of " + name + " after step " + std::to_string(done_) + " are not numbers");
    }
    log_.append("{\"type\":\"scores\",\"split\":\"" + name + "\",\"step\":" + std::to_string(done_) +
                    ",\"scores\":" + json_rows(scores, bundle_.slots) + ",\"theta\":\"" + digest_of(theta) +
                    "\",\"seconds\":" + std::to_string(seconds_since(began)) +
                    ",\"peak_bytes\":" + std::to_string(peak_bytes()) + "}",
                true);
    std::printf("scored %s after step %zu of %zu\n", name.c_str(), done_, bundle_.steps);
    std::fflush(stdout);
    return kDone;
  }

 private:
  Status step() {
    const auto began = Clock::now();
    const size_t number = done_ + 1, D = bundle_.directions;
    const Rows rows = rows_of_step(number);
    const bool one_call = bundle_.both_signs() && D == bundle_.queries;
    if (!one_call) program_.apply(flushed());

    std::vector<double> losses(2 * bundle_.queries);  // +eps z_0, -eps z_0, +eps z_1, ...
    size_t calls = 0;
    // Where a call holds one sign, all directions of that call are evaluated at +eps, then at -eps.
    for (size_t query = 0; query < bundle_.queries; query += D) {
      for (size_t minus = 0; minus < (bundle_.both_signs() ? 1 : 2); ++minus) {
        const double eps = minus ? -bundle_.eps : bundle_.eps;
        const Output output = program_.forward(rows, words_of(number, query, D), eps, one_call ? flushed() : nothing());
        for (size_t point = 0; point < bundle_.points; ++point)
          losses[bundle_.both_signs() ? 2 * query + point : 2 * (query + point) + minus] = output.losses[point];
        ++calls;
      }
    }
    const std::string head = ",\"step\":" + std::to_string(number) + ",\"losses\":" + json(losses);
    if (!std::all_of(losses.begin(), losses.end(), [](double loss) { return std::isfinite(loss); })) {
      log_.append("{\"type\":\"diverged\"" + head + "}", true);
      return diverged("a loss of step " + std::to_string(number) + " is not finite");
    }
    std::vector<double> coefs;
    for (size_t query = 0; query < bundle_.queries; ++query) {
      const double grad = (losses[2 * query] - losses[2 * query + 1]) / (2 * bundle_.eps);
      coefs.push_back(bundle_.clip > 0 ? std::min(std::max(grad, -bundle_.clip), bundle_.clip) : grad);
    }
    log_.coefs.push_back(coefs);
    done_ = number;
    log_.append("{\"type\":\"step\"" + head + ",\"coefs\":" + json(coefs) +
                    ",\"seconds\":" + std::to_string(seconds_since(began)) +
                    ",\"tokens\":" + std::to_string(calls * rows.count * rows.width) + "}",
                done_ == bundle_.steps);
    return kDone;
  }

  // The addresses of `count` directions of a step, [count, W, 2]: edge/program.py, words. No step is step 0.
  std::vector<int32_t> words_of(size_t step, size_t first, size_t count) const {
    std::vector<int32_t> words;
    for (size_t query = first; query < first + count; ++query) {
      if (bundle_.stride) {
        const uint64_t drawn = uint64_t{std::max<size_t>(step, 1) - 1} * bundle_.queries + query;  // before this one
        for (const uint64_t length : bundle_.cycles)  // of 31 bits, as the stride: products do not overflow
          words.push_back(static_cast<int32_t>(drawn % length * (bundle_.stride % length) % length));
        continue;
      }
      for (const auto& parameter : bundle_.parameters) {
        const auto digest =
            blake2b8(bundle_.seed + "/" + std::to_string(step) + "/" + std::to_string(query) + "/" + parameter.first);
        int32_t pair[2];
        std::memcpy(pair, digest.data(), sizeof pair);
        words.insert(words.end(), pair, pair + 2);
      }
    }
    return words;
  }

  Update update_of(size_t step) const {
    return {words_of(step, 0, bundle_.queries), log_.coefs[step - 1], bundle_.rates[step - 1]};
  }

  Update nothing() const { return {words_of(done_, 0, bundle_.queries), std::vector<double>(bundle_.queries), 0.0}; }

  // The update that theta waits for, which the caller applies.
  Update flushed() {
    const Update update = applied_ < done_ ? update_of(done_) : nothing();
    applied_ = done_;
    return update;
  }

  // The rows of one call: `chosen` of a split, padded to a multiple of the longest.
  Rows rows_of(const Split& split, const std::vector<size_t>& chosen) const {
    const size_t A = bundle_.places, S = bundle_.slots;
    Rows rows;
    rows.count = chosen.size();
    for (const size_t row : chosen) rows.width = std::max<size_t>(rows.width, split.lengths[row]);
    rows.width = (rows.width + bundle_.multiple - 1) / bundle_.multiple * bundle_.multiple;
    const auto add = [](auto& to, const auto& from, size_t begin, size_t count) {
      const auto place = from.begin() + static_cast<ptrdiff_t>(begin);
      to.insert(to.end(), place, place + static_cast<ptrdiff_t>(count));
    };
    for (const size_t row : chosen) {
      add(rows.ids, split.ids, row * split.width, rows.width);
      add(rows.columns, split.columns, row * A, A);
      add(rows.tokens, split.tokens, row * A * S, A * S);
      add(rows.weights, split.weights, row * A * S, A * S);
      add(rows.bias, split.bias, row * S, S);
    }
    return rows;
  }

  // The rows of a step's batch, once for each point of a call, with the examples' shares of the loss and gold slots. A
  // batch that is too small is filled up with its first example, without a share in the loss.
  Rows rows_of_step(size_t step) const {
    const size_t B = bundle_.batch, K = bundle_.rows_per_example;
    const uint32_t* batch = bundle_.order.data() + (step - 1) * B;
    const auto missing = [&](size_t b) { return batch[b] == bundle_.gold.size(); };
    float sum = 0;
    for (size_t b = 0; b < B; ++b) sum += missing(b) ? 0 : bundle_.mass[batch[b]];
    std::vector<size_t> chosen;
    std::vector<float> share;
    std::vector<int64_t> gold;
    for (size_t slot = 0; slot < bundle_.points * B; ++slot) {
      const size_t b = slot % B, example = missing(b) ? batch[0] : batch[b];
      for (size_t k = 0; k < K; ++k) chosen.push_back(example * K + k);
      share.push_back(missing(b) ? 0 : bundle_.mass[example] / sum);
      gold.push_back(bundle_.gold[example]);
    }
    Rows rows = rows_of(bundle_.train, chosen);
    rows.share = std::move(share);
    rows.gold = std::move(gold);
    return rows;
  }

  // SHA-256 of the parameters' fp32 values in order, without the padding between them.
  std::string digest_of(const std::vector<float>& theta) const {
    Sha256 sha;
    size_t start = 0;
    for (const auto& parameter : bundle_.parameters) {
      if (start + parameter.second > theta.size())
        throw Failure("the program's theta is smaller than the bundle's parameters");
      sha.update(theta.data() + start, parameter.second * sizeof(float));
      start += (parameter.second + kGroup - 1) / kGroup * kGroup;
    }
    return sha.hex();
  }

  const Bundle& bundle_;
  Log& log_;
  Program program_;
  size_t done_ = 0;     // steps in the log that this process knows theta after
  size_t applied_ = 0;  // steps whose update is in the program's theta: done_ or done_ - 1
};

int run(const std::string& folder, const std::string& split, size_t at) {
  const Bundle bundle = read_bundle(folder);
  Log log(bundle);
  if (split.empty()) {
    if (log.diverged) return diverged("the log ends with a loss or with scores that are not finite");
    const auto& due = bundle.evaluations;
    const bool scored =
        std::all_of(due.begin(), due.end(), [&log](size_t step) { return log.scored.count({"dev", step}); });
    if (log.coefs.size() == bundle.steps && scored) return kDone;
    Run run(bundle, log);
    run.replay_to(log.coefs.size());
    return run.train();
  }
  bundle.split(split);
  if (at > log.coefs.size())
    throw Failure("--at " + std::to_string(at) + ": the log has " + std::to_string(log.coefs.size()) + " steps");
  if (log.scored.count({split, at})) return kDone;
  Run run(bundle, log);
  run.replay_to(at);
  return run.score(split);
}

int usage(const std::string& what) {
  std::fprintf(stderr, "zo_client: %s; see zo_client --help\n", what.c_str());
  return kUsage;
}

}  // namespace

int main(int argc, char** argv) {
  std::string folder, split, at;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--help") return std::fputs(kHelp, stdout), kDone;
    if ((word == "--score" || word == "--at") && i + 1 < argc)
      (word == "--score" ? split : at) = argv[++i];
    else if (folder.empty() && !word.empty() && word[0] != '-')
      folder = word;
    else
      return usage("cannot use '" + word + "'");
  }
  if (folder.empty()) return usage("needs the folder of a bundle");
  if (split.empty() != at.empty()) return usage("--score and --at go together");
  if (at.find_first_not_of("0123456789") != std::string::npos || at.size() > 9)
    return usage("--at needs a number of steps");
  try {
    return run(folder, split, std::strtoul(at.c_str(), nullptr, 10));
  } catch (const Busy& busy) {
    std::fprintf(stderr, "zo_client: %s\n", busy.what());
    return kBusy;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "zo_client: %s\n", error.what());
    return kFailed;
  }
}
