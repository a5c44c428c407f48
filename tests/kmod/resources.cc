// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/kmod/resources.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/kmod/text_file.h"

namespace kz::test {
namespace fs = std::filesystem;
namespace {

using Words = std::vector<std::string_view>;

Words words_of(std::string_view line) {
  Words out;
  for (size_t at = 0; (at = line.find_first_not_of(" \t", at)) != std::string_view::npos;) {
    size_t end = std::min(line.find_first_of(" \t", at), line.size());
    out.push_back(line.substr(at, end - at));
    at = end;
  }
  return out;
}

template <class Use>
void each_line(std::string_view text, Use use) {
  while (!text.empty()) {
    size_t end = std::min(text.find('\n'), text.size());
    use(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

bool number(std::string_view word, double& out) {
  uint64_t n = 0;
  auto [end, ec] = std::from_chars(word.data(), word.data() + word.size(), n);
  out = static_cast<double>(n);
  return ec == std::errc() && end == word.data() + word.size();
}

Names entries(const fs::path& folder, const std::string& prefix = {}) {
  Names out;
  std::error_code ec;
  for (auto& e : fs::directory_iterator(folder, ec)) out.insert(prefix + e.path().filename().string());
  return out;
}

Names class_devices() {
  Names out;
  for (auto& c : entries("/sys/class"))
    for (auto& d : entries("/sys/class/" + c, c + "/")) out.insert(d);
  return out;
}

// Two levels: a driver's folder, and one a device in it.
Names debugfs_folders() {
  Names out;
  for (auto& top : entries("/sys/kernel/debug")) {
    out.insert(top);
    std::error_code ec;
    if (fs::path path = "/sys/kernel/debug/" + top; fs::is_directory(path, ec) && top != "tracing")
      out.merge(entries(path, top + "/"));
  }
  return out;
}

std::string read_again(int fd) {
  std::string out;
  char chunk[16384];
  for (ssize_t n; (n = ::pread(fd, chunk, sizeof chunk, static_cast<off_t>(out.size()))) > 0;)
    out.append(chunk, static_cast<size_t>(n));
  return out;
}

void write_some(const std::string& path, std::string_view text) {
  int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return;
  if (::write(fd, text.data(), text.size()) < 0) {  // best effort: what stays cached only adds noise
  }
  ::close(fd);
}

// Files to write to without opening them anew, which allocates.
class OpenFiles {
 public:
  OpenFiles() = default;
  ~OpenFiles() {
    for (int fd : fds_) ::close(fd);
  }
  OpenFiles(const OpenFiles&) = delete;
  void add(const std::string& path, int flags) {
    if (int fd = ::open(path.c_str(), flags | O_CLOEXEC); fd >= 0) fds_.push_back(fd);
  }
  const std::vector<int>& fds() const { return fds_; }

 private:
  std::vector<int> fds_;
};

// Objects in use of each cache. A slab that a processor allocates from counts as in use whole, up to 512
// objects, until its cache is shrunk; and the write that asks for that allocates its own text, in the cache
// that its length chooses. So everything is opened before, and of two readings that disturb different caches
// the fewer objects are the true ones.
Counts count_slabs() {
  OpenFiles info, shrink;
  info.add("/proc/slabinfo", O_RDONLY);
  if (info.fds().empty()) return {};
  std::error_code ec;
  for (auto& cache : fs::directory_iterator("/sys/kernel/slab", ec))
    if (!cache.is_symlink(ec)) shrink.add(cache.path() / "shrink", O_WRONLY);
  read_again(info.fds().front());  // makes its buffer
  Counts out;
  for (size_t length : {size_t{150}, size_t{3000}}) {  // kmalloc-192, kmalloc-4k
    std::string text(length, ' ');
    text[0] = '1';
    for (int fd : shrink.fds())
      if (::pwrite(fd, text.data(), text.size(), 0) <
          0) {  // best effort: a cache that stays as it is only adds noise
      }
    for (auto& [name, used] : parse_slabinfo(read_again(info.fds().front()))) {
      auto [it, fresh] = out.try_emplace(name, used);
      if (!fresh) it->second = std::min(it->second, used);
    }
  }
  return out;
}

void compare(const char* what, const Names& before, const Names& after, std::vector<std::string>& out) {
  for (auto& name : after)
    if (!before.contains(name)) out.push_back(std::string(what) + ": " + name);
}

}  // namespace

Counts parse_slabinfo(std::string_view text) {
  Counts out;
  each_line(text, [&](std::string_view line) {
    Words w = words_of(line);
    double used = 0;
    if (w.size() > 3 && w[0] != "#" && number(w[1], used)) out[std::string(w[0])] += used;
  });
  return out;
}

Counts parse_vmallocinfo(std::string_view text) {
  Counts out;
  each_line(text, [&](std::string_view line) {
    Words w = words_of(line);
    double bytes = 0;
    if (w.size() < 3 || w[0].find('-') == std::string_view::npos || !number(w[1], bytes)) return;
    std::string who(w[2].substr(0, w[2].find('+')));
    if (w.size() > 3 && w[3].starts_with('[')) who += " " + std::string(w[3]);
    out[who] += bytes;
  });
  return out;
}

Counts parse_meminfo(std::string_view text) {
  Counts out;
  each_line(text, [&](std::string_view line) {
    Words w = words_of(line);
    double kib = 0;
    if (w.size() >= 2 && w[0].ends_with(':') && number(w[1], kib))
      out[std::string(w[0].substr(0, w[0].size() - 1))] = kib;
  });
  return out;
}

Names parse_devices(std::string_view text) {
  Names out;
  std::string kind;
  each_line(text, [&](std::string_view line) {
    Words w = words_of(line);
    double major = 0;
    if (line.starts_with("Character")) kind = "character ";
    if (line.starts_with("Block")) kind = "block ";
    if (w.size() == 2 && number(w[0], major)) out.insert(kind + std::string(w[0]) + " " + std::string(w[1]));
  });
  return out;
}

Names parse_iomem(std::string_view text) {
  Names out;
  each_line(text, [&](std::string_view line) {
    size_t at = line.find_first_not_of(' ');
    if (at != std::string_view::npos && line.find(" : ") != std::string_view::npos)
      out.insert(std::string(line.substr(at)));
  });
  return out;
}

Names parse_interrupts(std::string_view text, unsigned processors) {
  Names out;
  each_line(text, [&](std::string_view line) {
    Words w = words_of(line);
    if (w.size() < processors + 2 || !w[0].ends_with(':')) return;
    double n = 0;
    if (!number(w[0].substr(0, w[0].size() - 1), n)) return;  // NMI, LOC ...
    size_t colon = line.find(':');
    std::string_view users = line.substr(colon + 1);
    // Behind the counts: chip, hardware number and trigger, then the names, which commas part.
    Words behind(w.begin() + 1 + processors, w.end());
    size_t first = 0;
    while (first < behind.size() && behind[first].find("-edge") == std::string_view::npos &&
           behind[first].find("-fasteoi") == std::string_view::npos && behind[first] != "edge" &&
           behind[first] != "level")
      ++first;
    if (first + 1 >= behind.size()) return;
    users = line.substr(static_cast<size_t>(behind[first + 1].data() - line.data()));
    while (!users.empty()) {
      size_t end = std::min(users.find(", "), users.size());
      out.insert(std::string(users.substr(0, end)));
      users.remove_prefix(std::min(end + 2, users.size()));
    }
  });
  return out;
}

uint64_t parse_zoneinfo(std::string_view text) {
  uint64_t pages = 0;
  each_line(text, [&](std::string_view line) {
    Words w = words_of(line);
    double n = 0;
    if (w.size() == 2 && w[0] == "count:" && number(w[1], n)) pages += static_cast<uint64_t>(n);
  });
  return pages;
}

Kernel look_at_kernel() {
  ::sync();
  write_some("/proc/sys/vm/drop_caches", "3");
  Kernel k;
  k.slab = count_slabs();
  k.vmalloc = parse_vmallocinfo(text_file("/proc/vmallocinfo"));
  static const bool shadowed = shadows_vmalloc(text_file("/proc/kallsyms", nullptr, 64 << 20));
  k.shadowed = shadowed;
  k.meminfo = parse_meminfo(text_file("/proc/meminfo"));
  k.on_free_lists_kib = static_cast<double>(parse_zoneinfo(text_file("/proc/zoneinfo")) *
                                            static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)) / 1024);
  k.devices = parse_devices(text_file("/proc/devices"));
  k.iomem = parse_iomem(text_file("/proc/iomem"));
  k.interrupts =
      parse_interrupts(text_file("/proc/interrupts"), static_cast<unsigned>(::sysconf(_SC_NPROCESSORS_ONLN)));
  k.modules = entries("/sys/module");
  k.drivers = entries("/sys/bus/pci/drivers");
  k.classes = entries("/sys/class");
  k.class_devices = class_devices();
  k.debugfs = debugfs_folders();
  return k;
}

std::vector<std::string> left_behind(const Kernel& before, const Kernel& after) {
  std::vector<std::string> out;
  compare("/proc/devices", before.devices, after.devices, out);
  compare("/proc/iomem", before.iomem, after.iomem, out);
  compare("/proc/interrupts", before.interrupts, after.interrupts, out);
  compare("/sys/module", before.modules, after.modules, out);
  compare("/sys/bus/pci/drivers", before.drivers, after.drivers, out);
  compare("/sys/class", before.classes, after.classes, out);
  compare("/sys/class", before.class_devices, after.class_devices, out);
  compare("debugfs", before.debugfs, after.debugfs, out);
  return out;
}

bool shadows_vmalloc(std::string_view kallsyms) {
  return kallsyms.find(" kasan_populate_vmalloc\n") != std::string_view::npos;
}

Counts leak_counts(const Kernel& k) {
  Counts out;
  // What is unmapped waits to be taken out of the page tables, tens of megabytes of it: neither the areas
  // that wait nor their descriptions are lost. Those in use stand under their callers.
  for (auto& [name, n] : k.slab)
    if (name != "vmap_area") out["slab " + name + " (objects)"] = n;
  for (auto& [name, n] : k.vmalloc)
    if (name != "unpurged") out["vmalloc by " + name + " (bytes)"] = n;
  for (auto field : {"SUnreclaim", "VmallocUsed", "Percpu", "KernelStack", "PageTables"})
    if (auto it = k.meminfo.find(field); it != k.meminfo.end())
      out["meminfo " + it->first + " (KiB)"] = it->second;
  // Pages that no cache accounts for: a driver's alloc_pages() shows only in what is not free any more.
  auto kib = [&](const char* f) { return k.meminfo.contains(f) ? k.meminfo.at(f) : 0; };
  // Shadow of what is unmapped stays until that is taken out of the page tables.
  const double shadow =
      k.shadowed && k.vmalloc.contains("unpurged") ? k.vmalloc.at("unpurged") / 8 / 1024 : 0;
  out["memory in use by the kernel (KiB)"] =
      kib("MemTotal") - kib("MemFree") - kib("Buffers") - kib("Cached") - kib("AnonPages") - kib("Slab") -
      kib("KernelStack") - kib("PageTables") - k.on_free_lists_kib - shadow;
  out["interrupts (users)"] = static_cast<double>(k.interrupts.size());
  out["iomem (regions)"] = static_cast<double>(k.iomem.size());
  out["/proc/devices (entries)"] = static_cast<double>(k.devices.size());
  out["/sys/class (devices)"] = static_cast<double>(k.class_devices.size());
  out["debugfs (entries)"] = static_cast<double>(k.debugfs.size());
  return out;
}

}  // namespace kz::test
