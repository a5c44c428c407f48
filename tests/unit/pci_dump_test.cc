// SPDX-License-Identifier: GPL-2.0-or-later
// Text dumps: the parser on its own, and the recorded devices against lspci as an independent reader.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/pci_regs.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>
#include <set>

#include "shim/base/error.h"
#include "shim/pci/config_bytes.h"
#include "shim/pci/config_dump.h"
#include "shim/pci/fuzz.h"
#include "shim/pci/rules.h"
#include "shim/pci/tree.h"

namespace kz {
namespace {

namespace fs = std::filesystem;

fs::path dumps() { return fs::path(KZ_SOURCE_DIR) / "tests/data/pci-dumps"; }

std::vector<fs::path> all_dumps() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(dumps()))
    if (entry.path().extension() == ".txt") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

std::string rows(int bytes, int from = 0) {
  std::string text;
  char buffer[8];
  for (int i = from; i < from + bytes; ++i) {
    if (i % 16 == 0) std::snprintf(buffer, sizeof buffer, "%02x:", i), text += buffer;
    std::snprintf(buffer, sizeof buffer, " %02x", (i * 7) & 0xff), text += buffer;
    if (i % 16 == 15) text += "\n";
  }
  return text;
}

TEST(PciDump, ReadsWhatLspciPrints) {
  std::string text =
      "pcilib: something that libpci had to say\n"
      "0000:01:00.0 Processing accelerators [1200]: Vendor Device [1234:4b5a] (rev 01)\n"
      "\tSubsystem: Vendor Device\n\tCapabilities: [40] Power Management version 3\n"
      "\tKernel driver in use: kz_accel\n" +
      rows(256) + "\r\n10000:e1:00.0 NVMe behind a VMD\r\n" + rows(64) + "\n02:03.4 short address\n" +
      rows(4096);
  auto all = parse_pci_dump(text, "t");
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(to_string(all[0].bdf), "0000:01:00.0");
  EXPECT_EQ(all[0].driver, "kz_accel");
  EXPECT_EQ(all[0].title, "Processing accelerators [1200]: Vendor Device [1234:4b5a] (rev 01)");
  EXPECT_EQ(all[0].line, 2u);
  EXPECT_EQ(all[0].bytes.size(), 256u);
  for (int i = 0; i < 256; ++i) EXPECT_EQ(all[0].bytes[i], (i * 7) & 0xff);
  EXPECT_EQ(all[1].bdf.domain, 0x10000u);
  EXPECT_EQ(to_string(all[2].bdf), "0000:02:03.4");
  EXPECT_EQ(all[2].bytes.size(), 4096u);
}

TEST(PciDump, BadInputNamesFileAndLine) {
  const std::string head = "00:01.0 x\n";
  struct {
    std::string text, where, what;
  } cases[] = {
      {"", "t:0", "no PCI function"},
      {"nothing of interest\n", "t:1", "no PCI function"},
      {head + "\tCapabilities: <access denied>\n", "t:2", "no rows"},
      {rows(64), "t:1", "before the line that names"},
      {head + "00: 86 80 0\n", "t:2", "'0' is not a byte"},
      {head + "00: 86 80 zz 00\n", "t:2", "'zz' is not a byte"},
      {head + "00: 8680 0000\n", "t:2", "'8680' is not a byte"},
      {head + rows(16) + "20: 00\n", "t:3", "row 0x20 where 0x10 must follow"},
      {head + rows(16) + rows(16), "t:3", "row 0x0 where 0x10"},
      {head + rows(48), "t:4", "ends after 48"},
      {head + rows(4096) + "1000: 00\n", "t:258", "more than 4096"},
      {head + "00: 00 11 22 33 44 55 66 77 88 99 aa bb cc dd ee ff 00\n", "t:2", "more than 16"},
      {head + rows(64) + head + rows(64), "t:6", "given twice, first in line 1"},
      {head + rows(64) + std::string("\x01\x02garbage\n"), "t:6", "not text"},
      {head + rows(64) + std::string("a\0b\n", 4), "t:6", "not text"},
      {head + rows(64) + std::string(5000, 'x') + "\n", "t:6", "5000 characters"},
      {head + "00:\n", "t:2", "without bytes"},
  };
  for (const auto& c : cases) {
    try {
      parse_pci_dump(c.text, "t");
      ADD_FAILURE() << "accepted: " << c.what;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Errc::bad_data);
      EXPECT_EQ(e.info().target, c.where) << e.what();
      EXPECT_THAT(e.info().detail, testing::HasSubstr(c.what));
      EXPECT_FALSE(e.info().remedy.empty());
    }
  }
}

TEST(PciDump, CutAnywhereIsReadShorterOrRefused) {
  std::string text = "00:01.0 x\n" + rows(256);
  for (size_t end = 0; end <= text.size(); ++end) {
    try {
      auto all = parse_pci_dump(std::string_view(text).substr(0, end), "t");
      ASSERT_EQ(all.size(), 1u);
      for (size_t i = 0; i < all[0].bytes.size(); ++i) ASSERT_EQ(all[0].bytes[i], (i * 7) & 0xff) << end;
    } catch (const Error& e) {
      ASSERT_EQ(e.code(), Errc::bad_data) << end;
    }
  }
}

TEST(PciDump, MissingFileAndFolder) {
  EXPECT_THROW(read_pci_dump("/nonexistent/dump"), Error);
  EXPECT_THROW(read_pci_dump("/"), Error);
}

TEST(PciDump, MutatedTextNeverEscapes) {
  std::mt19937_64 rng(5);
  std::string seed = "00:01.0 x\n" + rows(256) + "\n0000:02:00.0 y\n" + rows(64);
  for (int round = 0; round < 5000; ++round) {
    std::string text = seed;
    for (size_t n = 1 + rng() % 6; n > 0; --n) {
      size_t at = rng() % text.size();
      switch (rng() % 4) {
        case 0:
          text[at] = static_cast<char>(rng());
          break;
        case 1:
          text.erase(at, rng() % 20);
          break;
        case 2:
          text.insert(at, text.substr(rng() % text.size(), rng() % 60));
          break;
        default:
          text[at] ^= static_cast<char>(1 << (rng() % 8));
      }
      if (text.empty()) text.push_back('x');
    }
    ASSERT_NO_THROW(fuzz_dump_parser({reinterpret_cast<const uint8_t*>(text.data()), text.size()}))
        << "round " << round;
  }
}

// ---- recorded devices ----

struct LspciFunction {
  unsigned class_code = 0, vendor = 0, device = 0;
  struct Capability {
    unsigned offset = 0, version = 0;
    bool extended = false;
    std::string name;
  };
  std::vector<Capability> capabilities;
};

bool have_lspci() { return std::system("lspci --version >/dev/null 2>&1") == 0; }

// lspci -F FILE -n -vv, by address.
std::map<std::string, LspciFunction> by_lspci(const fs::path& file) {
  std::string command = "lspci -D -n -vv -F '" + file.string() + "' 2>/dev/null";
  std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::map<std::string, LspciFunction> all;
  const std::regex title(R"(^([0-9a-f:.]+) ([0-9a-f]{4}): ([0-9a-f]{4}):([0-9a-f]{4}).*)");
  const std::regex cap(R"(^\tCapabilities: \[([0-9a-f]+)( v([0-9]+))?\] ([^:\n]*).*)");
  LspciFunction* current = nullptr;
  std::array<char, 4096> buffer;
  while (std::fgets(buffer.data(), buffer.size(), pipe.get()) != nullptr) {
    std::string line(buffer.data());
    line.erase(line.find_last_not_of("\r\n") + 1);
    std::smatch m;
    if (std::regex_match(line, m, title)) {
      current = &all[m[1]];
      current->class_code = std::stoul(m[2], nullptr, 16);
      current->vendor = std::stoul(m[3], nullptr, 16);
      current->device = std::stoul(m[4], nullptr, 16);
    } else if (current != nullptr && std::regex_match(line, m, cap)) {
      current->capabilities.push_back({static_cast<unsigned>(std::stoul(m[1], nullptr, 16)),
                                       m[3].matched ? static_cast<unsigned>(std::stoul(m[3])) : 0u,
                                       m[2].matched, m[4]});
    }
  }
  return all;
}

// The id behind a name that lspci prints.
std::optional<unsigned> id_of(const LspciFunction::Capability& c) {
  static const std::vector<std::pair<std::string, unsigned>> standard = {
      {"Power Management", 0x01},
      {"Vital Product Data", 0x03},
      {"MSI-X", 0x11},
      {"MSI", 0x05},
      {"Express", 0x10},
      {"Vendor Specific Information", 0x09},
      {"Subsystem", 0x0d},
      {"AGP3", 0x0e},
      {"AGP", 0x02},
      {"HyperTransport", 0x08},
      {"Enhanced Allocation", 0x14}};
  static const std::vector<std::pair<std::string, unsigned>> extended = {
      {"Advanced Error Reporting", 0x01},
      {"Virtual Channel", 0x02},
      {"Device Serial Number", 0x03},
      {"Power Budgeting", 0x04},
      {"Root Complex Event Collector", 0x07},
      {"Multi-Function Virtual Channel", 0x08},
      {"Access Control Services", 0x0d},
      {"Single Root I/O Virtualization", 0x10},
      {"Precision Time Measurement", 0x1f},
      {"Data Link Feature", 0x25},
      {"Physical Layer 16.0 GT/s", 0x26},
      {"Lane Margining at the Receiver", 0x27},
      {"Data Object Exchange", 0x2e},
      {"Vendor Specific Information", 0x0b},
      {"Alternative Routing-ID", 0x0e},
      {"Address Translation Service", 0x0f},
      {"Multicast", 0x12},
      {"Page Request Interface", 0x13},
      {"Physical Resizable BAR", 0x15},
      {"Transaction Processing Hints", 0x17},
      {"Latency Tolerance Reporting", 0x18},
      {"Secondary PCI Express", 0x19},
      {"Process Address Space ID", 0x1b},
      {"L1 PM Substates", 0x1e},
      {"Designated Vendor-Specific", 0x23}};
  for (const auto& [name, id] : c.extended ? extended : standard)
    if (c.name.starts_with(name)) return id;
  constexpr std::string_view unnamed = "Extended Capability ID ";
  if (c.extended && c.name.starts_with(unnamed))
    return std::stoul(c.name.substr(unnamed.size()), nullptr, 16);
  return std::nullopt;
}

TEST(PciRecorded, IdsAndCapabilitiesAreThoseOfLspci) {
  if (!have_lspci()) GTEST_SKIP() << "lspci is not installed (pciutils)";
  size_t functions = 0, capabilities = 0;
  for (const auto& file : all_dumps()) {
    auto theirs = by_lspci(file);
    auto ours = read_pci_dump(file);
    ASSERT_EQ(theirs.size(), ours.size()) << file;
    for (const auto& f : ours) {
      SCOPED_TRACE(file.filename().string() + " " + to_string(f.bdf));
      ASSERT_TRUE(theirs.contains(to_string(f.bdf)));
      const LspciFunction& t = theirs[to_string(f.bdf)];
      BytesConfig config(f.bytes, "dump");
      EXPECT_EQ(config.read16(0), t.vendor);
      EXPECT_EQ(config.read16(2), t.device);
      EXPECT_EQ(config.read32(8) >> 16, t.class_code);
      auto walk = walk_capabilities(config);
      ASSERT_EQ(walk.found.size(), t.capabilities.size());
      for (size_t i = 0; i < walk.found.size(); ++i) {
        const auto& c = t.capabilities[i];
        SCOPED_TRACE(c.name);
        EXPECT_EQ(walk.found[i].offset, c.offset);
        EXPECT_EQ(walk.found[i].extended, c.extended);
        EXPECT_EQ(walk.found[i].version, c.version);
        auto id = id_of(c);
        ASSERT_TRUE(id.has_value());
        // lspci has one name for both ids of the Virtual Channel capability.
        if (walk.found[i].id != PCI_EXT_CAP_ID_VC9 || *id != PCI_EXT_CAP_ID_VC)
          EXPECT_EQ(walk.found[i].id, *id);
        ++capabilities;
      }
      ++functions;
    }
  }
  EXPECT_GE(functions, 13u);
  EXPECT_GE(capabilities, 50u);
}

Findings check_path_of(const fs::path& file, const Bdf& bdf) {
  PciTree tree = tree_of_dump(file);
  const TreeFunction& f = *tree.find(bdf);
  Findings out = check_settings(f);
  std::ranges::move(check_path(f), std::back_inserter(out));
  return out;
}

// Devices that work break no rule; what is wrong or odd about one is in known.json, with our reading of it.
TEST(PciRecorded, NoFalseAlarm) {
  std::ifstream listed(dumps() / "known.json");
  const auto known_ones = nlohmann::json::parse(listed);
  ASSERT_FALSE(known_ones.empty());
  std::set<size_t> seen;
  for (const auto& file : all_dumps()) {
    if (file.filename() == "nvidia-ga102-gpu-lost.txt") continue;
    for (const auto& f : read_pci_dump(file)) {
      SCOPED_TRACE(file.filename().string() + " " + to_string(f.bdf));
      BytesConfig config(f.bytes, "dump");
      auto walk = walk_capabilities(config);
      Findings all;
      for (auto more : {check_header(config, walk, false), check_chains(walk), check_duplicates(walk),
                        check_required(config, walk, false), check_bars(config, walk),
                        check_msix(config, walk, {}, false), check_link(config, walk),
                        check_serial(config, walk), check_aer_status(config, walk)})
        all.insert(all.end(), more.begin(), more.end());
      std::ranges::move(check_path_of(file, f.bdf), std::back_inserter(all));
      for (const auto& finding : all) {
        bool known = false;
        for (size_t i = 0; i < known_ones.size(); ++i)
          if (known_ones[i].at("file") == file.filename().string() &&
              known_ones[i].at("rule") == finding.rule &&
              known_ones[i].value("warning", false) == finding.warning) {
            known = true;
            seen.insert(i);
          }
        EXPECT_TRUE(known) << finding.rule << ": " << finding.text;
      }
    }
  }
  EXPECT_EQ(seen.size(), known_ones.size()) << "known.json lists what is no longer found";
}

// Each recorded chain, bent in every way: every pointer of it made to loop, leave its range, or lie askew.
TEST(PciRecorded, BentChainsAreAllFound) {
  size_t bent = 0;
  for (const auto& file : all_dumps()) {
    for (const auto& f : read_pci_dump(file)) {
      BytesConfig sound(f.bytes, "dump");
      for (const auto& cap : walk_capabilities(sound).found) {
        auto with = [&](uint16_t target) {
          auto bytes = f.bytes;
          if (cap.extended) {
            bytes[cap.offset + 2] = static_cast<uint8_t>((bytes[cap.offset + 2] & 0x0f) | (target << 4));
            bytes[cap.offset + 3] = static_cast<uint8_t>(target >> 4);
          } else {
            bytes[cap.offset + 1] = static_cast<uint8_t>(target);
          }
          BytesConfig config(bytes, "bent");
          ++bent;
          return walk_capabilities(config).faults;
        };
        auto has = [&](const std::vector<ChainFault>& faults, ChainFault::Kind kind) {
          return std::any_of(faults.begin(), faults.end(), [&](const ChainFault& x) {
            return x.kind == kind && x.extended == cap.extended;
          });
        };
        SCOPED_TRACE(file.filename().string() + " at " + std::to_string(cap.offset));
        EXPECT_TRUE(has(with(cap.offset), ChainFault::Kind::loop));
        EXPECT_TRUE(has(with(cap.extended ? 0x080 : 0x3c), ChainFault::Kind::out_of_range));
        EXPECT_TRUE(has(with(cap.offset | 2), ChainFault::Kind::misaligned));
      }
    }
  }
  EXPECT_GE(bent, 150u);
}

TEST(PciRecorded, KnownFacts) {
  auto open = [](const char* name) { return read_pci_dump(dumps() / name).at(0); };
  {
    BytesConfig c(open("amd-fiji-gpu.txt").bytes,
                  "fiji");  // lspci: 8 GT/s x16; BAR0 64-bit at e0000000, BAR4 I/O e000
    auto link = read_link_registers(c, walk_capabilities(c));
    ASSERT_TRUE(link);
    EXPECT_EQ(link->now, (PciLink{8, 16}));
    EXPECT_EQ(link->max, (PciLink{8, 16}));
    auto bars = decode_bars(c);
    ASSERT_EQ(bars.size(), 4u);
    EXPECT_EQ(bars[0].kind, Bar::Kind::memory64);
    EXPECT_EQ(bars[0].address, 0xe0000000u);
    EXPECT_EQ(bars[1].index, 2u);
    EXPECT_EQ(bars[2].kind, Bar::Kind::io);
    EXPECT_EQ(bars[2].address, 0xe000u);
    EXPECT_EQ(bars[3].address, 0xfe800000u);
  }
  {
    BytesConfig c(open("intel-dsa-accelerator.txt").bytes, "dsa");  // lspci: Root Complex Integrated Endpoint
    auto walk = walk_capabilities(c);
    EXPECT_EQ(express_type(c, walk), 9u);
    EXPECT_FALSE(read_link_registers(c, walk)) << "an integrated endpoint has no link";
    EXPECT_EQ(decode_bars(c)[0].address, 0x206ffff40000u);
  }
  {
    BytesConfig c(open("mellanox-connectx5-nic.txt").bytes, "cx5");
    auto link = read_link_registers(c, walk_capabilities(c));
    ASSERT_TRUE(link);
    EXPECT_EQ(link->now, (PciLink{16, 16}));
  }
}

}  // namespace
}  // namespace kz
