// Print BLAKE2b-8 and SHA-256 of each line of the input; SHA-256 receives the line in two parts.
#include "hashes.h"

#include <cstdio>
#include <iostream>

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    for (const uint8_t byte : blake2b8(line)) std::printf("%02x", byte);
    Sha256 sha;
    sha.update(line.data(), line.size() / 3);
    sha.update(line.data() + line.size() / 3, line.size() - line.size() / 3);
    std::printf(" %s\n", sha.hex().c_str());
  }
}
