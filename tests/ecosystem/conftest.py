"""timm and transformers import torchvision, whose compiled operators do not load beside the CPU wheels of PyTorch. No
test calls them, and declaring two of their names lets torchvision be imported.
"""

from importlib.util import find_spec

if find_spec("torch") and find_spec("torchvision"):
    import torch

    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        DECLARED = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            DECLARED.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
