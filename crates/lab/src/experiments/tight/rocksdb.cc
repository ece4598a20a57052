// RocksDB as the baseline of the experiment `tight`.
//
// Arguments: folder, keys, bytes of a value, bytes of memory, threads.
// Input: commands on standard input, one a line: "load" stores every key once; "run FILE" carries out the operations of
// a file of 32-bit little-endian numbers, key and in bit 31 "is an update".
// Output: a line for each command: "ok SECONDS CPU_SECONDS READ_BYTES", after background work has ended, or "failed TEXT".
//
// Memory is one cache, to which memtables, indexes and filters are charged too. Reads and compactions bypass the page
// cache, so the machine's memory is not used beside it. Writes go to the log without a sync, as `on-flush` does.

#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/table.h>
#include <rocksdb/write_buffer_manager.h>

#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr uint32_t kUpdate = 1u << 31;
// Operations that a thread takes at a time.
constexpr size_t kPart = 64;

std::string KeyOf(uint32_t number) {
  char text[32];
  snprintf(text, sizeof text, "key:%012u", number);
  return std::string(text, 16);
}

double CpuSeconds() {
  rusage used;
  getrusage(RUSAGE_SELF, &used);
  auto seconds = [](const timeval& time) { return time.tv_sec + time.tv_usec / 1e6; };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

// Bytes that no compression shortens.
std::string ValueOf(size_t bytes) {
  std::string value(bytes, 0);
  uint64_t state = 88172645463325252ull;
  for (char& byte : value) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    byte = static_cast<char>(state);
  }
  return value;
}

class Driver {
 public:
  Driver(const char* folder, uint32_t keys, size_t value_bytes, size_t memory_bytes, size_t threads)
      : keys_(keys), threads_(threads), value_(ValueOf(value_bytes)) {
    rocksdb::Options options;
    options.create_if_missing = true;
    options.compression = rocksdb::kNoCompression;
    options.use_direct_reads = true;
    options.use_direct_io_for_flush_and_compaction = true;
    options.max_background_jobs = 2;
    auto cache = rocksdb::NewLRUCache(memory_bytes);
    options.write_buffer_size = memory_bytes / 8;
    options.write_buffer_manager = std::make_shared<rocksdb::WriteBufferManager>(memory_bytes / 4, cache);
    rocksdb::BlockBasedTableOptions table;
    table.block_cache = cache;
    table.cache_index_and_filter_blocks = true;
    table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
    options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
    rocksdb::DB* db = nullptr;
    status_ = rocksdb::DB::Open(options, folder, &db);
    db_.reset(db);
  }

  const rocksdb::Status& status() const { return status_; }

  // Stores every key once, in an order without runs.
  void Load() {
    std::vector<uint32_t> operations(keys_);
    for (uint32_t at = 0; at < keys_; ++at) {
      operations[at] = static_cast<uint32_t>(static_cast<uint64_t>(at) * 2654435761u % keys_) | kUpdate;
    }
    Run(operations);
  }

  void Run(const std::vector<uint32_t>& operations) {
    std::atomic<size_t> next{0};
    std::atomic<uint64_t> read_bytes{0};
    std::vector<rocksdb::Status> results(threads_);
    const double cpu = CpuSeconds();
    const auto begun = std::chrono::steady_clock::now();
    std::vector<std::thread> threads;
    for (size_t thread = 0; thread < threads_; ++thread) {
      threads.emplace_back([&, thread] { results[thread] = RunParts(operations, next, read_bytes); });
    }
    for (auto& thread : threads) {
      thread.join();
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
    const double cpu_used = CpuSeconds() - cpu;
    Settle();
    for (const auto& result : results) {
      if (!result.ok()) {
        printf("failed %s\n", result.ToString().c_str());
        return;
      }
    }
    printf("ok %.6f %.6f %llu\n", took.count(), cpu_used, static_cast<unsigned long long>(read_bytes));
  }

 private:
  rocksdb::Status RunParts(const std::vector<uint32_t>& operations, std::atomic<size_t>& next,
                           std::atomic<uint64_t>& read_bytes) {
    rocksdb::PinnableSlice found;
    uint64_t bytes = 0;
    while (true) {
      const size_t first = next.fetch_add(kPart);
      if (first >= operations.size()) {
        read_bytes += bytes;
        return rocksdb::Status::OK();
      }
      const size_t end = std::min(operations.size(), first + kPart);
      for (size_t at = first; at < end; ++at) {
        const std::string key = KeyOf(operations[at] & ~kUpdate);
        rocksdb::Status status;
        if (operations[at] & kUpdate) {
          status = db_->Put(rocksdb::WriteOptions(), key, value_);
        } else {
          status = db_->Get(rocksdb::ReadOptions(), db_->DefaultColumnFamily(), key, &found);
          bytes += found.size();
          found.Reset();
        }
        if (!status.ok()) {
          return status;
        }
      }
    }
  }

  // Waits until no flush and no compaction runs, so that they do not run while another program is measured.
  void Settle() {
    const char* names[] = {"rocksdb.mem-table-flush-pending", "rocksdb.num-running-flushes",
                           "rocksdb.compaction-pending", "rocksdb.num-running-compactions"};
    for (int turn = 0; turn < 10000; ++turn) {
      uint64_t sum = 0;
      for (const char* name : names) {
        uint64_t value = 0;
        db_->GetIntProperty(name, &value);
        sum += value;
      }
      if (sum == 0) {
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }

  const uint32_t keys_;
  const size_t threads_;
  const std::string value_;
  rocksdb::Status status_;
  std::unique_ptr<rocksdb::DB> db_;
};

std::vector<uint32_t> ReadOperations(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  std::vector<uint32_t> operations(file ? static_cast<size_t>(file.tellg()) / 4 : 0);
  file.seekg(0);
  file.read(reinterpret_cast<char*>(operations.data()), static_cast<std::streamsize>(operations.size() * 4));
  return operations;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 6) {
    fprintf(stderr, "usage: %s FOLDER KEYS VALUE_BYTES MEMORY_BYTES THREADS\n", arguments[0]);
    return 2;
  }
  setvbuf(stdout, nullptr, _IOLBF, 0);
  Driver driver(arguments[1], static_cast<uint32_t>(std::stoul(arguments[2])), std::stoul(arguments[3]),
                std::stoul(arguments[4]), std::stoul(arguments[5]));
  if (!driver.status().ok()) {
    printf("failed %s\n", driver.status().ToString().c_str());
    return 1;
  }
  printf("ok RocksDB %d.%d.%d\n", ROCKSDB_MAJOR, ROCKSDB_MINOR, ROCKSDB_PATCH);
  std::string line;
  while (std::getline(std::cin, line)) {
    if (line == "load") {
      driver.Load();
    } else if (line.rfind("run ", 0) == 0) {
      driver.Run(ReadOperations(line.substr(4)));
    } else {
      printf("failed unknown command\n");
    }
  }
  return 0;
}
