// The matrices that a fit computes with.
#pragma once

#include <Eigen/Cholesky>
#include <Eigen/Core>

namespace ridgefill::fit {

using RowMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Matrix = Eigen::MatrixXd;
using Vector = Eigen::VectorXd;

}  // namespace ridgefill::fit
