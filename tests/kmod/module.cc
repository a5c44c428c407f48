// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/kmod/module.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fnmatch.h>
#include <libkmod.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

#include "shim/base/error.h"
#include "tests/kmod/text_file.h"
#include "tools/changes/changes.h"

namespace kz::test {
namespace fs = std::filesystem;
namespace {

struct Unref {
  void operator()(kmod_ctx* c) const { kmod_unref(c); }
  void operator()(kmod_module* m) const { kmod_module_unref(m); }
};
using Context = std::unique_ptr<kmod_ctx, Unref>;
using Module = std::unique_ptr<kmod_module, Unref>;

Context make_context() {
  Context c(kmod_new(nullptr, nullptr));
  if (c)
    kmod_set_log_fn(
        c.get(), [](void*, int, const char*, int, const char*, const char*, va_list) {}, nullptr);
  return c;
}

void take_parameter(ModuleInfo& info, const std::string& text, bool type) {
  std::string name = text.substr(0, text.find(':'));
  auto it = std::ranges::find(info.parameters, name, &ModuleParameter::name);
  if (it == info.parameters.end()) it = info.parameters.insert(it, {name, ""});
  if (type && text.find(':') != std::string::npos) it->type = text.substr(text.find(':') + 1);
}

void take_entry(ModuleInfo& info, const std::string& key, const std::string& value) {
  if (key == "name") info.name = value;
  if (key == "vermagic") info.vermagic = value;
  if (key == "license") info.license = value;
  if (key == "alias") info.aliases.push_back(value);
  if (key == "firmware") info.firmware.push_back(value);
  if (key == "parm") take_parameter(info, value, false);
  if (key == "parmtype") take_parameter(info, value, true);
  if (key != "depends") return;
  for (size_t at = 0; at < value.size();) {
    size_t end = std::min(value.find(',', at), value.size());
    info.depends.push_back(value.substr(at, end - at));
    at = end + 1;
  }
}

std::vector<char> unpack(const std::string& command) {
  std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "re"), ::pclose);
  std::vector<char> out;
  char chunk[65536];
  for (size_t n; pipe && (n = std::fread(chunk, 1, sizeof chunk, pipe.get())) > 0;)
    out.insert(out.end(), chunk, chunk + n);
  return out;
}

std::string quoted(const std::string& word) {
  std::string out = "'";
  for (char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

// What a module is called by the kernel.
std::string name_of(const std::string& file) {
  std::string name = fs::path(file).filename();
  name = name.substr(0, name.find(".ko"));
  std::ranges::replace(name, '-', '_');
  return name;
}

}  // namespace

ModuleInfo module_info(const std::string& file) {
  Context context = make_context();
  kmod_module* raw = nullptr;
  int rc = context ? kmod_module_new_from_path(context.get(), file.c_str(), &raw) : -ENOMEM;
  Module module(raw);
  kmod_list* list = nullptr;
  if (rc >= 0) rc = kmod_module_get_info(module.get(), &list);
  if (rc < 0)
    throw Error({rc == -ENOENT ? Errc::not_found : Errc::bad_data, "read the module", file,
                 std::strerror(-rc), "name its file with --module", -rc});
  ModuleInfo info{.name = name_of(file)};
  kmod_list* entry = nullptr;
  kmod_list_foreach(entry, list)
      take_entry(info, kmod_module_info_get_key(entry), kmod_module_info_get_value(entry));
  kmod_module_info_free_list(list);
  return info;
}

std::string find_module_file(const std::string& name) {
  Context context = make_context();
  kmod_module* raw = nullptr;
  if (context && kmod_module_new_from_name(context.get(), name.c_str(), &raw) >= 0) {
    Module module(raw);
    if (const char* path = kmod_module_get_path(module.get())) return path;
  }
  for (const std::string& file : {"/lab/" + name + ".ko", std::string("/lab/driver.ko")}) {
    if (!exists(file)) continue;
    if (ModuleInfo info = module_info(file); info.name == name) return file;
  }
  return {};
}

std::vector<char> read_module(const std::string& file) {
  const std::pair<const char*, const char*> packed[] = {
      {".xz", "xz -dc -- "}, {".zst", "zstd -dqc -- "}, {".gz", "gzip -dc -- "}};
  for (auto& [end, program] : packed) {
    if (!file.ends_with(end)) continue;
    auto out = unpack(program + quoted(file) + " 2>/dev/null");
    if (out.empty())
      throw Error({Errc::unsupported, "unpack", file, "its program is not here, or the file is broken",
                   "give an unpacked .ko with --module", 0});
    return out;
  }
  std::ifstream in(file, std::ios::binary);
  if (!in) throw_errno("read", file, errno != 0 ? errno : ENOENT, "name the module's file with --module");
  return {std::istreambuf_iterator<char>(in), {}};
}

int load_module(const std::vector<char>& image, const std::string& parameters) {
  return ::syscall(SYS_init_module, image.data(), image.size(), parameters.c_str()) == 0 ? 0 : -errno;
}

int unload_module(const std::string& name) {
  return ::syscall(SYS_delete_module, name.c_str(), O_NONBLOCK) == 0 ? 0 : -errno;
}

bool is_loaded(const std::string& name) { return exists("/sys/module/" + name + "/initstate"); }

int module_users(const std::string& name) {
  std::string text = value_of("/sys/module/" + name + "/refcnt");
  return text.empty() ? -1 : std::atoi(text.c_str());
}

std::string parameters_in_force(const std::string& name) {
  std::string out;
  std::error_code ec;
  for (auto& e : fs::directory_iterator("/sys/module/" + name + "/parameters", ec)) {
    std::string value = value_of(e.path());
    if (value.empty() || value == "(null)" || value.find('"') != std::string::npos) continue;
    bool plain = value.find_first_of(" \t") == std::string::npos;
    out += fmt::format("{}{}={}", out.empty() ? "" : " ", e.path().filename().string(),
                       plain ? value : '"' + value + '"');
  }
  return out;
}

std::vector<ParameterTry> tries_for(const std::string& type) {
  struct Range {
    const char *type, *least, *most, *below, *above;
  };
  // kernel/params.c: kstrto*() refuse what does not fit.
  static constexpr Range ranges[] = {
      {"byte", "0", "255", "-1", "256"},
      {"short", "-32768", "32767", "-32769", "32768"},
      {"ushort", "0", "65535", "-1", "65536"},
      {"int", "-2147483648", "2147483647", "-2147483649", "2147483648"},
      {"uint", "0", "4294967295", "-1", "4294967296"},
      {"hexint", "0", "4294967295", "-1", "4294967296"},
      {"long", "-9223372036854775808", "9223372036854775807", "-9223372036854775809", "9223372036854775808"},
      {"ulong", "0", "18446744073709551615", "-1", "18446744073709551616"},
      {"ullong", "0", "18446744073709551615", "-1", "18446744073709551616"},
  };
  for (auto& r : ranges)
    if (type == r.type)
      return {{r.least, false}, {r.most, false}, {"1", false},     {r.below, true},
              {r.above, true},  {"", true},      {"banana", true}, {"0x", true}};
  if (type == "bool" || type == "invbool")
    return {{"0", false}, {"1", false}, {"Y", false}, {"banana", true}, {"2", true}, {"-1", true}};
  if (type == "charp" || type == "string") return {{"", false}, {std::string(64, 'k'), false}};
  return {{"-1", false}, {"banana", false}, {"99999999999999999999", false}};
}

KernelTail::KernelTail() : fd_(::open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
  if (fd_ >= 0) ::lseek(fd_, 0, SEEK_END);
}
KernelTail::~KernelTail() {
  if (fd_ >= 0) ::close(fd_);
}

std::string KernelTail::take() {
  std::string out;
  char record[8192];
  while (fd_ >= 0) {
    ssize_t n = ::read(fd_, record, sizeof record - 1);
    if (n < 0 && (errno == EINTR || errno == EPIPE)) continue;
    if (n <= 0) break;
    std::string text(record, static_cast<size_t>(n));
    text = text.substr(0, text.find('\n'));
    if (size_t at = text.find(';'); at != std::string::npos) text.erase(0, at + 1);
    out += text + "\n";
  }
  return out;
}

Explanation explain_load_refusal(int error, const std::string& log, const std::string& release,
                                 const std::string& vermagic) {
  // What insmod would have said of it.
  const char* said = error == -ENOEXEC  ? "Invalid module format"
                     : error == -ENOENT ? "unknown symbol in module"
                                        : std::strerror(-error);
  std::string text = log + "insmod: ERROR: could not insert module driver.ko: " + said + "\n";
  const changes::Finding* best = nullptr;
  auto findings = changes::explain_load(text, release, vermagic);
  for (auto& f : findings)
    if (!f.harmless && (best == nullptr || (best->name == "not_known" && f.name != "not_known"))) best = &f;
  if (best == nullptr || best->name == "not_known")
    return {"not_known", fmt::format("the kernel refused it: {}", said), "look into dmesg"};
  return {best->name, best->what + (best->cause.empty() ? "" : ": " + best->cause), best->cure};
}

Explanation explain_bind_refusal(const BindFacts& f) {
  auto matches = [&](const std::string& alias) {
    return ::fnmatch(alias.c_str(), f.modalias.c_str(), 0) == 0;
  };
  if (!f.driver_there)
    return {"no_such_driver", fmt::format("no driver {} is registered on the PCI bus", f.driver),
            "load its module first"};
  if (!f.bound.empty())
    return {"already_bound",
            fmt::format("the function is bound to {}{}", f.bound, f.bound == f.driver ? " already" : ""),
            fmt::format("echo its address to /sys/bus/pci/drivers/{}/unbind first", f.bound)};
  if (!f.override.empty() && f.override != "(null)" && f.override != f.driver)
    return {"overridden", fmt::format("driver_override says {}", f.override),
            "write an empty line, or this driver's name, to driver_override"};
  // An override that names the driver stands in for the table.
  if (f.override != f.driver && std::ranges::none_of(f.aliases, matches))
    return {
        "not_in_id_table", fmt::format("{} is not in the id table of {}", f.modalias.substr(0, 24), f.driver),
        "write \"VENDOR DEVICE\" to the driver's new_id, or set driver_override, where it is known to fit"};
  return {"probe_failed", fmt::format("the driver's probe returned {}", std::strerror(-f.error)),
          "the driver's lines in dmesg say why"};
}

std::vector<std::string> others_of_module(const std::string& module, const std::string& slot,
                                          const std::string& sys) {
  std::vector<std::string> out;
  std::error_code ec, no_matter;
  const std::string own = fs::weakly_canonical(sys + "/bus/pci/devices/" + slot, no_matter).string();
  for (auto& driver : fs::directory_iterator(sys + "/module/" + module + "/drivers", ec))
    for (auto& e : fs::directory_iterator(driver.path(), no_matter)) {
      // A device is a link out of the drivers' part of sysfs; "module" is one too.
      if (!e.is_symlink(no_matter) || e.path().filename() == "module") continue;
      const std::string device = fs::weakly_canonical(e.path(), no_matter).string();
      if (device != own && !device.starts_with(own + "/")) out.push_back(e.path().filename());
    }
  std::ranges::sort(out);
  return out;
}

}  // namespace kz::test
