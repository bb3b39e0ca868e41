#include "engine/tokenizer/regex.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "engine/base/check.h"
#include "engine/base/status.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace ridgefill::tokenizer {
namespace {

// Both stacks hold one frame per open choice; our patterns keep few open, whatever the length of the text.
constexpr size_t kJitStackStart = size_t{32} << 10;
constexpr size_t kJitStackMax = size_t{1} << 20;

absl::Status PcreError(int code, absl::string_view doing) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof(text));
  return base::Error(absl::StatusCode::kInternal, "REGEX_FAILED",
                     absl::StrCat("PCRE2, ", doing, ": ", reinterpret_cast<const char*>(text)));
}

}  // namespace

struct Regex::Impl {
  pcre2_code* code = nullptr;
  ~Impl() { pcre2_code_free(code); }
};

struct Regex::Scratch::Impl {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr);
  ~Impl() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
};

Regex::Scratch::Scratch() : impl_(std::make_unique<Impl>()) {
  RF_CHECK(impl_->data != nullptr && impl_->context != nullptr);
  pcre2_jit_stack_assign(impl_->context, nullptr, impl_->stack);
  // The default, 10 million steps, is a guard against patterns that explode; giving back one character of a
  // long run of spaces is a step too.
  pcre2_set_match_limit(impl_->context, UINT32_MAX);
}
Regex::Scratch::~Scratch() = default;

Regex::Regex(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

absl::StatusOr<Regex> Regex::Compile(absl::string_view pattern) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto impl = std::make_unique<Impl>();
  impl->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                             PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &offset, nullptr);
  if (impl->code == nullptr) return PcreError(error, absl::StrCat("pattern ", pattern, " at ", offset));
  pcre2_jit_compile(impl->code, PCRE2_JIT_COMPLETE);  // without it pcre2_match interprets, slower
  return Regex(std::move(impl));
}

absl::StatusOr<std::optional<size_t>> Regex::MatchAt(absl::string_view text, size_t offset,
                                                     Scratch& scratch) const {
  const int found = pcre2_match(impl_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), offset,
                                PCRE2_NO_UTF_CHECK, scratch.impl_->data, scratch.impl_->context);
  if (found == PCRE2_ERROR_NOMATCH) return std::optional<size_t>();
  if (found < 0) return PcreError(found, "matching");
  return std::optional<size_t>(pcre2_get_ovector_pointer(scratch.impl_->data)[1] - offset);
}

}  // namespace ridgefill::tokenizer
