// SPDX-License-Identifier: GPL-2.0-or-later
// Load and unload: what is left behind, what grows, what is refused and whether the reason can be told.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/utsname.h>

#include <cstring>

#include "tests/harness/test.h"
#include "tests/kmod/elf.h"
#include "tests/kmod/findings.h"
#include "tests/kmod/growth.h"
#include "tests/kmod/module.h"
#include "tests/kmod/resources.h"
#include "tests/kmod/target.h"
#include "tests/kmod/text_file.h"
#include "tests/kmod/user.h"

namespace kz::test {
namespace {

constexpr unsigned long module_taints = 1u << 0 | 1u << 12 | 1u << 13;

std::string release() {
  utsname u{};
  ::uname(&u);
  return u.release;
}

void unload_or_fail(const Target& t) {
  const int rc = t.unload_when_free(10s);
  if (rc == 0) return;
  evidence(ev::driver, {{"what", "never_unloads"}, {"errno", -rc}, {"users", module_users(t.module)}});
  throw Error({Errc::busy, "unload", t.module,
               fmt::format("{} with nobody on it, {} users", std::strerror(-rc), module_users(t.module)),
               "a reference to the module was taken and not given back", -rc});
}

ElfImage unsigned_image(const Target& t) {
  ElfImage image(read_module(t.file));
  image.strip_signature();
  return image;
}

// Loads a spoilt module, which the kernel must refuse for one of the reasons.
void expect_refused(const Target& t, const std::vector<char>& image,
                    const std::vector<std::string>& reasons) {
  expect_log(t.module, module_taints);
  KernelTail tail;
  const int rc = in_time("load a spoilt module", step_limit, [&] { return load_module(image, ""); });
  if (rc == 0) {
    evidence(ev::driver, {{"what", "spoilt_module_loaded"}, {"reason", reasons.front()}});
    ADD_FAILURE() << "the kernel loaded a module that it should refuse (" << reasons.front() << ")";
    unload_module(t.module);
    return;
  }
  const std::string log = tail.take();
  const Explanation why = explain_load_refusal(rc, log, release(), "");
  evidence(
      ev::driver,
      {{"what", "refused"}, {"errno", -rc}, {"explained", why.name}, {"text", why.text}, {"cure", why.cure}});
  EXPECT_NE(std::ranges::find(reasons, why.name), reasons.end())
      << "refused with " << std::strerror(-rc) << ", told as " << why.name << " (" << why.text << "), wanted "
      << fmt::format("{}", fmt::join(reasons, " or ")) << "; the kernel said:\n"
      << log;
  EXPECT_FALSE(why.cure.empty()) << why.name << " comes without a remedy";
}

// The same in place of the right module, which comes back afterwards.
void offer_instead(const Target& t, const ElfImage& image, const std::vector<std::string>& reasons) {
  unload_or_fail(t);
  GiveBack back(t);
  expect_refused(t, image.bytes(), reasons);
}

}  // namespace

KZ_TEST(
    kmod_load, leaves_nothing,
    {.meaning = "a module that is unloaded leaves no region, interrupt, number, node, folder or file behind",
     .level = 1,
     .labels = takes_driver_away(),
     .limit = 90s}) {
  const Target t = find_target();
  need_module(t);
  GiveBack back(t);
  before_danger("unload the module");
  unload_or_fail(t);
  const Kernel bare = look_at_kernel();
  EXPECT_FALSE(is_loaded(t.module));
  EXPECT_EQ(t.bound_to(), "") << "the function is still bound to a driver that was unloaded";
  for (int round = 0; round < 2; ++round) {
    ASSERT_EQ(t.load(), 0) << "the module does not load again: something of the last load is left";
    ASSERT_TRUE(t.wait_ready(10s)) << "no driver or node 10 s after loading";
    unload_or_fail(t);
    for (auto& name : left_behind(bare, look_at_kernel())) {
      evidence(ev::driver, {{"what", "left_behind"}, {"name", name}});
      ADD_FAILURE() << "left behind by the unloaded module: " << name;
    }
  }
}

KZ_TEST(kmod_load, again_and_again,
        {.meaning = "loading and unloading for a long time takes no memory, number or interrupt for good",
         .level = 3,
         .labels = takes_driver_away(),
         .limit = 240s,
         .scaled = true}) {
  const Target t = find_target();
  need_module(t);
  GiveBack back(t);
  before_danger("load and unload the module many times");
  // One cycle leaves the module unloaded, so that only what it lost is there.
  unload_or_fail(t);
  const auto cycle = [&] {
    const int rc = t.load();
    if (rc != 0)
      throw Error({Errc::io, "load again", t.module, std::strerror(-rc),
                   "what the last load took was not given back", -rc});
    if (!t.wait_ready(10s))
      throw Error(
          {Errc::timeout, "wait for the driver", t.driver, "no driver or node 10 s after loading", "", 0});
    unload_or_fail(t);
  };
  judge_growth("load", static_cast<uint64_t>(24 * scale()), cycle);
}

KZ_TEST(kmod_load, twice,
        {.meaning = "a second load is refused as existing and does not disturb the first",
         .level = 4,
         .labels = takes_driver_away(),
         .limit = 60s}) {
  const Target t = find_target();
  need_module(t);
  GiveBack back(t);
  expect_log(t.module);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(t.load(), -EEXIST);
  EXPECT_EQ(t.bound_to(), t.driver);
  expect_works(t, "after a refused load");
}

KZ_TEST(kmod_load, parameters,
        {.meaning = "every module parameter at its bounds and at nonsense: refused cleanly or it works",
         .level = 4,
         .labels = takes_driver_away(),
         .limit = 300s}) {
  const Target t = find_target();
  need_module(t);
  GiveBack back(t);
  const ModuleInfo info = module_info(t.file);
  if (info.parameters.empty()) skip("module " + t.module + " has no parameter");
  expect_log(t.module);
  expect_log(t.slot);
  before_danger("load the module with parameters at their bounds");
  unload_or_fail(t);
  unsigned refused = 0, taken = 0;
  for (auto& p : info.parameters)
    for (auto& value : tries_for(p.type)) {
      const std::string text = p.name + "=" + value.value;
      const int rc = t.load(text);
      if (rc != 0) {
        ++refused;
        EXPECT_FALSE(is_loaded(t.module)) << text << ": refused, and yet loaded";
        continue;
      }
      ++taken;
      if (value.must_fail) {
        evidence(ev::driver, {{"what", "parameter_taken"}, {"parameter", text}});
        ADD_FAILURE() << text << " is no " << p.type << " and was taken";
      }
      // Whether the device comes up may depend on it; that it can be unloaded may not.
      unload_or_fail(t);
    }
  metric("kmod.parameters_refused", refused, "values");
  metric("kmod.parameters_taken", taken, "values");
  ASSERT_EQ(t.load(), 0);
  EXPECT_TRUE(t.wait_ready(10s));
}

KZ_TEST(kmod_load, unknown_parameter,
        {.meaning = "a parameter that does not exist is remarked and ignored, and the remark is understood",
         .level = 4,
         .labels = takes_driver_away(),
         .limit = 60s}) {
  const Target t = find_target();
  need_module(t);
  GiveBack back(t);
  expect_log(t.module);
  unload_or_fail(t);
  KernelTail tail;
  ASSERT_EQ(t.load(t.parameters + " kz_no_such_parameter=1"), 0);
  const std::string log = tail.take();
  EXPECT_NE(log.find("kz_no_such_parameter"), std::string::npos) << "the kernel said nothing of it";
}

KZ_TEST(kmod_load, wrong_kernel,
        {.meaning = "a module built for another kernel is refused, and told as that",
         .level = 1,
         .labels = takes_driver_away(),
         .limit = 30s}) {
  const Target t = find_target();
  need_module(t);
  ElfImage image(read_module(t.file));
  const bool was_signed = image.strip_signature();
  std::string magic = image.info("vermagic").value_or("");
  if (magic.empty()) skip("the module has no vermagic: built without CONFIG_MODVERSIONS' checks");
  // The release, and what follows it: where symbols have versions the loader looks at the rest alone.
  for (size_t at : {size_t{0}, magic.find(' ') + 1}) magic[at] = magic[at] == '9' ? '8' : '9';
  image.patch_info("vermagic", magic);
  std::vector<std::string> reasons{"version_magic"};
  if (was_signed) reasons.push_back("unsigned");
  offer_instead(t, image, reasons);
}

KZ_TEST(kmod_load, missing_symbol,
        {.meaning = "a module that needs a symbol this kernel lacks is refused, and told as that",
         .level = 1,
         .labels = takes_driver_away(),
         .limit = 30s}) {
  const Target t = find_target();
  need_module(t);
  ElfImage image = unsigned_image(t);
  bool renamed = false;
  for (auto& name : image.needed())
    if (!renamed && name.starts_with("pci_")) renamed = image.rename_symbol(name);
  if (!renamed) skip("the module uses no symbol of the PCI core");
  offer_instead(t, image, {"unknown_symbol", "no_symbol_version", "unsigned"});
}

KZ_TEST(kmod_load, changed_symbol_version,
        {.meaning = "a module built against another form of a symbol is refused, and told as that",
         .level = 1,
         .labels = takes_driver_away(),
         .limit = 30s}) {
  const Target t = find_target();
  need_module(t);
  ElfImage image = unsigned_image(t);
  if (image.change_version().empty())
    skip("the module carries no symbol versions (CONFIG_MODVERSIONS is off)");
  offer_instead(t, image, {"symbol_version", "unsigned"});
}

KZ_TEST(kmod_load, cut_file,
        {.meaning = "a module's file that was cut off is refused, and told as that",
         .level = 1,
         .labels = takes_driver_away(),
         .limit = 30s}) {
  const Target t = find_target();
  need_module(t);
  const auto whole = read_module(t.file);
  unload_or_fail(t);
  GiveBack back(t);
  for (size_t part : {whole.size() / 2, size_t{100}}) {
    std::vector<char> image(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(part));
    expect_refused(t, image, {"elf", "module_format", "unsigned"});
  }
}

KZ_TEST(kmod_load, proprietary,
        {.meaning = "a module without a free licence gets no GPL-only symbol, and is told so",
         .level = 1,
         .labels = takes_driver_away(),
         .limit = 30s}) {
  const Target t = find_target();
  need_module(t);
  // The taint cannot be taken back, and lockdep stops at it.
  if (exists("/proc/lockdep"))
    skip("this kernel checks locks, and its checker stops for good at a proprietary module");
  ElfImage image = unsigned_image(t);
  const std::string licence = image.info("license").value_or("");
  if (licence.find("GPL") == std::string::npos) skip("the module's licence is not the GPL as it is");
  image.patch_info("license", std::string(licence.size(), 'x'));
  unload_or_fail(t);
  GiveBack back(t);
  expect_log(t.module, module_taints);
  // Whether it needs a symbol that is for the GPL only is known to the kernel alone.
  if (in_time("load a module under another licence", step_limit,
              [&] { return load_module(image.bytes(), ""); }) == 0) {
    unload_or_fail(t);
    skip("the module loads under any licence: it needs no GPL-only symbol");
  }
  expect_refused(t, image.bytes(), {"unknown_symbol", "gpl_only", "unsigned"});
}

KZ_TEST(kmod_load, unsigned_refused,
        {.meaning = "where signatures are enforced an unsigned module is refused, and told as that",
         .level = 1,
         .labels = takes_driver_away(),
         .limit = 30s}) {
  const std::string enforced = value_of("/sys/module/module/parameters/sig_enforce");
  const std::string lockdown = value_of("/sys/kernel/security/lockdown");
  const bool locked = !lockdown.empty() && lockdown.find("[none]") == std::string::npos;
  if (enforced != "Y" && !locked)
    skip("this kernel takes unsigned modules (module.sig_enforce is " +
         (enforced.empty() ? "not there" : enforced) + ", no lockdown)");
  // Where such a kernel has taken the module all the same (it is signed), it is given back afterwards.
  Target t;
  t.slot = slot_of_run();
  const char* file = std::getenv("KANGZAO_MODULE");
  t.file = file != nullptr && *file != 0 ? file : find_module_file("kz_accel");
  if (t.file.empty()) block("the module's file is not known; give it with --module FILE");
  t.module = module_info(t.file).name;
  if (auto others = others_of_module(t.module, t.slot); !others.empty())
    skip(fmt::format("module {} also drives {}", t.module, fmt::join(others, ", ")));
  ElfImage image = unsigned_image(t);
  std::optional<GiveBack> back;
  if (is_loaded(t.module)) {
    t = find_target();
    back.emplace(t);
    unload_or_fail(t);
  }
  expect_refused(t, image.bytes(), {"unsigned", "not_permitted"});
}

KZ_TEST(
    kmod_load, firmware_files,
    {.meaning =
         "firmware that the module asks for is there; one that is missing is refused and leaves it working",
     .level = 1,
     .labels = takes_driver_away(),
     .limit = 60s}) {
  const Target t = find_target();
  need_module(t);
  const auto firmware = module_info(t.file).firmware;
  const std::string attribute = t.class_file("firmware_load");
  if (firmware.empty() && !t.ours()) skip("the module names no firmware file");
  for (auto& name : firmware) {
    bool there = false;
    for (auto end : {"", ".xz", ".zst"})
      for (auto& folder : {"/lib/firmware/" + release() + "/", std::string("/lib/firmware/")})
        there |= exists(folder + name + end);
    if (there) continue;
    evidence(ev::driver, {{"what", "firmware_missing"}, {"name", name}});
    warn("firmware " + name +
         " is not below /lib/firmware: install the vendor's firmware package, then load again");
  }
  if (!t.ours()) return;
  expect_log(t.slot);
  expect_log(t.module);
  EXPECT_EQ(in_time("ask for missing firmware", step_limit,
                    [&] { return write_file(attribute, "kz/no-such-image.bin"); }),
            -ENOENT);
  expect_works(t);
}

}  // namespace kz::test
