"""Export a trained head for other software: PyTorch, timm, ONNX, scikit-learn.

Nothing here may open a ledger or a features file. Code that is copied into an export
may not import dphead. Start reading at `exporting.py`.
"""
