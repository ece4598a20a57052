// The three sources of buffers.

#include "buffers.h"

#include <headwater.h>
#include <sys/mman.h>

#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <vector>

namespace headwater {
namespace {

size_t Pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// Maps and locks memory; null after a failure.
char* MapLocked(size_t bytes, std::string* why) {
  void* memory = mmap(nullptr, Pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    *why = std::string("mmap: ") + strerror(errno);
    return nullptr;
  }
  if (mlock(memory, Pages(bytes)) != 0) {
    *why = std::string("mlock: ") + strerror(errno) + "; raise the limit of locked memory (ulimit -l)";
    munmap(memory, Pages(bytes));
    return nullptr;
  }
  return static_cast<char*>(memory);
}

// Dynamic memory: a pool of pinned chunks, which grows and shrinks with the requests.
class PoolSource : public BufferSource {
 public:
  explicit PoolSource(std::string* why) {
    hw_pool_config config;
    hw_pool_config_init(&config, sizeof config);
    config.pinning = HW_PINNING_LOCKED;
    if (hw_pool_open(&config, &pool_) != HW_CODE_OK) {
      *why = hw_last_error();
      pool_ = nullptr;
    }
  }
  ~PoolSource() override {
    if (pool_ != nullptr) {
      hw_pool_close(pool_);
    }
  }

  bool is_open() const { return pool_ != nullptr; }

  char* Take(size_t bytes, std::string* why) override {
    void* memory = nullptr;
    if (hw_pool_alloc_within(pool_, bytes, kPage, 0, kWaitNs, &memory) != HW_CODE_OK) {
      *why = hw_last_error();
      return nullptr;
    }
    return static_cast<char*>(memory);
  }

  void Give(char* memory, size_t) override { hw_pool_free(pool_, memory); }

 private:
  // Longest wait for memory that other threads hold.
  static constexpr uint64_t kWaitNs = 10'000'000'000;

  hw_pool* pool_ = nullptr;
};

// Static memory: buffers of one length that are pinned once. A request waits while all are held; a longer one is pinned
// for itself.
class StaticSource : public BufferSource {
 public:
  explicit StaticSource(std::string* why) {
    // One mapping, aligned for huge pages: the kernel then pins fewer pages for a transfer, as in the pool.
    void* mapped = mmap(nullptr, kMapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) {
      *why = std::string("mmap: ") + strerror(errno);
      return;
    }
    mapped_ = static_cast<char*>(mapped);
    char* start = mapped_ + (kBytes - reinterpret_cast<uintptr_t>(mapped_) % kBytes) % kBytes;
    madvise(start, kBuffers * kBytes, MADV_HUGEPAGE);
    if (mlock(start, kBuffers * kBytes) != 0) {
      *why = std::string("mlock: ") + strerror(errno) + "; raise the limit of locked memory (ulimit -l)";
      return;
    }
    for (size_t number = 0; number < kBuffers; ++number) {
      free_.push_back(start + number * kBytes);
    }
    open_ = true;
  }
  ~StaticSource() override {
    if (mapped_ != nullptr) {
      munmap(mapped_, kMapped);
    }
  }

  bool is_open() const { return open_; }

  char* Take(size_t bytes, std::string* why) override {
    if (bytes > kBytes) {
      return MapLocked(bytes, why);
    }
    std::unique_lock<std::mutex> lock(mutex_);
    freed_.wait(lock, [this] { return !free_.empty(); });
    char* memory = free_.back();
    free_.pop_back();
    return memory;
  }

  void Give(char* memory, size_t bytes) override {
    if (bytes > kBytes) {
      munmap(memory, Pages(bytes));
      return;
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      free_.push_back(memory);
    }
    freed_.notify_one();
  }

 private:
  // 32 MiB in all, as the paper's static blocks.
  static constexpr size_t kBytes = 2 << 20;
  static constexpr size_t kBuffers = 16;
  static constexpr size_t kMapped = (kBuffers + 1) * kBytes;

  std::mutex mutex_;
  std::condition_variable freed_;
  char* mapped_ = nullptr;
  bool open_ = false;
  std::vector<char*> free_;
};

// Memory that is mapped and pinned for each request, and unmapped after it.
class EachSource : public BufferSource {
 public:
  char* Take(size_t bytes, std::string* why) override { return MapLocked(bytes, why); }
  void Give(char* memory, size_t bytes) override { munmap(memory, Pages(bytes)); }
};

template <typename Source>
std::shared_ptr<BufferSource> OpenIfReady(std::string* why) {
  auto source = std::make_shared<Source>(why);
  return source->is_open() ? source : nullptr;
}

}  // namespace

std::shared_ptr<BufferSource> BufferSource::Open(const std::string& method, std::string* why) {
  if (method == "pool") {
    return OpenIfReady<PoolSource>(why);
  }
  if (method == "static") {
    return OpenIfReady<StaticSource>(why);
  }
  if (method == "each") {
    return std::make_shared<EachSource>();
  }
  *why = "unknown memory \"" + method + "\": headwater://pool, headwater://static or headwater://each";
  return nullptr;
}

}  // namespace headwater
