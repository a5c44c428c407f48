// SPDX-License-Identifier: GPL-2.0-or-later
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/kmod/resources.h"

namespace kz::test {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

TEST(KmodResources, Slabinfo) {
  auto c = parse_slabinfo(
      "slabinfo - version: 2.1\n"
      "# name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> : tunables\n"
      "kmalloc-64          4512   4608     64   64    1 : tunables    0    0    0 : slabdata     72     72   "
      "   0\n"
      "kmalloc-cg-64         12     64     64   64    1 : tunables    0    0    0 : slabdata      1      1   "
      "   0\n"
      "broken line\n");
  EXPECT_EQ(c.size(), 2u);
  EXPECT_EQ(c.at("kmalloc-64"), 4512);
  EXPECT_EQ(c.at("kmalloc-cg-64"), 12);
}

TEST(KmodResources, VmallocinfoByCallerWithoutOffset) {
  auto c = parse_vmallocinfo(
      "0xffffa8c280000000-0xffffa8c280005000   20480 irq_init_percpu_irqstack+0x119/0x190 vmap\n"
      "0xffffa8c280100000-0xffffa8c280109000   36864 kz_map+0x5c/0x80 [kz_accel] phys=0x00000000fe000000 "
      "ioremap\n"
      "0xffffa8c280200000-0xffffa8c280202000    8192 kz_map+0x7c/0x80 [kz_accel] pages=1 vmalloc N0=1\n"
      "0xffffa8c280300000-0xffffa8c280302000    8192\n");
  EXPECT_EQ(c.at("kz_map [kz_accel]"), 45056);
  EXPECT_EQ(c.at("irq_init_percpu_irqstack"), 20480);
  EXPECT_EQ(c.size(), 2u);
}

TEST(KmodResources, Meminfo) {
  auto c =
      parse_meminfo("MemTotal:        1008428 kB\nSUnreclaim:        12345 kB\nHugePages_Total:       0\n");
  EXPECT_EQ(c.at("SUnreclaim"), 12345);
  EXPECT_EQ(c.at("HugePages_Total"), 0);
}

// As 6.1 prints it; 6.6 and later add high_min and high_max below.
TEST(KmodResources, FreePagesOfProcessors) {
  EXPECT_EQ(
      parse_zoneinfo("Node 0, zone      DMA\n  pages free     3840\n      nr_free_pages 3840\n  pagesets\n"
                     "    cpu: 0\n              count: 6\n              high:  116\n              batch: 1\n"
                     "  vm stats threshold: 4\n    cpu: 1\n              count: 0\n              high:  116\n"
                     "Node 0, zone    DMA32\n  pagesets\n    cpu: 0\n              count:    1987\n"
                     "              high:     6922\n              high_min: 3461\n"),
      6u + 0 + 1987);
  EXPECT_EQ(parse_zoneinfo(""), 0u);
}

TEST(KmodResources, Devices) {
  EXPECT_THAT(parse_devices("Character devices:\n  1 mem\n243 kz_accel\n\nBlock devices:\n259 blkext\n"),
              UnorderedElementsAre("character 1 mem", "character 243 kz_accel", "block 259 blkext"));
}

TEST(KmodResources, Iomem) {
  EXPECT_THAT(parse_iomem("fe000000-fe0fffff : PCI Bus 0000:01\n  fe000000-fe007fff : 0000:01:00.0\n"
                          "    fe000000-fe007fff : kz_accel\n"),
              UnorderedElementsAre("fe000000-fe0fffff : PCI Bus 0000:01", "fe000000-fe007fff : 0000:01:00.0",
                                   "fe000000-fe007fff : kz_accel"));
}

// 6.1, 6.12 and 7.x write the controller's part in different columns.
TEST(KmodResources, InterruptsOfSeveralKernels) {
  auto names = parse_interrupts(
      "           CPU0       CPU1       \n"
      "  9:          0          0   IO-APIC   9-fasteoi   acpi\n"
      " 16:          0         12   IO-APIC  16-fasteoi   uhci_hcd:usb1, ahci\n"
      " 25:          0          7   PCI-MSI 524288-edge      kz_accel-0000:01:00.0-0\n"
      " 26:          0          7  PCI-MSIX-0000:01:00.0   1-edge      kz_accel/0 1\n"
      " 27:          0          7   PCI-MSI 524290-edge      \n"
      "NMI:          0          0   Non-maskable interrupts\n",
      2);
  EXPECT_THAT(names, UnorderedElementsAre("acpi", "uhci_hcd:usb1", "ahci", "kz_accel-0000:01:00.0-0",
                                          "kz_accel/0 1"));
}

TEST(KmodResources, OnlyWhatIsNewIsLeftBehind) {
  Kernel before, after;
  before.devices = {"character 1 mem"};
  after.devices = {"character 1 mem", "character 243 kz_accel"};
  before.interrupts = {"kz_accel-0"};
  after.modules = {"kz_accel"};
  EXPECT_THAT(left_behind(before, after),
              ElementsAre("/proc/devices: character 243 kz_accel", "/sys/module: kz_accel"));
  EXPECT_TRUE(left_behind(after, before).size() == 1);
}

TEST(KmodResources, LeakCountsCarryTheirUnit) {
  Kernel k;
  k.slab = {{"kmalloc-64", 7}};
  k.meminfo = {{"MemTotal", 1000}, {"MemFree", 400}, {"Slab", 100}, {"SUnreclaim", 60}};
  auto c = leak_counts(k);
  EXPECT_EQ(c.at("slab kmalloc-64 (objects)"), 7);
  EXPECT_EQ(c.at("meminfo SUnreclaim (KiB)"), 60);
  EXPECT_EQ(c.at("memory in use by the kernel (KiB)"), 500);
}

TEST(KmodResources, ShadowOfUnmappedMemoryIsNotLost) {
  Kernel k;
  k.meminfo = {{"MemTotal", 1000}, {"MemFree", 400}};
  k.vmalloc = {{"unpurged", 8 * 1024 * 30}};
  EXPECT_EQ(leak_counts(k).at("memory in use by the kernel (KiB)"), 600);  // pages are free once unmapped
  k.shadowed = true;
  EXPECT_EQ(leak_counts(k).at("memory in use by the kernel (KiB)"), 570);  // a byte for eight: 30 KiB
  EXPECT_TRUE(shadows_vmalloc("ffffffff81000000 T startup_64\nffffffff81200000 T kasan_populate_vmalloc\n"));
  EXPECT_FALSE(shadows_vmalloc("ffffffff81200000 t __pfx_kasan_populate_vmalloc_pte\n"));
}

}  // namespace
}  // namespace kz::test
