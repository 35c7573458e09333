// The elements of a table or of weights are in half precision.
enable f16;

alias Element = f16;
alias FourElements = vec4<f16>;
