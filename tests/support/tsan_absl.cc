// Makes Debian's Abseil visible to ThreadSanitizer. Linked into every program of the `tsan` preset, nowhere
// else.
//
// The packaged libabsl is not instrumented: its mutexes are atomics and futexes that ThreadSanitizer never
// sees, and all that they guard would be reported as a race. These definitions stand in front of the
// library's (an executable's symbols win over a shared library's), tell the tool who released and who
// acquired, and call the real ones.
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include <cstdio>
#include <cstdlib>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
}

namespace {

template <typename Function>
Function* Real(const char* mangled) {
  void* symbol = dlsym(RTLD_NEXT, mangled);
  if (symbol == nullptr) {
    std::fprintf(stderr, "tsan_absl: the Abseil library has no %s\n", mangled);
    std::abort();
  }
  return reinterpret_cast<Function*>(symbol);
}

void Acquire(const void* address) { __tsan_acquire(const_cast<void*>(address)); }
void Release(const void* address) { __tsan_release(const_cast<void*>(address)); }

// Debian's inline namespace is part of every mangled name: absl::debian3::Mutex is 4absl7debian35Mutex.
#define RF_ABSL "_ZN4absl7debian3"
#define RF_ABSL_CONST "_ZNK4absl7debian3"

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::Lock() {
  static auto* const real = Real<void(Mutex*)>(RF_ABSL "5Mutex4LockEv");
  real(this);
  Acquire(this);
}

bool Mutex::TryLock() {
  static auto* const real = Real<bool(Mutex*)>(RF_ABSL "5Mutex7TryLockEv");
  const bool locked = real(this);
  if (locked) Acquire(this);
  return locked;
}

void Mutex::Unlock() {
  static auto* const real = Real<void(Mutex*)>(RF_ABSL "5Mutex6UnlockEv");
  Release(this);
  real(this);
}

void Mutex::ReaderLock() {
  static auto* const real = Real<void(Mutex*)>(RF_ABSL "5Mutex10ReaderLockEv");
  real(this);
  Acquire(this);
}

void Mutex::ReaderUnlock() {
  static auto* const real = Real<void(Mutex*)>(RF_ABSL "5Mutex12ReaderUnlockEv");
  Release(this);
  real(this);
}

void Mutex::Await(const Condition& condition) {
  static auto* const real = Real<void(Mutex*, const Condition&)>(RF_ABSL "5Mutex5AwaitERKNS0_9ConditionE");
  Release(this);
  real(this, condition);
  Acquire(this);
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  static auto* const real = Real<bool(Mutex*, const Condition&, Duration)>(
      RF_ABSL "5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE");
  Release(this);
  const bool met = real(this, condition, timeout);
  Acquire(this);
  return met;
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  static auto* const real = Real<bool(Mutex*, const Condition&, Time)>(
      RF_ABSL "5Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  Release(this);
  const bool met = real(this, condition, deadline);
  Acquire(this);
  return met;
}

void Mutex::LockWhen(const Condition& condition) {
  static auto* const real = Real<void(Mutex*, const Condition&)>(RF_ABSL "5Mutex8LockWhenERKNS0_9ConditionE");
  real(this, condition);
  Acquire(this);
}

// Whoever holds the lock may evaluate another waiter's condition, after it has announced its own release.
bool Condition::Eval() const {
  static auto* const real = Real<bool(const Condition*)>(RF_ABSL_CONST "9Condition4EvalEv");
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  const bool met = real(this);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  return met;
}

void CondVar::Wait(Mutex* mutex) {
  static auto* const real = Real<void(CondVar*, Mutex*)>(RF_ABSL "7CondVar4WaitEPNS0_5MutexE");
  Release(mutex);
  real(this, mutex);
  Acquire(mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  static auto* const real =
      Real<bool(CondVar*, Mutex*, Duration)>(RF_ABSL "7CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE");
  Release(mutex);
  const bool timed_out = real(this, mutex, timeout);
  Acquire(mutex);
  return timed_out;
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  static auto* const real =
      Real<bool(CondVar*, Mutex*, Time)>(RF_ABSL "7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE");
  Release(mutex);
  const bool timed_out = real(this, mutex, deadline);
  Acquire(mutex);
  return timed_out;
}

// HasBeenNotified() is inline and reads the flag that follows the mutex, hence the second address.
void Notification::Notify() {
  static auto* const real = Real<void(Notification*)>(RF_ABSL "12Notification6NotifyEv");
  Release(this);
  Release(reinterpret_cast<const char*>(this) + sizeof(Mutex));
  real(this);
}

void Notification::WaitForNotification() const {
  static auto* const real =
      Real<void(const Notification*)>(RF_ABSL_CONST "12Notification19WaitForNotificationEv");
  real(this);
  Acquire(this);
}

bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  static auto* const real = Real<bool(const Notification*, Duration)>(
      RF_ABSL_CONST "12Notification30WaitForNotificationWithTimeoutENS0_8DurationE");
  const bool notified = real(this, timeout);
  if (notified) Acquire(this);
  return notified;
}

bool Notification::WaitForNotificationWithDeadline(Time deadline) const {
  static auto* const real = Real<bool(const Notification*, Time)>(
      RF_ABSL_CONST "12Notification31WaitForNotificationWithDeadlineENS0_4TimeE");
  const bool notified = real(this, deadline);
  if (notified) Acquire(this);
  return notified;
}

bool BlockingCounter::DecrementCount() {
  static auto* const real = Real<bool(BlockingCounter*)>(RF_ABSL "15BlockingCounter14DecrementCountEv");
  Release(this);
  return real(this);
}

void BlockingCounter::Wait() {
  static auto* const real = Real<void(BlockingCounter*)>(RF_ABSL "15BlockingCounter4WaitEv");
  real(this);
  Acquire(this);
}

ABSL_NAMESPACE_END
}  // namespace absl
