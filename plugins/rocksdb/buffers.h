// Memory for direct I/O, by one of three methods.
//
// Input: a method. Output: buffers that start on a page, pinned while they are held.
// Invariant: a buffer goes back to the source that it came from, when its holder ends.

#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace headwater {

// Bytes to which buffers, offsets and lengths are aligned.
constexpr size_t kPage = 4096;

// A source of buffers. Threads share it.
class BufferSource {
 public:
  virtual ~BufferSource() = default;

  // Returns memory of at least `bytes`, or null and the reason in `why`.
  virtual char* Take(size_t bytes, std::string* why) = 0;

  // Gives memory back that Take returned for `bytes`.
  virtual void Give(char* memory, size_t bytes) = 0;

  // Opens the source that a method names: "pool", "static" or "each".
  static std::shared_ptr<BufferSource> Open(const std::string& method, std::string* why);
};

// A buffer that is held until the end of its scope.
class HeldBuffer {
 public:
  HeldBuffer(BufferSource& source, size_t bytes, std::string* why)
      : source_(source), bytes_(bytes), memory_(source.Take(bytes, why)) {}
  ~HeldBuffer() {
    if (memory_ != nullptr) {
      source_.Give(memory_, bytes_);
    }
  }
  HeldBuffer(const HeldBuffer&) = delete;
  HeldBuffer& operator=(const HeldBuffer&) = delete;

  char* memory() const { return memory_; }

 private:
  BufferSource& source_;
  const size_t bytes_;
  char* const memory_;
};

}  // namespace headwater
