#include "engine/eval/needle.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/check.h"
#include "engine/base/rng.h"
#include "engine/base/status.h"
#include "engine/eval/needle_text.h"

namespace ridgefill::eval {
namespace {

constexpr size_t kLeastSentences = 100;
constexpr int64_t kLeastPad = 16;  // tokens of the last unit, which brings an item to its length
constexpr int kPadTries = 8;
constexpr double kGolden = 0.6180339887498949;  // multiples of it spread evenly over [0, 1), however many
// Tokens between lines and the tail's first row: text counted piece by piece may come out a little longer or
// shorter.
constexpr int64_t kMargin = 8;

absl::Status Refuse(absl::string_view reason, absl::string_view message) {
  return base::Error(absl::StatusCode::kInvalidArgument, reason, message);
}

// Haystack without its pad: pieces of text, some of which are hidden lines.
struct Piece {
  std::string text;
  int64_t tokens = 0;
  bool hidden = false;
};

class NeedleMaker {
 public:
  NeedleMaker(const tokenizer::Tokenizer& tokenizer, const std::vector<std::string>& sentences,
              const NeedleOptions& options, int64_t number)
      : tokenizer_(tokenizer),
        options_(options),
        rng_(SeedOf(options, number)),
        depth_(std::fmod(kGolden * (static_cast<double>(number) + 0.5), 1.0)),
        text_(MakeNeedleText(options.task, sentences, rng_)),
        filler_(absl::StrJoin(sentences.begin(), sentences.begin() + 5, " and ")) {}

  absl::StatusOr<NeedleItem> Make() {
    RF_RETURN_IF_ERROR(EncodeAnswer());
    RF_RETURN_IF_ERROR(Frame());
    RF_RETURN_IF_ERROR(Hide());
    return Assemble();
  }

 private:
  // Evidence in bulk or tail: the same words otherwise.
  static uint64_t SeedOf(const NeedleOptions& o, int64_t number) {
    base::Rng rng(o.seed);
    for (const uint64_t part :
         {static_cast<uint64_t>(o.task), static_cast<uint64_t>(o.length), static_cast<uint64_t>(number)}) {
      rng = base::Rng(rng.NextU64() ^ part);
    }
    return rng.NextU64();
  }

  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text) const {
    return tokenizer_.Encode(text, {.add_special = false, .parse_special = false});
  }
  absl::StatusOr<int64_t> Count(absl::string_view text) const {
    RF_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, Encode(text));
    return static_cast<int64_t>(ids.size());
  }
  // Tokens that a piece of haystack adds: behind a piece that ends as it does, as many vocabularies merge
  // marks with the line break that follows them.
  absl::StatusOr<int64_t> Added(const std::string& piece) const {
    RF_ASSIGN_OR_RETURN(const int64_t one, Count(piece));
    RF_ASSIGN_OR_RETURN(const int64_t two, Count(absl::StrCat(piece, piece)));
    return two - one;
  }
  absl::StatusOr<std::vector<int32_t>> Prompt(const std::string& haystack) const {
    const tokenizer::ChatMessage message = {"user", absl::StrCat(text_.before, haystack, text_.after)};
    RF_ASSIGN_OR_RETURN(std::vector<int32_t> ids, tokenizer_.EncodeChat({&message, 1}));
    RF_ASSIGN_OR_RETURN(const std::vector<int32_t> prefix, Encode(text_.answer_prefix));
    ids.insert(ids.end(), prefix.begin(), prefix.end());
    return ids;
  }

  // Values with commas between them; spans count from the answer's first token.
  absl::Status EncodeAnswer() {
    for (const std::string& value : text_.answers) {
      if (!answer_.empty()) {
        RF_ASSIGN_OR_RETURN(const std::vector<int32_t> comma, Encode(","));
        answer_.insert(answer_.end(), comma.begin(), comma.end());
      }
      RF_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, Encode(value));
      const int64_t begin = static_cast<int64_t>(answer_.size());
      answer_.insert(answer_.end(), ids.begin(), ids.end());
      spans_.push_back({begin, static_cast<int64_t>(answer_.size())});
    }
    return absl::OkStatus();
  }

  // How many tokens stand before the haystack, and how many it may have.
  absl::Status Frame() {
    RF_ASSIGN_OR_RETURN(const std::vector<int32_t> empty, Prompt(""));
    RF_ASSIGN_OR_RETURN(const TokenSpan before, Locate(empty, text_.before));
    front_ = before.end;
    prompt_tokens_ = options_.length - static_cast<int64_t>(answer_.size());
    room_ = prompt_tokens_ - static_cast<int64_t>(empty.size());
    return CheckTail();
  }

  // Also an item that comes out a little short has a row of bulk.
  absl::Status CheckTail() const {
    const int64_t most = prompt_tokens_ - kLengthSlack - 1;
    if (options_.tail >= 1 && options_.tail <= most) return absl::OkStatus();
    const std::string what =
        absl::StrCat("a ", std::string(Name(options_.task)), " needle of ", options_.length, " tokens");
    if (most < 1) return Refuse("EVAL_LENGTH", absl::StrCat(what, " has no room for its text"));
    return Refuse("EVAL_WINDOWS", absl::StrCat("tail must be in [1, ", most, "] to leave bulk in ", what,
                                               ", got ", options_.tail));
  }

  // Rows that hold `part`, which occurs once in the text of `ids`.
  absl::StatusOr<TokenSpan> Locate(absl::Span<const int32_t> ids, const std::string& part) const {
    std::string bytes;
    std::vector<size_t> ends;  // of each token
    for (int32_t id : ids) {
      absl::StrAppend(&bytes, tokenizer_.TokenBytes(id));
      ends.push_back(bytes.size());
    }
    const size_t at = bytes.find(part);
    if (at == std::string::npos) {
      return absl::InternalError(absl::StrCat("needle: not in its own prompt: ", part));
    }
    const auto first = std::upper_bound(ends.begin(), ends.end(), at);
    const auto last = std::lower_bound(ends.begin(), ends.end(), at + part.size());
    return TokenSpan{first - ends.begin(), last - ends.begin() + 1};
  }

  // Fills pieces_: units up to the room, lines at boundaries of units.
  absl::Status Hide() {
    int64_t lines = 0;
    std::vector<Piece> hidden;
    for (const std::string& line : text_.lines) {
      RF_ASSIGN_OR_RETURN(const int64_t tokens, Added(line));
      hidden.push_back({line, tokens, true});
      lines += tokens;
    }
    int64_t left = room_ - lines;
    for (;;) {
      std::string unit = text_.next_unit();
      RF_ASSIGN_OR_RETURN(const int64_t tokens, Added(unit));
      if (left - tokens < kLeastPad) break;
      left -= tokens;
      pieces_.push_back({std::move(unit), tokens, false});
    }
    pad_ = left;
    const bool bulk = options_.evidence == Evidence::kBulk;
    const int64_t tail_begin = prompt_tokens_ - options_.tail;
    const int64_t low = bulk ? front_ : tail_begin + kMargin;
    const int64_t high = bulk ? tail_begin - lines - kMargin : front_ + room_ - lines - pad_;
    if (pieces_.empty() || low >= high) {
      return Refuse("EVAL_LENGTH", absl::StrCat("a ", std::string(Name(options_.task)), " needle in the ",
                                                std::string(Name(options_.evidence)), " does not fit into ",
                                                options_.length, " tokens with a tail of ", options_.tail));
    }
    Place(std::move(hidden), low, high);
    return absl::OkStatus();
  }

  // Lines at random positions in [low, high), moved to a boundary: down in the bulk, up in the tail.
  void Place(std::vector<Piece> hidden, int64_t low, int64_t high) {
    const double width = static_cast<double>(high - low);
    std::vector<int64_t> at;
    for (size_t i = 0; i < hidden.size(); ++i) {
      const double depth = i == 0 && !text_.in_order ? depth_ : rng_.NextDouble();
      at.push_back(low + static_cast<int64_t>(depth * width));
    }
    std::vector<size_t> order(hidden.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    if (text_.in_order) {
      std::sort(at.begin(), at.end());
    } else {
      std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return at[a] < at[b]; });
    }
    std::vector<Piece> units = std::exchange(pieces_, {});
    size_t unit = 0;
    int64_t position = front_;  // of units[unit], lines not counted
    for (const size_t i : order) {
      while (unit < units.size() && position < at[i]) {
        if (options_.evidence == Evidence::kBulk && position + units[unit].tokens > at[i]) break;
        position += units[unit].tokens;
        pieces_.push_back(std::move(units[unit++]));
      }
      pieces_.push_back(std::move(hidden[i]));
    }
    std::move(units.begin() + static_cast<ptrdiff_t>(unit), units.end(), std::back_inserter(pieces_));
  }

  // So many tokens of filler, the pad's own marks included, as near as words allow.
  absl::StatusOr<std::string> Pad(int64_t tokens) const {
    RF_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, Encode(filler_));
    const int64_t count = std::clamp<int64_t>(tokens, 1, static_cast<int64_t>(ids.size()));
    RF_ASSIGN_OR_RETURN(const std::string words,
                        tokenizer_.Decode(absl::MakeConstSpan(ids).subspan(0, count)));
    return text_.pad(words);
  }

  absl::StatusOr<NeedleItem> Assemble() {
    NeedleItem item;
    int64_t pad = pad_, error = 0;
    for (int tries = 0; tries < kPadTries; ++tries) {
      RF_ASSIGN_OR_RETURN(std::string haystack, Pad(pad));
      haystack = absl::StrCat(
          absl::StrJoin(pieces_, "", [](std::string* out, const Piece& piece) { out->append(piece.text); }),
          haystack);
      RF_ASSIGN_OR_RETURN(item.ids, Prompt(haystack));
      error = prompt_tokens_ - static_cast<int64_t>(item.ids.size());
      if (error == 0) break;
      pad += error;
    }
    if (std::abs(error) > kLengthSlack) {
      return absl::InternalError(absl::StrCat("needle: ", error, " tokens off its length"));
    }
    item.prompt_tokens = static_cast<int64_t>(item.ids.size());
    RF_RETURN_IF_ERROR(LocateLines(item));
    for (const TokenSpan& span : spans_) {
      item.answers.push_back({item.prompt_tokens + span.begin, item.prompt_tokens + span.end});
    }
    item.ids.insert(item.ids.end(), answer_.begin(), answer_.end());
    return item;
  }

  absl::Status LocateLines(NeedleItem& item) const {
    const int64_t tail_begin = item.prompt_tokens - options_.tail;
    for (const Piece& piece : pieces_) {
      if (!piece.hidden) continue;
      RF_ASSIGN_OR_RETURN(const TokenSpan span, Locate(item.ids, piece.text));
      const bool there =
          options_.evidence == Evidence::kBulk ? span.end <= tail_begin : span.begin >= tail_begin;
      if (!there) return absl::InternalError(absl::StrCat("needle: misplaced: ", piece.text));
      item.evidence.push_back(span);
      if (piece.text == text_.lines.front()) {
        item.depth = static_cast<double>(span.begin) / static_cast<double>(item.prompt_tokens);
      }
    }
    return absl::OkStatus();
  }

  const tokenizer::Tokenizer& tokenizer_;
  const NeedleOptions& options_;
  base::Rng rng_;
  const double depth_;
  const NeedleText text_;
  const std::string filler_;
  std::vector<int32_t> answer_;
  std::vector<TokenSpan> spans_;
  int64_t front_ = 0;          // tokens before the haystack
  int64_t room_ = 0;           // tokens of the haystack
  int64_t prompt_tokens_ = 0;  // aimed at
  int64_t pad_ = 0;
  std::vector<Piece> pieces_;
};

}  // namespace

absl::string_view Name(Task task) {
  switch (task) {
    case Task::kSingle:
      return "single";
    case Task::kMultiKey:
      return "multi_key";
    case Task::kMultiValue:
      return "multi_value";
    case Task::kVariables:
      return "variables";
    case Task::kJson:
      return "json";
    case Task::kCode:
      return "code";
  }
  RF_CHECK(false);
}

absl::string_view Name(Evidence evidence) { return evidence == Evidence::kBulk ? "bulk" : "tail"; }

absl::StatusOr<std::vector<NeedleItem>> MakeNeedles(const tokenizer::Tokenizer& tokenizer,
                                                    absl::string_view text, const NeedleOptions& options) {
  const std::vector<std::string> sentences = PlainSentences(text);
  if (sentences.size() < kLeastSentences) {
    return Refuse("EVAL_TEXT", absl::StrCat("the text has ", sentences.size(), " plain sentences; at least ",
                                            kLeastSentences, " are needed"));
  }
  std::vector<NeedleItem> out;
  for (int64_t number = 0; number < options.items; ++number) {
    RF_ASSIGN_OR_RETURN(NeedleItem item, NeedleMaker(tokenizer, sentences, options, number).Make());
    out.push_back(std::move(item));
  }
  return out;
}

}  // namespace ridgefill::eval
