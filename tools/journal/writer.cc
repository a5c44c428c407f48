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

#include "tools/journal/reader.h"

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

// Keeps what tells the record apart and the beginning of its texts.
nlohmann::json cut(const nlohmann::json& record) {
  constexpr size_t most_text = 4096, most_structure = 64 << 10;
  nlohmann::json out = {{"cut", true}};
  for (auto& [key, value] : record.items()) {
    std::string text = value.is_string() ? value.get<std::string>() : "";
    if (text.size() > most_text)
      out[key] = text.substr(0, most_text);
    else if (!value.is_structured() ||
             value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).size() <= most_structure)
      out[key] = value;
  }
  return out;
}

std::string line_of(const nlohmann::json& record) {
  // Bytes that are no UTF-8 (a kernel log, a dying test) must not stop the journal.
  return record.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace

JournalWriter::File::~File() {
  if (fd >= 0) ::close(fd);
}

JournalWriter::JournalWriter(const std::string& directory, Mode mode)
    : path_(directory + "/journal.jsonl"), boot_(boot_id()) {
  take_lock(directory);
  int flags = O_RDWR | O_APPEND | O_CLOEXEC | (mode == Mode::create ? O_CREAT | O_EXCL : 0);
  file_.fd = ::open(path_.c_str(), flags, 0644);
  if (file_.fd < 0) fail("open " + path_, errno);
  lock_or_throw(file_.fd, directory);  // too: the other file can be deleted by somebody who tidies up
  if (mode == Mode::append)
    cut_torn_line();
  else
    sync_folder(directory);  // the name must outlive a crash too
}

void JournalWriter::take_lock(const std::string& directory) {
  lock_.fd = ::open((directory + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock_.fd < 0) fail("open lock of " + directory, errno);
  lock_or_throw(lock_.fd, directory);
}

void JournalWriter::lock_or_throw(int fd, const std::string& directory) {
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return;
  if (errno != EWOULDBLOCK) fail("lock " + directory, errno);
  throw JournalError("another runner works on " + directory + "; wait for it or end it");
}

// Finds the end of the last whole line and the last sequence number.
void JournalWriter::cut_torn_line() {
  std::string piece(64 << 10, '\0'), line;
  uint64_t at = 0;
  for (;;) {
    ssize_t n = ::pread(file_.fd, piece.data(), piece.size(), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("read " + path_, errno);  // only what was read to its end may be cut
    if (n == 0) break;
    for (std::string_view rest(piece.data(), static_cast<size_t>(n)); !rest.empty();) {
      auto newline = rest.find('\n');
      auto part = rest.substr(0, newline);
      if (line.size() <= max_journal_line) line += part;
      at += part.size();
      rest.remove_prefix(part.size());
      if (newline == std::string_view::npos) break;
      rest.remove_prefix(1);
      end_ = ++at;
      auto record = parse_record(line);
      line.clear();
      if (record.is_object() && record.contains("seq") && record["seq"].is_number_unsigned())
        seq_ = std::max(seq_, record["seq"].get<uint64_t>() + 1);
    }
  }
  torn_ = at != end_;
  if (::ftruncate(file_.fd, static_cast<off_t>(end_)) != 0) fail("cut the torn line of " + path_, errno);
}

void sync_folder(const std::string& directory) {
  int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  bool done = fd >= 0 && ::fsync(fd) == 0;
  int err = errno;
  if (fd >= 0) ::close(fd);
  if (!done) throw JournalError(fmt::format("sync {}: {}", directory, std::strerror(err)));
}

void JournalWriter::fail(const std::string& what, int err) {
  failed_ = true;
  throw JournalError(fmt::format("{}: {}{}", what, std::strerror(err),
                                 err != ENOSPC && err != EDQUOT && err != EFBIG ? ""
                                 : seq_ == 0 ? "; make room and start again"
                                             : "; make room and use 'kangzao resume'"));
}

// A disk that fills up is to be noticed while there is room left for the last words. File systems that cannot
// set room aside go without.
void JournalWriter::keep_room(uint64_t bytes) {
  constexpr uint64_t step = 256 << 10, last = 64 << 10;
  if (end_ + bytes + last <= room_) return;
  for (uint64_t spare : {last + step, last}) {
    if (::fallocate(file_.fd, FALLOC_FL_KEEP_SIZE, static_cast<off_t>(end_),
                    static_cast<off_t>(bytes + spare)) == 0) {
      room_ = end_ + bytes + spare;
      return;
    }
    if (errno == EINTR) return;  // the next record asks again
    if (errno != ENOSPC && errno != EDQUOT) {
      room_ = UINT64_MAX;
      return;
    }
  }
  fail("write " + path_, errno);
}

JournalWriter::~JournalWriter() {
  // Gives back what was set aside; the content stays.
  if (file_.fd >= 0 && room_ > 0 && ::ftruncate(file_.fd, static_cast<off_t>(end_)) != 0) room_ = 0;
}

void JournalWriter::last_words(nlohmann::json record) noexcept {
  // Behind half a line that could not be taken back it would spoil a second one.
  if (file_.fd < 0 || ::ftruncate(file_.fd, static_cast<off_t>(end_)) != 0) return;
  try {
    put(finished_line(std::move(record)));
    ::fdatasync(file_.fd);
  } catch (const std::exception&) {
    // What is on disk stays readable.
  }
}

std::string JournalWriter::finished_line(nlohmann::json record) const {
  record["v"] = journal_version;
  record["boot"] = boot_;
  record["mono"] = monotonic_ns();
  record["wall"] = wall_clock();
  record["seq"] = seq_;
  std::string line = line_of(record);
  return line.size() > max_journal_line ? line_of(cut(record)) : line;
}

void JournalWriter::write(nlohmann::json record, bool durable) {
  if (failed_) throw JournalError("the journal failed before: " + path_);
  std::string line = finished_line(std::move(record));
  keep_room(line.size());
  put(line);
  if (!durable) return;
  if (::fdatasync(file_.fd) != 0) fail("sync " + path_, errno);
  struct stat now{};
  if (::fstat(file_.fd, &now) != 0 || now.st_nlink > 0) return;
  failed_ = true;
  throw JournalError(path_ + ": somebody deleted it while the run wrote it, and what ran is lost; start again");
}

void JournalWriter::put(const std::string& line) {
  for (size_t at = 0; at < line.size();) {
    ssize_t n = ::write(file_.fd, line.data() + at, line.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      int err = errno;
      // Half a line helps nobody; if even that cannot be undone the reader drops it.
      if (at > 0 && ::ftruncate(file_.fd, static_cast<off_t>(end_)) != 0) err = errno;
      fail("write " + path_, err);
    }
    at += static_cast<size_t>(n);
  }
  ++seq_;
  end_ += line.size();
}

}  // namespace kz
