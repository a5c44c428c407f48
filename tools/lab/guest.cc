// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/lab/guest.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "shim/base/error.h"
#include "tools/kangzao/runner/process.h"
#include "tools/lab/initrd.h"

namespace kz::lab {
namespace fs = std::filesystem;
using nlohmann::json;
namespace {

constexpr size_t longest_folder = 80;  // of sockets: their names and sun_path's 107 bytes
constexpr auto monitor_limit = 10s, dump_limit = 90s, end_grace = 3s;
constexpr int answer_limit_ms = 10000;
constexpr uint64_t mib_kept_free = 1024;
// Every guest can mount the share; without the first and the last there is no way for results to come out.
const std::vector<std::string> share_modules{"virtio_pci", "9pnet_virtio", "9p"};

struct SocketPair {
  SocketPair() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw_errno("create", "socket pair");
    ours = Fd(ends[0]);
    theirs = Fd(ends[1]);
  }
  Fd ours, theirs;
};

std::string last_words(const std::string& file) {
  std::ifstream in(file);
  std::string last;
  for (std::string line; std::getline(in, line);)
    if (!line.empty()) last = line;
  return last;
}

}  // namespace

std::string busybox() { return run_script("roots.sh", {"busybox"}, 120s); }

Guest::Guest(const GuestSpec& spec, const Qemu& qemu, const std::string& accelerator)
    : directory_(fs::absolute(spec.directory)), share_(fs::absolute(spec.share)), sockets_(directory_) {
  fs::create_directories(directory_);
  // What another guest left in this folder must not be taken for this one's.
  for (auto name : {"state", "alive", "status", "kernel.log", "serial.log", "guest.json"})
    fs::remove(fs::path(directory_) / name);
  if (sockets_.size() > longest_folder) {
    sockets_ = (fs::temp_directory_path() / "kz-lab-XXXXXX").string();
    if (::mkdtemp(sockets_.data()) == nullptr) throw_errno("create folder", sockets_);
    own_sockets_ = true;
  }
  write_initrd(spec);
  try {
    if (spec.board == Board::softtpu)
      softtpu_ =
          std::make_unique<SoftTpuProcess>(SoftTpuSpec{.options = spec.softtpu, .directory = sockets_});
    SocketPair monitor, console;
    std::vector<std::string> argv = qemu.command;
    for (auto& a :
         arguments(spec, accelerator, monitor.theirs.get(), spec.console ? console.theirs.get() : -1))
      argv.push_back(a);
    std::vector<int> keep{monitor.theirs.get()};
    if (spec.console) keep.push_back(console.theirs.get());
    tell_pressure();
    start(argv, keep);
    monitor.theirs.reset();
    if (spec.console) console_ = std::move(console.ours);
    monitor_ = std::make_unique<Qmp>(std::move(monitor.ours));
    monitor_->greet(Deadline(30s));
    describe(spec);
  } catch (const Error&) {
    bool started = pid_ > 0;
    stop();  // and with that its log is whole
    std::string said = started ? last_words(directory_ + "/qemu.log") : "";
    if (said.empty()) throw;
    throw Error({Errc::unsupported, "start", "QEMU", said, "see " + directory_ + "/qemu.log", 0});
  }
}

void Guest::write_initrd(const GuestSpec& spec) {
  Initrd initrd(directory_ + "/initrd");
  initrd.file("init", share_folder() + "/tools/lab/guest-init.sh", 0755);
  initrd.file("bin/busybox", busybox(), 0755);
  for (auto& f : spec.files) {
    if (f.program)
      initrd.program(f.path, f.source);
    else if (!f.source.empty())
      initrd.file(f.path, f.source);
    else
      initrd.text(f.path, f.content, 0644);
  }
  initrd.text("lab/env", fmt::format("boot=/host/{}\n", fs::relative(directory_, share_).string()));
  ModuleTree tree(spec.kernel.modules);
  std::string folder = "lib/modules/" + spec.kernel.release, index;
  auto wanted = share_modules;
  wanted.insert(wanted.end(), spec.modules.begin(), spec.modules.end());
  for (auto& name : wanted) {
    auto paths = tree.with_dependencies(name);
    if (paths.empty()) continue;
    index += module_name(paths.back()) + ".ko:";
    for (size_t n = paths.size() - 1; n-- > 0;) index.append(" ").append(module_name(paths[n])).append(".ko");
    index += '\n';
    for (auto& p : paths) {
      initrd.file(folder + "/" + module_name(p) + ".ko", plain_module(spec.kernel, p), 0644);
      if (p != paths.back()) index += module_name(p) + ".ko:\n";
    }
  }
  initrd.text(folder + "/modules.dep", index);
  initrd.finish();
}

std::vector<std::string> Guest::arguments(const GuestSpec& spec, const std::string& accelerator, int monitor,
                                          int console) {
  std::string machine = "q35,memory-backend=mem", memory = fmt::format("{}M", spec.memory_mib);
  // A panic resets at once; QEMU then holds still, so that the memory can be taken.
  std::string append =
      "console=ttyS0 panic=-1 no_timer_check pci=no_e820 loglevel=5 log_buf_len=4M psi=1 "
      "rcupdate.rcu_cpu_stall_timeout=60 "
      "watchdog_thresh=30 sysctl.kernel.hung_task_timeout_secs=30 " +
      spec.append;
  std::vector<std::string> args{"-object",
                                (spec.shared_memory ? "memory-backend-memfd,id=mem,share=on,size="
                                                    : "memory-backend-ram,id=mem,size=") +
                                    memory,
                                "-m",
                                memory,
                                "-smp",
                                "2"};
  auto add = [&](std::initializer_list<std::string> words) { args.insert(args.end(), words); };
  if (spec.iommu) {
    machine += ",kernel-irqchip=split";
    append += " intel_iommu=on iommu=nopt";
    add({"-device", "intel-iommu,caching-mode=on,intremap=on"});
  }
  add({"-machine", machine, "-accel", accelerator, "-cpu", accelerator == "kvm" ? "host" : "max"});
  // Hot-plug by the port itself: without this it shows no presence, and recovery of a fatal error fails.
  add({"-global", "ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off", "-display", "none", "-nodefaults",
       "-action", "reboot=shutdown,shutdown=pause"});
  add({"-kernel", spec.kernel.image, "-initrd", directory_ + "/initrd", "-append", append});
  std::string log = directory_ + "/serial.log";
  add({"-chardev",
       console < 0 ? "file,id=console,path=" + log
                   : fmt::format("socket,id=console,fd={},logfile={}", console, log),
       "-serial", "chardev:console"});
  add({"-chardev", fmt::format("socket,id=agent,path={}/agent,server=on,wait=off", sockets_), "-serial",
       "chardev:agent"});
  add({"-chardev", fmt::format("socket,id=lab,fd={}", monitor), "-qmp", "chardev:lab"});
  add({"-chardev", fmt::format("socket,id=control,path={}/control,server=on,wait=off", sockets_), "-qmp",
       "chardev:control"});
  add({"-fsdev", fmt::format("local,id=host,path={},security_model=none,multidevs=remap", share_), "-device",
       "virtio-9p-pci,fsdev=host,mount_tag=host"});
  if (spec.board != Board::none) add({"-device", "pcie-root-port,id=rp0,slot=1,chassis=1"});
  if (spec.board == Board::qemu) add({"-device", spec.target + ",id=tpu0,bus=rp0"});
  if (spec.board == Board::vfio) add({"-device", "vfio-pci,id=tpu0,bus=rp0,host=" + spec.target});
  if (spec.board == Board::softtpu || spec.board == Board::vfio_user) {
    json device{{"driver", "vfio-user-pci"},
                {"id", "tpu0"},
                {"bus", "rp0"},
                {"x-msg-timeout", spec.message_timeout_ms}};
    device["socket"] = {{"type", "unix"},
                        {"path", softtpu_ ? softtpu_->socket() : fs::absolute(spec.target).string()}};
    add({"-device", device.dump()});
  }
  args.insert(args.end(), spec.qemu_words.begin(), spec.qemu_words.end());
  if (spec.gdb) add({"-gdb", "tcp:127.0.0.1:1234"});
  return args;
}

void Guest::start(const std::vector<std::string>& argv, const std::vector<int>& keep) {
  Fd log(::open((directory_ + "/qemu.log").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!log) throw_errno("create", directory_ + "/qemu.log");
  started_ = Clock::now();
  pid_ = spawn(argv, {}, keep, log.get());
}

// For whoever else wants to reach this guest: kangzao lab device, tests.
void Guest::describe(const GuestSpec& spec) const {
  json device{{"driver", "vfio-user-pci"},
              {"id", "tpu0"},
              {"bus", "rp0"},
              {"x-msg-timeout", spec.message_timeout_ms}};
  if (softtpu_) device["socket"] = {{"type", "unix"}, {"path", softtpu_->socket()}};
  json all{{"kernel", spec.kernel.name},       {"release", spec.kernel.release}, {"pid", pid_},
           {"control", sockets_ + "/control"}, {"agent", sockets_ + "/agent"},   {"share", share_},
           {"directory", directory_}};
  if (softtpu_)
    all["softtpu"] = {{"pid", softtpu_->pid()}, {"control", softtpu_->control()}, {"device", device}};
  std::ofstream(directory_ + "/guest.json") << all.dump(1) << "\n";
}

Guest::State Guest::watch(std::chrono::milliseconds wait) {
  tell_pressure();
  if (state_ == State::ended) return state_;
  for (auto& e : monitor_->events(wait)) {
    if (e["event"] != "SHUTDOWN") continue;
    std::string reason = e.value("data", json::object()).value("reason", "");
    state_ = reason == "guest-shutdown" ? State::powered_off : State::reset;
  }
  if (monitor_->closed()) ::poll(nullptr, 0, static_cast<int>(wait.count()));
  if (pid_ > 0 && ::waitpid(pid_, &status_, WNOHANG) == pid_) {
    pid_ = 0;
    state_ = State::ended;
  }
  return state_;
}

std::string Guest::how_ended() const {
  std::string said = last_words(directory_ + "/qemu.log");
  return describe_status(status_) + (said.empty() ? "" : ": " + said);
}

void Guest::tell_pressure() {
  if (pressure_ && Clock::now() - told_ < 1s) return;
  told_ = Clock::now();
  if (!pressure_)
    pressure_ = Fd(::open((share_ + "/pressure").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
  std::ifstream in("/proc/pressure/cpu");
  std::string text((std::istreambuf_iterator<char>(in)), {});
  if (!pressure_ || text.empty()) return;
  // Rewritten in place, because readers hold it open; the totals only grow, so no old end stays behind.
  if (::pwrite(pressure_.get(), text.data(), text.size(), 0) < 0) pressure_.reset();
}

// Its blocked tasks and what its processors do, to its own log; where it still listens.
void Guest::ask_what_it_does() const noexcept {
  static constexpr char line[] = "echo w >/proc/sysrq-trigger; echo l >/proc/sysrq-trigger; sleep 1; echo\n";
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  std::string path = sockets_ + "/agent";
  if (path.size() >= sizeof address.sun_path) return;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd || ::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return;
  if (::send(fd.get(), line, sizeof line - 1, MSG_NOSIGNAL) < 0) return;
  pollfd answer{fd.get(), POLLIN, 0};
  ::poll(&answer, 1, answer_limit_ms);
}

std::vector<std::string> Guest::take_evidence() {
  std::vector<std::string> made;
  if (pid_ <= 0) return made;
  if (state_ == State::running) ask_what_it_does();
  try {
    monitor_->execute("stop", json::object(), Deadline(monitor_limit));
    std::ofstream(directory_ + "/registers.txt")
        << monitor_->monitor("info registers -a", Deadline(monitor_limit)) << "\n";
    made.emplace_back("registers.txt");
    struct statvfs room {};
    if (::statvfs(directory_.c_str(), &room) != 0 ||
        (room.f_bavail * room.f_frsize >> 20) < mib_kept_free + 1024)
      return made;
    std::string file = directory_ + "/memory.kdump";
    monitor_->execute("dump-guest-memory",
                      {{"paging", false}, {"protocol", "file:" + file}, {"format", "kdump-zlib"}},
                      Deadline(dump_limit));
    made.emplace_back("memory.kdump");
  } catch (const std::exception& e) {
    std::ofstream(directory_ + "/evidence.txt") << "not complete: " << e.what() << "\n";
  }
  return made;
}

void Guest::stop() noexcept {
  if (pid_ > 0) {
    ::kill(pid_, SIGTERM);
    if (!wait_for_child(pid_, status_, Deadline(state_ == State::running ? end_grace : 1s))) {
      ::kill(pid_, SIGKILL);
      wait_for_child(pid_, status_, Deadline(end_grace));
    }
    pid_ = 0;
  }
  softtpu_.reset();  // after QEMU, which aborts where its device goes away under it
  std::error_code ec;
  for (auto name : {"/agent", "/control"}) fs::remove(sockets_ + name, ec);
  if (own_sockets_) fs::remove_all(sockets_, ec);
  fs::remove(directory_ + "/initrd", ec);
}

Guest::~Guest() { stop(); }

// KVM may be there and hang, so it must first bring this kernel to user space. The answer holds for this boot
// of the host.
std::string pick_accelerator(const Qemu& qemu, const Kernel& kernel) {
  const std::string emulation = "tcg,thread=multi";
  if (::access("/dev/kvm", W_OK) != 0) return emulation;
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  fs::path answer = fs::path(cache_folder()) / ("lab/kvm-" + boot);
  std::string known;
  if (std::ifstream(answer) >> known) return known == "works" ? "kvm" : emulation;
  fs::path folder = fs::temp_directory_path() / fmt::format("kz-lab-kvm-{}", ::getpid());
  bool works = false;
  try {
    GuestSpec spec{.kernel = kernel, .share = folder, .directory = folder / "probe", .board = Board::none};
    spec.files.push_back({"lab/run", "", "true\n"});
    Guest guest(spec, qemu, "kvm");
    for (Deadline limit(10s); !works && !limit.passed();)
      works = guest.watch(100ms) == Guest::State::powered_off;
  } catch (const Error&) {
    works = false;
  }
  std::error_code ec;
  fs::remove_all(folder, ec);
  fs::create_directories(answer.parent_path(), ec);
  // Another lab reads it meanwhile: whole, or not there.
  std::string fresh = fmt::format("{}.{}", answer.string(), ::getpid());
  std::ofstream(fresh) << (works ? "works" : "hangs") << "\n";
  fs::rename(fresh, answer, ec);
  return works ? "kvm" : emulation;
}

}  // namespace kz::lab
