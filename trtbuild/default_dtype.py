"""Let float32 be torch's default dtype, even if the user's code has called ``torch.set_default_dtype``.

PyTorch divides integers in the default dtype, for example. Traced programs do not contain the default, so the proof in the
trace step, all later steps and all packages run them under float32.
"""

from __future__ import annotations

from collections.abc import Callable

from trtbuild.process_wide import ProcessWideChange


def _use_float32() -> Callable[[], object]:
    import torch  # packages also run where torch is not installed

    before = torch.get_default_dtype()
    if before is torch.float32:  # nothing to undo, even if another thread changes the default now
        return lambda: None
    torch.set_default_dtype(torch.float32)
    return lambda: torch.set_default_dtype(before)


#: Inside a block of this context manager, float32 is the default dtype in all threads.
default_float32 = ProcessWideChange(_use_float32)
