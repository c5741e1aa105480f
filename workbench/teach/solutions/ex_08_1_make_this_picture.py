"""Add a dimension of copies to each dimension of the image, and merge each pair into one index.

Row `i` of the picture shows row `i // factor` of the image. `merge((rows, factor))` splits `i` into two
digits, the slow one first. The slow digit is the row of the image. The fast digit is the number of the
copy: it comes from `replicate`, which has no lower index, so the offset does not depend on it. Columns are
done likewise.

The order of the two digits is the only decision. `merge((factor, rows))`, with the copies as the slow
digit, shows the whole image again and again: tiles, not larger pixels. To a kernel both cost the same, a
division by a constant for each of two indices.

No pixel is copied anywhere. A GEMM that is given this descriptor multiplies the enlarged image, and reads
the small one.
"""

from workbench.coords import Descriptor, naive, transform
from workbench.coords.transforms import merge, pass_through, replicate


def enlarged(rows: int, cols: int, factor: int) -> Descriptor:
    """The image with every pixel `factor` times in each direction."""
    ### BEGIN SOLUTION
    image = naive((rows, cols), (cols, 1), names=("y", "x"))
    # WRONG column by column: image = naive((rows, cols), (1, rows), names=("y", "x"))
    # WRONG zeros: image = naive((rows, cols), (0, 0), names=("y", "x"))
    # WRONG the image, untouched:
    #     image = naive((rows, cols), (cols, 1), names=("y", "x"))
    #     return image
    repeated = transform(
        image,
        [pass_through(rows), pass_through(cols), replicate((factor, factor))],
        [(0,), (1,), ()],
        [(0,), (2,), (1, 3)],
        names=("y", "y_copy", "x", "x_copy"),
    )
    # WRONG an embed for each direction:
    #     from workbench.coords.transforms import embed
    #     repeated = transform(
    #         image,
    #         [embed((rows, factor), (1, 0)), embed((cols, factor), (1, 0))],
    #         [(0,), (1,)],
    #         [(0, 1), (2, 3)],
    #         names=("y", "y_copy", "x", "x_copy"),
    #     )
    return transform(
        repeated,
        [merge((rows, factor)), merge((cols, factor))],
        # WRONG the image again and again: [merge((factor, rows)), merge((factor, cols))],
        # WRONG columns again and again: [merge((rows, factor)), merge((factor, cols))],
        # WRONG rows again and again: [merge((factor, rows)), merge((cols, factor))],
        [(0, 1), (2, 3)],
        # WRONG the image again and again: [(1, 0), (3, 2)],
        # WRONG columns again and again: [(0, 1), (3, 2)],
        # WRONG rows again and again: [(1, 0), (2, 3)],
        [(0,), (1,)],
        # WRONG rows and columns swapped: [(1,), (0,)],
        names=("row", "col"),
    )
    ### END SOLUTION
    # STUB: pass  # return naive((rows, cols), (cols, 1)) with three transforms on top
