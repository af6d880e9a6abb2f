"""Export a trained head for other software: PyTorch, timm, ONNX, scikit-learn.

Code here must not open a features file, and reads the ledger only by `read_known`. Code
copied into an export must not import dphead. Start reading at `exporting.py`.
"""
