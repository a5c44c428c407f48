// SPDX-License-Identifier: GPL-2.0-or-later
// What the kernel holds, by name: from the text of /proc and the names in sysfs and debugfs. A driver that is
// gone must have given back all of it.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace kz::test {

using Counts = std::map<std::string, double>;  // by exact name
using Names = std::set<std::string>;

// /proc/slabinfo 2.x: objects in use of each cache. Lines of another form are left out.
Counts parse_slabinfo(std::string_view text);
// /proc/vmallocinfo: bytes of each caller, its offset cut off: "kz_probe+0x1a/0x90 [kz_accel]" is
// "kz_probe [kz_accel]".
Counts parse_vmallocinfo(std::string_view text);
// /proc/meminfo: kB of each field.
Counts parse_meminfo(std::string_view text);
// /proc/zoneinfo: pages on the processors' own free lists, which are free and not in MemFree: up to tens of
// megabytes.
uint64_t parse_zoneinfo(std::string_view text);
// /proc/devices: "character 243 kz_accel".
Names parse_devices(std::string_view text);
// /proc/iomem: "fe000000-fe003fff : kz_accel", without indentation.
Names parse_iomem(std::string_view text);
// /proc/interrupts: what stands behind the counts, without the number of the interrupt and where it is
// routed: "kz_accel-0". A line with several users gives several names.
Names parse_interrupts(std::string_view text, unsigned processors);

struct Kernel {
  Counts slab, vmalloc, meminfo;
  double on_free_lists_kib = 0;  // of the processors
  bool shadowed = false;         // KASAN keeps a byte of shadow for eight of vmalloc
  Names devices, iomem, interrupts;
  Names modules, drivers, classes, class_devices, debugfs;  // folders and links of those names
};

// Frees what is only cached (page cache, dentries, partial slabs), then reads all of it. What this user may
// not read is empty.
Kernel look_at_kernel();

// One line for each name that is in `after` and not in `before`, "interrupts: kz_accel-0".
std::vector<std::string> left_behind(const Kernel& before, const Kernel& after);

// Whether the text of /proc/kallsyms is of a kernel whose KASAN has a shadow of vmalloc (CONFIG_KASAN_VMALLOC).
bool shadows_vmalloc(std::string_view kallsyms);

// Counts that a leak of one load after another would raise, under one name each: "slab kmalloc-64 (objects)".
Counts leak_counts(const Kernel& kernel);

}  // namespace kz::test
