// Entry point of every test program: runs in the root of the repository, so that tests name their data by
// short relative paths and no test's object file holds an absolute path (one clone's compiler cache then
// serves another clone).
#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (chdir(RIDGEFILL_REPOSITORY) != 0) {
    std::perror(RIDGEFILL_REPOSITORY);
    return 1;
  }
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
