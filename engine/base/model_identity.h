// What two processes, or a model and a map set, must agree on. Plain data.
#pragma once

#include <string>

namespace ridgefill::base {

struct ModelIdentity {
  std::string name;              // file or folder name without extension: for people, never compared
  std::string arch;              // must agree
  std::string dimensions;        // "30 layers, 576 wide, 9/3 heads of 64, vocab 49152": must agree
  std::string tokenizer_digest;  // must agree
  std::string weights_digest;    // over names, shapes, encodings and sampled bytes: differs between encodings
                                 // of one model
};

}  // namespace ridgefill::base
