// SPDX-License-Identifier: GPL-2.0-or-later
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <random>

#include "shim/base/console.h"
#include "shim/base/error.h"
#include "tools/kangzao/commands.h"
#include "tools/kangzao/numbers.h"
#include "tools/kangzao/run_folder.h"
#include "tools/kangzao/runner/process.h"
#include "tools/lab/guest_device.h"
#include "tools/lab/lab.h"
#include "tools/lab/shell.h"

namespace kz {
namespace fs = std::filesystem;
namespace {

struct LabArgs {
  lab::LabOptions options;
  std::string output;
  std::optional<uint64_t> seed;
  bool json = false;
};

int print_lab(const lab::Lab& lab, bool json, const std::string& directory) {
  RunSummary run = lab.summary();
  if (json) {
    write_output(lab.to_json().dump(2) + "\n", "");
  } else {
    std::string text = "\n" + lab.matrix_text() + "\n";
    for (auto& r : run.results)
      if (is_unclean(r.verdict)) text += fmt::format("{} {}: {}\n", to_string(r.verdict), r.id, r.reason);
    for (auto& n : run.not_proved) text += "not proved: " + n + "\n";
    write_output(text + "journal: " + directory + "\n", "");
  }
  return exit_code(run);
}

int lab_command(LabArgs& a) {
  auto& o = a.options;
  o.run.seed = a.seed.value_or(std::random_device{}());
  for (auto* path : {&o.kernel, &o.modules, &o.driver, &o.vfio_user, &o.load})
    if (!path->empty()) *path = fs::absolute(*path).lexically_normal();
  // Through pci: alone nothing of the levels above can be done; --device may name a better way.
  if (!o.driver.empty() && o.device.empty() && o.run.selection.levels.empty() &&
      o.run.selection.groups.empty())
    o.run.selection.levels = {1};
  become_subreaper();
  catch_signals();
  bool named = !a.output.empty();
  std::string directory = named ? a.output : new_run_directory();
  lab::Lab run(o, directory);
  if (!named) point_latest(directory);
  run.go();
  return print_lab(run, a.json, directory);
}

int list_kernels() {
  for (auto& role : lab::kernel_roles()) {
    std::string release = lab::run_script("roots.sh", {"has", role}, 10s) == "yes"
                              ? lab::run_script("roots.sh", {"version", role}, 10s)
                              : "- (fetched or built when it is first used)";
    fmt::print("{:<16} {}\n", role, release);
  }
  try {
    fmt::print("{:<16} {}\n", "QEMU", lab::find_qemu().version);
  } catch (const Error&) {
    fmt::print("{:<16} - (fetched when it is first used)\n", "QEMU");
  }
  fmt::print("{:<16} {}\n", "cache", lab::cache_folder());
  return 0;
}

constexpr unsigned shell_limit_s = 600;
constexpr const char* pci_help =
    "a device model of QEMU's own below the root port instead of the software TPU: edu, igb,netdev=n0";
constexpr const char* qemu_words_help = "more words for QEMU, for what such a device needs";
constexpr const char* with_help = "a kernel module that modprobe shall find";
constexpr const char* add_help = "FILE:PLACE, a file for the guest";

struct ShellArgs {
  std::string kernel, image, modules, output, tpu, pci, append, run, qemu, qemu_words;
  std::vector<std::string> add, with;
  bool no_tpu = false, no_driver = false, iommu = false, gdb = false, private_memory = false;
  unsigned message_timeout_ms = 10000, memory_mib = 1024;
  std::optional<unsigned> limit_s;
};

lab::GuestSpec shell_guest(const ShellArgs& a, const std::string& directory) {
  lab::GuestSpec spec{
      .kernel = a.image.empty() ? lab::find_kernel(a.kernel) : lab::given_kernel(a.image, a.modules),
      .share = directory,
      .directory = directory + "/boot-1",
      .modules = a.with,
      .append = a.append,
      .iommu = a.iommu,
      .console = true,
      .gdb = a.gdb,
      .memory_mib = a.memory_mib,
      .message_timeout_ms = a.message_timeout_ms};
  spec.shared_memory = !a.private_memory;
  if (a.no_tpu) spec.board = lab::Board::none;
  if (!a.tpu.empty()) spec.softtpu = parse_uri("softtpu:" + a.tpu).options;
  if (!a.pci.empty()) {
    if (!a.tpu.empty() || a.no_tpu)
      throw Error({Errc::usage, "read --pci", a.pci, "it stands in the place of the software TPU", "", 0});
    spec.board = lab::Board::qemu;
    spec.target = a.pci;
  }
  spec.qemu_words = lab::split_words(a.qemu_words);
  std::string script = a.run.empty() ? "cd /root; setsid cttyhack sh </dev/ttyS0 >/dev/ttyS0 2>&1\n"
                                     : "(" + a.run + "\n) >/dev/ttyS0 2>&1\necho $? >$boot/status\n";
  if (!a.no_driver) {
    auto driver = lab::build_driver(spec.kernel, lab::share_folder() + "/shim/kmod");
    if (driver.module.empty())
      throw Error({Errc::unsupported, "build", "the driver", last_line(driver.log),
                   "start without it: --no-driver", 0});
    for (auto& name : lab::module_depends(driver.module)) spec.modules.push_back(name);
    spec.files.push_back({"lab/kz_accel.ko", driver.module});
    spec.files.push_back({"bin/kz-selftest", lab::build_selftest()});
  }
  spec.files.push_back({"lab/run", "", script});
  for (auto& e : fs::directory_iterator(program_directory()))
    if (std::string name = e.path().filename(); name == "kangzao" || name.starts_with("kz-test-"))
      spec.files.push_back({.path = "usr/bin/" + name, .source = e.path(), .program = true});
  for (auto& pair : a.add) spec.files.push_back(lab::added_file(pair));
  return spec;
}

int shell_status(const ShellArgs& a, lab::Guest& guest, lab::Guest::State state, bool late,
                 const std::string& directory) {
  using State = lab::Guest::State;
  if (state == State::ended) {
    say("lab: QEMU ended: " + guest.how_ended() + "\n");
    return 1;
  }
  late &= state == State::running;
  if (state == State::reset || late) {
    guest.take_evidence();
    std::string why = late ? "it had no end within its limit" : "it died: " + lab::panic_line(directory);
    say(fmt::format("lab: the guest: {}; kept in {}\n", why, directory));
    return 1;
  }
  std::ifstream status(directory + "/status");
  int code = 0;
  return a.run.empty() ? 0 : status >> code ? code : 1;
}

int shell_command(const ShellArgs& a) {
  if (a.kernel.empty() == a.image.empty())
    throw Error({Errc::usage, "start", "a guest", "one kernel is wanted: a role, or --kernel FILE", "", 0});
  lab::need_root();
  become_subreaper();
  catch_signals();
  lab::fetch_missing(a.image.empty() ? std::vector{a.kernel} : std::vector<std::string>{}, a.qemu.empty());
  bool named = !a.output.empty();
  std::string directory = fs::absolute(named ? a.output : new_run_directory());
  fs::create_directories(directory + "/boot-1");
  auto spec = shell_guest(a, directory);
  auto qemu = lab::find_qemu(a.qemu);
  lab::Guest guest(spec, qemu, lab::pick_accelerator(qemu, spec.kernel));
  say(fmt::format(
      "lab: {} {}, files of the host in /host: {}\nlab: Ctrl-] leaves and ends the guest; the driver is "
      "/lab/kz_accel.ko, its tests kz-selftest\n",
      spec.kernel.name, spec.kernel.release, directory));
  if (a.gdb)
    say(
        fmt::format("lab: gdb -ex 'target remote 127.0.0.1:1234' {}   (add nokaslr with --append; symbols: "
                    "vmlinux of the "
                    "debug package or of your own build)\n",
                    spec.kernel.image));
  // A person may take as long as it takes; a text that runs by itself may not.
  Deadline deadline(std::chrono::nanoseconds::max());
  if (a.limit_s || !a.run.empty())
    deadline = Deadline(std::chrono::seconds(a.limit_s.value_or(shell_limit_s)));
  auto state = lab::talk(guest, deadline);
  if (told_to_stop()) return 130;
  return shell_status(a, guest, state, deadline.passed(), spec.directory);
}

struct DeviceArgs {
  std::string directory, action;
  std::vector<std::string> words;
};

int device_command(const DeviceArgs& a) {
  lab::GuestDevice device(a.directory);
  auto number = [&](size_t n) {
    if (n >= a.words.size()) return 0u;
    auto complaint = whole_number()(const_cast<std::string&>(a.words[n]));
    if (!complaint.empty()) throw Error({Errc::usage, "read number", a.words[n], complaint, "", 0});
    return static_cast<unsigned>(std::stoul(a.words[n]));
  };
  std::string all;
  for (auto& w : a.words) all += (all.empty() ? "" : " ") + w;
  if (a.action == "error")
    device.link_error(all);
  else if (a.action == "gone")
    device.set_gone(true);
  else if (a.action == "back")
    device.set_gone(false);
  else if (a.action == "link")
    device.set_link(number(0), number(1));
  else if (a.action == "pull-out")
    device.pull_out();
  else if (a.action == "unplug")
    device.unplug();
  else if (a.action == "plug-in")
    device.plug_in();
  else if (a.action == "cut-power")
    device.cut_power();
  else if (a.action == "control")
    fmt::print("{}\n", device.control(nlohmann::json::parse(all)).dump());
  else if (a.action == "monitor")
    fmt::print("{}\n", device.monitor(all));
  return 0;
}

void add_lab_options(CLI::App& sub, LabArgs& a) {
  auto& o = a.options;
  sub.add_option("--kernels", o.kernels,
                 "roles: stable-1, stable, backports, sid, stable-1-debug, backports-debug")
      ->delimiter(',')
      ->capture_default_str();
  sub.add_option("--profile", o.run.selection.profile,
                 "tests to run in each guest; none: only build, load, the driver's self test")
      ->capture_default_str();
  sub.add_option("--filter", o.run.selection.filters, "only tests with these ids (* and ?)")
      ->allow_extra_args(false);
  sub.add_option("--group", o.run.selection.groups, "only tests of these groups; kmod: the driver's own life")
      ->allow_extra_args(false);
  sub.add_option("--level", o.run.selection.levels, "1 to 4")
      ->check(CLI::Range(1, 4))
      ->allow_extra_args(false);
  sub.add_option("--seed", a.seed, "seed of the tests")->check(whole_number());
  sub.add_option("--retries", o.run.retries, "how often a failed test is tried again")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  sub.add_option("--device", o.device, "URI of the device in the guest (default: dev:/dev/kz0)");
  sub.add_option("--kernel", o.kernel, "a bzImage of your own instead of --kernels");
  sub.add_option("--modules", o.modules,
                 "its modules: what modules_install made, with a build link, or its build tree");
  sub.add_option("--driver", o.driver, "sources of a module, or a .ko, instead of the reference driver");
  sub.add_option("--make", o.make, "more words for the make that builds the driver: DEBUG=1,V=1")
      ->delimiter(',');
  sub.add_option("--vfio-user", o.vfio_user, "socket of a device model instead of the software TPU");
  sub.add_option("--vfio", o.vfio, "PCI address of a real board, bound to vfio-pci, for guest after guest");
  sub.add_option("--tpu", o.tpu, "options of the software TPU: hbm=64M,irq=msi");
  sub.add_option("--pci", o.pci, pci_help);
  sub.add_option("--qemu-words", o.qemu_words, qemu_words_help);
  sub.add_option("--with", o.with, with_help)->allow_extra_args(false);
  sub.add_option("--add", o.add, add_help)->allow_extra_args(false);
  sub.add_option("--load-command", o.run.load_command,
                 "with --driver: a shell text that loads the device in the guest until it is ended");
  sub.add_option("--load", o.load, "a load profile to run after the tests");
  sub.add_option("--load-time", o.load_s, "seconds of it")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  sub.add_option("--limit", o.limit_s, "seconds that the tests of one boot may take")
      ->check(CLI::Range(10, 1000000))
      ->capture_default_str();
  sub.add_option("--append", o.append, "more kernel parameters");
  sub.add_option("--qemu", o.qemu, "this QEMU");
  sub.add_option("--output", a.output, "folder of the run; must be new or empty");
  sub.add_flag("--iommu", o.iommu, "with a virtual IOMMU");
  sub.add_flag("--destructive", o.run.destructive,
               "with --vfio: guests may reset the board and lose its data");
  sub.add_flag(
      "--i-know", o.run.i_know,
      "with --vfio: even a board that carries a file system, swap, the default route or the console");
  sub.add_flag("--json", a.json, "result as one JSON document on standard output");
  sub.add_flag("--debug", o.debug, "the guests' consoles as they come");
}

void add_shell(CLI::App& parent, int& exit_status) {
  auto* sub = parent.add_subcommand("shell", "boot one kernel and talk to it on its serial console");
  auto a = std::make_shared<ShellArgs>();
  sub->add_option("role", a->kernel, "a kernel of kangzao lab list");
  sub->add_option("--kernel", a->image, "a bzImage of your own");
  sub->add_option("--modules", a->modules, "its modules");
  sub->add_option("--run", a->run,
                  "run this text in the guest's shell, then power off; its exit status is ours");
  sub->add_option("--limit", a->limit_s, "seconds until the guest is ended (default: 600 with --run)")
      ->check(CLI::Range(1, 1000000));
  sub->add_option("--add", a->add, add_help)->allow_extra_args(false);
  sub->add_option("--with", a->with, with_help)->allow_extra_args(false);
  sub->add_option("--append", a->append, "more kernel parameters");
  sub->add_option("--tpu", a->tpu, "options of the software TPU");
  sub->add_option("--pci", a->pci, pci_help);
  sub->add_option("--qemu-words", a->qemu_words, qemu_words_help);
  sub->add_option("--memory", a->memory_mib, "MiB of the guest")
      ->check(CLI::Range(128, 65536))
      ->capture_default_str();
  sub->add_option("--message-timeout", a->message_timeout_ms, "ms that QEMU waits for the device model")
      ->capture_default_str();
  sub->add_option("--qemu", a->qemu, "this QEMU");
  sub->add_option("--output", a->output, "folder for logs and sockets, the guest's /host");
  sub->add_flag("--no-tpu", a->no_tpu, "no device");
  sub->add_flag("--no-driver", a->no_driver, "do not build the driver");
  sub->add_flag("--iommu", a->iommu, "with a virtual IOMMU");
  sub->add_flag("--private-memory", a->private_memory,
                "memory that the device model cannot map: every DMA is a message");
  sub->add_flag("--gdb", a->gdb, "gdb stub on port 1234");
  sub->callback([a, &exit_status] { exit_status = shell_command(*a); });
}

void add_device(CLI::App& parent, int& exit_status) {
  auto* sub = parent.add_subcommand("device", "do something to the device of a running guest");
  sub->footer(
      "Examples (DIR is the boot's folder: runs/latest/stable-1/boot-1):\n"
      "  kangzao lab device DIR error RCVR       RCVR correctable, COMP_TIME non-fatal, DLP fatal, SDN "
      "surprise down\n"
      "  kangzao lab device DIR gone | back      all ones, and sound again\n"
      "  kangzao lab device DIR link 4 1         Link Status: width 4, 2.5 GT/s\n"
      "  kangzao lab device DIR pull-out | unplug | plug-in      pull-out and unplug: with --tpu irq=msi "
      "only\n"
      "  kangzao lab device DIR cut-power");
  auto a = std::make_shared<DeviceArgs>();
  sub->add_option("directory", a->directory)->required();
  sub->add_option("action", a->action)
      ->required()
      ->check(CLI::IsMember({"error", "gone", "back", "link", "pull-out", "unplug", "plug-in", "cut-power",
                             "control", "monitor"}));
  sub->add_option("words", a->words);
  sub->callback([a, &exit_status] { exit_status = device_command(*a); });
}

}  // namespace

int resume_lab(const std::string& directory, bool json) {
  auto run = lab::Lab::resume(directory);
  run->go();
  return print_lab(*run, json, directory);
}

bool is_lab_run(const std::string& directory) { return lab::Lab::is_lab_run(directory); }

void add_lab(CLI::App& app, int& exit_status) {
  auto* sub =
      app.add_subcommand("lab", "the same tests on real kernels, in QEMU: build, boot, load, test, collect");
  sub->footer(
      "Examples:\n"
      "  kangzao lab                                      four kernels, quick profile\n"
      "  kangzao lab --kernels stable,sid --filter 'dma.*'\n"
      "  kangzao lab --kernel arch/x86/boot/bzImage --modules /tmp/mods\n"
      "  kangzao lab --driver ~/src/driver                a driver of your own on every kernel\n"
      "  kangzao lab shell stable                         a person at the console\n"
      "  kangzao lab list\n"
      "Exit: as run's; 125 where this host cannot (no root, no QEMU, no archive, no room)");
  auto a = std::make_shared<LabArgs>();
  add_lab_options(*sub, *a);
  sub->require_subcommand(0, 1);
  add_shell(*sub, exit_status);
  add_device(*sub, exit_status);
  sub->add_subcommand("list", "kernels, and what of them is in the cache")->callback([&exit_status] {
    exit_status = list_kernels();
  });
  sub->callback([sub, a, &exit_status] {
    if (sub->get_subcommands().empty()) exit_status = lab_command(*a);
  });
}

}  // namespace kz
