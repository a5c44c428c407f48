// SPDX-License-Identifier: GPL-2.0-or-later
#include "shim/uri.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shim/base/error.h"
#include "shim/device.h"
#include "shim/softtpu_process.h"

namespace kz {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Options = std::map<std::string, std::string>;

TEST(UriText, IsTakenApart) {
  struct {
    const char* text;
    const char* scheme;
    const char* path;
    Options options;
  } const table[] = {
      {"softtpu:", "softtpu", "", {}},
      {"softtpu:hbm=64M,irq=msi", "softtpu", "", {{"hbm", "64M"}, {"irq", "msi"}}},
      {"softtpu:ecc=off", "softtpu", "", {{"ecc", "off"}}},
      {"vfio-user:/run/x/sock", "vfio-user", "/run/x/sock", {}},
      {"vfio-user:rel/sock", "vfio-user", "rel/sock", {}},
      {"vfio-user:/run/a,b/sock", "vfio-user", "/run/a,b/sock", {}},
      {"pci:0000:01:00.0", "pci", "0000:01:00.0", {}},
      {"dump:file.txt,bdf=01:00.0", "dump", "file.txt", {{"bdf", "01:00.0"}}},
      {"vfio:0000:01:00.0", "vfio", "0000:01:00.0", {}},
      {"dev:/dev/kz0", "dev", "/dev/kz0", {}},
      {"adapter:acme", "adapter", "acme", {}},
  };
  for (const auto& row : table) {
    Uri uri = parse_uri(row.text);
    EXPECT_EQ(uri.scheme, row.scheme) << row.text;
    EXPECT_EQ(uri.path, row.path) << row.text;
    EXPECT_EQ(uri.options, row.options) << row.text;
    EXPECT_EQ(uri.text, row.text);
  }
}

TEST(UriText, IsRefusedWithAHint) {
  struct {
    const char* text;
    const char* hint;
  } const table[] = {
      {"", "softtpu:"},
      {"sofftpu:", "softtpu:"},
      {"vfiouser:/x", "vfio-user:"},
      {"vfoi:0000:01:00.0", "vfio:"},
      {"0000:01:00.0", "pci:0000:01:00.0"},
      {"01:00.0", "pci:01:00.0"},
      {"/dev/kz0", "dev:"},
      {"softtpu", "softtpu:"},
      {"softtpu:hbm", "name=value"},
      {"softtpu:=64M", "name=value"},
      {"vfio-user:", "socket"},
      {"pci:", "pci:0000:01:00.0"},
  };
  for (const auto& row : table) {
    try {
      parse_uri(row.text);
      ADD_FAILURE() << row.text << " was taken";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Errc::usage) << row.text;
      EXPECT_THAT(e.what(), HasSubstr(row.hint)) << row.text;
      EXPECT_THAT(e.what(), HasSubstr(row.text)) << "it must name what was given";
    }
  }
}

TEST(SoftTpuOptions, BecomeArguments) {
  EXPECT_THAT(softtpu_arguments({{"hbm", "64M"}, {"irq", "msi"}}),
              ElementsAre("--hbm", "64M", "--irq", "msi"));
  EXPECT_THAT(softtpu_arguments({{"ecc", "off"}, {"service-time", "100us"}}),
              ElementsAre("--no-ecc", "--service-time", "100us"));
  EXPECT_THAT(softtpu_arguments({{"ecc", "on"}}), ElementsAre());
}

TEST(SoftTpuOptions, AreRefusedWithTheNearestName) {
  struct {
    Options options;
    const char* hint;
  } const table[] = {{{{"hbmm", "64M"}}, "hbm="},
                     {{{"servicetime", "1s"}}, "service-time="},
                     {{{"ecc", "maybe"}}, "on or off"}};
  for (const auto& row : table) {
    try {
      softtpu_arguments(row.options);
      ADD_FAILURE() << "was taken";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Errc::usage);
      EXPECT_THAT(e.what(), HasSubstr(row.hint));
      EXPECT_THAT(e.what(), HasSubstr(row.options.begin()->first));
    }
  }
}

TEST(OpenDevice, SaysWhatIsNotThere) {
  struct {
    const char* uri;
    Errc code;
  } const table[] = {
      {"vfio:0000:01:00.0", Errc::unsupported},
      {"dev:/dev/kz-no-such-node", Errc::not_found},
      {"adapter:acme", Errc::unsupported},
      {"vfio-user:/nonexistent/x.sock", Errc::not_found},
      {"pci:zz:00.0", Errc::usage},
      {"softtpu:hbmm=1", Errc::usage},
  };
  for (const auto& row : table) {
    try {
      open_device(row.uri);
      ADD_FAILURE() << row.uri << " was opened";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), row.code) << e.what();
      EXPECT_NE(e.info().remedy, "") << e.what();
    }
  }
}

}  // namespace
}  // namespace kz
