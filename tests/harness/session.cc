// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/harness/session.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <random>

namespace kz::test {
namespace {

// A test that sees the same thing a thousand times has said it after this many.
constexpr int kMaxEvidencePerKind = 24;
constexpr std::string_view kCut = "…(cut)";

std::string env(const char* name, const char* fallback) {
  const char* value = std::getenv(name);
  return value && *value ? value : fallback;
}

uint64_t env_u64(const char* name, uint64_t fallback) {
  const char* value = std::getenv(name);
  if (!value || !*value) return fallback;
  char* end = nullptr;
  uint64_t n = std::strtoull(value, &end, 0);
  return *end ? fallback : n;
}

void cut_strings(nlohmann::json& node, size_t longest) {
  if (node.is_string()) {
    auto& text = node.get_ref<std::string&>();
    if (text.size() > longest) {
      size_t keep = longest;
      while (keep > 0 && (static_cast<unsigned char>(text[keep]) & 0xc0) == 0x80)
        --keep;  // not inside a UTF-8 sequence
      text.resize(keep);
      text += kCut;
    }
  } else if (node.is_structured()) {
    for (auto& child : node) cut_strings(child, longest);
  }
}

std::string dump(const nlohmann::json& record) {
  return record.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

std::string fit_packet(nlohmann::json record, size_t limit) {
  std::string text = dump(record);
  for (size_t longest = limit / 2; text.size() > limit && longest > 16; longest /= 2) {
    cut_strings(record, longest);
    text = dump(record);
  }
  if (text.size() <= limit) return text;
  // Not strings but sheer number: keep the head of the record and say so.
  for (auto& [key, value] : record.items())
    if (value.is_structured()) value = std::string(kCut);
  return dump(record);
}

Session& Session::get() {
  static Session session;
  return session;
}

Session::Session()
    : uri_(env("KANGZAO_DEVICE", "softtpu:")),
      run_dir_(env("KANGZAO_RUN_DIR", "")),
      profile_(env("KANGZAO_PROFILE", "quick")),
      seed_(env_u64("KANGZAO_SEED", 0)),
      fd_(static_cast<int>(env_u64("KANGZAO_FD", ~uint64_t{0}))) {
  if (!std::getenv("KANGZAO_SEED")) seed_ = std::random_device{}();
}

double Session::scale() const {
  if (profile_ == "full") return 4;
  if (profile_ == "night") return 60;
  return 1;
}

void Session::send(const nlohmann::json& record) {
  std::scoped_lock lock(mutex_);
  std::string text = fit_packet(record);
  if (fd_ >= 0) {
    ssize_t n;
    do n = ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    if (n == static_cast<ssize_t>(text.size())) return;
  }
  std::cerr << text << std::endl;
}

void Session::send_and_wait(const nlohmann::json& record) {
  std::scoped_lock lock(mutex_);
  send(record);
  if (fd_ < 0) return;
  pollfd p{fd_, POLLIN, 0};
  Deadline deadline(30s);
  int n;
  do {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline.left());
    n = ::poll(&p, 1, static_cast<int>(left.count()));
  } while (n < 0 && errno == EINTR);
  char answer[16] = {};
  if (n == 1 && ::recv(fd_, answer, sizeof answer - 1, 0) >= 2 && std::string_view(answer).starts_with("ok"))
    return;
  throw EndTest{Verdict::blocked, "the runner did not confirm that the next step is on disk"};
}

void Session::evidence(std::string_view kind, const nlohmann::json& detail) {
  std::scoped_lock lock(mutex_);
  auto it = evidence_count_.try_emplace(std::string(kind), 0).first;
  if (it->second++ >= kMaxEvidencePerKind) return;
  send({{"type", "evidence"}, {"kind", kind}, {"detail", detail}});
}

bool Session::has_evidence(std::string_view kind) const {
  std::scoped_lock lock(mutex_);
  return evidence_count_.contains(kind);
}

void Session::begin(std::string id) {
  std::scoped_lock lock(mutex_);
  id_ = std::move(id);
  failures_.clear();
  warnings_.clear();
  end_.reset();
  lost_ = false;
  lost_reason_.clear();
  evidence_count_.clear();
  audits_.clear();
  stall_.reset();
}

void Session::add_failure(Failure failure) {
  std::scoped_lock lock(mutex_);
  failures_.push_back(std::move(failure));
}

Verdict Session::verdict() const {
  std::scoped_lock lock(mutex_);
  if (lost_) return Verdict::device_lost;
  if (!failures_.empty()) return Verdict::fail;
  if (end_) return end_->verdict;
  return warnings_.empty() ? Verdict::pass : Verdict::warn;
}

std::string Session::reason() const {
  if (lost_) return lost_reason_;
  if (!failures_.empty()) return failures_.front().text;
  if (end_) return end_->reason;
  std::string all;
  for (const auto& w : warnings_) all += (all.empty() ? "" : "; ") + w;
  return all;
}

void Session::end() {
  std::scoped_lock lock(mutex_);
  nlohmann::json failures = nlohmann::json::array();
  for (size_t i = 0; i < failures_.size() && i < 50; ++i)
    failures.push_back(
        {{"file", failures_[i].file}, {"line", failures_[i].line}, {"text", failures_[i].text}});
  Verdict v = verdict();
  send({{"type", "verdict"},
        {"id", id_},
        {"verdict", to_string(v)},
        {"reason", reason()},
        {"failures", std::move(failures)}});
  if (!standalone()) return;
  if (v == Verdict::fail || v == Verdict::device_lost)
    exit_code_ = 1;
  else if (v == Verdict::blocked && exit_code_ == 0)
    exit_code_ = 125;
}

void Session::set_end(const EndTest& end) {
  std::scoped_lock lock(mutex_);
  if (!end_) end_ = end;
}

void Session::add_warning(const std::string& reason) {
  std::scoped_lock lock(mutex_);
  warnings_.push_back(reason);
}

void Session::set_lost(const std::string& reason) {
  std::scoped_lock lock(mutex_);
  if (lost_) return;
  lost_ = true;
  lost_reason_ = reason;
}

void Session::enlist(QueueGuard* queue) {
  std::scoped_lock lock(mutex_);
  queues_.push_back(queue);
}

void Session::dismiss(QueueGuard* queue) {
  std::scoped_lock lock(mutex_);
  std::erase(queues_, queue);
}

void Session::each_queue(const std::function<void(QueueGuard&)>& visit) {
  std::scoped_lock lock(mutex_);
  for (QueueGuard* queue : queues_) visit(*queue);
}

void Session::add_audit(const Audited& audited) {
  std::scoped_lock lock(mutex_);
  audits_.push_back(audited);
}

std::vector<Session::Audited> Session::take_audits() {
  std::scoped_lock lock(mutex_);
  return std::exchange(audits_, {});
}

void Session::add_stall(const Stall& stall) {
  std::scoped_lock lock(mutex_);
  if (!stall_) stall_ = stall;
}

std::optional<Stall> Session::take_stall() {
  std::scoped_lock lock(mutex_);
  return std::exchange(stall_, std::nullopt);
}

}  // namespace kz::test
