// A FileSystem whose tables are read and written past the page cache, through buffers of one method.
//
// Input: the URI "headwater://METHOD", with which db_bench and other programs of RocksDB name a file system.
// Output: files. Tables (*.sst) are opened with O_DIRECT; every other file, the log among them, is the default's.
// Invariant: to RocksDB the files take any offset and length, so that it brings no aligned buffers of its own.
//
// Loading the library registers the URI: LD_PRELOAD it into db_bench, or link it.

#include <fcntl.h>
#include <rocksdb/file_system.h>
#include <rocksdb/utilities/object_registry.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "buffers.h"

namespace headwater {
namespace {

using rocksdb::FileOptions;
using rocksdb::FileSystem;
using rocksdb::FSRandomAccessFile;
using rocksdb::FSWritableFile;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

constexpr char kScheme[] = "headwater://";

uint64_t Down(uint64_t offset) { return offset / kPage * kPage; }
uint64_t Up(uint64_t offset) { return Down(offset + kPage - 1); }

IOStatus Failed(const std::string& what, const std::string& path) {
  return IOStatus::IOError(what + " " + path, strerror(errno));
}

// A file descriptor that is closed at the end of its scope.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() { Close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int number() const { return number_; }

  bool Close() {
    const int number = number_;
    number_ = -1;
    return number < 0 || close(number) == 0;
  }

 private:
  int number_;
};

class DirectReader : public FSRandomAccessFile {
 public:
  DirectReader(std::string path, int descriptor, std::shared_ptr<BufferSource> source)
      : path_(std::move(path)), file_(descriptor), source_(std::move(source)) {}

  IOStatus Read(uint64_t offset, size_t bytes, const IOOptions&, Slice* result, char* scratch,
                IODebugContext*) const override {
    const uint64_t first = Down(offset);
    const size_t whole = static_cast<size_t>(Up(offset + bytes) - first);
    std::string why;
    HeldBuffer held(*source_, whole, &why);
    if (held.memory() == nullptr) {
      return IOStatus::IOError("no memory to read " + path_, why);
    }
    size_t done = 0;
    while (done < whole) {
      const ssize_t read = pread(file_.number(), held.memory() + done, whole - done,
                                 static_cast<off_t>(first + done));
      if (read < 0 && errno == EINTR) {
        continue;
      }
      if (read < 0) {
        return Failed("read", path_);
      }
      done += static_cast<size_t>(read);
      // A part of a page is only there at the end of the file.
      if (read == 0 || done % kPage != 0) {
        break;
      }
    }
    const size_t before = static_cast<size_t>(offset - first);
    const size_t found = done > before ? std::min(bytes, done - before) : 0;
    memcpy(scratch, held.memory() + before, found);
    *result = Slice(scratch, found);
    return IOStatus::OK();
  }

 private:
  const std::string path_;
  const Descriptor file_;
  const std::shared_ptr<BufferSource> source_;
};

// Appends go to the file in whole pages; the bytes of the last, incomplete page are kept and written again with it.
class DirectWriter : public FSWritableFile {
 public:
  DirectWriter(std::string path, int descriptor, std::shared_ptr<BufferSource> source)
      : path_(std::move(path)), file_(descriptor), source_(std::move(source)) {}

  // Bytes that were not synchronised are lost with an error as RocksDB expects it: the caller asked for no result.
  ~DirectWriter() override { Close(IOOptions(), nullptr); }

  using FSWritableFile::Append;
  IOStatus Append(const Slice& data, const IOOptions&, IODebugContext*) override {
    const size_t total = tail_.size() + data.size();
    const size_t whole = static_cast<size_t>(Down(total));
    if (whole == 0) {
      tail_.append(data.data(), data.size());
      return IOStatus::OK();
    }
    const size_t taken = whole - tail_.size();
    IOStatus written = Write(whole, Slice(data.data(), taken));
    if (written.ok()) {
      start_ += whole;
      tail_.assign(data.data() + taken, data.size() - taken);
    }
    return written;
  }

  IOStatus Flush(const IOOptions&, IODebugContext*) override { return IOStatus::OK(); }

  IOStatus Sync(const IOOptions&, IODebugContext*) override {
    IOStatus written = WriteTail();
    if (written.ok() && fdatasync(file_.number()) != 0) {
      written = Failed("synchronise", path_);
    }
    return written;
  }

  IOStatus Close(const IOOptions&, IODebugContext*) override {
    if (file_.number() < 0) {
      return IOStatus::OK();
    }
    IOStatus written = WriteTail();
    if (!file_.Close() && written.ok()) {
      written = Failed("close", path_);
    }
    return written;
  }

  IOStatus Truncate(uint64_t size, const IOOptions&, IODebugContext*) override {
    return size == start_ + tail_.size() ? IOStatus::OK()
                                         : IOStatus::NotSupported("a table cannot be shortened: " + path_);
  }

  uint64_t GetFileSize(const IOOptions&, IODebugContext*) override { return start_ + tail_.size(); }

 private:
  // Writes `whole` bytes at the start of the tail: the tail, `more`, and zeroes.
  IOStatus Write(size_t whole, const Slice& more) {
    std::string why;
    HeldBuffer held(*source_, whole, &why);
    if (held.memory() == nullptr) {
      return IOStatus::IOError("no memory to write " + path_, why);
    }
    const size_t filled = tail_.size() + more.size();
    memcpy(held.memory(), tail_.data(), tail_.size());
    memcpy(held.memory() + tail_.size(), more.data(), more.size());
    memset(held.memory() + filled, 0, whole - filled);
    size_t done = 0;
    while (done < whole) {
      const ssize_t wrote = pwrite(file_.number(), held.memory() + done, whole - done,
                                   static_cast<off_t>(start_ + done));
      if (wrote < 0 && errno == EINTR) {
        continue;
      }
      if (wrote <= 0) {
        return Failed("write", path_);
      }
      done += static_cast<size_t>(wrote);
    }
    return IOStatus::OK();
  }

  // Writes the incomplete page, and cuts the file behind its bytes.
  IOStatus WriteTail() {
    if (tail_.empty()) {
      return IOStatus::OK();
    }
    IOStatus written = Write(kPage, Slice());
    if (written.ok() && ftruncate(file_.number(), static_cast<off_t>(start_ + tail_.size())) != 0) {
      written = Failed("set the length of", path_);
    }
    return written;
  }

  const std::string path_;
  Descriptor file_;
  const std::shared_ptr<BufferSource> source_;
  // Offset of the tail in the file: all pages before it are written.
  uint64_t start_ = 0;
  std::string tail_;
};

class HeadwaterFileSystem : public rocksdb::FileSystemWrapper {
 public:
  HeadwaterFileSystem(std::string method, std::shared_ptr<BufferSource> source)
      : FileSystemWrapper(FileSystem::Default()), method_(std::move(method)), source_(std::move(source)) {}

  const char* Name() const override { return "HeadwaterFileSystem"; }
  std::string GetId() const override { return kScheme + method_; }

  IOStatus NewRandomAccessFile(const std::string& path, const FileOptions& options,
                               std::unique_ptr<FSRandomAccessFile>* result, IODebugContext* debug) override {
    if (!IsTable(path)) {
      return target()->NewRandomAccessFile(path, options, result, debug);
    }
    const int descriptor = open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (descriptor < 0) {
      return errno == ENOENT ? IOStatus::PathNotFound(path) : Failed("open", path);
    }
    result->reset(new DirectReader(path, descriptor, source_));
    return IOStatus::OK();
  }

  IOStatus NewWritableFile(const std::string& path, const FileOptions& options,
                           std::unique_ptr<FSWritableFile>* result, IODebugContext* debug) override {
    if (!IsTable(path)) {
      return target()->NewWritableFile(path, options, result, debug);
    }
    const int descriptor = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0644);
    if (descriptor < 0) {
      return Failed("create", path);
    }
    result->reset(new DirectWriter(path, descriptor, source_));
    return IOStatus::OK();
  }

 private:
  static bool IsTable(const std::string& path) {
    const std::string ending = ".sst";
    return path.size() >= ending.size() && path.compare(path.size() - ending.size(), ending.size(), ending) == 0;
  }

  const std::string method_;
  const std::shared_ptr<BufferSource> source_;
};

FileSystem* Create(const std::string& uri, std::unique_ptr<FileSystem>* guard, std::string* why) {
  const std::string method = uri.substr(strlen(kScheme));
  auto source = BufferSource::Open(method, why);
  if (source != nullptr) {
    guard->reset(new HeadwaterFileSystem(method, source));
  }
  return guard->get();
}

// Registers the URI when the library is loaded.
const bool kRegistered = [] {
  auto pattern = rocksdb::ObjectLibrary::PatternEntry("headwater", false);
  pattern.AddSeparator("://");
  rocksdb::ObjectLibrary::Default()->AddFactory<FileSystem>(pattern, Create);
  return true;
}();

}  // namespace
}  // namespace headwater
