// SPDX-License-Identifier: GPL-2.0-or-later
#include "tools/softtpu/catalogue.h"

#include <array>

namespace kz::softtpu {
namespace {

// Parameters that mean the same in every row.
//   addr_frac   victim's place as a fraction of HBM, so that a draw fits every HBM size
//   bit         bit of the 64-bit word
//   agg_words   distance from aggressor to victim in words; 0 is another bit of the same word
//   agg_below   1: the aggressor lies below the victim
//   every       strikes once in each run of so many opportunities, at a drawn place in it
constexpr ParamSpec addr{"addr_frac", 0, 1, 0.371, true};
constexpr ParamSpec bit{"bit", 0, 63, 13};
constexpr ParamSpec value{"value", 0, 1, 1};
constexpr ParamSpec agg_bit{"agg_bit", 0, 63, 29};
constexpr ParamSpec agg_words{"agg_words", 0, 512, 9};
constexpr ParamSpec agg_below{"agg_below", 0, 1, 1};
constexpr ParamSpec every{"every", 1, 5, 1};

constexpr ParamSpec cell[] = {addr, bit};
constexpr ParamSpec cell_value[] = {addr, bit, value};
constexpr ParamSpec coupling_inversion[] = {addr, bit, agg_words, agg_below, agg_bit, {"rise", 0, 1, 1}};
constexpr ParamSpec coupling_kind[] = {addr, bit, agg_words, agg_below, agg_bit, {"kind", 0, 3, 3}};
constexpr ParamSpec no_cell[] = {addr, value};
constexpr ParamSpec two_cells[] = {addr, {"other_words", 1, 4096, 64}, {"wired_or", 0, 1, 0}};
constexpr ParamSpec address_bit[] = {{"bit", 6, 35, 20}};
constexpr ParamSpec retention[] = {addr, bit, value, {"ms", 20, 200, 100}};
constexpr ParamSpec linked[] = {addr,
                                bit,
                                agg_words,
                                agg_below,
                                agg_bit,
                                {"agg2_words", 1, 512, 5},
                                {"agg2_below", 0, 1, 0},
                                {"rise", 0, 1, 1},
                                {"rise2", 0, 1, 1},
                                value};
constexpr ParamSpec hammer[] = {addr, bit, {"n", 1500, 3000, 2800}, {"refresh_ms", 2000, 8000, 4000}};
constexpr ParamSpec intermittent[] = {{"rate", 5e-7, 5e-6, 1e-6, true}};
constexpr ParamSpec hot_cell[] = {addr, bit, {"celsius", 45, 60, 55}};
constexpr ParamSpec dead_pc[] = {{"pc", 0, 31, 5}, value};
constexpr ParamSpec lane[] = {{"channel", 0, 7, 2}, {"lane", 0, 63, 17}, value};
constexpr ParamSpec ce_storm[] = {{"channel", 0, 7, 3}, {"every_kib", 64, 1024, 256}};
constexpr ParamSpec ue_place[] = {addr};
constexpr ParamSpec triple[] = {addr, bit, {"counted", 0, 1, 0}};
constexpr ParamSpec banks[] = {{"bank", 0, 15, 3}, {"other", 0, 15, 9}};

constexpr ParamSpec dma[] = {every};
constexpr ParamSpec dma_beat[] = {{"bytes", 4, 32, 32}, every};
constexpr ParamSpec dma_late[] = {{"delay_us", 1000, 20000, 5000}, every};
constexpr ParamSpec dma_early[] = {{"delay_us", 100, 5000, 1000}, every};
constexpr ParamSpec dma_pages[] = {{"pages", 1, 4, 1}, every};
constexpr ParamSpec dma_swap[] = {{"word", 1, 3, 2}, every};  // log2 of the bytes
constexpr ParamSpec dma_edge[] = {{"tail", 0, 1, 0}, every};
constexpr ParamSpec dma_past[] = {{"bytes", 1, 64, 64}, every};
constexpr ParamSpec dma_lines[] = {{"lines", 1, 16, 1}};
constexpr ParamSpec dma_slow[] = {{"factor", 1.8, 4, 2, true}};
constexpr ParamSpec dma_report[] = {{"report_ok", 0, 1, 1}};

constexpr ParamSpec often[] = {{"every", 1, 16, 4}};
constexpr ParamSpec seldom[] = {{"every", 4, 64, 16}};
constexpr ParamSpec vector_offset[] = {{"vector_offset", 1, 3, 1}};
constexpr ParamSpec fence_delay[] = {{"delay_us", 200, 5000, 1000}};
constexpr ParamSpec status[] = {{"status", 1, 15, 3}, {"every", 1, 16, 4}};
constexpr ParamSpec queue_mod[] = {{"queue_mod", 2, 4, 2}};
constexpr ParamSpec queue_offset[] = {{"queue_offset", 1, 3, 1}};
constexpr ParamSpec isolation[] = {{"mode", 0, 1, 0}};
constexpr ParamSpec not_cleared[] = {{"every_page", 1, 4, 1}};
constexpr ParamSpec reserved[] = {{"where", 0, 2, 1}};

constexpr ParamSpec flip[] = {{"bit", 12, 30, 22}, {"every", 500, 1500, 1000}};
constexpr ParamSpec dead_pe[] = {{"column", 0, 15, 5}, {"row", 0, 7, 0}};
constexpr ParamSpec few_bits[] = {{"bits", 8, 12, 10}};
constexpr ParamSpec pattern[] = {{"dtype", 0, 2, 0}, {"a", 0, 65535, 0x4d}, {"b", 0, 255, 0xb2}};
constexpr ParamSpec hot_unit[] = {{"celsius", 45, 60, 55}, {"bit", 12, 30, 24}};
constexpr ParamSpec tail[] = {{"lost", 1, 15, 1}};
constexpr ParamSpec constant[] = {{"row", 0, 15, 0}, {"column", 0, 15, 0}, {"bit", 12, 30, 20}};
constexpr ParamSpec cancelling[] = {{"bit", 12, 22, 18}};

constexpr ParamSpec leak[] = {{"pages", 1, 64, 4}};
constexpr ParamSpec kept[] = {{"what", 0, 1, 0}};  // 0 HBM, 1 contexts
constexpr ParamSpec version[] = {{"major", 1, 3, 1}, {"minor", 5, 9, 7}};
constexpr ParamSpec climb[] = {{"celsius_per_s", 1, 4, 2, true}};
constexpr ParamSpec throttled[] = {{"clock_percent", 20, 60, 40}};
constexpr ParamSpec over_cap[] = {{"percent", 5, 50, 15}};
constexpr ParamSpec backwards[] = {{"back_us", 500, 5000, 2000}, {"every_ms", 20, 200, 50}};
constexpr ParamSpec creep[] = {{"percent", 1, 60, 1, true}, {"accel", 300, 1200, 600}};
constexpr ParamSpec spike[] = {{"spike_us", 3000, 20000, 5000}, {"every", 200, 600, 400}};
constexpr ParamSpec brownout[] = {{"load_ms", 200, 1500, 500}, {"down_ms", 300, 2000, 1000}};

constexpr std::string_view hbm = "hbm_ecc", corrupt = "dma_corruption", iommu = "iommu_dma",
                           queue = "queue_protocol", isolate = "security_isolation", sdc = "compute_sdc",
                           hang = "firmware_hang", slow = "performance_regression",
                           mismatch = "firmware_mismatch", thermal = "thermal", power = "power";

constexpr RowSpec rows[] = {
    {Row::M01, "M01", "stuck-at-0", hbm, true, cell},
    {Row::M02, "M02", "stuck-at-1", hbm, true, cell},
    {Row::M03, "M03", "transition up fails", hbm, true, cell},
    {Row::M04, "M04", "transition down fails", hbm, true, cell},
    {Row::M05, "M05", "coupling, inversion (CFin)", hbm, true, coupling_inversion},
    {Row::M06, "M06", "coupling, idempotent (CFid)", hbm, true, coupling_kind},
    {Row::M07, "M07", "coupling, state (CFst)", hbm, true, coupling_kind},
    {Row::M08, "M08", "address decoder: no cell", hbm, true, no_cell},
    {Row::M09, "M09", "address decoder: two cells", hbm, true, two_cells},
    {Row::M10, "M10", "address decoder: two addresses, one cell", hbm, true, address_bit},
    {Row::M11, "M11", "stuck-open", hbm, true, cell},
    {Row::M12, "M12", "retention", hbm, true, retention},
    {Row::M13, "M13", "read-destructive", hbm, true, cell_value},
    {Row::M14, "M14", "deceptive read-destructive", hbm, true, cell_value},
    {Row::M15, "M15", "incorrect read", hbm, true, cell_value},
    {Row::M16, "M16", "write-disturb", hbm, true, cell_value},
    {Row::M17, "M17", "linked coupling faults", hbm, true, linked},
    {Row::M18, "M18", "row hammer", hbm, true, hammer},
    {Row::M19, "M19", "intermittent flip, one in 1e6 reads", hbm, true, intermittent},
    {Row::M20, "M20", "flip only above a temperature", hbm, true, hot_cell},
    {Row::M21, "M21", "a whole pseudo channel dead", hbm, true, dead_pc},
    {Row::M22, "M22", "one data lane stuck on every word of a channel", hbm, true, lane},
    {Row::M23, "M23", "correctable errors counted, data good", hbm, false, ce_storm},
    {Row::M24, "M24", "uncorrectable error, poison returned", hbm, true, ue_place},
    {Row::M25, "M25", "triple-bit error miscorrected silently", hbm, true, triple},
    {Row::M26, "M26", "ECC counter never moves", hbm, false, {}},
    {Row::M27, "M27", "a retired page is handed out again", hbm, false, {}},
    {Row::M28, "M28", "bank swizzle aliases two banks", hbm, true, banks},

    {Row::D01, "D01", "completion without transfer", corrupt, false, dma},
    {Row::D02, "D02", "short by one beat", corrupt, false, dma_beat},
    {Row::D03, "D03", "transferred twice (second time late)", corrupt, false, dma_late},
    {Row::D04, "D04", "one page off", corrupt, false, dma_pages},
    {Row::D05, "D05", "last 64 bytes missing", corrupt, false, dma},
    {Row::D06, "D06", "bytes swapped in a word", corrupt, false, dma_swap},
    {Row::D07, "D07", "completion visible before the data", corrupt, false, dma_early},
    {Row::D08, "D08", "IOVA cut to 32 bits", corrupt, false, {}},
    {Row::D09, "D09", "unaligned head or tail wrong", corrupt, false, dma_edge},
    {Row::D10, "D10", "off by one at the 1 MiB chunk boundary", corrupt, false, {}},
    {Row::D11, "D11", "64 bytes written past the end", corrupt, false, dma_past},
    {Row::D12, "D12", "DMA to an unmapped IOVA reported as success", iommu, false, {}},
    {Row::D13, "D13", "stale data read (host write not seen)", corrupt, false, dma_lines},
    {Row::D14, "D14", "scatter-gather elements swapped", corrupt, false, dma},
    {Row::D15, "D15", "bandwidth halved", slow, false, dma_slow},
    {Row::D16, "D16", "read-only mapping written", iommu, false, dma_report},
    {Row::D17, "D17", "DMA goes on after unmap", iommu, false, dma_report},
    {Row::D18, "D18", "DMA with bus master off", "driver_bug|queue_protocol", false, {}},

    {Row::Q01, "Q01", "interrupt lost", queue, false, often},
    {Row::Q02, "Q02", "interrupt without completion", queue, false, often},
    {Row::Q03, "Q03", "wrong vector", queue, false, vector_offset},
    {Row::Q04, "Q04", "completion twice", queue, false, often},
    {Row::Q05, "Q05", "completion never", queue, false, seldom},
    {Row::Q06, "Q06", "fence overtaken", queue, false, fence_delay},
    {Row::Q07, "Q07", "queue hangs", hang, false, seldom},
    {Row::Q08, "Q08", "wrong status", queue, false, status},
    {Row::Q09, "Q09", "phase bit wrong at wrap", queue, false, {}},
    {Row::Q10, "Q10", "doorbell missed", queue, false, often},
    {Row::Q11, "Q11", "one queue starves", queue, false, queue_mod},
    {Row::Q12, "Q12", "completion lands in another queue", queue, false, queue_offset},
    {Row::Q13, "Q13", "context reads another's HBM", isolate, false, isolation},
    {Row::Q14, "Q14", "freed HBM not cleared before the next owner", isolate, false, not_cleared},
    {Row::Q15, "Q15", "reserved field accepted", queue, false, reserved},
    {Row::Q16, "Q16", "queue full not reported, entry overwritten", queue, false, {}},
    {Row::Q17, "Q17", "abort of one command kills its neighbours", queue, false, {}},

    {Row::C01, "C01", "one bit of one accumulator flips, one matmul in 1000", sdc, false, flip},
    {Row::C02, "C02", "a dead PE: one output column wrong", sdc, false, dead_pe},
    {Row::C03, "C03", "accumulates in too few bits", sdc, false, few_bits},
    {Row::C04, "C04", "truncates instead of rounding to nearest even", sdc, false, {}},
    {Row::C05, "C05", "NaN swallowed", sdc, false, {}},
    {Row::C06, "C06", "Inf becomes max finite", sdc, false, {}},
    {Row::C07, "C07", "denormals flushed though not declared", sdc, false, {}},
    {Row::C08, "C08", "int8 saturates where it must wrap", sdc, false, {}},
    {Row::C09, "C09", "wrong only for one operand pattern", sdc, false, pattern},
    {Row::C10, "C10", "wrong only when hot", sdc, false, hot_unit},
    {Row::C11, "C11", "K tail wrong when K is no multiple of 16", sdc, false, tail},
    {Row::C12, "C12", "result differs from run to run", sdc, false, {}},
    {Row::C13, "C13", "minus zero lost", sdc, false, {}},
    {Row::C14, "C14", "a constant fault: every run wrong in the same way", sdc, false, constant},
    {Row::C15, "C15", "two errors that cancel in the row and column sums", sdc, false, cancelling},

    {Row::F01, "F01", "heartbeat stops", hang, false, {}},
    {Row::F02, "F02", "malformed command crashes the firmware", hang, false, {}},
    {Row::F03, "F03", "zero-size command hangs", hang, false, {}},
    {Row::F04, "F04", "HBM leaks on context destroy", "resource_exhaustion", false, leak},
    {Row::F05, "F05", "reset never ends", hang, false, {}},
    {Row::F06, "F06", "state survives reset", isolate, false, kept},
    {Row::F07, "F07", "firmware version not the one the driver wants", mismatch, false, version},
    {Row::F08, "F08", "firmware update breaks a running job", hang, false, {}},
    {Row::F09, "F09", "telemetry frozen", hang, false, {}},
    {Row::F10, "F10", "telemetry all ones", hang, false, {}},
    {Row::F11, "F11", "temperature climbs without end", thermal, false, climb},
    {Row::F12, "F12", "throttled, clock drops", thermal, false, throttled},
    {Row::F13, "F13", "power above its cap", power, false, over_cap},
    {Row::F14, "F14", "fan stopped", thermal, false, {}},
    {Row::F15, "F15", "timestamps run backwards", "firmware_hang|device_spec_violation", false, backwards},
    {Row::F16, "F16", "latency creeps up 1% a minute", slow, false, creep},
    {Row::F17, "F17", "rare latency spikes at p99.9", slow, false, spike},
    {Row::F18, "F18", "allocation beyond HBM hangs instead of failing", hang, false, {}},
    {Row::F19, "F19", "two contexts are given the same page", isolate, false, {}},
    {Row::F20, "F20", "power brown-out: link drops under load only", power, false, brownout},
    {Row::F21, "F21", "update to a corrupt image accepted", mismatch, false, {}},
};

// spec() indexes by the enumerator, so the table must be complete and in its order.
constexpr bool in_order() {
  for (size_t i = 0; i < std::size(rows); ++i)
    if (rows[i].row != static_cast<Row>(i)) return false;
  return std::size(rows) == static_cast<size_t>(Row::count);
}
static_assert(in_order());

}  // namespace

std::span<const RowSpec> catalogue() { return rows; }

const RowSpec& spec(Row row) { return rows[static_cast<size_t>(row)]; }

std::optional<Row> parse_row(std::string_view id) {
  for (const RowSpec& r : rows)
    if (r.id == id) return r.row;
  return std::nullopt;
}

}  // namespace kz::softtpu
