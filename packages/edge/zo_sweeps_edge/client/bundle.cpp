#include "bundle.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>

#include "hashes.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the arrays of a bundle are little-endian");

namespace {

// The most that a number in settings.txt may be, except the sizes of files: products of three do not overflow.
constexpr size_t kLargest = size_t{1} << 31;      // of steps and rows
constexpr size_t kLargestPart = size_t{1} << 16;  // of what one call or row consists of
constexpr size_t kSettingsBytes = size_t{1} << 24;

struct File {
  size_t bytes;
  std::string sha256;
};

// The lines of settings.txt, `key value`; some keys have several lines.
class Settings {
 public:
  Settings(const std::string& text, const std::string& path) : path_(path) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      const size_t space = line.find(' ');
      if (space == std::string::npos) fail("a line without a value: " + line.substr(0, 80));
      values_[line.substr(0, space)].push_back(line.substr(space + 1));
    }
  }

  [[noreturn]] void fail(const std::string& what) const { throw Failure(path_ + ": " + what); }

  // All values of a key, which may have none. Every key must be taken once.
  std::vector<std::string> all(const std::string& key) {
    std::vector<std::string> values = values_[key];
    values_.erase(key);
    return values;
  }

  std::string one(const std::string& key) {
    const std::vector<std::string> values = all(key);
    if (values.size() != 1) fail("needs one line '" + key + "', has " + std::to_string(values.size()));
    return values[0];
  }

  size_t count(const std::string& text, size_t most = kLargest) const {
    char* end = nullptr;
    const unsigned long long value = std::strtoull(text.c_str(), &end, 10);
    if (text.empty() || !std::isdigit(static_cast<unsigned char>(text[0])) || *end || value > most)
      fail("no number from 0 to " + std::to_string(most) + ": " + text);
    return static_cast<size_t>(value);
  }

  size_t positive(const std::string& key, size_t most = kLargestPart) {
    const size_t value = count(one(key), most);
    if (value == 0) fail("'" + key + "' must be at least 1");
    return value;
  }

  double number(const std::string& key) {
    const std::string text = one(key);
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (text.empty() || *end || !std::isfinite(value)) fail("'" + key + "' is no finite number: " + text);
    return value;
  }

  void finish() const {
    if (!values_.empty()) fail("unknown key '" + values_.begin()->first + "'");
  }

 private:
  std::string path_;
  std::map<std::string, std::vector<std::string>> values_;
};

std::vector<std::string> words(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> parts;
  for (std::string part; stream >> part;) parts.push_back(part);
  return parts;
}

std::string read_text(const std::string& path, size_t most) {
  std::ifstream file(path, std::ios::binary);
  std::string text(most, '\0');
  if (!file) throw Failure("cannot read " + path);
  file.read(text.data(), static_cast<std::streamsize>(most));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() == most) throw Failure(path + " is too large");
  return text;
}

// Pass a file's bytes to `take` in parts, and verify its size and SHA-256.
template <typename Take>
void read_verified(const std::string& path, const File& expected, Take take) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) throw Failure("cannot read " + path);
  Sha256 sha;
  std::vector<char> part(size_t{1} << 20);
  size_t total = 0;
  while (const size_t size = std::fread(part.data(), 1, part.size(), file.get())) {
    total += size;
    if (total > expected.bytes) break;
    sha.update(part.data(), size);
    take(part.data(), size);
  }
  if (total != expected.bytes)
    throw Failure(path + " does not have the " + std::to_string(expected.bytes) +
                  " bytes of settings.txt: copy the bundle again");
  if (sha.hex() != expected.sha256)
    throw Failure(path + " does not have the SHA-256 of settings.txt: copy the bundle again");
}

// The files of a bundle, read by name; each must be read once.
class Files {
 public:
  Files(std::string folder, std::map<std::string, File> files) : folder_(std::move(folder)), files_(std::move(files)) {}

  template <typename T>
  std::vector<T> array(const std::string& name, size_t count) {
    const File file = take(name);
    if (file.bytes % sizeof(T) || file.bytes / sizeof(T) != count)
      throw Failure(folder_ + "/" + name + " has " + std::to_string(file.bytes) + " bytes instead of " +
                    std::to_string(count) + " elements of " + std::to_string(sizeof(T)));
    std::vector<T> values(count);
    char* to = reinterpret_cast<char*>(values.data());
    read_verified(folder_ + "/" + name, file,
                  [&to](const char* from, size_t size) { to = std::copy(from, from + size, to); });
    return values;
  }

  void verify(const std::string& name) {
    read_verified(folder_ + "/" + name, take(name), [](const char*, size_t) {});
  }

  void finish() const {
    if (!files_.empty()) throw Failure(folder_ + "/settings.txt names an unknown file '" + files_.begin()->first + "'");
  }

 private:
  File take(const std::string& name) {
    const auto place = files_.find(name);
    if (place == files_.end()) throw Failure(folder_ + "/settings.txt does not name the file '" + name + "'");
    const File file = place->second;
    files_.erase(place);
    return file;
  }

  std::string folder_;
  std::map<std::string, File> files_;
};

Split read_split(const std::string& name, const Bundle& bundle, Settings& settings, Files& files) {
  const std::vector<std::string> sizes = words(settings.one(name));
  if (sizes.size() != 2) settings.fail("'" + name + "' needs rows and tokens");
  Split split;
  const size_t A = bundle.places, S = bundle.slots;
  const size_t n = split.rows = settings.count(sizes[0]);
  const size_t width = split.width = settings.count(sizes[1]);
  if (width % bundle.multiple)
    settings.fail("'" + name + "': tokens are no multiple of " + std::to_string(bundle.multiple));
  split.ids = files.array<int32_t>(name + ".ids.bin", n * width);
  split.lengths = files.array<uint32_t>(name + ".lengths.bin", n);
  split.columns = files.array<int32_t>(name + ".columns.bin", n * A);
  split.tokens = files.array<int32_t>(name + ".tokens.bin", n * A * S);
  split.weights = files.array<float>(name + ".weights.bin", n * A * S);
  split.bias = files.array<float>(name + ".bias.bin", n * S);
  for (size_t row = 0; row < n; ++row) {
    const uint32_t length = split.lengths[row];
    bool inside = length >= 1 && length <= width;
    for (size_t a = 0; a < A; ++a) {
      const int32_t column = split.columns[row * A + a];
      inside = inside && column >= 0 && static_cast<uint32_t>(column) < length;
    }
    if (!inside) throw Failure(bundle.folder + ": row " + std::to_string(row) + " of " + name + " is malformed");
  }
  return split;
}

}  // namespace

const Split& Bundle::split(const std::string& name) const {
  if (name == "dev") return dev;
  if (name == "test") return test;
  throw Failure("no split '" + name + "' to score; choose from: dev, test");
}

Bundle read_bundle(const std::string& folder) {
  const std::string path = folder + "/settings.txt", text = read_text(path, kSettingsBytes);
  Settings settings(text, path);
  if (const std::string format = settings.one("format"); format != "1")
    settings.fail("has format " + format + ", and this client reads format 1: use the client of the same version");

  Bundle bundle;
  bundle.folder = folder;
  Sha256 sha;
  sha.update(text.data(), text.size());
  bundle.digest = sha.hex();
  bundle.trial_id = settings.one("trial_id");
  bundle.seed = settings.one("seed");
  bundle.steps = settings.positive("steps", kLargest);
  bundle.queries = settings.positive("queries");
  bundle.points = settings.positive("points");
  bundle.directions = settings.positive("directions");
  bundle.batch = settings.positive("batch");
  bundle.rows_per_example = settings.positive("rows_per_example");
  bundle.places = settings.positive("places");
  bundle.slots = settings.positive("slots");
  bundle.multiple = settings.positive("multiple");
  bundle.eps = settings.number("eps");
  bundle.clip = settings.number("clip");
  if (!(bundle.eps > 0) || bundle.clip < 0) settings.fail("'eps' must be above 0, and 'clip' at least 0");
  if (bundle.queries % bundle.directions || (bundle.points != bundle.directions && !bundle.both_signs()))
    settings.fail("'points', 'directions' and 'queries' do not go together");
  for (const std::string& line : settings.all("parameter")) {
    const std::vector<std::string> parts = words(line);
    if (parts.size() != 2) settings.fail("'parameter' needs a name and a number of elements: " + line);
    bundle.parameters.emplace_back(parts[0], settings.count(parts[1]));
  }
  for (const std::string& line : settings.all("cycles")) {
    const std::vector<std::string> parts = words(line);
    if (parts.size() != 3) settings.fail("'cycles' needs a stride and two lengths: " + line);
    bundle.stride = settings.count(parts[0]);
    for (size_t i = 0; i < 2; ++i) bundle.cycles[i] = settings.count(parts[i + 1]);
    if (!bundle.stride || !bundle.cycles[0] || !bundle.cycles[1]) settings.fail("'cycles' must be at least 1: " + line);
  }
  for (const std::string& step : settings.all("evaluate")) bundle.evaluations.insert(settings.count(step));
  std::map<std::string, File> named;
  for (const std::string& line : settings.all("file")) {
    const std::vector<std::string> parts = words(line);
    if (parts.size() != 3) settings.fail("'file' needs a name, bytes and SHA-256: " + line);
    named[parts[0]] = {settings.count(parts[1], SIZE_MAX / 2), parts[2]};
  }

  Files files(folder, std::move(named));
  bundle.train = read_split("train", bundle, settings, files);
  bundle.dev = read_split("dev", bundle, settings, files);
  bundle.test = read_split("test", bundle, settings, files);
  settings.finish();
  const size_t examples = bundle.train.rows / bundle.rows_per_example;
  if (bundle.train.rows % bundle.rows_per_example) settings.fail("'train' is no multiple of 'rows_per_example'");
  bundle.gold = files.array<uint32_t>("train.gold.bin", examples);
  bundle.mass = files.array<float>("train.mass.bin", examples);
  bundle.order = files.array<uint32_t>("order.bin", bundle.steps * bundle.batch);
  bundle.rates = files.array<double>("rates.bin", bundle.steps);
  files.verify("program.pte");
  files.finish();
  for (const uint32_t slot : bundle.gold)
    if (slot >= bundle.rows_per_example * bundle.slots)
      throw Failure(folder + ": train.gold.bin names a slot that no example has");
  for (size_t i = 0; i < bundle.order.size(); ++i)  // `examples` itself: none, where a batch is too small
    if (bundle.order[i] > examples || (i % bundle.batch == 0 && bundle.order[i] == examples))
      throw Failure(folder + ": order.bin names an example that train does not have");
  return bundle;
}
