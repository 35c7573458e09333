// Matrices that the units of a subgroup multiply: half-precision factors, float32 sums.
//!override unit_rows = 16
//!override unit_columns = 16
//!override unit_inner = 16
enable f16;

alias Left = subgroup_matrix_left<f16, {unit_inner}, {unit_rows}>;
alias Right = subgroup_matrix_right<f16, {unit_columns}, {unit_inner}>;
alias Sum = subgroup_matrix_result<f32, {unit_columns}, {unit_rows}>;
