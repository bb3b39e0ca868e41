// A PCRE2 pattern over valid UTF-8, with Unicode classes, just-in-time compiled where the machine allows.
//
// Thread-safe once compiled. The patterns used here (all our own) need time linear in what they match.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ridgefill::tokenizer {

class Regex {
 public:
  // INTERNAL when the pattern does not compile.
  static absl::StatusOr<Regex> Compile(absl::string_view pattern);
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // Working memory of one thread; may serve many calls and many patterns.
  class Scratch {
   public:
    Scratch();
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

   private:
    friend class Regex;
    struct Impl;
    std::unique_ptr<Impl> impl_;
  };

  // Length of the match that starts at `offset` of `text` (what follows is seen by look-ahead, what precedes
  // by look-behind); nullopt when there is none. INTERNAL when PCRE2 gives up.
  absl::StatusOr<std::optional<size_t>> MatchAt(absl::string_view text, size_t offset,
                                                Scratch& scratch) const;

 private:
  struct Impl;
  explicit Regex(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ridgefill::tokenizer
