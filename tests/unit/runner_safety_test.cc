// SPDX-License-Identifier: GPL-2.0-or-later
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tools/kangzao/runner/safety.h"

namespace kz {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// A machine of files: sysfs with class links into a device tree, and the proc files that are asked.
class SafetyTest : public ::testing::Test {
 protected:
  SafetyTest() {
    std::string pattern = ::testing::TempDir() + "kz-safety-XXXXXX";
    root_ = ::mkdtemp(pattern.data());
  }
  ~SafetyTest() override { fs::remove_all(root_); }

  // /sys/class/CLS/NAME -> /sys/devices/WHERE/CLS/NAME
  fs::path add(const std::string& cls, const std::string& name, const std::string& where,
               const std::string& number = "") {
    fs::path device = root_ + "/sys/devices/" + where + "/" + cls + "/" + name;
    fs::create_directories(device);
    if (!number.empty()) std::ofstream(device / "dev") << number << "\n";
    fs::create_directories(root_ + "/sys/class/" + cls);
    fs::create_directory_symlink(device, root_ + "/sys/class/" + cls + "/" + name);
    return device;
  }
  void proc(const std::string& name, const std::string& text) {
    fs::path path = root_ + "/proc/" + name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  std::vector<std::string> who(const char* bdf = "0000:01:00.0") {
    return inhabitants(parse_bdf(bdf), {root_ + "/sys", root_ + "/proc", root_ + "/dev"});
  }

  std::string root_;
  const std::string ours = "pci0000:00/0000:00:1c.0/0000:01:00.0",
                    other = "pci0000:00/0000:00:1d.0/0000:02:00.0";
};

TEST_F(SafetyTest, NobodyLivesOnAnIdleDevice) {
  add("block", "nvme1n1", other);
  add("net", "eth1", ours);
  proc("mounts", "/dev/nvme1n1 / ext4 rw 0 0\n");
  proc("net/route", "Iface\tDestination\tGateway\neth0\t00000000\t0100000A\n");
  EXPECT_THAT(who(), IsEmpty());
}

TEST_F(SafetyTest, AMountedDiskOrPartition) {
  add("block", "nvme0n1", ours);
  add("block", "nvme0n1p2", ours + "/block/nvme0n1");
  proc("mounts", "proc /proc proc rw 0 0\n/dev/nvme0n1p2 /home ext4 rw 0 0\n");
  EXPECT_THAT(who(), ElementsAre("/dev/nvme0n1p2 is mounted on /home"));
  EXPECT_THAT(who("0000:02:00.0"), IsEmpty());
}

TEST_F(SafetyTest, ADiskBelowDeviceMapper) {
  fs::create_directories(add("block", "sda", ours) / "holders/dm-0");
  fs::create_directories(add("block", "dm-0", "virtual") / "holders/dm-3");
  add("block", "dm-3", "virtual");
  proc("mounts", "/dev/dm-3 / xfs rw 0 0\n");
  EXPECT_THAT(who(), ElementsAre("/dev/dm-3 is mounted on /"));
}

TEST_F(SafetyTest, AMountWhoseNameLeadsNowhereIsFoundByItsNumber) {
  add("block", "sda1", ours, "8:1");
  proc("mounts", "/dev/root / ext4 rw 0 0\n");
  proc("self/mountinfo",
       "26 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw\n27 26 0:5 / /dev rw - devtmpfs udev rw\n");
  EXPECT_THAT(who(), ElementsAre("block device 8:1 is mounted on /"));
}

TEST_F(SafetyTest, AMultipathNvmeDiskIsFoundThroughItsHiddenPath) {
  add("block", "nvme0c1n1", ours);
  fs::path disk = add("block", "nvme0n1", "virtual/nvme-subsystem/nvme-subsys0");
  fs::create_directories(disk / "nvme0n1p1");
  fs::create_directory_symlink(disk / "nvme0n1p1", root_ + "/sys/class/block/nvme0n1p1");
  proc("mounts", "/dev/nvme0n1p1 /data ext4 rw 0 0\n");
  EXPECT_THAT(who(), ElementsAre("/dev/nvme0n1p1 is mounted on /data"));
}

TEST_F(SafetyTest, APartOfABtrfsThatIsMountedByAnothersName) {
  add("block", "nvme0n1", ours);
  add("block", "nvme0n1p1", ours + "/block/nvme0n1");
  proc("mounts", "/dev/sda1 /data btrfs rw 0 0\n");
  fs::create_directories(root_ + "/sys/fs/btrfs/5f6f/devices/nvme0n1p1");
  EXPECT_THAT(who(), ElementsAre("nvme0n1p1 belongs to the mounted btrfs 5f6f"));
}

TEST_F(SafetyTest, AnInterfaceWithAnAddress) {
  add("net", "eth1", ours);
  proc("net/route", "Iface\tDestination\tGateway\neth1\t0000A8C0\t00000000\neth1\t0001A8C0\t00000000\n");
  EXPECT_THAT(who(), ElementsAre("eth1 has an address: it carries a route"));
}

TEST_F(SafetyTest, VirtualFunctionsThatAreOn) {
  const std::string folder = root_ + "/sys/bus/pci/devices/0000:01:00.0";
  fs::create_directories(folder);
  std::ofstream(folder + "/sriov_numvfs") << "0\n";
  EXPECT_THAT(who(), IsEmpty());
  std::ofstream(folder + "/sriov_numvfs") << "4\n";
  EXPECT_THAT(who(), ElementsAre("4 virtual functions of it are on"));
}

TEST_F(SafetyTest, AProcessThatHasTheNodeOpen) {
  std::ofstream(add("accel", "accel0", ours) / "uevent") << "MAJOR=261\nDEVNAME=accel/accel0\n";
  proc("4711/comm", "trainer\n");
  fs::create_directories(root_ + "/proc/4711/fd");
  fs::create_symlink("/dev/null", root_ + "/proc/4711/fd/0");
  EXPECT_THAT(who(), IsEmpty());
  fs::create_symlink("/dev/accel/accel0", root_ + "/proc/4711/fd/7");
  EXPECT_THAT(who(), ElementsAre("process 4711 (trainer) has /dev/accel/accel0 open"));
}

TEST_F(SafetyTest, AVirtualMachineThatHasItsVfioGroupOpen) {
  const std::string folder = root_ + "/sys/bus/pci/devices/0000:01:00.0";
  fs::create_directories(folder);
  fs::create_symlink("../../../../bus/pci/drivers/vfio-pci", folder + "/driver");
  fs::create_symlink("../../../kernel/iommu_groups/17", folder + "/iommu_group");
  proc("99/comm", "qemu\n");
  fs::create_directories(root_ + "/proc/99/fd");
  fs::create_symlink("/dev/vfio/17", root_ + "/proc/99/fd/3");
  EXPECT_THAT(who(), ElementsAre("process 99 (qemu) has /dev/vfio/17 open"));
}

TEST_F(SafetyTest, TheDisplayThatTheMachineBootedWith) {
  const std::string folder = root_ + "/sys/bus/pci/devices/0000:01:00.0";
  fs::create_directories(folder);
  std::ofstream(folder + "/boot_vga") << "0\n";
  EXPECT_THAT(who(), IsEmpty());
  std::ofstream(folder + "/boot_vga") << "1\n";
  EXPECT_THAT(who(), ElementsAre("it is the display that the machine booted with"));
}

TEST_F(SafetyTest, Swap) {
  add("block", "sdb", ours);
  proc("swaps", "Filename\t\t\t\tType\t\tSize\n/dev/sdb                                partition\t1000\n");
  EXPECT_THAT(who(), ElementsAre("/dev/sdb is swap"));
}

TEST_F(SafetyTest, TheDefaultRouteAlsoThroughABondAndOfIpv6) {
  fs::create_directories(add("net", "eth0", ours) / "upper_bond0");
  fs::create_directories(add("net", "bond0", "virtual") / "upper_bond0.7");
  add("net", "bond0.7", "virtual");
  proc("net/route", "Iface\tDestination\tGateway\nbond0.7\t00000000\t0100000A\neth0\t0000000A\t00000000\n");
  proc("net/ipv6_route",
       "00000000000000000000000000000000 00 00000000000000000000000000000000 00 "
       "fe800000000000000000000000000001 00000400 "
       "00000001 00000000 00000003     eth0\n");
  EXPECT_THAT(who(), UnorderedElementsAre("bond0.7 carries the default route",
                                          "eth0 has an address: it carries a route",
                                          "eth0 carries the IPv6 default route"));
}

TEST_F(SafetyTest, ASerialConsoleAndAFrameBuffer) {
  add("tty", "ttyS4", ours);
  add("graphics", "fb0", ours);
  proc("consoles", "tty0                 -WU (EC p  )    4:1\nttyS4                -W- (E  p a)    4:68\n");
  EXPECT_THAT(who(), UnorderedElementsAre("ttyS4 is a console", HasSubstr("frame buffer")));
}

TEST_F(SafetyTest, ABridgeCarriesWhatLivesBehindIt) {
  add("block", "sda", ours);
  proc("mounts", "/dev/sda /srv ext4 rw 0 0\n");
  EXPECT_THAT(who("0000:00:1c.0"), ElementsAre("/dev/sda is mounted on /srv"));
  EXPECT_THAT(who("0000:00:1d.0"), IsEmpty());
}

}  // namespace
}  // namespace kz
