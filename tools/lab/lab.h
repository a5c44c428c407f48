// SPDX-License-Identifier: GPL-2.0-or-later
// A lab run: for each kernel the driver is built, a guest is booted, tests run in it, and everything is
// collected into one journal: OUTPUT/journal.jsonl, with the kernels' own below OUTPUT/KERNEL/.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/journal/writer.h"
#include "tools/kangzao/runner/catalog.h"
#include "tools/kangzao/runner/run.h"
#include "tools/kangzao/runner/safety.h"
#include "tools/lab/boot_verdicts.h"
#include "tools/lab/driver_build.h"
#include "tools/lab/guest.h"
#include "tools/lab/results.h"

namespace kz::lab {

struct LabOptions {
  std::vector<std::string> kernels = stock_roles();
  RunOptions run;                 // profile "none": only what the lab does itself
  std::string device;             // URI for the guest; empty: dev:/dev/kz0, with --driver pci:0000:01:00.0
  std::string tpu;                // options of the software TPU, as in its URI: hbm=64M,irq=msi
  std::string kernel, modules;    // a kernel of somebody's own
  std::string driver;             // a folder with sources, or a .ko, instead of ours
  std::vector<std::string> make;  // more words for the make that builds the driver
  std::string vfio_user;          // socket of somebody's own device model
  std::string vfio;               // PCI address of a real board
  std::string pci;                // a device model of QEMU's own instead: "edu", "nvme,serial=1,drive=d0"
  std::string qemu_words;         // more of QEMU's command line, split at blanks
  std::string qemu;
  std::vector<std::string> with;  // kernel modules that modprobe shall find
  std::vector<std::string> add;   // FILE:PLACE, more files for the guest
  std::string append;             // more kernel parameters
  std::string load;               // a load profile that runs after the tests
  double load_s = 60;
  double limit_s = 1800;  // for one boot
  bool debug = false;     // the guest's console as it comes
  bool iommu = false;
  nlohmann::json to_json() const;
  static LabOptions from_json(const nlohmann::json& j);
};

// FILE:PLACE, a file here and its place in the guest; a place that ends in / is a folder. Throws
// Error(usage).
GuestFile added_file(const std::string& pair);
std::vector<std::string> split_words(const std::string& text);

// As one word of a shell, whatever is in it.
std::string shell_word(const std::string& word);
// The command that runs one test of one kernel again; without a test: what the lab does itself.
std::string rerun_line(const LabOptions& options, const Kernel& kernel, const std::string& test);

// May this real board be given to guests? Its address and driver, who lives on it, its IOMMU group. Throws
// Error.
void check_board(const std::string& address, bool destructive, bool i_know, const SystemRoots& roots);

// Throws Error(usage, not_found, permission) for options that cannot work, before anything is started or
// created.
void check_options(const LabOptions& options);

// What a run began with and what it would go on with, as run-start has it in environment.lab: the first
// kernel or driver that is another one; empty: none.
std::string other_parts(const nlohmann::json& before, const nlohmann::json& now);

// What the lab does itself is a test too: the level that it is about.
int level_of_step(const std::string& step);

class Lab {
 public:
  // Looks at the host, fetches what is missing, creates `directory` and its journal. Throws Error for a host
  // that cannot (exit 125), JournalError.
  Lab(LabOptions options, const std::string& directory);
  // Goes on with a lab run that ended early: kernels that have all their verdicts keep them.
  static std::unique_ptr<Lab> resume(const std::string& directory);
  static bool is_lab_run(const std::string& directory);

  // Runs what is not done. Throws Error(gone) when QEMU was killed from outside: resume() goes on then.
  void go();
  RunSummary summary() const;
  std::string matrix_text() const;
  nlohmann::json to_json() const;

 private:
  struct Plan {
    Kernel kernel;
    KernelColumn column;
    int boots = 0;
    std::string module = {};    // name of the driver's
    std::string no_guest = {};  // why the last boot could not be started
  };
  Lab(LabOptions options, std::string directory, bool resumed);
  void prepare();
  nlohmann::json parts() const;
  std::string driver_sources() const;
  void write_start();
  void run_kernel(Plan& plan);
  bool build(Plan& plan, BuiltDriver& driver);
  GuestSpec spec_of(const Plan& plan, const BuiltDriver& driver, bool again) const;
  std::string environment_of(const Plan& plan, const BuiltDriver& driver, bool again) const;
  // How a boot ended: steps and verdicts are journaled; true: the guest went down in the middle and tests are
  // left.
  bool boot(Plan& plan, const BuiltDriver& driver);
  BootEnd run_guest(Plan& plan, const BuiltDriver& driver, const std::string& boot_directory);
  void cannot_boot(Plan& plan, const std::string& why);
  static void note_first_test(Plan& plan, const Guest& guest, const std::string& step);
  BootEnd follow(Guest& guest, Plan& plan, const std::string& boot_directory);
  void keep_evidence(Guest& guest, const Plan& plan, const std::string& boot_directory, const BootEnd& end);
  void take_boot(const Plan& plan, const std::string& boot_directory, const BootEnd& end);
  // What the kernel change table makes of it, else the last line that insmod said; findings are journaled.
  std::string explain_load_failure(const Plan& plan, const std::string& id, const std::string& directory,
                                   const std::string& said);
  bool broke(const Plan& plan) const;
  void take_verdicts(const Plan& plan);
  void judge_kernel_log(const Plan& plan);
  void verdict(const std::string& id, int level, Verdict v, const std::string& reason, double seconds = 0,
               nlohmann::json more = nlohmann::json::object());
  void evidence(const std::string& id, const char* kind, const nlohmann::json& detail);
  void rest_not_run(const Plan& plan, const std::string& reason);
  bool is_done(const std::string& id) const;
  std::string folder_of(const Plan& plan) const;
  std::string rerun_line(const Plan& plan, const std::string& test) const;
  std::vector<std::string> steps() const;
  std::string guest_device() const;
  void finish();

  LabOptions options_;
  std::string directory_, accelerator_;
  Qemu qemu_;
  std::vector<Plan> plans_;
  std::vector<TestDeclaration> tests_;
  std::unique_ptr<JournalWriter> journal_;
  std::map<std::string, Verdict> done_;
  std::map<std::string, std::string> broken_;  // what ended the boot in which a test was running
  bool resumed_ = false;
};

}  // namespace kz::lab
