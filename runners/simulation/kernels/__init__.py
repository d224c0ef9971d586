"""What CUDA kernels allocate for themselves, and which attention kernel CUDA would choose: rules read from PyTorch's
source, so that a workload followed on tensors without data can be charged for them.

Each rule names the source it was read from. Headers and operators are those of PyTorch 2.13; .cu and .cpp files are the
nearest state that could be had, not always that of the release. Taken as given: a wheel for CUDA 13 with cuDNN above
9.15, no deterministic algorithms, no graph capture, cuBLAS by its defaults.

A rule gives what is alive at the operator's fullest moment, not what was freed before. Not followed, so that a
calculated peak can be lower than a card's:

    cuDNN        the workspace of a convolution, and what an attention plan adds to what its frontend asks for
    CUB          histograms and look-back of a sort (1 % of what is followed), and what scans and unique take
    efficient    backward of half precision with heads of 97 to 128 on cards other than A100, H100 and B200: sums of
                 keys and values, if the larger kernel does not fit
    top-k        buffers of the kernel that gives a row several blocks; whether 2.13 sorts instead
    reductions   all but sum, mean, vector norm and argmax
    indexing     nonzero, masks of booleans as indices, unique, scatter where it must be deterministic
    CUTLASS      grouped and scaled products; FlashAttention 3; nested tensors
    AMD          attention (AOTriton), norms, reductions, and hipBLASLt's 76 MiB beside hipBLAS's workspace

And what tensors without data do that CUDA does not, so that it can be higher: the seed and offset of the efficient
kernel, which are on the host (two blocks).
"""
