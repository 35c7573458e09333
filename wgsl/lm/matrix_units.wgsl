// Types of the matrices that a subgroup multiplies on matrix units: half-precision factors and
// float32 sums. Left is unit_rows x unit_inner, Right is unit_inner x unit_columns, and Sum is
// unit_rows x unit_columns.
//!override unit_rows = 16
//!override unit_columns = 16
//!override unit_inner = 16
enable f16;

alias Left = subgroup_matrix_left<f16, {unit_inner}, {unit_rows}>;
alias Right = subgroup_matrix_right<f16, {unit_columns}, {unit_inner}>;
alias Sum = subgroup_matrix_result<f32, {unit_columns}, {unit_rows}>;
