// A refusal carries a stable reason, and a message that names what was wrong.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"
#include "engine/base/status.h"

namespace ridgefill::formats {

inline void ExpectRefused(const absl::Status& status, const std::string& reason, const std::string& names) {
  ASSERT_FALSE(status.ok()) << "accepted, expected " << reason;
  const auto detail = base::GetErrorDetail(status);
  ASSERT_TRUE(detail.has_value()) << status;
  EXPECT_EQ(detail->reason, reason) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr(names));
}

}  // namespace ridgefill::formats
