"""A trained head for other software: PyTorch, timm, ONNX, scikit-learn.

Start reading at `exporting.py`.
"""
