// The type of the elements of a table or of a matrix of weights: f16 if `half` is set, else f32.
//!override half = 0
//!if half
enable f16;

alias Element = f16;
alias FourElements = vec4<f16>;
//!else
alias Element = f32;
alias FourElements = vec4<f32>;
//!end
