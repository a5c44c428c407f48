// SPDX-License-Identifier: GPL-2.0-or-later
#include "tests/kmod/user.h"

#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <set>
#include <string_view>

#include "shim/base/error.h"
#include "tests/harness/test.h"
#include "tests/kmod/target.h"

namespace kz::test {
namespace {

sigjmp_buf fault_return;
void on_fault(int signal) { siglongjmp(fault_return, signal); }

void must(int rc, const char* what) {
  if (rc < 0) throw_errno(what, "the driver's node", -rc);
}

}  // namespace

kz_cmd copy_command(uint64_t dst, uint8_t dst_space, uint64_t src, uint8_t src_space, uint64_t len) {
  kz_cmd c{};
  c.opcode = KZ_OP_COPY;
  c.u.copy.src = src;
  c.u.copy.dst = dst;
  c.u.copy.len = len;
  c.u.copy.src_space = src_space;
  c.u.copy.dst_space = dst_space;
  return c;
}

bool faults(const volatile char* p) {
  struct sigaction action {
  }, bus{}, segv{};
  action.sa_handler = on_fault;
  ::sigaction(SIGBUS, &action, &bus);
  ::sigaction(SIGSEGV, &action, &segv);
  volatile bool hit = true;
  if (sigsetjmp(fault_return, 1) == 0) {
    (void)*p;
    hit = false;
  }
  ::sigaction(SIGBUS, &bus, nullptr);
  ::sigaction(SIGSEGV, &segv, nullptr);
  return hit;
}

int User::open_node(const std::string& node) {
  int fd = ::open(node.c_str(), O_RDWR | O_CLOEXEC);
  return fd < 0 ? -errno : fd;
}

User::User(const std::string& node) {
  int fd = open_node(node);
  must(fd, "open");
  fd_ = Fd(fd);
  must(call(fd, KZ_IOC_INFO, info_), "ask INFO of");
  kz_ioc_ctx c{};
  must(call(fd, KZ_IOC_CTX_CREATE, c), "create a context of");
  ctx = c.ctx;
  kz_ioc_queue q{};
  q.ctx = ctx;
  q.order = order;
  must(call(fd, KZ_IOC_QUEUE_CREATE, q), "create a queue of");
  queue = q.queue;
  void* p = ::mmap(nullptr, buffer_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) throw_errno("allocate", "a buffer");
  buffer_ = static_cast<char*>(p);
  kz_ioc_buf b{};
  b.flags = KZ_BUF_DEVICE_READS | KZ_BUF_DEVICE_WRITES;
  b.addr = reinterpret_cast<uintptr_t>(buffer_);
  b.len = buffer_bytes;
  must(call(fd, KZ_IOC_BUF_REGISTER, b), "register a buffer with");
  host = b.base;
  kz_ioc_hbm h{};
  h.ctx = ctx;
  h.len = hbm_bytes;
  must(call(fd, KZ_IOC_HBM_ALLOC, h), "allocate HBM of");
  hbm = h.addr;
  map_at = h.map;
}

User::~User() {
  for (auto& [p, n] : maps_) ::munmap(p, n);
  fd_.reset();
  if (buffer_ != nullptr) ::munmap(buffer_, buffer_bytes);
}

int User::submit(const std::vector<kz_cmd>& commands, uint32_t timeout_ms) {
  std::vector<kz_entry> entries(commands.size());
  for (size_t i = 0; i < commands.size(); ++i) {
    entries[i].cmd = commands[i];
    entries[i].user_data = i;
    entries[i].timeout_ms = timeout_ms;
  }
  kz_ioc_submit a{};
  a.queue = queue;
  a.count = static_cast<uint32_t>(entries.size());
  a.entries = reinterpret_cast<uintptr_t>(entries.data());
  int rc = call(fd(), KZ_IOC_SUBMIT, a);
  return rc < 0 ? rc : static_cast<int>(a.done);
}

int User::reap(std::vector<kz_done>& out, uint32_t max, uint32_t min, int64_t timeout_ns) {
  out.assign(max, {});
  kz_ioc_reap a{};
  a.queue = queue;
  a.max = max;
  a.min = min;
  a.timeout_ns = timeout_ns;
  a.entries = reinterpret_cast<uintptr_t>(out.data());
  int rc = call(fd(), KZ_IOC_REAP, a);
  out.resize(rc < 0 ? 0 : std::min(a.count, max));
  return rc;
}

int User::run(const kz_cmd& command, uint64_t* result) {
  std::vector<kz_done> done;
  int rc = submit({command});
  if (rc >= 0) rc = reap(done, 1, 1);
  if (rc < 0) return rc;
  if (done.empty()) return -ETIME;
  if (result != nullptr) *result = done[0].result;
  return done[0].status;
}

std::vector<kz_cmd> User::copies(size_t n, uint64_t bytes) const {
  return std::vector<kz_cmd>(n, copy_command(hbm, KZ_SP_HBM, host, KZ_SP_HOST, bytes));
}

char* User::map(size_t length, int* error) {
  void* p = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd(), static_cast<off_t>(map_at));
  if (error != nullptr) *error = p == MAP_FAILED ? errno : 0;
  if (p == MAP_FAILED) return nullptr;
  maps_.emplace_back(static_cast<char*>(p), length);
  return static_cast<char*>(p);
}

int User::telemetry(kz_telemetry& t) {
  kz_ioc_telemetry a{};
  int rc = call(fd(), KZ_IOC_TELEMETRY, a);
  t = a.t;
  return rc;
}

void expect_works(User& user, const std::string& when, const char* file, int line) {
  for (int i = 0; i < 4; ++i)
    if (int rc = user.run(user.copies(1)[0]); rc != KZ_ST_OK) {
      ADD_FAILURE_AT(file, line) << "a copy ended with " << rc << (when.empty() ? "" : ": ") << when;
      return;
    }
}

void expect_works(const Target& target, const std::string& when, const char* file, int line) {
  if (!target.ours()) return;
  User user(target.node);
  expect_works(user, when, file, line);
}

Ring::Ring(unsigned entries, unsigned flags) : big_((flags & IORING_SETUP_CQE32) != 0) {
  if (int rc = io_uring_queue_init(entries, &ring_, flags); rc < 0) throw_errno("set up", "io_uring", -rc);
}
Ring::~Ring() { io_uring_queue_exit(&ring_); }

bool Ring::allowed() {
  io_uring ring{};
  if (io_uring_queue_init(4, &ring, IORING_SETUP_SQE128 | IORING_SETUP_CQE32) < 0) return false;
  io_uring_queue_exit(&ring);
  return true;
}

io_uring_sqe* Ring::add(int fd, uint32_t op, const kz_uring_cmd& body, uint64_t user_data, uint8_t flags) {
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  if (sqe == nullptr) throw Error({Errc::busy, "queue", "an io_uring entry", "the ring is full", "", 0});
  const bool wide = (ring_.flags & IORING_SETUP_SQE128) != 0;
  std::memset(sqe, 0, (wide ? 2 : 1) * sizeof *sqe);
  sqe->opcode = IORING_OP_URING_CMD;
  sqe->fd = fd;
  sqe->cmd_op = op;
  sqe->user_data = user_data;
  sqe->flags = flags;
  if (wide) std::memcpy(sqe->cmd, &body, sizeof body);
  return sqe;
}

std::vector<Ring::Answer> Ring::answers(size_t n, double seconds) {
  std::vector<Answer> out;
  const Deadline deadline(std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9)));
  while (out.size() < n) {
    const int64_t left = deadline.left().count();
    __kernel_timespec ts{left / 1'000'000'000, left % 1'000'000'000};
    io_uring_cqe* cqe = nullptr;
    if (io_uring_wait_cqe_timeout(&ring_, &cqe, &ts) < 0 || cqe == nullptr) {
      if (deadline.passed()) return out;
      continue;
    }
    out.push_back({cqe->user_data, cqe->res, big_ ? cqe->big_cqe[0] : 0});
    io_uring_cqe_seen(&ring_, cqe);
  }
  return out;
}

void OtherUser::Link::ready() const {
  if (::write(say_, "r", 1) != 1) ::_exit(1);
}
bool OtherUser::Link::told_to_end() const {
  pollfd p{hear_, POLLIN, 0};
  return ::poll(&p, 1, 0) != 0;
}
void OtherUser::Link::wait_for_end() const {
  pollfd p{hear_, POLLIN, 0};
  while (::poll(&p, 1, -1) < 0 && errno == EINTR) {
  }
}
void OtherUser::Link::wait_for(char word) const {
  for (char got = 0; got != word;) {
    ssize_t n = ::read(hear_, &got, 1);
    if (n == 0 || (n < 0 && errno != EINTR)) ::_exit(1);
  }
}

OtherUser::OtherUser(std::function<void(const Link&)> work) {
  ::signal(SIGPIPE, SIG_IGN);  // he may have ended when he is told something
  void* shared = ::mmap(nullptr, sizeof(Seen), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) throw_errno("allocate", "shared memory");
  seen_ = new (shared) Seen;
  int up[2], down[2];
  if (::pipe2(up, O_CLOEXEC) != 0 || ::pipe2(down, O_CLOEXEC) != 0) throw_errno("make", "a pipe");
  Fd say(up[1]), hear(down[0]);
  hear_ = Fd(up[0]);
  say_ = Fd(down[1]);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) throw_errno("start", "a process");
  if (pid_ != 0) return;
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || ::getppid() != parent) ::_exit(1);
  hear_.reset();
  say_.reset();
  try {
    work(Link(say.get(), hear.get(), seen_));
  } catch (const std::exception& e) {
    std::string_view(e.what()).copy(seen_->text, sizeof seen_->text - 1);
    if (auto* error = dynamic_cast<const Error*>(&e)) seen_->last_error = error->info().sys_errno;
    ::_exit(1);
  }
  ::_exit(0);
}

OtherUser::~OtherUser() {
  kill();
  ::munmap(seen_, sizeof(Seen));
}

bool OtherUser::wait_ready(double seconds) {
  pollfd p{hear_.get(), POLLIN, 0};
  char word = 0;
  int rc;
  do rc = ::poll(&p, 1, static_cast<int>(seconds * 1000));
  while (rc < 0 && errno == EINTR);
  return rc == 1 && ::read(hear_.get(), &word, 1) == 1 && word == 'r';
}

void OtherUser::tell(char word) {
  if (say_ && ::write(say_.get(), &word, 1) != 1) say_.reset();
}

bool OtherUser::wait_ended(double seconds) {
  if (pid_ <= 0) return true;
  const bool ended = wait_until(std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9)),
                                [&] { return ::waitpid(pid_, &status_, WNOHANG) == pid_; });
  if (ended)
    pid_ = -1;
  else
    where_ = where_it_stands(pid_);
  return ended;
}

bool OtherUser::end(double seconds) {
  tell('e');
  say_.reset();
  return wait_ended(seconds);
}

void OtherUser::kill() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  if (!wait_ended(3)) pid_ = -1;  // in an uninterruptible wait: left for the runner to find
}

namespace {

// Books of one user: which commands are out, and how each ended.
class Books {
 public:
  explicit Books(Seen& seen) : seen_(seen) {}
  void out(uint64_t tag) {
    open_.insert(tag);
    ++seen_.submitted;
  }
  void back(uint64_t tag, int status) {
    if (open_.erase(tag) == 0) ++seen_.twice;
    if (status == KZ_ST_OK)
      ++seen_.ended_well;
    else
      ++seen_.ended_lost;
  }
  size_t open() const { return open_.size(); }
  void close() { seen_.never = open_.size(); }

 private:
  Seen& seen_;
  std::set<uint64_t> open_;
};

void busy_by_uring(User& user, const OtherUser::Link& link) {
  Ring ring(32);
  Books books(*link.seen());
  uint64_t next = 0;
  int error = 0;
  const kz_uring_cmd body{
      .cmd = user.copies(1, 65536)[0], .queue = user.queue, .timeout_ms = 0, .result_at = 0};
  for (bool told = false; error == 0 && !(told && link.told_to_end()); told = true) {
    while (books.open() < 32) {
      ring.add(user.fd(), KZ_URING_SUBMIT, body, next);
      books.out(next++);
    }
    ring.submit();
    if (!told) link.ready();
    for (auto& a : ring.answers(1, 10)) {
      books.back(a.user_data, a.res);
      if (a.res < 0 && a.res != -EBUSY && a.res != -ECANCELED) error = -a.res;
      if (a.res == KZ_ST_LOST) error = ESTALE;
    }
  }
  for (auto& a : ring.answers(books.open(), 15)) books.back(a.user_data, a.res);
  books.close();
  link.seen()->last_error = error;
}

void busy_by_ioctl(User& user, const OtherUser::Link& link) {
  Seen& seen = *link.seen();
  std::vector<kz_done> done;
  uint64_t open = 0;
  int rc = 0;
  for (bool told = false; rc >= 0 && !(told && link.told_to_end()); told = true) {
    rc = user.submit(user.copies(16, 65536));
    if (rc == -EBUSY) rc = 0;
    if (rc > 0) seen.submitted += static_cast<uint64_t>(rc), open += static_cast<uint64_t>(rc);
    if (!told) link.ready();
    if (rc >= 0) rc = user.reap(done, 64, 1, 10'000'000'000);
    for (auto& d : done) {
      d.status == KZ_ST_OK ? ++seen.ended_well : ++seen.ended_lost;
      open -= open > 0 ? 1 : 0;
      if (d.status == KZ_ST_LOST) rc = -ESTALE;
    }
  }
  seen.last_error = rc < 0 ? -rc : 0;
  // Where the device has gone nothing more is handed out: those ended with the file.
  while (open > 0 && user.reap(done, 64, 1, 5'000'000'000) == 0 && !done.empty()) {
    for (auto& d : done) d.status == KZ_ST_OK ? ++seen.ended_well : ++seen.ended_lost;
    open -= std::min<uint64_t>(open, done.size());
  }
  seen.never = seen.last_error == ENODEV ? 0 : open;
}

}  // namespace

void keep_busy(const std::string& node, const OtherUser::Link& link, bool by_uring) {
  User user(node);
  by_uring ? busy_by_uring(user, link) : busy_by_ioctl(user, link);
}

}  // namespace kz::test
