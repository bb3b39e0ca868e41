// Prompts with facts hidden in a long text, and a question about them: the retrieval tasks of RULER (Hsieh et
// al. 2024: single, multi-key, multi-value, variable tracking), key-value retrieval from JSON (Liu et al.
// 2023) and the same from code. As in RULER the model's chat template is applied and the answer is begun for
// it ("The special magic number for X mentioned in the provided text is"), so that only the values are left
// to give.
//
// Every hidden line lies by token position either in the bulk or in the tail of the prompt: wholly below, or
// at and above, row prompt_tokens - tail. Deterministic: an item is a pure function of tokenizer, text,
// options and its number.
//
// What is scored is forced, not generated: an answer counts when each of its tokens is the most likely one
// after the right ones before it, which is what greedy decoding would give. Where several values are asked
// for (four numbers, five variables) RULER scores the recall of a free answer; here they are forced in the
// order in which the text brings them, joined by commas that are not scored, and the recall is the share of
// values whose tokens are all right. A model that lists them in another order gets less than from RULER:
// exact runs too.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/tokenizer/tokenizer.h"

namespace ridgefill::eval {

enum class Task : uint8_t { kSingle, kMultiKey, kMultiValue, kVariables, kJson, kCode };
inline constexpr Task kAllTasks[] = {Task::kSingle,    Task::kMultiKey, Task::kMultiValue,
                                     Task::kVariables, Task::kJson,     Task::kCode};
// "single", "multi_key", "multi_value", "variables", "json", "code".
absl::string_view Name(Task task);

enum class Evidence : uint8_t { kBulk, kTail };
absl::string_view Name(Evidence evidence);  // "bulk", "tail"

struct TokenSpan {
  int64_t begin = 0, end = 0;
};

struct NeedleItem {
  std::vector<int32_t> ids;  // prompt, then the answer
  int64_t prompt_tokens = 0;
  std::vector<TokenSpan> answers;   // of ids: the values asked for, in order
  std::vector<TokenSpan> evidence;  // of ids: hidden lines in order, those nobody asks for included
  double depth = 0;  // of the line asked for, the first of several: its first row as a share of the prompt
};

struct NeedleOptions {
  Task task = Task::kSingle;
  Evidence evidence = Evidence::kBulk;
  int64_t length = 4096;  // of ids; items come within kLengthSlack of it
  int64_t tail = 512;
  int64_t items = 20;  // depths of the line asked for spread evenly; more items begin with the same ones
  uint64_t seed = 7;
};
inline constexpr int64_t kLengthSlack = 4;

// `text`: prose, cut into the sentences that hide the lines. INVALID_ARGUMENT: EVAL_TEXT when it has too few
// plain sentences, EVAL_WINDOWS when the tail leaves no bulk, EVAL_LENGTH when question and lines do not fit.
absl::StatusOr<std::vector<NeedleItem>> MakeNeedles(const tokenizer::Tokenizer& tokenizer,
                                                    absl::string_view text, const NeedleOptions& options);

}  // namespace ridgefill::eval
