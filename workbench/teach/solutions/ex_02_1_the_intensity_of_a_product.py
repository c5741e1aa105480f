r"""An element of $C$ takes $k$ multiplications and $k$ additions, and $C$ has $m n$ elements.

So there are $2 m n k$ FLOPs. The bytes are those of three matrices, two read and one written: $(m k + k n +
m n) \cdot b$.

For a square product the ratio is $2 n / 3 b$: it *grows* with the matrix, because every element is used $n$
times once it has been brought in. That is why a large product can keep a GPU's arithmetic busy.

Now take $m = 1$, a single row, as when a language model writes one word after another. There are $2 n k$
FLOPs, and B alone has $n k$ elements, so the intensity stays near $2 / b$ however large the matrix is: one
FLOP a byte in fp16, far down the slope of any roofline. No kernel can change that; taking more rows at once
can.
"""


def intensity(m: int, n: int, k: int, bytes_per_element: int) -> float:
    """FLOP per byte of C = A B, with A of m x k and B of k x n, each matrix moved once."""
    ### BEGIN SOLUTION
    flops = 2 * m * n * k
    # WRONG additions are not counted: flops = m * n * k
    elements = m * k + k * n + m * n
    # WRONG C is forgotten: elements = m * k + k * n
    # WRONG A is forgotten: elements = k * n + m * n
    # WRONG B is forgotten: elements = m * k + m * n
    # WRONG all matrices are k by k: elements = 3 * k * k
    # WRONG all matrices are m by n: elements = 3 * m * n
    # WRONG both matrices are read anew for each element of C: elements = 2 * m * n * k + m * n
    return flops / (elements * bytes_per_element)
    # WRONG bits instead of bytes: return flops / (elements * bytes_per_element * 8)
    # WRONG elements instead of bytes: return flops / (elements)
    # WRONG bytes per FLOP: return elements * bytes_per_element / flops
    # WRONG zeros: return 0.0
    # WRONG the first argument, untouched: return float(m)
    ### END SOLUTION
    # STUB: pass  # return FLOPs / bytes
