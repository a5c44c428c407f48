// SPDX-License-Identifier: GPL-2.0-or-later
// The one writer of a run's journal: an append-only file of JSON lines (docs/journal.md).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace kz {

// The host failed us: no space, no permission, another runner holds the run. The run cannot go on.
class JournalError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class JournalWriter {
 public:
  enum class Mode { create, append };
  // Takes the lock of the run's folder (another holder: JournalError) and opens `directory`/journal.jsonl.
  // Appending cuts a torn last line off and goes on with its sequence. `create` refuses a journal that
  // exists.
  JournalWriter(const std::string& directory, Mode mode);
  JournalWriter(const JournalWriter&) = delete;
  JournalWriter& operator=(const JournalWriter&) = delete;
  ~JournalWriter();

  // Adds "v", "boot", "mono", "wall" and "seq" to the record and writes it as one line; one longer than
  // readers take (max_journal_line) is cut and says so. `durable`: returns only when it is on disk. After a
  // failure nothing more is written: what is on disk stays readable.
  void write(nlohmann::json record, bool durable = false);
  bool failed() const { return failed_; }
  bool was_torn() const { return torn_; }  // when it was opened to append
  // After a failure: one last short record, for which room was kept. Does what it can, throws nothing.
  void last_words(nlohmann::json record) noexcept;
  // Records written, earlier ones of an appended journal included.
  uint64_t records() const { return seq_; }
  const std::string& path() const { return path_; }
  const std::string& boot() const { return boot_; }  // the id that this boot's records carry

 private:
  struct File {
    int fd = -1;
    ~File();
  };
  void lock_or_throw(int fd, const std::string& directory);
  void take_lock(const std::string& directory);
  void cut_torn_line();
  void keep_room(uint64_t bytes);
  std::string finished_line(nlohmann::json record) const;
  void put(const std::string& line);
  [[noreturn]] void fail(const std::string& what, int err);

  std::string path_, boot_;
  File lock_, file_;
  uint64_t seq_ = 0;
  uint64_t end_ = 0;   // bytes of whole lines
  uint64_t room_ = 0;  // bytes that the file system has set aside, beyond the end too
  bool failed_ = false, torn_ = false;
};

// Returns once the names in `directory` would outlive a crash. Throws JournalError.
void sync_folder(const std::string& directory);

inline constexpr int journal_version = 1;

}  // namespace kz
