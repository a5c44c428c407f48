// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/journal/writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

namespace kz {
namespace {

std::string boot_id() {
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(in, id);
  return id.empty() ? "unknown" : id;
}

uint64_t monotonic_ns() {
  timespec t;
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
}

std::string wall_clock() {  // RFC 3339, UTC
  timespec t;
  ::clock_gettime(CLOCK_REALTIME, &t);
  tm utc;
  ::gmtime_r(&t.tv_sec, &utc);
  char text[32];
  ::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
  return fmt::format("{}.{:09}Z", text, t.tv_nsec);
}

}  // namespace

JournalWriter::JournalWriter(const std::string& directory, Mode mode)
    : path_(directory + "/journal.jsonl"), boot_(boot_id()) {
  lock_ = ::open((directory + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock_ < 0) fail("open lock of " + directory, errno);
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    int err = errno;
    ::close(lock_);
    throw JournalError(err == EWOULDBLOCK ? "another runner works on " + directory + "; wait for it or end it"
                                          : fmt::format("lock {}: {}", directory, std::strerror(err)));
  }
  int flags = O_RDWR | O_APPEND | O_CLOEXEC | (mode == Mode::create ? O_CREAT | O_EXCL : 0);
  fd_ = ::open(path_.c_str(), flags, 0644);
  if (fd_ < 0) {
    int err = errno;
    ::close(lock_);
    throw JournalError(fmt::format("open {}: {}", path_, std::strerror(err)));
  }
  if (mode == Mode::append) cut_torn_line();
}

JournalWriter::~JournalWriter() {
  if (fd_ >= 0) ::close(fd_);
  if (lock_ >= 0) ::close(lock_);
}

// Finds the end of the last whole line and the last sequence number.
void JournalWriter::cut_torn_line() {
  std::ifstream in(path_, std::ios::binary);
  std::string line;
  uint64_t at = 0;
  while (std::getline(in, line)) {
    if (in.eof()) break;  // no newline: torn
    at += line.size() + 1;
    auto record = nlohmann::json::parse(line, nullptr, false);
    if (record.is_object() && record.contains("seq") && record["seq"].is_number_unsigned())
      seq_ = std::max(seq_, record["seq"].get<uint64_t>() + 1);
  }
  end_ = at;
  if (::ftruncate(fd_, static_cast<off_t>(at)) != 0) fail("cut the torn line of " + path_, errno);
}

void JournalWriter::fail(const std::string& what, int err) {
  failed_ = true;
  throw JournalError(fmt::format(
      "{}: {}{}", what, std::strerror(err),
      err == ENOSPC || err == EDQUOT || err == EFBIG ? "; make room and use 'kangzao resume'" : ""));
}

void JournalWriter::write(nlohmann::json record, bool durable) {
  if (failed_) throw JournalError("the journal failed before: " + path_);
  record["v"] = journal_version;
  record["boot"] = boot_;
  record["mono"] = monotonic_ns();
  record["wall"] = wall_clock();
  record["seq"] = seq_;
  // Bytes that are no UTF-8 (a kernel log, a dying test) must not stop the journal.
  std::string line = record.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  for (size_t at = 0; at < line.size();) {
    ssize_t n = ::write(fd_, line.data() + at, line.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      int err = errno;
      // Half a line helps nobody; if even that cannot be undone the reader drops it.
      if (at > 0 && ::ftruncate(fd_, static_cast<off_t>(end_)) != 0) err = errno;
      fail("write " + path_, err);
    }
    at += static_cast<size_t>(n);
  }
  ++seq_;
  end_ += line.size();
  if (durable && ::fdatasync(fd_) != 0) fail("sync " + path_, errno);
}

}  // namespace kz
