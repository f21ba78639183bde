# mypy: ignore-errors
# Run by hand, in an environment of its own.
"""Makes sklearn_*.onnx, with scikit-learn 1.9.1 and skl2onnx 1.20.0: python make_sklearn.py FOLDER."""

import sys
from pathlib import Path

import numpy as np
from skl2onnx import convert_sklearn
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

folder = Path(sys.argv[1])
data, labels = load_iris(return_X_y=True)
forest = RandomForestClassifier(n_estimators=5, max_depth=4, random_state=0).fit(data, labels)
model = convert_sklearn(forest, initial_types=[("x", FloatTensorType([None, 4]))])  # a list of maps as its second output
(folder / "sklearn_forest.onnx").write_bytes(model.SerializeToString())

colours = np.array(["red", "green", "blue"])[np.random.default_rng(0).integers(0, 3, len(data))].reshape(-1, 1)
table = np.hstack([data.astype(object), colours.astype(object)])
columns = ColumnTransformer([("numbers", StandardScaler(), [0, 1, 2, 3]), ("words", OneHotEncoder(), [4])])
pipeline = make_pipeline(columns, LogisticRegression()).fit(table, labels)
types = [(f"n{place}", FloatTensorType([None, 1])) for place in range(4)] + [("colour", StringTensorType([None, 1]))]
model = convert_sklearn(pipeline, initial_types=types, options={"zipmap": False})
(folder / "sklearn_pipeline.onnx").write_bytes(model.SerializeToString())
