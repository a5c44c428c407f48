// SPDX-License-Identifier: GPL-2.0-or-later
// Who may what: nodes and files of the device, capabilities, locked memory, memory of others, and whether
// what the sensors say is what the device says.
#include <fmt/format.h>
#include <grp.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "tests/harness/test.h"
#include "tests/kmod/device_files.h"
#include "tests/kmod/findings.h"
#include "tests/kmod/load.h"
#include "tests/kmod/target.h"
#include "tests/kmod/text_file.h"
#include "tests/kmod/user.h"

namespace kz::test {
namespace fs = std::filesystem;
namespace {

struct Verdicts {
  int reset = 1, firmware = 1, ecc = 1, reg = 1, hbm = 1, queue = 1, query = 1, map = 1, open = 1, own = -1;
};

// As an ordinary user with a file that somebody opened for him.
Verdicts try_unprivileged(User& user, const std::string& node) {
  Verdicts v;
  if (::setgroups(0, nullptr) != 0 || ::setresgid(1000, 1000, 1000) != 0 ||
      ::setresuid(1000, 1000, 1000) != 0)
    return v;
  kz_ioc_reset r{};
  r.kind = KZ_RESET_KIND_FUNCTION;
  v.reset = call(user.fd(), KZ_IOC_RESET, r);
  kz_ioc_fw f{};
  v.firmware = call(user.fd(), KZ_IOC_FW_UPDATE, f);
  kz_ioc_ecc e{};
  v.ecc = call(user.fd(), KZ_IOC_ECC_INJECT, e);
  kz_ioc_reg w{};
  w.offset = 0x7c;
  v.reg = call(user.fd(), KZ_IOC_REG_WRITE, w);
  kz_ioc_hbm h{};
  h.len = 65536;
  v.hbm = call(user.fd(), KZ_IOC_HBM_ALLOC, h);
  h = {};
  h.ctx = user.ctx;
  h.addr = user.hbm;
  v.query = call(user.fd(), KZ_IOC_HBM_QUERY, h);
  kz_ioc_queue q{};
  q.order = 3;
  v.queue = call(user.fd(), KZ_IOC_QUEUE_CREATE, q);
  void* p = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, user.fd(), 0);
  v.map = p == MAP_FAILED ? -errno : 0;
  v.open = User::open_node(node);
  v.own = user.run(user.copies(1)[0]);
  return v;
}

}  // namespace

KZ_TEST(kmod_rights, files,
        {.meaning = "no node, sysfs or debugfs file of the device can be written by everybody",
         .level = 4,
         .labels = takes_driver_away(),
         .limit = 60s}) {
  const Target t = find_target();
  if (t.ours()) {
    struct stat s {};
    ASSERT_EQ(::stat(t.node.c_str(), &s), 0);
    if ((s.st_mode & 07) != 0)
      wrong("rights", fmt::format("{} has mode {:o}: everybody may use it", t.node, s.st_mode & 07777));
  }
  if (!t.ours())
    for (auto& node : nodes_of(t)) {
      struct stat s {};
      if (::stat(node.c_str(), &s) == 0 && (s.st_mode & S_IWOTH) != 0)
        warn(fmt::format("{} has mode {:o}: everybody may use it", node, s.st_mode & 07777));
    }
  unsigned looked = 0;
  for (auto& file : device_files(t)) {
    struct stat s {};
    if (::lstat(file.c_str(), &s) != 0 || S_ISLNK(s.st_mode)) continue;
    ++looked;
    if ((s.st_mode & S_IWOTH) != 0)
      wrong("rights", fmt::format("{} has mode {:o}: everybody may write it", file, s.st_mode & 07777));
  }
  metric("kmod.files_looked_at", looked, "files");
  struct stat root {};
  if (::stat("/sys/kernel/debug", &root) == 0 && (root.st_mode & 07) != 0)
    warn("debugfs itself is open to everybody; that is the host's doing");
}

KZ_TEST(kmod_rights, capabilities,
        {.meaning = "what needs CAP_SYS_ADMIN is refused to others, what does not is allowed",
         .level = 4,
         .labels = takes_driver_away(),
         .limit = 60s}) {
  const Target t = find_target();
  need_our_calls(t);
  Verdicts v;
  void* shared = ::mmap(nullptr, sizeof v, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  OtherUser other([&](const OtherUser::Link& link) {
    User user(t.node);
    *static_cast<Verdicts*>(shared) = try_unprivileged(user, t.node);
    link.ready();
  });
  const bool done = other.wait_ready(30);
  v = *static_cast<Verdicts*>(shared);
  ::munmap(shared, sizeof v);
  ASSERT_TRUE(done) << "the ordinary user hangs or failed: " << other.seen().text;
  const std::pair<const char*, int> forbidden[] = {
      {"RESET", v.reset},     {"FW_UPDATE", v.firmware},         {"ECC_INJECT", v.ecc},
      {"REG_WRITE", v.reg},   {"HBM_ALLOC in context 0", v.hbm}, {"QUEUE_CREATE in context 0", v.queue},
      {"HBM_QUERY", v.query}, {"mmap of physical HBM", v.map}};
  for (auto& [what, rc] : forbidden)
    if (rc != -EPERM && rc != -EACCES)
      wrong("rights", fmt::format("{} by an ordinary user ended with {}, wanted EPERM", what, rc));
  if (v.open >= 0) wrong("rights", "an ordinary user may open " + t.node);
  EXPECT_EQ(v.own, KZ_ST_OK) << "an ordinary user cannot use what was opened for him";
}

KZ_TEST(kmod_rights, locked_memory,
        {.meaning = "nobody pins more than RLIMIT_MEMLOCK, in one buffer or in many, and pins are given back",
         .level = 4,
         .labels = takes_driver_away(),
         .limit = 60s}) {
  const Target t = find_target();
  need_our_calls(t);
  struct Result {
    int one = 0, many = 0;
    uint64_t pinned = 0, after = 0, limit = 4 << 20;
  };
  void* shared = ::mmap(nullptr, sizeof(Result), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto* result = new (shared) Result;
  OtherUser other([&](const OtherUser::Link& link) {
    Fd fd(User::open_node(t.node));
    const size_t room = 16 << 20;
    char* p =
        static_cast<char*>(::mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    rlimit limit{result->limit, result->limit};
    if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || ::setgroups(0, nullptr) != 0 ||
        ::setresgid(1000, 1000, 1000) != 0 || ::setresuid(1000, 1000, 1000) != 0)
      return;
    const auto pin = [&](uint64_t offset, uint64_t len) {
      kz_ioc_buf b{};
      b.flags = KZ_BUF_DEVICE_READS | KZ_BUF_DEVICE_WRITES;
      b.addr = reinterpret_cast<uintptr_t>(p) + offset;
      b.len = len;
      int rc = call(fd.get(), KZ_IOC_BUF_REGISTER, b);
      if (rc == 0) result->pinned += len;
      return std::pair(rc, b.handle);
    };
    result->one = pin(0, 8 << 20).first;
    std::vector<uint32_t> handles;
    for (uint64_t at = 0; at < room && result->many == 0; at += 1 << 20) {
      auto [rc, handle] = pin(at, 1 << 20);
      result->many = rc;
      if (rc == 0) handles.push_back(handle);
    }
    for (auto h : handles) {
      kz_ioc_buf b{};
      b.handle = h;
      call(fd.get(), KZ_IOC_BUF_UNREGISTER, b);
    }
    kz_info info{};
    call(fd.get(), KZ_IOC_INFO, info);
    result->after = info.pinned;
    link.ready();
  });
  const bool done = other.wait_ready(30);
  const Result r = *result;
  ::munmap(shared, sizeof(Result));
  ASSERT_TRUE(done) << "the ordinary user hangs or failed: " << other.seen().text;
  if (r.one != -ENOMEM)
    wrong("memlock", fmt::format("a buffer of twice RLIMIT_MEMLOCK: {}, wanted ENOMEM", r.one));
  if (r.pinned > r.limit)
    wrong("memlock", fmt::format("{} bytes pinned with a limit of {}", r.pinned, r.limit));
  EXPECT_EQ(r.many, -ENOMEM);
  EXPECT_EQ(r.after, 0u) << "pinned after everything was unregistered";
}

// Level 2: whoever runs one task reads it. Before the tests that leave contexts behind, since a driver that
// keeps them must be told for what the next owner reads, not for a device that is still taken.
KZ_TEST(kmod_rights, memory_of_others,
        {.meaning = "device memory that a new owner gets is zero, after a close, a kill and a free",
         .level = 2,
         .labels = takes_driver_away(),
         .limit = 90s}) {
  const Target t = find_target();
  need_our_calls(t);
  const auto mark = [&](User& user) {
    std::memset(user.bytes(), 0xa5, User::buffer_bytes);
    for (uint64_t at = 0; at < User::hbm_bytes; at += User::buffer_bytes)
      if (user.run(copy_command(user.hbm + at, KZ_SP_HBM, user.host, KZ_SP_HOST, User::buffer_bytes)) !=
          KZ_ST_OK)
        throw Error({Errc::status, "write", "HBM", "a copy failed", "", 0});
  };
  const auto look = [&](const char* after) {
    User user(t.node);
    uint64_t dirty = 0;
    for (uint64_t at = 0; at < User::hbm_bytes; at += User::buffer_bytes) {
      ASSERT_EQ(user.run(copy_command(user.host, KZ_SP_HOST, user.hbm + at, KZ_SP_HBM, User::buffer_bytes)),
                KZ_ST_OK);
      dirty += static_cast<uint64_t>(
          std::count_if(user.bytes(), user.bytes() + User::buffer_bytes, [](char c) { return c != 0; }));
    }
    if (dirty == 0) return;
    evidence(ev::hbm_not_cleared, {{"after", "context"}, {"pattern", "the last owner's"}});
    wrong("not_cleared", fmt::format("{} bytes of the last owner can be read after his {}", dirty, after));
  };
  for (int round = 0; round < 3; ++round) {
    {
      User user(t.node);
      mark(user);
    }
    look("close");
    OtherUser other([&](const OtherUser::Link& link) {
      User user(t.node);
      mark(user);
      link.ready();
      link.wait_for_end();
    });
    ASSERT_TRUE(other.wait_ready()) << other.seen().text;
    other.kill();
    look("death");
  }
}

KZ_TEST(kmod_rights, sensors,
        {.meaning = "hwmon says in its own units what the device's telemetry says in its",
         .level = 1,
         .labels = {"kernel", "root"},
         .limit = 30s}) {
  const Target t = find_target();
  const std::string folder = hwmon_folder(t);
  if (folder.empty()) skip("the driver offers no hwmon, or this kernel has none");
  // Documentation/hwmon/sysfs-interface.rst: millidegrees, microwatts, millivolts, milliamperes, rpm.
  struct Plausible {
    const char *prefix, *what;
    double least, most;
  };
  static constexpr Plausible ranges[] = {{"temp", "millidegrees Celsius", -40e3, 150e3},
                                         {"power", "microwatts", 0.1e6, 2000e6},
                                         {"fan", "revolutions a minute", 0, 60e3},
                                         {"in", "millivolts", 0, 60e3},
                                         {"curr", "milliamperes", 0, 1e6}};
  std::error_code ec;
  for (auto& e : fs::directory_iterator(folder, ec)) {
    const std::string name = e.path().filename();
    if (!name.ends_with("_input")) continue;
    const std::string text = value_of(e.path());
    if (text.empty()) continue;
    const double value = std::atof(text.c_str());
    for (auto& r : ranges)
      if (name.starts_with(r.prefix) && (value < r.least || value > r.most))
        wrong("unit", fmt::format("{} says {}, which are no plausible {}", name, text, r.what));
  }
  if (!t.ours()) return;
  User user(t.node);
  const std::pair<const char*, double (*)(const kz_telemetry&)> pairs[] = {
      {"temp1_input", [](const kz_telemetry& k) { return 1.0 * k.temp_core_mc; }},
      {"temp2_input", [](const kz_telemetry& k) { return 1.0 * k.temp_hbm_mc; }},
      {"temp1_max", [](const kz_telemetry& k) { return 1.0 * k.temp_limit_mc; }},
      {"temp1_crit", [](const kz_telemetry& k) { return 1.0 * k.temp_critical_mc; }},
      {"power1_input", [](const kz_telemetry& k) { return 1e3 * k.power_mw; }},
      {"power1_cap", [](const kz_telemetry& k) { return 1e3 * k.power_cap_mw; }},
      {"fan1_input", [](const kz_telemetry& k) { return 1.0 * k.fan_rpm; }}};
  for (auto& [name, of] : pairs) {
    kz_telemetry before{}, after{};
    ASSERT_EQ(user.telemetry(before), 0);
    const std::string text = value_of(folder + "/" + name);
    ASSERT_EQ(user.telemetry(after), 0);
    if (text.empty()) continue;
    const double said = std::atof(text.c_str()), a = of(before), b = of(after);
    // It moves between the readings; a wrong unit is off by a thousand.
    const double slack = 0.2 * std::max(std::abs(a), std::abs(b)) + 1;
    if (said < std::min(a, b) - slack || said > std::max(a, b) + slack)
      wrong("unit", fmt::format("{} says {}, the telemetry block {} in that unit", name, text, b));
  }
}

}  // namespace kz::test
