"""Rules, read from PyTorch's source, for what CUDA kernels allocate and for the attention kernel that CUDA chooses.

Each rule names its source. Headers and operators are those of PyTorch 2.13; .cu and .cpp files are the nearest state
available, not always that of the release. The rules assume a wheel for CUDA 13 with cuDNN above 9.15, no deterministic
algorithms, no graph capture, and cuBLAS with its defaults.

A rule gives what is alive at the operator's peak, not what was freed before. A calculated peak can be lower than a
card's, since these are not covered:

    cuDNN        the workspace of a convolution, and what an attention plan adds to the request of its frontend
    CUB          histograms and look-back of a sort (1 % of what is covered), and what scans and unique allocate
    efficient    backward of half precision with heads of 97 to 128 on cards other than A100, H100 and B200: sums of
                 keys and values, if the larger kernel does not fit
    top-k        buffers of the kernel that gives a row several blocks; whether 2.13 sorts instead
    reductions   all but sum, mean, vector norm and argmax
    indexing     nonzero, masks of booleans as indices, unique, scatter where it must be deterministic
    CUTLASS      grouped and scaled products; FlashAttention 3; nested tensors
    cuDNN        recurrent layers by formulas that fit what was published, with bounds: torch_recurrent_kernels
    AMD          attention (AOTriton), norms, reductions, and hipBLASLt's 76 MiB in addition to hipBLAS's workspace

A calculated peak can be higher by two blocks: without data, the seed and offset of the efficient kernel are on the
device, and on CUDA they are on the host.
"""
