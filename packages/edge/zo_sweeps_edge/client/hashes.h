// The two hash functions that the light client needs, without a library.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

// BLAKE2b (RFC 7693) of `text`, without a key, with a digest of 8 bytes.
std::array<uint8_t, 8> blake2b8(const std::string& text);

// SHA-256 (FIPS 180-4) of bytes that arrive in parts.
class Sha256 {
 public:
  void update(const void* data, size_t size);
  std::string hex();  // of all bytes so far, in lower case; call it once, at the end

 private:
  void block(const uint8_t* bytes);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> waiting_ = {};
  size_t filled_ = 0;
  uint64_t total_ = 0;
};
