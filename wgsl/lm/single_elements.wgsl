// The elements of a table or of weights are in single precision.
alias Element = f32;
alias FourElements = vec4<f32>;
