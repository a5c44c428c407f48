// SPDX-License-Identifier: GPL-2.0-or-later
// Every sysfs and debugfs file of the device: read, written with nonsense, and read while the device comes,
// goes and is reset. What a file says may be an error; nothing may hang, and nothing may make the kernel
// speak.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "tests/harness/test.h"
#include "tests/kmod/device_files.h"
#include "tests/kmod/findings.h"
#include "tests/kmod/load.h"
#include "tests/kmod/target.h"
#include "tests/kmod/text_file.h"
#include "tests/kmod/user.h"

namespace kz::test {
namespace {

constexpr auto file_limit = std::chrono::seconds(10);

void hung(const std::string& file, const Outcome& o) {
  evidence(ev::driver, {{"what", "hangs"}, {"step", file}, {"stack", o.hang}});
  ADD_FAILURE() << file << " does not answer within 10 s: " << o.hang;
}

// One process for all of them; which one it is at stands in shared memory.
Outcome for_each_file(const std::vector<std::string>& files, std::chrono::nanoseconds budget, std::string& at,
                      const std::function<void(const std::string&)>& act) {
  void* p = ::mmap(nullptr, sizeof(size_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* index = new (p) size_t(0);
  Outcome out = bounded(budget, [&] {
    for (*index = 0; *index < files.size(); ++*index) act(files[*index]);
    return 0;
  });
  at = *index < files.size() ? files[*index] : "";
  ::munmap(p, sizeof(size_t));
  return out;
}

bool can_write(const std::string& file) {
  struct stat s {};
  return ::stat(file.c_str(), &s) == 0 && (s.st_mode & 0222) != 0;
}

}  // namespace

KZ_TEST(kmod_files, read_all,
        {.meaning = "every file of the device can be read whole, twice, and in single bytes, without hanging",
         .level = 1,
         .labels = {"kernel", "root"},
         .limit = 120s}) {
  const Target t = find_target();
  auto files = device_files(t);
  std::erase_if(files, [](auto& f) { return is_dangerous_to_read(f); });
  std::string at;
  const Outcome o = for_each_file(files, 60s, at, [](const std::string& f) {
    for (int i = 0; i < 2; ++i) text_file(f);
    Fd fd(::open(f.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    char byte = 0;
    for (int i = 0; fd && i < 64 && ::read(fd.get(), &byte, 1) == 1; ++i) {
    }
    // An offset that no file has.
    if (fd && ::pread(fd.get(), &byte, 1, 0x7fffffffffffff00) > 0) ::abort();
  });
  metric("kmod.files_read", static_cast<double>(files.size()), "files");
  if (!o.in_time) hung(at.empty() ? "a file" : at, o);
  EXPECT_GT(files.size(), 10u);
}

KZ_TEST(kmod_files, nonsense,
        {.meaning =
             "nonsense written to every file that takes values is refused or harmless; values are given back",
         .level = 4,
         .labels = takes_driver_away(),
         .limit = 180s}) {
  const Target t = find_target();
  GiveBack back(t);
  expect_log(t.slot);
  expect_log(t.driver);
  std::vector<std::string> files;
  for (auto& f : device_files(t))
    if (can_write(f) && !is_dangerous_to_write(f)) files.push_back(f);
  const std::vector<std::string> nonsense{
      "",     "\n",        "-1\n",     "99999999999999999999999\n", "banana\n",          "0x\n",
      "%s%n", "1 2 3 4\n", "\xff\xfe", std::string(4095, 'A'),      std::string(3, '\0')};
  before_danger("write nonsense to " + std::to_string(files.size()) + " files of the device");
  std::string at;
  const Outcome o = for_each_file(files, 120s, at, [&](const std::string& f) {
    const std::string before = value_of(f);
    for (auto& n : nonsense) write_file(f, n);
    if (!before.empty()) write_file(f, before + "\n");
  });
  if (!o.in_time) hung(at.empty() ? "a file" : at, o);
  metric("kmod.files_written", static_cast<double>(files.size()), "files");
  expect_works(t, "after nonsense in its files");
}

KZ_TEST(kmod_files, while_it_comes_and_goes,
        {.meaning = "files are read, and kept open, while the device is unbound, bound and reset",
         .level = 4,
         .labels = takes_driver_away(),
         .limit = 240s,
         .scaled = true}) {
  const Target t = find_target();
  GiveBack back(t);
  expect_log(t.slot);
  std::vector<std::string> files;
  for (auto& f : device_files(t))
    if (!is_dangerous_to_read(f)) files.push_back(f);
  OtherUser reader([&](const OtherUser::Link& link) {
    link.ready();
    while (!link.told_to_end())
      for (auto& f : files) {
        text_file(f);
        ++link.seen()->submitted;
        if (link.told_to_end()) return;
      }
  });
  // Keeps all of them open over a removal and reads again then.
  OtherUser keeper([&](const OtherUser::Link& link) {
    link.ready();
    while (!link.told_to_end()) {
      std::vector<Fd> open;
      for (auto& f : files)
        if (open.size() < 400) open.emplace_back(::open(f.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
      for (int i = 0; i < 10; ++i)
        for (auto& fd : open) {
          char chunk[256];
          if (fd && ::pread(fd.get(), chunk, sizeof chunk, 0) >= 0) ++link.seen()->ended_well;
        }
    }
  });
  ASSERT_TRUE(reader.wait_ready());
  ASSERT_TRUE(keeper.wait_ready());
  before_danger("unbind, bind and reset while the device's files are read");
  for (int i = 0; i < static_cast<int>(10 * scale()); ++i) {
    ASSERT_EQ(t.unbind(), 0);
    ::poll(nullptr, 0, static_cast<int>(rng()() % 30));
    ASSERT_EQ(t.bind(), 0);
    ASSERT_TRUE(t.wait_ready(10s));
    if (!t.ours()) continue;
    Fd fd(User::open_node(t.node));
    const int rc = in_time("reset beside readers", 30s, [&] {
      kz_ioc_reset r{};
      r.kind = KZ_RESET_KIND_FUNCTION;
      return call(fd.get(), KZ_IOC_RESET, r);
    });
    EXPECT_TRUE(rc == 0 || rc == -EOPNOTSUPP) << rc;
  }
  for (auto* u : {&reader, &keeper})
    if (!u->end(30)) {
      evidence(ev::driver, {{"what", "hangs"}, {"step", "a reader of files"}, {"stack", u->where()}});
      ADD_FAILURE() << "a reader of the device's files hangs: " << u->where();
    }
  metric("kmod.reads_raced", static_cast<double>(reader.seen().submitted + keeper.seen().ended_well),
         "reads");
}

}  // namespace kz::test
