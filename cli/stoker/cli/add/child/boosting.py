"""Models of XGBoost, LightGBM and CatBoost: their own files, and their wrappers for scikit-learn."""

import json
from typing import Any

import numpy as np

from stoker.cli.add.child.job import Converted, Job, Unusable, version_of
from stoker.cli.add.child.samples import feature_rows


def convert_xgboost(job: Job) -> Converted:
    """Loads a .json or .ubj file."""
    import xgboost

    job.step("loading the booster")
    booster = xgboost.Booster(model_file=str(job.source))
    objective = json.loads(booster.save_config())["learner"]["objective"]["name"]
    model = xgboost.XGBClassifier() if objective.startswith(("binary:", "multi:")) else xgboost.XGBRegressor()
    model.load_model(str(job.source))
    return from_xgboost(job, model)


def from_xgboost(job: Job, model: Any) -> Converted:
    """Converts an estimator of `xgboost`."""
    import onnxmltools
    import xgboost
    from onnxmltools.convert.common.data_types import FloatTensorType

    booster = model.get_booster()
    # The converter accepts the names f0, f1, ... only.
    booster.feature_names = None
    features = booster.num_features()
    job.step(f"converting {type(model).__name__} with onnxmltools")
    graph = onnxmltools.convert_xgboost(model, initial_types=[("input", FloatTensorType([None, features]))])
    return _finished(job, model, graph, features, xgboost, onnxmltools)


def convert_lightgbm(job: Job) -> Converted:
    """Loads a .txt file."""
    import lightgbm

    job.step("loading the booster")
    return from_lightgbm(job, lightgbm.Booster(model_file=str(job.source)))


def from_lightgbm(job: Job, model: Any) -> Converted:
    """Converts an estimator or a booster of `lightgbm`."""
    import lightgbm
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType

    features = model.num_feature() if isinstance(model, lightgbm.Booster) else model.n_features_in_
    job.step(f"converting {type(model).__name__} with onnxmltools")
    graph = onnxmltools.convert_lightgbm(model, initial_types=[("input", FloatTensorType([None, features]))], zipmap=False)
    return _finished(job, model, graph, features, lightgbm, onnxmltools)


def convert_catboost(job: Job) -> Converted:
    """Loads a .cbm file."""
    import catboost

    job.step("loading the model")
    model = catboost.CatBoost().load_model(str(job.source))
    if np.size(model.classes_):
        model = catboost.CatBoostClassifier().load_model(str(job.source))
    return from_catboost(job, model)


def from_catboost(job: Job, model: Any) -> Converted:
    """Converts a model of `catboost` by its own export."""
    import catboost
    import onnx

    if len(model.get_cat_feature_indices()):
        raise Unusable("the model has categorical features, which CatBoost does not export to ONNX: encode them as numbers and train again")
    job.step("exporting with CatBoost")
    model.save_model(str(job.target), format="onnx")
    graph = onnx.load(str(job.target))
    return _finished(job, model, graph, len(model.feature_names_), catboost, catboost)


def register(kind: Any, package: str) -> None:
    """Registers the estimator class `kind` of `package` with skl2onnx, which does not know it."""
    from skl2onnx import update_registered_converter
    from skl2onnx.common.shape_calculator import calculate_linear_classifier_output_shapes, calculate_linear_regressor_output_shapes
    from sklearn.base import ClassifierMixin

    if package == "xgboost":
        from onnxmltools.convert.xgboost.operator_converters.XGBoost import convert_xgboost as converter
    else:
        from onnxmltools.convert.lightgbm.operator_converters.LightGbm import convert_lightgbm as converter
    is_classifier = issubclass(kind, ClassifierMixin)
    shapes = calculate_linear_classifier_output_shapes if is_classifier else calculate_linear_regressor_output_shapes
    options = {"nocl": [True, False], "zipmap": [True, False, "columns"]} if is_classifier else None
    update_registered_converter(kind, f"{package}{kind.__name__}", shapes, converter, options=options)


def _finished(job: Job, model: Any, graph: Any, features: int, framework: Any, converter: Any) -> Converted:
    import onnx

    _open_rows(graph)
    onnx.save(graph, str(job.target))
    rows = feature_rows(job, features, graph)
    job.step("computing the source's outputs")
    classes = _classes(model, graph)
    name = graph.graph.input[0].name
    return Converted(
        framework=version_of(framework),
        model=type(model).__name__,
        converter=version_of(converter),
        inputs=[{name: each} for each in rows],
        outputs=[_outputs(model, each, classes, len(graph.graph.output)) for each in rows],
        labels={1: classes} if classes and len(graph.graph.output) > 1 else {},
    )


def _open_rows(graph: Any) -> None:
    """Corrects declared shapes of outputs: the first dim is open (exporters write 1), and a tree regressor gives `[rows, targets]`."""
    makers = {name: node.op_type for node in graph.graph.node for name in node.output}
    for output in graph.graph.output:
        dims = output.type.tensor_type.shape.dim
        if len(dims) and dims[0].dim_value:
            dims[0].dim_param = "rows"
        if len(dims) == 1 and makers.get(output.name) == "TreeEnsembleRegressor":
            dims.add().dim_value = 1


def _classes(model: Any, graph: Any) -> "list[str]":
    classes = getattr(model, "classes_", None)
    if classes is not None and np.size(classes):
        return [str(each) for each in np.ravel(classes)]
    if len(graph.graph.output) < 2:
        return []
    # LightGBM's boosters do not store the classes: they are numbered.
    count = model.params.get("num_class", 1) if hasattr(model, "params") else 1
    count = int(count) if int(count) > 1 else 2
    return [str(at) for at in range(count)]


def _outputs(model: Any, rows: Any, classes: "list[str]", count: int) -> "list[Any]":
    if hasattr(model, "predict_proba"):
        return [np.ravel(model.predict(rows)), model.predict_proba(rows)][:count]
    found = np.asarray(model.predict(rows))
    if count < 2:
        return [found]
    probabilities = np.stack([1 - found, found], axis=1) if found.ndim == 1 else found
    return [np.argmax(probabilities, axis=1), probabilities]
