"""Pickled models: scikit-learn's estimators and pipelines, and the wrappers of XGBoost, LightGBM and CatBoost.

Loading a pickle runs code that the file contains. It needs the user's consent, and happens in this process only.
"""

import warnings
from typing import Any

import numpy as np

from stoker.cli.add.child.job import Converted, Job, Unusable, unknown_class, untrusted, version_of
from stoker.cli.add.child.samples import feature_rows, split, table_of


def convert_pickle(job: Job) -> Converted:
    """Loads the file and converts its model by the package that defines its class."""
    if not job.is_trusted:
        raise untrusted()
    job.step("loading the pickle")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        try:
            model = _loaded(job)
        except ImportError:
            raise
        except AttributeError as error:
            raise unknown_class(error) from error
        except Exception as error:
            raise Unusable(f"the file does not load as a pickle: {type(error).__name__}: {error}") from error
    converted = _converted(job, model)
    versions = {str(getattr(each.message, "original_sklearn_version", "")) for each in found}
    converted.notes.extend(f"the pickle was written by scikit-learn {version}" for version in sorted(versions) if version)
    return converted


def _converted(job: Job, model: Any) -> Converted:
    """Converts a model by the package that defines its class."""
    package = type(model).__module__.partition(".")[0]
    if package in ("xgboost", "lightgbm", "catboost"):
        from stoker.cli.add.child import boosting

        found: Converted = getattr(boosting, f"from_{package}")(job, model)
        return found
    if package == "torch" or any(base.__module__.startswith("torch.nn") for base in type(model).__mro__):
        from stoker.cli.add.child.torch_files import from_module

        return from_module(job, model)
    if not hasattr(model, "predict") and not hasattr(model, "transform"):
        raise Unusable(
            f"the pickle holds a {type(model).__module__}.{type(model).__qualname__}, which has neither predict nor transform; "
            "expected an estimator or pipeline of scikit-learn, XGBoost, LightGBM or CatBoost"
        )
    return _from_scikit_learn(job, model)


def _loaded(job: Job) -> Any:
    try:
        import joblib

        return joblib.load(job.source)
    except ImportError as error:
        if getattr(error, "name", None) != "joblib":
            raise
    import pickle

    with job.source.open("rb") as file:
        return pickle.load(file)  # noqa: S301 - with consent, in a process of its own


def _from_scikit_learn(job: Job, model: Any) -> Converted:
    import skl2onnx
    import sklearn
    from sklearn.base import is_classifier

    _register_boosting(model)
    job.step(f"converting {type(model).__name__} with skl2onnx")
    options = {id(model): {"zipmap": False}} if is_classifier(model) else None
    columns = None if job.sample is None or job.sample.suffix.lower() != ".csv" else table_of(job.sample)
    if columns is not None and any(values.dtype == object for values in columns.values()):
        types, batches = _column_types(columns), _column_batches(job, columns)
        graph = skl2onnx.convert_sklearn(model, initial_types=types, options=options)
        sources = [_frame(batch) for batch in batches]
    else:
        features = getattr(model, "n_features_in_", None)
        if features is None:
            raise Unusable(f"{type(model).__name__} does not state its number of features (n_features_in_): was it fitted?")
        types = [("input", skl2onnx.common.data_types.FloatTensorType([None, features]))]
        graph = skl2onnx.convert_sklearn(model, initial_types=types, options=options)
        rows = feature_rows(job, features, graph)
        batches, sources = [{"input": each} for each in rows], [_named(model, each) for each in rows]
    job.target.write_bytes(graph.SerializeToString())
    job.step("computing the source's outputs")
    outputs = [_outputs(model, each, len(graph.graph.output)) for each in sources]
    classes = getattr(model, "classes_", None)
    labels = {1: [str(each) for each in classes]} if isinstance(classes, np.ndarray) and len(graph.graph.output) > 1 else {}
    return Converted(
        framework=f"scikit-learn {sklearn.__version__}",
        model=_described(model),
        converter=version_of(skl2onnx),
        inputs=batches,
        outputs=outputs,
        labels=labels,
    )


def _described(model: Any) -> str:
    steps = getattr(model, "steps", None)
    return type(model).__name__ + (f" of {', '.join(type(step).__name__ for _, step in steps)}" if steps else "")


def _column_types(columns: "dict[str, Any]") -> "list[tuple[str, Any]]":
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType

    return [(name, (StringTensorType if values.dtype == object else FloatTensorType)([None, 1])) for name, values in columns.items()]


def _column_batches(job: Job, columns: "dict[str, Any]") -> "list[dict[str, Any]]":
    count = len(next(iter(columns.values())))
    counts = [len(part) for part in split(np.arange(count), job.row_counts)]
    return [{name: values[:rows].reshape(-1, 1) for name, values in columns.items()} for rows in counts]


def _frame(batch: "dict[str, Any]") -> Any:
    import pandas

    return pandas.DataFrame({name: values[:, 0] for name, values in batch.items()})


def _named(model: Any, rows: Any) -> Any:
    """The rows as the model was trained on them: a data frame if it selects columns by name."""
    names = getattr(model, "feature_names_in_", None)
    if names is None:
        return rows
    try:
        import pandas
    except ImportError:
        return rows
    return pandas.DataFrame(rows, columns=names)


def _outputs(model: Any, rows: Any, count: int) -> "list[Any]":
    """The source's outputs in skl2onnx's order: labels, then probabilities or scores; or what a transformer gives."""
    if not hasattr(model, "predict"):
        return [model.transform(rows)] + [None] * (count - 1)
    found = [model.predict(rows)]
    for name in ("predict_proba", "decision_function", "transform"):
        if len(found) < count and hasattr(model, name):
            found.append(getattr(model, name)(rows))
            break
    return found + [None] * (count - len(found))


def _register_boosting(model: Any) -> None:
    """Teaches skl2onnx the boosting libraries' estimators, where a pipeline holds one."""
    steps = [step for _, step in getattr(model, "steps", ())] + [model]
    inner = [getattr(step, "estimator", None) for step in steps]
    for step in [*steps, *inner]:
        package = type(step).__module__.partition(".")[0]
        if package in ("xgboost", "lightgbm"):
            from stoker.cli.add.child.boosting import register

            register(type(step), package)
