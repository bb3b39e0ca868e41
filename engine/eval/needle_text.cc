#include "engine/eval/needle_text.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/check.h"

namespace ridgefill::eval {
namespace {

constexpr absl::string_view kAdjectives[] = {
    "amber",  "ancient", "bitter", "bold",  "brave", "brisk",  "calm",   "clever", "cold",   "crisp",
    "dark",   "deep",    "eager",  "early", "faint", "fierce", "gentle", "golden", "grand",  "green",
    "heavy",  "hollow",  "humble", "icy",   "jolly", "keen",   "little", "lively", "lonely", "mellow",
    "narrow", "noble",   "pale",   "proud", "quiet", "rapid",  "rough",  "silent", "steady", "warm"};
constexpr absl::string_view kNouns[] = {
    "anchor", "apple",   "basket",   "bridge", "cactus",  "candle", "castle", "engine", "feather", "forest",
    "garden", "glacier", "hammer",   "harbor", "helmet",  "island", "jacket", "kettle", "lantern", "magnet",
    "meadow", "mirror",  "mountain", "needle", "orchard", "paper",  "pepper", "pillow", "planet",  "river",
    "rocket", "saddle",  "shadow",   "silver", "temple",  "tunnel", "valley", "violin", "window",  "winter"};
constexpr int kValues = 4;     // of one key, in multi-value
constexpr int kKeys = 4;       // with a number, in multi-key, JSON and code: one is asked for
constexpr int kVariables = 5;  // in one chain

// Pairs of words, none twice; numbered from the second round on, which very long texts reach.
class Keys {
 public:
  Keys(base::Rng& rng, absl::string_view joint) : rng_(rng), joint_(joint) {}
  std::string Next() {
    constexpr uint64_t kAll = std::size(kAdjectives) * std::size(kNouns);
    if (used_.size() == kAll / 2) {
      used_.clear();
      ++round_;
    }
    uint64_t pair = rng_.NextBelow(kAll);
    while (!used_.insert(pair).second) pair = rng_.NextBelow(kAll);
    std::string key =
        absl::StrCat(kAdjectives[pair / std::size(kNouns)], joint_, kNouns[pair % std::size(kNouns)]);
    if (round_ > 1) absl::StrAppend(&key, joint_, round_);
    return key;
  }

 private:
  base::Rng& rng_;
  const absl::string_view joint_;
  absl::flat_hash_set<uint64_t> used_;
  int round_ = 1;
};

std::string Number(base::Rng& rng) { return absl::StrCat(1000000 + rng.NextBelow(9000000)); }

std::string Variable(base::Rng& rng) {
  std::string out;
  for (int i = 0; i < 5; ++i) out.push_back(static_cast<char>('A' + rng.NextBelow(26)));
  return out;
}

// Sentences without their full stop, one after the other from a random one on.
std::function<std::string()> Sentences(const std::vector<std::string>& sentences, base::Rng& rng) {
  return [&sentences, at = rng.NextBelow(sentences.size())]() mutable {
    return sentences[at++ % sentences.size()];
  };
}

void HideInProse(const std::vector<std::string>& sentences, base::Rng& rng, NeedleText& out) {
  out.next_unit = [sentence = Sentences(sentences, rng)] { return absl::StrCat(" ", sentence(), "."); };
  out.pad = [](const std::string& words) { return absl::StrCat(" ", words, "."); };
}

// A special magic number for each key; the first key's is asked for.
NeedleText MagicNumbers(int keys, const std::vector<std::string>& sentences, base::Rng& rng) {
  NeedleText out;
  Keys names(rng, "-");
  for (int i = 0; i < keys; ++i) {
    const std::string key = names.Next(), value = Number(rng);
    out.lines.push_back(absl::StrCat(" One of the special magic numbers for ", key, " is: ", value, "."));
    if (i > 0) continue;
    out.after =
        absl::StrCat("\nWhat is the special magic number for ", key, " mentioned in the provided text?");
    out.answer_prefix =
        absl::StrCat("The special magic number for ", key, " mentioned in the provided text is");
    out.answers.push_back(absl::StrCat(" ", value));
  }
  out.before =
      "A special magic number is hidden within the following text. Make sure to memorize it. I will quiz you "
      "about the number afterwards.\n";
  HideInProse(sentences, rng, out);
  return out;
}

NeedleText ManyValues(const std::vector<std::string>& sentences, base::Rng& rng) {
  NeedleText out;
  const std::string key = Keys(rng, "-").Next();
  for (int i = 0; i < kValues; ++i) {
    const std::string value = Number(rng);
    out.lines.push_back(absl::StrCat(" One of the special magic numbers for ", key, " is: ", value, "."));
    out.answers.push_back(absl::StrCat(" ", value));
  }
  out.in_order = true;
  out.before =
      "Some special magic numbers are hidden within the following text. Make sure to memorize it. I will "
      "quiz "
      "you about the numbers afterwards.\n";
  out.after =
      absl::StrCat("\nWhat are all the special magic numbers for ", key, " mentioned in the provided text?");
  out.answer_prefix =
      absl::StrCat("The special magic numbers for ", key, " mentioned in the provided text are");
  HideInProse(sentences, rng, out);
  return out;
}

NeedleText VariableChain(const std::vector<std::string>& sentences, base::Rng& rng) {
  NeedleText out;
  const std::string value = absl::StrCat(10000 + rng.NextBelow(90000));
  std::string right = value;
  for (int i = 0; i < kVariables; ++i) {
    const std::string variable = Variable(rng);
    out.lines.push_back(absl::StrCat(" VAR ", variable, " = ", right, "."));
    out.answers.push_back(absl::StrCat(" ", variable));
    right = absl::StrCat("VAR ", variable);
  }
  out.in_order = true;
  out.before = "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n";
  out.after = absl::StrCat("\nQuestion: Find all variables that are assigned the value ", value,
                           " in the text above.");
  out.answer_prefix =
      absl::StrCat("Answer: According to the chain(s) of variable assignment in the text above, ", kVariables,
                   " variables are assigned the value ", value, ", they are:");
  HideInProse(sentences, rng, out);
  return out;
}

// A few keys have numbers, one of which is asked for; the values of all others are sentences.
NeedleText JsonPairs(const std::vector<std::string>& sentences, base::Rng& rng) {
  NeedleText out;
  const auto names = std::make_shared<Keys>(rng, "-");
  const auto pair = [](const std::string& key, const std::string& value) {
    return absl::StrCat("\n\"", key, "\": \"", value, "\",");
  };
  for (int i = 0; i < kKeys; ++i) {
    const std::string key = names->Next(), value = Number(rng);
    out.lines.push_back(pair(key, value));
    if (i > 0) continue;
    out.after = absl::StrCat("\n}\n\nKey: \"", key, "\"\nCorresponding value:");
    out.answer_prefix = absl::StrCat("The value of the key \"", key, "\" is \"");
    out.answers.push_back(value);
  }
  out.before =
      "Extract the value corresponding to the specified key in the JSON object below.\n\nJSON data:\n{";
  out.next_unit = [names, pair, sentence = Sentences(sentences, rng)] {
    const std::string key = names->Next();
    return pair(key, sentence());
  };
  out.pad = [](const std::string& words) { return absl::StrCat("\n\"note\": \"", words, "\""); };
  return out;
}

// A few functions return numbers, one of which is asked for; all others return a text.
NeedleText CodeReturns(const std::vector<std::string>& sentences, base::Rng& rng) {
  NeedleText out;
  const auto names = std::make_shared<Keys>(rng, "_");
  const auto function = [](const std::string& name, const std::string& value) {
    return absl::StrCat("\n\n\ndef ", name, "():\n    return ", value);
  };
  for (int i = 0; i < kKeys; ++i) {
    const std::string name = names->Next(), value = Number(rng);
    out.lines.push_back(function(name, value));
    if (i > 0) continue;
    out.after = absl::StrCat("\n\nWhich number does the function ", name, "() return?");
    out.answer_prefix = absl::StrCat("The function ", name, "() returns");
    out.answers.push_back(absl::StrCat(" ", value));
  }
  out.before =
      "Read this Python module. I will ask you about one of its functions afterwards.\n\nimport math";
  out.next_unit = [names, function, sentence = Sentences(sentences, rng)] {
    const std::string name = names->Next();
    return function(name, absl::StrCat("\"", sentence(), ".\""));
  };
  out.pad = [](const std::string& words) { return absl::StrCat("\n\n\n# ", words); };
  return out;
}

bool IsPlain(absl::string_view sentence) {
  constexpr size_t kLeast = 20, kMost = 240;
  if (sentence.size() < kLeast || sentence.size() > kMost) return false;
  return std::all_of(sentence.begin(), sentence.end(), [](unsigned char c) {
    return absl::ascii_isprint(c) && !absl::ascii_isdigit(c) && c != '=' && c != '_' && c != '"';
  });
}

}  // namespace

std::vector<std::string> PlainSentences(absl::string_view text) {
  std::string flat(text.data(), text.size());
  for (char& c : flat) {
    if (absl::ascii_isspace(static_cast<unsigned char>(c))) c = ' ';
  }
  absl::RemoveExtraAsciiWhitespace(&flat);
  std::vector<std::string> out;
  for (absl::string_view sentence : absl::StrSplit(flat, ". ")) {
    if (IsPlain(sentence)) out.emplace_back(sentence.data(), sentence.size());
  }
  return out;
}

NeedleText MakeNeedleText(Task task, const std::vector<std::string>& sentences, base::Rng& rng) {
  switch (task) {
    case Task::kSingle:
      return MagicNumbers(1, sentences, rng);
    case Task::kMultiKey:
      return MagicNumbers(kKeys, sentences, rng);
    case Task::kMultiValue:
      return ManyValues(sentences, rng);
    case Task::kVariables:
      return VariableChain(sentences, rng);
    case Task::kJson:
      return JsonPairs(sentences, rng);
    case Task::kCode:
      return CodeReturns(sentences, rng);
  }
  RF_CHECK(false);
}

}  // namespace ridgefill::eval
