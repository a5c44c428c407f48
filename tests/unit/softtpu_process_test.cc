// SPDX-License-Identifier: GPL-2.0-or-later
// A software TPU of one's own, opened by its URI: it comes and goes with its owner.
#include "shim/softtpu_process.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "shim/base/error.h"
#include "tests/unit/tpu_device_helpers.h"

namespace kz {
namespace {

TEST(SoftTpuUri, StartsAPrivateOneAndTakesItAlong) {
  ::setenv("KANGZAO_BIN_DIR", KZ_BIN_DIR, 1);
  // A place of its own: other tests start software TPUs at the same time.
  char place[] = "/tmp/kz-uri-XXXXXX";
  ASSERT_NE(::mkdtemp(place), nullptr);
  ::setenv("TMPDIR", place, 1);
  auto folders = [] {
    size_t n = 0;
    for (const auto& e : std::filesystem::directory_iterator(std::filesystem::temp_directory_path()))
      n += e.path().filename().string().starts_with("kz-softtpu-");
    return n;
  };
  size_t before = folders();
  {
    auto device = open_device("softtpu:hbm=64M,irq=msi"), second = open_device("softtpu:hbm=128M");
    EXPECT_EQ(device->capabilities().limits.hbm_bytes, uint64_t{64} << 20);
    EXPECT_EQ(second->capabilities().limits.hbm_bytes, uint64_t{128} << 20);
    round_trip(*device, {.size = 64_KiB});
    EXPECT_EQ(folders(), before + 2);
  }
  EXPECT_EQ(folders(), before);
  try {
    open_device("softtpu:hbm=lots");
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::usage) << e.what();
    EXPECT_NE(std::string(e.what()).find("lots"), std::string::npos) << e.what();
  }
  EXPECT_EQ(folders(), before);
  ::unsetenv("TMPDIR");
  std::filesystem::remove_all(place);
}

TEST(SoftTpuUri, DiesWithItsOwner) {
  ::setenv("KANGZAO_BIN_DIR", KZ_BIN_DIR, 1);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  pid_t owner = ::fork();
  ASSERT_GE(owner, 0);
  if (owner == 0) {
    SoftTpuProcess process(SoftTpuSpec{.options = {{"hbm", "64M"}}, .directory = {}, .extra = {}});
    pid_t child = process.pid();
    if (::write(ends[1], &child, sizeof child) != sizeof child) ::_exit(1);
    for (;;) ::pause();
  }
  pid_t child = 0;
  ASSERT_EQ(::read(ends[0], &child, sizeof child), static_cast<ssize_t>(sizeof child));
  ::close(ends[0]), ::close(ends[1]);
  ::kill(owner, SIGKILL);
  ::waitpid(owner, nullptr, 0);
  // A zombie that nobody reaps counts as dead.
  auto runs = [&] { return state_of(child) != '\0' && state_of(child) != 'Z'; };
  for (Deadline deadline(5s); runs() && !deadline.passed();) std::this_thread::yield();
  EXPECT_FALSE(runs());
}

}  // namespace
}  // namespace kz
