// SPDX-License-Identifier: GPL-2.0-or-later
// Discovery, sysfs and health on a made-up sysfs tree, so that functions can be there that this machine has
// not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "shim/base/error.h"
#include "shim/pci/config_live.h"
#include "shim/pci/discovery.h"
#include "shim/pci/health.h"
#include "shim/pci/libpci.h"
#include "shim/pci/pci_device.h"

namespace kz {
namespace {

namespace fs = std::filesystem;

class FakeSysfs : public testing::Test {
 protected:
  FakeSysfs() {
    char dir[] = "/tmp/kz-sysfs-XXXXXX";
    root_ = ::mkdtemp(dir);
    roots = {(root_ / "sys").string(), (root_ / "dev").string(), (root_ / "proc").string()};
    fs::create_directories(root_ / "sys/bus/pci/devices");
    fs::create_directories(root_ / "dev");
    // A root port, an accelerator below it, and a virtual function of that.
    port = add("0000:00:01.0", "pci0000:00/0000:00:01.0", 0x8086, 0x1901, 0x060400);
    link(port, "8.0 GT/s PCIe", "8", "8.0 GT/s PCIe", "8");
    accel = add("0000:01:00.0", "pci0000:00/0000:00:01.0/0000:01:00.0", 0x1234, 0x4b5a, 0x120000);
    link(accel, "8.0 GT/s PCIe", "8", "16.0 GT/s PCIe", "16");
    fs::create_directories(root_ / "sys/bus/pci/drivers/kz_accel");
    fs::create_directory_symlink("../../../../bus/pci/drivers/kz_accel", accel / "driver");
    fs::create_directory_symlink("../../../../kernel/iommu_groups/17", accel / "iommu_group");
    write(accel / "numa_node", "1\n");
    write(accel / "enable", "1\n");
    write(accel / "resource", "0x00000000fe000000 0x00000000fe00ffff 0x0000000000040200\n");
    vf = add("0000:01:00.1", "pci0000:00/0000:00:01.0/0000:01:00.1", 0x1234, 0x4b5b, 0x120000, true);
    fs::create_directory_symlink("../0000:01:00.0", vf / "physfn");
  }
  ~FakeSysfs() override {
    std::error_code ec;
    fs::remove_all(root_, ec);
  }

  static void write(const fs::path& file, const std::string& text) { std::ofstream(file) << text; }
  static std::string hex(unsigned value, int digits) {
    char text[16];
    std::snprintf(text, sizeof text, "0x%0*x\n", digits, value);
    return text;
  }
  fs::path add(const std::string& bdf, const std::string& place, unsigned vendor, unsigned device,
               unsigned cls, bool virtual_function = false) {
    fs::path dir = root_ / "sys/devices" / place;
    fs::create_directories(dir);
    fs::create_directory_symlink("../../../devices/" + place, root_ / "sys/bus/pci/devices" / bdf);
    write(dir / "vendor", hex(vendor, 4)), write(dir / "device", hex(device, 4)),
        write(dir / "class", hex(cls, 6));
    write(dir / "revision", "0x02\n"), write(dir / "numa_node", "-1\n"), write(dir / "enable", "0\n");
    std::string config(4096, '\0');
    auto id = [&](size_t at, unsigned v) {
      config[at] = static_cast<char>(v), config[at + 1] = static_cast<char>(v >> 8);
    };
    id(0, virtual_function ? 0xffff : vendor), id(2, virtual_function ? 0xffff : device);
    config[8] = 2, config[9] = static_cast<char>(cls), id(10, cls >> 8);
    write(dir / "config", config);
    return dir;
  }
  static void link(const fs::path& dir, const char* speed, const char* width, const char* max,
                   const char* max_width) {
    write(dir / "current_link_speed", std::string(speed) + "\n"),
        write(dir / "current_link_width", std::string(width) + "\n");
    write(dir / "max_link_speed", std::string(max) + "\n"),
        write(dir / "max_link_width", std::string(max_width) + "\n");
  }
  static void lose(const fs::path& dir) { write(dir / "config", std::string(4096, '\xff')); }
  PciInfo read(const char* bdf) { return read_pci_info(parse_bdf(bdf), roots); }

  fs::path root_, port, accel, vf;
  HostRoots roots;
};

TEST_F(FakeSysfs, ReadsAFunction) {
  PciInfo i = read("0000:01:00.0");
  EXPECT_EQ(i.vendor, 0x1234);
  EXPECT_EQ(i.device, 0x4b5a);
  EXPECT_EQ(i.class_code, 0x120000u);
  EXPECT_EQ(i.revision, 2);
  EXPECT_EQ(i.driver, "kz_accel");
  EXPECT_EQ(i.iommu_group, 17);
  EXPECT_EQ(i.numa_node, 1);
  EXPECT_EQ(i.link_now, (PciLink{8, 8}));
  EXPECT_EQ(i.link_max, (PciLink{16, 16}));
  EXPECT_EQ(i.upstream, parse_bdf("0000:00:01.0"));
  EXPECT_EQ(i.upstream_link_max, (PciLink{8, 8}));
  EXPECT_EQ(i.enabled, 1);
  ASSERT_EQ(i.resources.size(), 1u);
  EXPECT_EQ(i.resources[0].size(), 0x10000u);
  EXPECT_TRUE(i.responds);
  EXPECT_FALSE(i.virtual_function);
  EXPECT_FALSE(i.aer.known());
  EXPECT_FALSE(i.subsystem.has_value());
}

TEST_F(FakeSysfs, MissingFunctionIsNotFound) {
  try {
    read("0000:05:00.0");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::not_found);
  }
  EXPECT_EQ(nearest_functions(parse_bdf("0000:01:00.3"), roots),
            "0000:01:00.1 1234:4b5b, 0000:01:00.0 1234:4b5a, 0000:00:01.0 8086:1901");
}

TEST_F(FakeSysfs, AerTotals) {
  write(accel / "aer_dev_correctable", "RxErr 3\nBadTLP 0\nTOTAL_ERR_COR 3\n");
  write(accel / "aer_dev_nonfatal", "Undefined 0\nTOTAL_ERR_NONFATAL 0\n");
  write(accel / "aer_dev_fatal", "Undefined 0\nTOTAL_ERR_FATAL 1\n");
  PciInfo i = read("0000:01:00.0");
  EXPECT_EQ(i.aer.correctable, 3u);
  EXPECT_EQ(i.aer.nonfatal, 0u);
  EXPECT_EQ(i.aer.fatal, 1u);
  PciHealth health = judge_health(i);
  EXPECT_EQ(health.state(), HealthState::aer_errors);
  EXPECT_THAT(health.problems[0].reason, testing::HasSubstr("3 correctable, 0 non-fatal, 1 fatal"));
}

TEST_F(FakeSysfs, NarrowSlotIsNotADegradedLink) {
  EXPECT_EQ(judge_health(read("0000:01:00.0")).state(), HealthState::ok);
}

TEST_F(FakeSysfs, NarrowAndSlowLinks) {
  link(accel, "8.0 GT/s PCIe", "4", "16.0 GT/s PCIe", "16");
  PciHealth health = judge_health(read("0000:01:00.0"));
  ASSERT_EQ(health.state(), HealthState::degraded_link);
  EXPECT_THAT(health.problems[0].reason, testing::HasSubstr("8 GT/s x4, both ends can do 8 GT/s x8"));
  link(accel, "2.5 GT/s PCIe", "8", "16.0 GT/s PCIe", "16");
  EXPECT_EQ(judge_health(read("0000:01:00.0")).state(), HealthState::degraded_link);
  write(accel / "class", "0x030000\n");  // an idle display controller lowers its speed, but keeps its lanes
  EXPECT_EQ(judge_health(read("0000:01:00.0")).state(), HealthState::ok);
  link(accel, "2.5 GT/s PCIe", "1", "16.0 GT/s PCIe", "16");
  EXPECT_EQ(judge_health(read("0000:01:00.0")).state(), HealthState::degraded_link);
}

TEST_F(FakeSysfs, LinkOfADeadOrSilentFunctionIsUnknown) {
  link(accel, "Unknown", "63", "16.0 GT/s PCIe", "255");
  PciInfo i = read("0000:01:00.0");
  EXPECT_FALSE(i.link_now.has_value());
  EXPECT_FALSE(i.link_max.has_value());
}

TEST_F(FakeSysfs, NoDriverAndNotResponding) {
  fs::remove(accel / "driver");
  EXPECT_EQ(judge_health(read("0000:01:00.0")).state(), HealthState::no_driver);
  EXPECT_EQ(judge_health(read("0000:00:01.0")).state(), HealthState::ok) << "bridges need none";
  lose(accel);
  PciHealth health = judge_health(read("0000:01:00.0"));
  EXPECT_EQ(health.state(), HealthState::not_responding);
  EXPECT_EQ(health.problems.size(), 1u) << "nothing else that it says counts";
}

TEST_F(FakeSysfs, VirtualFunctionAnswersThoughItsIdsAreOnes) {
  PciInfo i = read("0000:01:00.1");
  EXPECT_TRUE(i.virtual_function);
  EXPECT_TRUE(i.responds);
  EXPECT_EQ(i.vendor, 0x1234);
}

TEST_F(FakeSysfs, DiscoveryAndAccelerators) {
  auto found = discover_pci(roots);
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(to_string(found[0].info.bdf), "0000:00:01.0");
  EXPECT_FALSE(found[0].accelerator.has_value());
  EXPECT_EQ(found[1].accelerator, "class 12, processing accelerator");
  EXPECT_TRUE(found[2].accelerator.has_value());
}

TEST_F(FakeSysfs, AcceleratorsByDriverIdAndNode) {
  PciInfo i;
  i.class_code = 0x118000;
  EXPECT_FALSE(accelerator_reason(i));
  i.driver = "intel_vpu";
  EXPECT_EQ(accelerator_reason(i), "driver intel_vpu");
  i.driver = "";
  i.vendor = 0x1ac1, i.device = 0x089a;
  EXPECT_EQ(accelerator_reason(i), "known id, Google Coral Edge TPU");
  i.vendor = 0;
  i.nodes.push_back({"/dev/accel/accel0", "accel"});
  EXPECT_EQ(accelerator_reason(i), "node /dev/accel/accel0");
  PciInfo gpu;
  gpu.class_code = 0x030200;
  EXPECT_TRUE(accelerator_reason(gpu));
  gpu.class_code = 0x030000;
  EXPECT_FALSE(accelerator_reason(gpu));
}

TEST_F(FakeSysfs, NodesOfTheFunctionOnly) {
  auto node = [&](const fs::path& dir, const char* subsystem, const char* devname) {
    fs::create_directories(dir);
    fs::create_directory_symlink(std::string("/sys/class/") + subsystem, dir / "subsystem");
    write(dir / "uevent",
          std::string("MAJOR=1\nMINOR=2\n") + (devname ? "DEVNAME=" + std::string(devname) + "\n" : ""));
  };
  node(accel / "accel/accel0", "accel", "accel/accel0");
  node(accel / "net/eth7", "net", nullptr);
  node(accel / "usb1/1-1", "usb", "bus/usb/001/002");
  fs::create_directories(root_ / "dev/accel");
  write(root_ / "dev/accel/accel0", "");
  ASSERT_EQ(::chmod((root_ / "dev/accel/accel0").c_str(), 0666), 0);
  PciInfo i = read("0000:01:00.0");
  ASSERT_EQ(i.nodes.size(), 2u);
  EXPECT_EQ(i.nodes[0].path, roots.dev + "/accel/accel0");
  EXPECT_TRUE(i.nodes[0].present);
  EXPECT_EQ(i.nodes[0].mode & 0777u, 0666u);
  EXPECT_EQ(i.nodes[1].path, "eth7");
  EXPECT_FALSE(i.nodes[1].is_node);
  EXPECT_TRUE(read("0000:00:01.0").nodes.empty()) << "what is below a bridge is not the bridge's";
}

TEST_F(FakeSysfs, NodesThatDriversMakeThemselves) {
  fs::remove(accel / "driver");
  fs::create_directories(root_ / "sys/bus/pci/drivers/nvidia");
  fs::create_directory_symlink("../../../../bus/pci/drivers/nvidia", accel / "driver");
  fs::create_directories(root_ / "proc/driver/nvidia/gpus/0000:01:00.0");
  write(root_ / "proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t X\nDevice Minor: \t 3\n");
  PciInfo i = read("0000:01:00.0");
  ASSERT_EQ(i.nodes.size(), 1u);
  EXPECT_EQ(i.nodes[0].path, roots.dev + "/nvidia3");
  EXPECT_FALSE(i.nodes[0].present);
}

TEST_F(FakeSysfs, LiveConfigThroughLibpci) {
  LiveConfig config(parse_bdf("0000:01:00.0"), false, roots.pci());
  EXPECT_EQ(config.size(), 4096u);
  EXPECT_EQ(config.read32(0), 0x4b5a1234u);
  EXPECT_EQ(config.read8(8), 2);
  EXPECT_THROW(config.write16(4, 0), Error);
  EXPECT_THROW(config.read32(4096), Error);
  EXPECT_THROW(config.read32(2), Error);
  LiveConfig writable(parse_bdf("0000:01:00.0"), true, roots.pci());
  writable.write16(4, 0x0406);
  EXPECT_EQ(writable.read16(4), 0x0406);
}

TEST_F(FakeSysfs, LiveConfigOfALostOrVanishedFunction) {
  LiveConfig config(parse_bdf("0000:01:00.0"), false, roots.pci());
  auto code = [&] {
    try {
      config.read16(0);
    } catch (const Error& e) {
      return e.code();
    }
    return Errc::status;
  };
  lose(accel);
  EXPECT_EQ(code(), Errc::gone);
  EXPECT_TRUE(config.all_ones());
  // A virtual function whose ids are all ones is there.
  LiveConfig virtual_config(parse_bdf("0000:01:00.1"), false, roots.pci());
  EXPECT_FALSE(virtual_config.all_ones());
  EXPECT_EQ(virtual_config.read32(0), 0xffffffffu);
  try {
    LiveConfig(parse_bdf("0000:07:00.0"), false, roots.pci());
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::not_found);
  }
}

TEST_F(FakeSysfs, UnprivilegedReaderSees64Bytes) {
  fs::resize_file(accel / "config", 64);
  LiveConfig config(parse_bdf("0000:01:00.0"), false, roots.pci());
  EXPECT_EQ(config.size(), 64u);
  EXPECT_EQ(config.read32(0), 0x4b5a1234u);
}

TEST(PciSysfs, AttributesAreBounded) {
  char name[] = "/tmp/kz-attr-XXXXXX";
  int fd = ::mkstemp(name);
  ASSERT_GE(fd, 0);
  std::string text(100000, 'x');
  ASSERT_EQ(::write(fd, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  ::close(fd);
  EXPECT_EQ(read_attribute(name, 10), "xxxxxxxxxx");
  EXPECT_EQ(try_attribute(name)->size(), 4096u);
  ::unlink(name);
  EXPECT_FALSE(try_attribute(name));
  EXPECT_THROW(read_attribute(name), Error);
}

TEST(PciSelectors, AddressesAndIds) {
  EXPECT_EQ(parse_selector("01:00.0").bdf, parse_bdf("0000:01:00.0"));
  EXPECT_EQ(parse_selector("1234:4b5a").device, 0x4b5a);
  for (const char* bad : {"", "12345:1", "1234", "zz:00.0", "1234:", "1234:4b5a:1"})
    EXPECT_THROW(parse_selector(bad), Error) << bad;
}

TEST(PciNameTable, KnowsWhatPciIdsKnows) {
  PciNames names;
  if (names.vendor(0x8086).empty()) GTEST_SKIP() << "pci.ids is not installed";
  EXPECT_EQ(names.vendor(0x8086), "Intel Corporation");
  EXPECT_EQ(names.class_name(0x120000), "Processing accelerators");
  EXPECT_EQ(names.device(0x1234, 0x4b5a), "");
}

TEST(PciDevice, OpensADumpAndSaysWhatItCannot) {
  std::string file = std::string(KZ_SOURCE_DIR) + "/tests/data/pci-dumps/plx-8796-switch.txt";
  auto device = open_device("dump:" + file);
  EXPECT_EQ(device->identity().vendor, 0x10b5);
  EXPECT_EQ(device->identity().serial, "ab-87-00-10-b5-df-0e-00");  // as lspci prints it
  EXPECT_TRUE(device->capabilities().has(Cap::config_extended));
  EXPECT_FALSE(device->capabilities().has(Cap::sysfs));
  EXPECT_TRUE(device->capabilities().why_not.contains(Cap::queues));
  EXPECT_EQ(device->config().read16(0), 0x10b5);
  EXPECT_THROW(device->config().write8(4, 0), Error);
  EXPECT_THROW(device->create_context(), Error);
  EXPECT_THROW(device->telemetry(), Error);
}

TEST(PciDevice, RefusalsNameTheRemedy) {
  std::string dir = std::string(KZ_SOURCE_DIR) + "/tests/data/pci-dumps/";
  struct {
    std::string uri;
    Errc code;
    std::string says;
  } cases[] = {
      {"dump:" + dir + "virtio-guests.txt", Errc::usage, "bdf=0000:00:09.0"},
      {"dump:" + dir + "virtio-guests.txt,bdf=01:00.0", Errc::not_found, "0000:00:04.0"},
      {"dump:" + dir + "virtio-guests.txt,vdf=01:00.0", Errc::usage, "vdf"},
      {"dump:" + dir + "README.md", Errc::bad_data, "lspci"},
      {"dump:" + dir + "absent.txt", Errc::not_found, "absent.txt"},
      {"dump:" + dir + "nvidia-ga102-gpu-lost.txt,bdf=01:00.0", Errc::gone, "all ones"},
      {"pci:fffe:ff:1f.7", Errc::not_found, "kangzao ls --all"},
      {"pci:1:2", Errc::usage, "lspci"},
  };
  for (const auto& c : cases) {
    try {
      open_device(c.uri);
      ADD_FAILURE() << c.uri << " was opened";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), c.code) << e.what();
      EXPECT_THAT(std::string(e.what()), testing::HasSubstr(c.says));
    }
  }
}

// Every function of the machine that runs this.
TEST(PciDevice, OpensEveryFunctionOfThisMachine) {
  auto all = list_pci();
  if (all.empty()) GTEST_SKIP() << "this machine shows no PCI functions";
  for (const Bdf& bdf : all) {
    SCOPED_TRACE(to_string(bdf));
    PciInfo info = read_pci_info(bdf);
    if (!info.responds) continue;
    auto device = open_device("pci:" + to_string(bdf));
    EXPECT_EQ(device->identity().vendor, info.vendor);
    EXPECT_EQ(device->identity().class_code, info.class_code);
    EXPECT_TRUE(device->capabilities().has(Cap::sysfs));
  }
}

}  // namespace
}  // namespace kz
