#include "log.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr auto kSyncEvery = std::chrono::milliseconds(500);

// The text after `key` in a line that this file wrote; null if the line does not have it.
const char* after(const std::string& line, const char* key) {
  const size_t place = line.find(key);
  return place == std::string::npos ? nullptr : line.c_str() + place + std::strlen(key);
}

}  // namespace

std::string json(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

std::string json(const std::vector<double>& values) {
  std::string text = "[";
  for (size_t i = 0; i < values.size(); ++i) text += (i ? "," : "") + json(values[i]);
  return text + "]";
}

std::string json_rows(const std::vector<float>& values, size_t columns) {
  std::string text = "[";
  for (size_t i = 0; i < values.size(); ++i) text += (i % columns ? "," : i ? "],[" : "[") + json(values[i]);
  return text + (values.empty() ? "]" : "]]");
}

Log::Log(const Bundle& bundle) : path_(bundle.folder + "/log.jsonl") {
  file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file_ < 0) throw Failure("cannot write " + path_ + ": " + std::strerror(errno));
  if (::flock(file_, LOCK_EX | LOCK_NB) != 0) throw Busy("another zo_client is running on " + bundle.folder);
  std::string text;
  char part[1 << 16];
  for (ssize_t size; (size = ::read(file_, part, sizeof part)) > 0;) text.append(part, static_cast<size_t>(size));
  size_t begin = 0;
  for (size_t number = 1; begin < text.size(); ++number) {
    const size_t end = text.find('\n', begin);
    const std::string line = text.substr(begin, end - begin);  // to the end of the text if there is no newline
    // A kill can tear the last line; a power cut can leave zeros in its place.
    const bool last = end == std::string::npos || end + 1 == text.size();
    if (end == std::string::npos || !take(line, bundle)) {
      if (!last) throw Failure(path_ + ": line " + std::to_string(number) + " is not the next line of this trial");
      break;
    }
    begin = end + 1;
  }
  if (begin == text.size()) return;
  if (::ftruncate(file_, static_cast<off_t>(begin)) != 0) throw Failure("cannot cut the torn last line off " + path_);
  if (text.back() == '\n')  // no kill has torn it
    std::fprintf(stderr, "zo_client: cut the last line off %s (%zu bytes): it is not the next line of this trial\n",
                 path_.c_str(), text.size() - begin);
}

Log::~Log() {
  ::fsync(file_);
  ::close(file_);
}

bool Log::take(const std::string& line, const Bundle& bundle) {
  if (line.empty() || line.back() != '}') return false;
  if (const char* digest = after(line, "{\"type\":\"start\",\"settings\":\"")) {
    if (std::strncmp(digest, bundle.digest.c_str(), bundle.digest.size()) != 0)
      throw Failure(path_ + " belongs to another bundle: move it away");
    return true;
  }
  if (after(line, "{\"type\":\"diverged\"")) {
    diverged = diverged || after(line, "\"split\":\"test\"") == nullptr;  // asked for: it ends no run
    return true;
  }
  if (const char* split = after(line, "{\"type\":\"scores\",\"split\":\"")) {
    const char* step = after(line, "\",\"step\":");
    if (step == nullptr) return false;
    scored.emplace(std::string(split, std::strchr(split, '"')), std::strtoull(step, nullptr, 10));
    return true;
  }
  const char* step = after(line, "{\"type\":\"step\",\"step\":");
  const char* number = after(line, "\"coefs\":[");
  if (step == nullptr || number == nullptr || std::strtoull(step, nullptr, 10) != coefs.size() + 1) return false;
  std::vector<double> read;
  for (char* end; read.size() < bundle.queries; number = end + 1) {
    read.push_back(std::strtod(number, &end));
    if (end == number || *end != (read.size() < bundle.queries ? ',' : ']')) return false;
  }
  coefs.push_back(std::move(read));
  return true;
}

void Log::append(const std::string& line, bool now) {
  const std::string text = line + "\n";
  for (size_t done = 0; done < text.size();) {
    const ssize_t size = ::write(file_, text.data() + done, text.size() - done);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) throw Failure("cannot write " + path_ + ": " + std::strerror(errno));
    done += static_cast<size_t>(size);
  }
  const auto moment = std::chrono::steady_clock::now();
  if (now || moment - synced_ > kSyncEvery) {
    ::fsync(file_);
    synced_ = std::chrono::steady_clock::now();
  }
}
