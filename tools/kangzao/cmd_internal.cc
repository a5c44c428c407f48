// SPDX-License-Identifier: GPL-2.0-or-later
// The children that look at a device for the runner; not for people.
#include "tools/kangzao/commands.h"
#include "tools/kangzao/runner/probe.h"

namespace kz {

void add_internal(CLI::App& app, int& exit_status) {
  struct Child {
    const char* name;
    int (*body)(const std::string&);
  };
  for (Child child : {Child{"internal-probe", probe_main}, Child{"internal-health", health_main},
                      Child{"internal-reopen", reopen_main}, Child{"internal-recover", recover_main}}) {
    auto* sub = app.add_subcommand(child.name, "");
    sub->group("");  // hidden
    auto uri = std::make_shared<std::string>();
    sub->add_option("--device", *uri)->required();
    sub->callback([uri, child, &exit_status] { exit_status = child.body(*uri); });
  }
}

}  // namespace kz
