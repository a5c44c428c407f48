// SPDX-License-Identifier: GPL-2.0-or-later
// softtpu: the reference TPU as a program that serves vfio-user clients.
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "shim/base/console.h"
#include "shim/base/error.h"
#include "shim/base/units.h"
#include "tools/softtpu/compute.h"
#include "tools/softtpu/options.h"
#include "tools/softtpu/server.h"

namespace kz::softtpu {
namespace {

constexpr const char* examples = R"(
Examples:
  softtpu --socket /tmp/tpu.sock
      serve a clean device with 1 GiB of HBM; use it as vfio-user:/tmp/tpu.sock
  softtpu --socket tpu.sock --control tpu.ctl --hbm 64M --fault '{"row": "M01", "params": {"bit": 5}}'
      a stuck bit from the start (faults of HBM cells must be planted before a client connects)
  echo '{"cmd": "inject", "fault": {"row": "D02", "trigger": {"kind": "after", "n": 100}}}' | nc -U tpu.ctl
      a fault into the running device; "list", "clear", "status", "set" and "quit" work alike
  softtpu --socket tpu.sock --service-time 100us
      every command takes exactly 100 us
  softtpu --socket tpu.sock --script hot.jsonl
      lines such as {"at_ms": 2000, "do": {"cmd": "set", "ambient": 60}}, counted from the first client's connect
)";

struct Words {  // the command line as typed
  std::string hbm = "1G", geometry = "3,1,4,5", irq = "msix", unmapped = "refuse", seed = "1", service_time,
              script, log, serial, fw_version;
  std::vector<std::string> faults;
  bool no_ecc = false, own_folder = false;
  ServerOptions server;
  DeviceOptions device;
};

void define_options(CLI::App& app, Words& w) {
  app.footer(examples);
  app.add_option("--socket", w.server.socket, "vfio-user socket to listen on")->required();
  app.add_option("--control", w.server.control, "control socket to listen on");
  app.add_option("--hbm", w.hbm, "HBM size, a multiple of 64 KiB")->capture_default_str();
  app.add_option("--geometry", w.geometry, "HBM address fields: bits of channel,pseudo channel,bank,column")
      ->capture_default_str();
  app.add_option("--irq", w.irq, "interrupt kind")
      ->check(CLI::IsMember({"msix", "msi"}))
      ->capture_default_str();
  app.add_option("--unmapped", w.unmapped,
                 "DMA to what no client mapped: refused here, or asked for by messages")
      ->check(CLI::IsMember({"refuse", "ask"}))
      ->capture_default_str();
  app.add_flag("--no-ecc", w.no_ecc, "HBM without ECC");
  app.add_option("--service-time", w.service_time, "every command takes exactly this long (100us)");
  app.add_option("--seed", w.seed, "seed of everything that the model draws")->capture_default_str();
  app.add_option("--queues", w.device.queues, "queue pairs, 8 to 32")->capture_default_str();
  app.add_option("--fault", w.faults, "plant a fault before any client (JSON, repeatable)");
  app.add_option("--script", w.script, "play a timed list of control requests");
  app.add_option("--log", w.log, "append what happens to a file");
  app.add_option("--serial", w.serial, "device serial number, hex");
  app.add_option("--fw-version", w.fw_version, "firmware version (1.4.2)");
  app.add_flag("--own-folder", w.own_folder,
               "remove the folder of --socket, and softtpu.err in it, at the end");
  app.add_flag("--one-client", w.server.one_client, "exit when the first client leaves");
}

void understand(Words& w) {
  w.device.engine.hbm_bytes = parse_bytes(w.hbm).value;
  if (w.device.engine.hbm_bytes == 0 || w.device.engine.hbm_bytes % 65536 != 0 ||
      w.device.engine.hbm_bytes >> 40 != 0)
    throw Error({Errc::usage, "read --hbm", w.hbm, "wants a multiple of 64 KiB below 1 TiB", {}});
  w.device.engine.geometry = parse_geometry(w.geometry);
  w.device.engine.ecc = !w.no_ecc;
  w.device.irq = w.irq == "msi" ? IrqMode::msi : IrqMode::msix;
  w.device.ask_for_unmapped = w.unmapped == "ask";
  if (!w.service_time.empty()) w.device.service_time = parse_duration(w.service_time);
  w.device.engine.seed = parse_number(w.seed);
  if (!w.serial.empty()) w.device.serial = parse_hex(w.serial);
  if (!w.fw_version.empty()) w.device.engine.fw_version = parse_version(w.fw_version);
  if (!w.script.empty()) w.server.script = load_script(w.script);
}

// Signal handlers reach nothing but statics.
volatile sig_atomic_t stop_event = -1;

void on_stop(int) {
  int saved = errno;
  uint64_t one = 1;
  [[maybe_unused]] ssize_t n = ::write(stop_event, &one, sizeof one);
  errno = saved;
}

// A client that shrinks a file which it mapped for DMA turns our access into SIGBUS. The device must survive
// its client: a page of zeroes takes the place of the missing one.
void on_bus_error(int, siginfo_t* info, void*) {
  constexpr int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
  // A mapping of huge pages can only be replaced by the page.
  for (size_t size : {size_t{4} << 10, size_t{2} << 20, size_t{1} << 30}) {
    if (info->si_code != BUS_ADRERR) break;
    void* at = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(info->si_addr) & ~(size - 1));
    if (::mmap(at, size, PROT_READ | PROT_WRITE, how, -1, 0) == at) return;
    if (errno != EINVAL) break;
  }
  ::signal(SIGBUS, SIG_DFL);  // and the access is tried again
}

Fd handle_signals() {
  Fd event = make_eventfd(true);
  stop_event = event.get();
  struct sigaction stop {};
  stop.sa_handler = on_stop;
  struct sigaction before {};
  for (int s : {SIGTERM, SIGINT, SIGHUP})  // nohup and shells ask for some to be ignored
    if (::sigaction(s, nullptr, &before) == 0 && before.sa_handler != SIG_IGN) ::sigaction(s, &stop, nullptr);
  sigset_t end;  // held back by an owner that started us
  ::sigemptyset(&end);
  ::sigaddset(&end, SIGTERM);
  ::sigprocmask(SIG_UNBLOCK, &end, nullptr);
  struct sigaction bus {};
  bus.sa_sigaction = on_bus_error;
  bus.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &bus, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  return event;
}

// Each DMA window may bring a descriptor for a moment, and clients come with many.
void raise_file_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// A wrong kernel for this processor: start again with one that every x86-64 of the last ten years runs.
void require_right_blas(char** argv) {
  if (compute_self_check()) return;
  if (::getenv("OPENBLAS_CORETYPE") == nullptr) {
    ::setenv("OPENBLAS_CORETYPE", "Haswell", 1);
    ::execv("/proc/self/exe", argv);
  }
  throw Error({Errc::unsupported, "check the math library", "OpenBLAS",
               "its products differ from those of plain loops on this processor",
               "set OPENBLAS_CORETYPE to a kernel that suits this processor"});
}

void plant(FaultBoard& faults, const std::vector<std::string>& specs) {
  for (const std::string& text : specs) {
    try {
      faults.inject(parse_json_line(text, "--fault"), false);
    } catch (const Error& e) {
      throw Error({Errc::usage, "plant fault", text, e.what(), "see --help for an example"});
    }
  }
}

// An owner that was killed cannot do it any more. Only what is empty goes, but for the file of our errors.
void remove_folder(const std::string& socket) {
  const std::filesystem::path folder = std::filesystem::path(socket).parent_path();
  std::error_code ec;
  std::filesystem::remove(folder / "softtpu.err", ec);
  std::filesystem::remove(folder, ec);
}

int serve(Words& w, char** argv) {
  understand(w);
  FaultBoard faults;
  plant(faults, w.faults);
  require_right_blas(argv);
  raise_file_limit();
  Fd stop = handle_signals();
  Log log = w.log.empty() ? Log() : Log(w.log);
  Device device(w.device, faults);
  {
    Server server(w.server, device, faults, log);
    fmt::print("ready {}\n", w.server.socket);
    std::fflush(stdout);
    server.run(stop.get());
  }
  if (w.own_folder) remove_folder(w.server.socket);
  return 0;
}

int exit_code(Errc code) { return code == Errc::usage ? 2 : 4; }

int run(int argc, char** argv) {
  CLI::App app{"The reference TPU in software, served over vfio-user"};
  Words words;
  define_options(app, words);
  try {
    app.parse(argc, argv);
    return serve(words, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  } catch (const Error& e) {
    say(fmt::format("softtpu: {}\n", e.what()));
    return exit_code(e.code());
  } catch (const std::exception& e) {
    say(fmt::format("softtpu: {}\n", e.what()));
    return 4;
  }
}

}  // namespace
}  // namespace kz::softtpu

int main(int argc, char** argv) {
  kz::occupy_standard_fds();
  return kz::softtpu::run(argc, argv);
}
