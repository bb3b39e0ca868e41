#include "kernels/api/backend.h"

#include "kernels/api/check_args.h"

namespace ridgefill::kernels {

absl::Status Backend::CopyFromHost(Stream& stream, absl::Span<const char> from, const TensorView& to) {
  if (static_cast<int64_t>(from.size()) != to.bytes()) return BadArgs("copy_from_host: sizes differ");
  return DoCopyFromHost(stream, from, to);
}

absl::Status Backend::CopyToHost(Stream& stream, const TensorView& from, absl::Span<char> to) {
  if (static_cast<int64_t>(to.size()) != from.bytes()) return BadArgs("copy_to_host: sizes differ");
  return DoCopyToHost(stream, from, to);
}

absl::Status Backend::ReadKv(Stream& stream, const KvCache& cache, const KvSpan& span, absl::Span<char> to) {
  RF_RETURN_IF_ERROR(Check(span, cache.spec(), static_cast<int64_t>(to.size())));
  return DoReadKv(stream, cache, span, to);
}

absl::Status Backend::WriteKv(Stream& stream, KvCache& cache, const KvSpan& span,
                              absl::Span<const char> from) {
  RF_RETURN_IF_ERROR(Check(span, cache.spec(), static_cast<int64_t>(from.size())));
  return DoWriteKv(stream, cache, span, from);
}

absl::Status Backend::Embedding(Stream& stream, const EmbeddingArgs& args) {
  RF_RETURN_IF_ERROR(Check(args));
  return DoEmbedding(stream, args);
}

absl::Status Backend::RmsNorm(Stream& stream, const RmsNormArgs& args) {
  RF_RETURN_IF_ERROR(Check(args));
  return DoRmsNorm(stream, args);
}

absl::Status Backend::SwiGlu(Stream& stream, const SwiGluArgs& args) {
  RF_RETURN_IF_ERROR(Check(args));
  return DoSwiGlu(stream, args);
}

absl::Status Backend::Cast(Stream& stream, const CastArgs& args) {
  RF_RETURN_IF_ERROR(Check(args));
  return DoCast(stream, args);
}

absl::Status Backend::Linear(Stream& stream, const LinearArgs& args) {
  RF_RETURN_IF_ERROR(Check(args));
  return DoLinear(stream, args);
}

absl::Status Backend::Gram(Stream& stream, const GramArgs& args) {
  RF_RETURN_IF_ERROR(Check(args));
  return DoGram(stream, args);
}

absl::Status Backend::RopeWrite(Stream& stream, const RopeWriteArgs& args) {
  RF_RETURN_IF_ERROR(Check(args));
  return DoRopeWrite(stream, args);
}

absl::Status Backend::Attention(Stream& stream, const AttentionArgs& args) {
  RF_RETURN_IF_ERROR(Check(args));
  return DoAttention(stream, args);
}

absl::Status Backend::AttentionMass(Stream& stream, const AttentionMassArgs& args) {
  RF_RETURN_IF_ERROR(Check(args));
  return DoAttentionMass(stream, args);
}

absl::Status Backend::GatherRows(Stream& stream, const GatherRowsArgs& args) {
  RF_RETURN_IF_ERROR(Check(args));
  return DoGatherRows(stream, args);
}

absl::Status Backend::RowNorm(Stream& stream, const RowNormArgs& args) {
  RF_RETURN_IF_ERROR(Check(args));
  return DoRowNorm(stream, args);
}

}  // namespace ridgefill::kernels
