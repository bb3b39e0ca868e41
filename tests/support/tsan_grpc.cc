// Makes Debian's gRPC visible to ThreadSanitizer. Linked into every program of the `tsan` preset, nowhere
// else.
//
// The packaged libgrpc is not instrumented and hands operations from thread to thread through lock-free
// queues, so that everything that a callback touches would be reported as a race with whoever started the
// operation. Every operation has a tag: here the thread that starts one releases the tag, and whoever learns
// of its end acquires it. A callback tag begins with the address of the function to run, which is replaced by
// one that acquires first.
#include <dlfcn.h>
#include <grpc/grpc.h>
#include <link.h>
#include <sanitizer/tsan_interface.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

using Functor = grpc_completion_queue_functor;
using Run = void (*)(Functor*, int);

template <typename Function>
Function* Real(const char* name) {
  void* symbol = dlsym(RTLD_NEXT, name);
  if (symbol == nullptr) {
    std::fprintf(stderr, "tsan_grpc: the gRPC library has no %s\n", name);
    std::abort();
  }
  return reinterpret_cast<Function*>(symbol);
}

// The few functions that gRPC's callback tags run, and for each one that acquires the tag first.
constexpr size_t kSlots = 16;
std::array<std::atomic<Run>, kSlots> originals;

template <size_t slot>
__attribute__((no_sanitize_thread)) void RunAcquired(Functor* functor, int ok) {
  __tsan_acquire(functor);
  originals[slot].load(std::memory_order_relaxed)(functor, ok);
}

template <size_t... slots>
constexpr std::array<Run, kSlots> Wrappers(std::index_sequence<slots...>) {
  return {&RunAcquired<slots>...};
}
constexpr std::array<Run, kSlots> kWrappers = Wrappers(std::make_index_sequence<kSlots>());

// Tags of the other APIs begin with a vtable's address, which is no code.
bool IsCode(Run run) {
  const auto address = reinterpret_cast<uintptr_t>(run);
  const auto in_segment = [](dl_phdr_info* info, size_t, void* wanted) {
    for (int i = 0; i < info->dlpi_phnum; ++i) {
      const auto& segment = info->dlpi_phdr[i];
      const uintptr_t begin = info->dlpi_addr + segment.p_vaddr;
      const uintptr_t at = *static_cast<const uintptr_t*>(wanted);
      if (segment.p_type == PT_LOAD && (segment.p_flags & PF_X) != 0 && at >= begin &&
          at < begin + segment.p_memsz)
        return 1;
    }
    return 0;
  };
  return dl_iterate_phdr(in_segment, const_cast<uintptr_t*>(&address)) != 0;
}

// The wrapper of `run`; null when it is no code.
__attribute__((no_sanitize_thread)) Run WrapperOf(Run run) {
  for (size_t slot = 0; slot < kSlots; ++slot) {
    Run known = originals[slot].load(std::memory_order_relaxed);
    if (run == kWrappers[slot] || run == known) return kWrappers[slot];
    if (known != nullptr) continue;
    if (!IsCode(run)) return nullptr;
    if (originals[slot].compare_exchange_strong(known, run) || known == run) return kWrappers[slot];
  }
  std::fprintf(stderr, "tsan_grpc: more than %zu kinds of callback tags\n", kSlots);
  std::abort();
}

}  // namespace

extern "C" {

__attribute__((no_sanitize_thread)) grpc_call_error grpc_call_start_batch(grpc_call* call, const grpc_op* ops,
                                                                          size_t count, void* tag,
                                                                          void* reserved) {
  static auto* const real =
      Real<grpc_call_error(grpc_call*, const grpc_op*, size_t, void*, void*)>("grpc_call_start_batch");
  if (tag != nullptr) {
    auto* functor = static_cast<Functor*>(tag);
    if (const Run wrapper = WrapperOf(functor->functor_run)) functor->functor_run = wrapper;
    __tsan_release(tag);
  }
  return real(call, ops, count, tag, reserved);
}

grpc_event grpc_completion_queue_next(grpc_completion_queue* queue, gpr_timespec deadline, void* reserved) {
  static auto* const real =
      Real<grpc_event(grpc_completion_queue*, gpr_timespec, void*)>("grpc_completion_queue_next");
  const grpc_event event = real(queue, deadline, reserved);
  if (event.type == GRPC_OP_COMPLETE) __tsan_acquire(event.tag);
  return event;
}

grpc_event grpc_completion_queue_pluck(grpc_completion_queue* queue, void* tag, gpr_timespec deadline,
                                       void* reserved) {
  static auto* const real =
      Real<grpc_event(grpc_completion_queue*, void*, gpr_timespec, void*)>("grpc_completion_queue_pluck");
  const grpc_event event = real(queue, tag, deadline, reserved);
  if (event.type == GRPC_OP_COMPLETE) __tsan_acquire(event.tag);
  return event;
}
}
