// SPDX-License-Identifier: GPL-2.0-or-later
// One boot of one kernel in QEMU, with the software TPU, a vendor's model or a real board below a PCIe root
// port. QEMU and the model end with this object, and with the thread that made it.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "shim/base/fd.h"
#include "shim/softtpu_process.h"
#include "tools/lab/host.h"
#include "tools/lab/kernels.h"
#include "tools/lab/qmp.h"

namespace kz::lab {

// A file for the guest: from here, or a short text.
struct GuestFile {
  std::string path;    // in the guest, without the first slash
  std::string source;  // file here; empty: `content`
  std::string content = {};
  bool program = false;  // bring its shared libraries too
};

enum class Board { softtpu, vfio_user, vfio, qemu, none };

struct GuestSpec {
  Kernel kernel;
  std::string share;      // folder that the guest sees as /host
  std::string directory;  // below it: of this boot; logs and sockets go there
  std::vector<GuestFile> files;
  std::vector<std::string> modules;  // for modprobe in the guest, with what they need
  std::string append;                // more kernel parameters
  Board board = Board::softtpu;
  std::map<std::string, std::string> softtpu;  // options of the softtpu: URI
  std::string target;  // of vfio_user: the socket; of vfio: the PCI address; of qemu: its -device, "edu"
  std::vector<std::string> qemu_words;  // more words for QEMU's command line
  bool iommu = false;                   // a virtual IOMMU in front of the device
  bool shared_memory = true;  // false: no descriptor of it for the device model, every DMA is a message
  bool console = false;       // the serial console is ours to talk on, see console()
  bool gdb = false;           // gdb stub on port 1234
  unsigned memory_mib = 1024;
  unsigned message_timeout_ms = 10000;  // QEMU loses its place in the stream after a reply that came later
};

// Where the lab looks for a QEMU that works with KVM; "kvm" or "tcg,thread=multi".
std::string pick_accelerator(const Qemu& qemu, const Kernel& kernel);

// The busybox that guests start with, fetched where the cache lacks it.
std::string busybox();

class Guest {
 public:
  enum class State {
    running,
    powered_off,  // the guest asked for it
    reset,        // it restarted itself: a panic, or a triple fault. QEMU holds still, its memory is there
    ended,        // QEMU itself is gone
  };
  // Writes the initrd and starts everything. Throws Error.
  Guest(const GuestSpec& spec, const Qemu& qemu, const std::string& accelerator);
  ~Guest();
  Guest(const Guest&) = delete;
  Guest& operator=(const Guest&) = delete;

  // Waits up to `wait` for a change.
  State watch(std::chrono::milliseconds wait);
  // "signal 9 (Killed)": how QEMU ended, with the last line it said.
  std::string how_ended() const;
  // Registers of all processors, and the memory (kdump, compressed) where it is held and there is room for
  // it, to files of `directory`. Returns their names. Never throws; each step has a time limit.
  std::vector<std::string> take_evidence();
  Qmp& monitor() { return *monitor_; }
  SoftTpuProcess* softtpu() { return softtpu_.get(); }
  const Fd& console() const { return console_; }
  pid_t pid() const { return pid_; }
  std::chrono::duration<double> age() const { return Clock::now() - started_; }
  // Copies the host's /proc/pressure/cpu to the share, at most once a second.
  void tell_pressure();

 private:
  void write_initrd(const GuestSpec& spec);
  std::vector<std::string> arguments(const GuestSpec& spec, const std::string& accelerator, int monitor,
                                     int console);
  void start(const std::vector<std::string>& argv, const std::vector<int>& keep);
  void describe(const GuestSpec& spec) const;
  void ask_what_it_does() const noexcept;
  void stop() noexcept;

  std::string directory_, share_, sockets_;
  bool own_sockets_ = false;
  std::unique_ptr<SoftTpuProcess> softtpu_;
  std::unique_ptr<Qmp> monitor_;
  Fd console_, pressure_;
  pid_t pid_ = -1;
  int status_ = 0;
  State state_ = State::running;
  Clock::time_point started_, told_;
};

}  // namespace kz::lab
