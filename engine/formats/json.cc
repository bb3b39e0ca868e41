#include "engine/formats/json.h"

#include <iterator>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/status.h"
#include "engine/formats/quote.h"

namespace ridgefill::formats {
namespace {

absl::Status Refuse(absl::string_view reason, absl::string_view message) {
  return base::Error(absl::StatusCode::kInvalidArgument, reason, message);
}

// Walks the input and leaves its place in `*place`, because the SAX events carry no position.
class PlacedIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  PlacedIterator(const char* at, const char** place) : at_(at), place_(place) {}
  reference operator*() const { return *at_; }
  PlacedIterator& operator++() {
    *place_ = ++at_;
    return *this;
  }
  PlacedIterator operator++(int) {
    const PlacedIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const PlacedIterator& other) const { return at_ == other.at_; }
  bool operator!=(const PlacedIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** place_;
};

// Builds the document from SAX events; returning false stops the parser, with the reason in status().
class DocumentBuilder : public nlohmann::json_sax<Json> {
 public:
  DocumentBuilder(absl::string_view input, int max_depth)
      : begin_(input.data()), place_(input.data()), max_depth_(max_depth) {}

  const char** place() { return &place_; }
  const absl::Status& status() const { return status_; }
  Json Take() { return std::move(root_); }

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(value); }
  bool number_unsigned(number_unsigned_t value) override { return Add(value); }
  bool number_float(number_float_t value, const string_t&) override { return Add(value); }
  bool string(string_t& value) override { return Add(std::move(value)); }
  bool binary(binary_t&) override { return Stop("JSON_SYNTAX", "binary values are not JSON"); }

  bool start_object(std::size_t) override { return Push(Json::object()); }
  bool start_array(std::size_t) override { return Push(Json::array()); }
  bool end_object() override { return Pop(); }
  bool end_array() override { return Pop(); }

  bool key(string_t& name) override {
    const auto [member, is_new] = open_.back()->get_ref<Json::object_t&>().try_emplace(name);
    if (!is_new) return Stop("JSON_DUPLICATE_KEY", absl::StrCat("key ", Quote(name), " is given twice"));
    member_ = &member->second;
    return true;
  }

  bool parse_error(std::size_t, const std::string& last_token, const Json::exception& error) override {
    const bool is_range = error.id == 406;
    return Stop(is_range ? "JSON_RANGE" : "JSON_SYNTAX",
                absl::StrCat(is_range ? "number out of range: " : "unexpected ", Quote(last_token)));
  }

 private:
  // Where the next value goes: a member just named, the end of an array, or the document itself.
  template <typename Value>
  Json* Place(Value&& value) {
    Json* slot = &root_;
    if (!open_.empty() && open_.back()->is_array()) {
      open_.back()->push_back(std::forward<Value>(value));
      return &open_.back()->back();
    }
    if (!open_.empty()) slot = member_;
    *slot = std::forward<Value>(value);
    return slot;
  }

  template <typename Value>
  bool Add(Value&& value) {
    Place(std::forward<Value>(value));
    return true;
  }

  bool Push(Json container) {
    if (static_cast<int>(open_.size()) >= max_depth_) {
      return Stop("JSON_TOO_DEEP", absl::StrCat("nested deeper than the ", max_depth_, " levels allowed"));
    }
    open_.push_back(Place(std::move(container)));
    return true;
  }

  bool Pop() {
    open_.pop_back();
    return true;
  }

  bool Stop(absl::string_view reason, absl::string_view what) {
    status_ = Refuse(reason, absl::StrCat("JSON at byte ", place_ - begin_, ": ", what));
    return false;
  }

  const char* begin_;
  const char* place_;
  int max_depth_;
  Json root_;
  std::vector<Json*> open_;  // containers not yet closed; a parent does not grow while its child is open
  Json* member_ = nullptr;   // the value of the key just read
  absl::Status status_;
};

absl::Status WrongType(absl::string_view key, const Json& value, absl::string_view wanted) {
  return Refuse("JSON_TYPE",
                absl::StrCat("key ", Quote(key), " is ", value.type_name(), ", must be ", wanted));
}

absl::StatusOr<const Json*> Need(const Json& object, absl::string_view key) {
  if (const Json* value = FindJson(object, key)) return value;
  return base::Error(absl::StatusCode::kNotFound, "JSON_MISSING_KEY",
                     absl::StrCat("key ", Quote(key), " is missing"));
}

absl::StatusOr<int64_t> AsInt(const Json& value, absl::string_view key) {
  if (!value.is_number_integer()) return WrongType(key, value, "an integer");
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return Refuse("JSON_RANGE", absl::StrCat("key ", Quote(key), " is beyond 64-bit signed integers"));
  }
  return value.get<int64_t>();
}

absl::StatusOr<double> AsDouble(const Json& value, absl::string_view key) {
  if (!value.is_number()) return WrongType(key, value, "a number");
  return value.get<double>();
}

absl::StatusOr<bool> AsBool(const Json& value, absl::string_view key) {
  if (!value.is_boolean()) return WrongType(key, value, "true or false");
  return value.get<bool>();
}

absl::StatusOr<absl::string_view> AsString(const Json& value, absl::string_view key) {
  if (!value.is_string()) return WrongType(key, value, "a string");
  return absl::string_view(value.get_ref<const std::string&>());
}

template <typename T>
absl::StatusOr<T> GetAs(const Json& object, absl::string_view key,
                        absl::StatusOr<T> (*as)(const Json&, absl::string_view)) {
  RF_ASSIGN_OR_RETURN(const Json* value, Need(object, key));
  return as(*value, key);
}

template <typename T>
absl::StatusOr<T> GetAsOr(const Json& object, absl::string_view key, T fallback,
                          absl::StatusOr<T> (*as)(const Json&, absl::string_view)) {
  const Json* value = FindJson(object, key);
  if (value == nullptr) return fallback;
  return as(*value, key);
}

template <typename T>
absl::StatusOr<std::vector<T>> GetAllAs(const Json& object, absl::string_view key,
                                        absl::StatusOr<T> (*as)(const Json&, absl::string_view)) {
  RF_ASSIGN_OR_RETURN(const Json* array, GetArray(object, key));
  std::vector<T> values;
  values.reserve(array->size());
  for (size_t i = 0; i < array->size(); ++i) {
    RF_ASSIGN_OR_RETURN(T value, as((*array)[i], absl::StrCat(key, "/", i)));
    values.push_back(value);
  }
  return values;
}

}  // namespace

absl::StatusOr<Json> ParseJson(absl::string_view bytes, const JsonLimits& limits) {
  if (bytes.size() > limits.max_bytes) {
    return Refuse("JSON_TOO_LARGE", absl::StrCat("JSON of ", bytes.size(), " bytes is larger than the ",
                                                 limits.max_bytes, " allowed"));
  }
  DocumentBuilder builder(bytes, limits.max_depth);
  const PlacedIterator begin(bytes.data(), builder.place());
  const PlacedIterator end(bytes.data() + bytes.size(), builder.place());
  if (!Json::sax_parse(begin, end, &builder)) return builder.status();
  return builder.Take();
}

const Json* FindJson(const Json& object, absl::string_view key) {
  const Json* value = &object;
  for (absl::string_view step : absl::StrSplit(key, '/')) {
    if (!value->is_object()) return nullptr;
    const auto& members = value->get_ref<const Json::object_t&>();
    const auto found = members.find(std::string(step));
    if (found == members.end()) return nullptr;
    value = &found->second;
  }
  return value->is_null() ? nullptr : value;
}

absl::StatusOr<int64_t> GetInt(const Json& object, absl::string_view key) {
  return GetAs(object, key, AsInt);
}
absl::StatusOr<double> GetDouble(const Json& object, absl::string_view key) {
  return GetAs(object, key, AsDouble);
}
absl::StatusOr<bool> GetBool(const Json& object, absl::string_view key) { return GetAs(object, key, AsBool); }
absl::StatusOr<absl::string_view> GetString(const Json& object, absl::string_view key) {
  return GetAs(object, key, AsString);
}

absl::StatusOr<const Json*> GetObject(const Json& object, absl::string_view key) {
  RF_ASSIGN_OR_RETURN(const Json* value, Need(object, key));
  if (!value->is_object()) return WrongType(key, *value, "an object");
  return value;
}

absl::StatusOr<const Json*> GetArray(const Json& object, absl::string_view key) {
  RF_ASSIGN_OR_RETURN(const Json* value, Need(object, key));
  if (!value->is_array()) return WrongType(key, *value, "an array");
  return value;
}

absl::StatusOr<std::vector<int64_t>> GetInts(const Json& object, absl::string_view key) {
  return GetAllAs(object, key, AsInt);
}
absl::StatusOr<std::vector<double>> GetDoubles(const Json& object, absl::string_view key) {
  return GetAllAs(object, key, AsDouble);
}
absl::StatusOr<std::vector<absl::string_view>> GetStrings(const Json& object, absl::string_view key) {
  return GetAllAs(object, key, AsString);
}

absl::StatusOr<int64_t> GetIntOr(const Json& object, absl::string_view key, int64_t fallback) {
  return GetAsOr(object, key, fallback, AsInt);
}
absl::StatusOr<double> GetDoubleOr(const Json& object, absl::string_view key, double fallback) {
  return GetAsOr(object, key, fallback, AsDouble);
}
absl::StatusOr<bool> GetBoolOr(const Json& object, absl::string_view key, bool fallback) {
  return GetAsOr(object, key, fallback, AsBool);
}
absl::StatusOr<absl::string_view> GetStringOr(const Json& object, absl::string_view key,
                                              absl::string_view fallback) {
  return GetAsOr(object, key, fallback, AsString);
}

}  // namespace ridgefill::formats
