"""Without a GPU, Triton's kernels run in its interpreter."""

from triton_device import scalars_are_indexes  # noqa: F401
