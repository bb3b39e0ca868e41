// JSON from files that nobody vouches for (config.json, tokenizer.json, ridgefill.json, a safetensors
// header).
//
// ParseJson never throws. It refuses by byte offset: bad syntax, invalid UTF-8, a key given twice in one
// object, nesting deeper or input longer than the limits. The getters read one value by key and name that key
// in every error; a key may descend ("rope_scaling/factor"), so the error holds the whole path. Views and
// pointers borrow from the Json given. Thread-safe: pure functions. Errors: INVALID_ARGUMENT with reason
// JSON_SYNTAX, JSON_TOO_LARGE, JSON_TOO_DEEP, JSON_DUPLICATE_KEY, JSON_TYPE or JSON_RANGE; NOT_FOUND with
// reason JSON_MISSING_KEY.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace ridgefill::formats {

using Json = nlohmann::json;

struct JsonLimits {
  size_t max_bytes = size_t{64} << 20;  // the largest tokenizer.json in use is near 40 MB
  int max_depth = 64;                   // arrays and objects open at once
};

absl::StatusOr<Json> ParseJson(absl::string_view bytes, const JsonLimits& limits = {});

// The value under `key`, or nullptr when it is missing or null; never an error.
const Json* FindJson(const Json& object, absl::string_view key);
inline bool HasJson(const Json& object, absl::string_view key) { return FindJson(object, key) != nullptr; }

absl::StatusOr<int64_t> GetInt(const Json& object, absl::string_view key);    // integers, not 2.0
absl::StatusOr<double> GetDouble(const Json& object, absl::string_view key);  // any number
absl::StatusOr<bool> GetBool(const Json& object, absl::string_view key);
absl::StatusOr<absl::string_view> GetString(const Json& object, absl::string_view key);
absl::StatusOr<const Json*> GetObject(const Json& object, absl::string_view key);
absl::StatusOr<const Json*> GetArray(const Json& object, absl::string_view key);
absl::StatusOr<std::vector<int64_t>> GetInts(const Json& object, absl::string_view key);
absl::StatusOr<std::vector<double>> GetDoubles(const Json& object, absl::string_view key);
absl::StatusOr<std::vector<absl::string_view>> GetStrings(const Json& object, absl::string_view key);

// The same with a fallback for a missing or null key; a value of another type is still an error.
absl::StatusOr<int64_t> GetIntOr(const Json& object, absl::string_view key, int64_t fallback);
absl::StatusOr<double> GetDoubleOr(const Json& object, absl::string_view key, double fallback);
absl::StatusOr<bool> GetBoolOr(const Json& object, absl::string_view key, bool fallback);
absl::StatusOr<absl::string_view> GetStringOr(const Json& object, absl::string_view key,
                                              absl::string_view fallback);

}  // namespace ridgefill::formats
