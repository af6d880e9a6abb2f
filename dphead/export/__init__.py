"""Export a trained head for other software: PyTorch, timm, ONNX, scikit-learn.

Code here must not open a ledger or a features file. Code copied into an export must not
import dphead. Start reading at `exporting.py`.
"""
