"""Train a head on a Parquet table of embeddings, and write an ONNX file."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.datasets import load_digits

from dphead import DPAutoClassifier

# a table with a column of lists and a column of labels, as many tools write
embeddings, digits = load_digits(return_X_y=True)
columns = {"embedding": embeddings.tolist(), "label": digits.astype(str)}
pq.write_table(pa.table(columns), "embeddings.parquet")

table = pq.read_table("embeddings.parquet")
X, y = np.stack(table["embedding"].to_numpy()), table["label"].to_numpy()
head = DPAutoClassifier(epsilon=1.0, classes=[str(k) for k in range(10)]).fit(X, y)
exported = head.export("onnx", "head-onnx")
print(exported.files)
print(exported.example)  # loads the file and predicts, without dphead
