"""Calls every RPC and route of Adlik's clients by stubs generated from the service definitions, in a separate environment.

    python adlik_judge.py STUBS GRPC_ADDRESS HTTP_ADDRESS INCOMING

Nothing of the server or of its client is imported: grpcio, protobuf and the standard library only. `INCOMING` is the server's folder of
models that may be added. Prints the name of each check as it passes.
"""

import base64
import json
import struct
import sys
import threading
import urllib.error
import urllib.request

sys.path.insert(0, sys.argv[1])

import grpc
from adlik import operate_pb2, operate_pb2_grpc, predict_pb2, predict_pb2_grpc
from google.protobuf import json_format

FLOAT, INT32 = 1, 3
IMAGE_VALUES = 64
LABELS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
A, B = list(range(16)), [3] * 16


def tensor(target, dtype, shape, content):
    target.dtype = dtype
    for size in shape:
        target.tensor_shape.dim.add(size=size)
    target.tensor_content = content


def simple_request(rows=1, **spec):
    request = predict_pb2.PredictRequest(batch_size=rows)
    request.model_spec.name = "simple"
    if "version" in spec:
        request.model_spec.version.value = spec["version"]
    if "label" in spec:
        request.model_spec.version_label = spec["label"]
    for name, values in (("INPUT0", A), ("INPUT1", B)):
        tensor(request.inputs[name], INT32, (rows, 16), struct.pack(f"<{16 * rows}i", *(values * rows)))
    return request


def images_request(images):
    request = predict_pb2.PredictRequest(batch_size=len(images))
    request.model_spec.name = "digits"
    flat = [value for image in images for value in image]
    tensor(request.inputs["image"], FLOAT, (len(images), 8, 8), struct.pack(f"<{len(flat)}f", *flat))
    return request


def integers(content):
    return list(struct.unpack(f"<{len(content) // 4}i", content))


def refusal(call, request):
    try:
        call(request)
    except grpc.RpcError as error:
        return error.code(), error.details()
    raise AssertionError("the request was answered")


def check_predict(stub):
    answer = stub.predict(simple_request(2))
    assert set(answer.outputs) == {"OUTPUT0", "OUTPUT1"}
    total = answer.outputs["OUTPUT0"].tensor
    assert (total.dtype, [dim.size for dim in total.tensor_shape.dim]) == (INT32, [2, 16])
    assert integers(total.tensor_content) == [a + b for a, b in zip(A, B, strict=True)] * 2
    assert (answer.model_spec.name, answer.model_spec.version.value) == ("simple", 0)
    for spec, version in (({"version": 1}, 1), ({"label": "stable"}, 0), ({"label": "latest"}, 0)):
        assert stub.predict(simple_request(**spec)).model_spec.version.value == version
    typed = simple_request()
    typed.inputs["INPUT1"].Clear()
    typed.inputs["INPUT1"].int_val.append(1)
    typed.output_filter["OUTPUT1"].SetInParent()
    answer = stub.predict(typed)
    assert set(answer.outputs) == {"OUTPUT1"}
    assert integers(answer.outputs["OUTPUT1"].tensor.tensor_content) == [a - 1 for a in A]
    print("predict")


def check_classes(stub, http):
    request = images_request([[0.0] * IMAGE_VALUES, [float(at % 17) for at in range(IMAGE_VALUES)]])
    request.output_filter["scores"].cls.count = 3
    output = stub.predict(request).outputs["scores"]
    scores = struct.unpack("<20f", output.tensor.tensor_content)
    for row, sample in enumerate(output.batch_classes):
        mine = scores[10 * row : 10 * row + 10]
        best = sorted(range(10), key=lambda at: (-mine[at], at))[:3]
        assert [each.idx for each in sample.cls] == best
        assert [each.label for each in sample.cls] == [LABELS[at] for at in best], sample
        assert all(abs(each.score - mine[each.idx]) < 1e-6 for each in sample.cls)
    given = json_format.MessageToJson(request, preserving_proto_field_name=True).encode()
    status, body = http("/v1/models/digits:predict", given)
    assert status == 200, body
    same = json_format.Parse(body, predict_pb2.PredictResponse())
    assert [[each.label for each in sample.cls] for sample in same.outputs["scores"].batch_classes] == [
        [each.label for each in sample.cls] for sample in output.batch_classes
    ]
    print("classes")


def check_metadata(stub, http):
    request = predict_pb2.GetModelMetaRequest()
    request.model_spec.name = "digits"
    answer = stub.getModelMeta(request)
    assert answer.config.name == "digits"
    assert answer.config.max_batch_size == 32
    assert [(each.name, each.data_type, list(each.dims)) for each in answer.config.input] == [("image", FLOAT, [8, 8])]
    assert answer.config.output[0].label_filename == "labels.txt"
    assert answer.version_status[1].ready_state == 1
    request.model_spec.name = "ghost"
    assert refusal(stub.getModelMeta, request)[0] is grpc.StatusCode.NOT_FOUND
    for path in ("/v1/models/digits/metadata", "/V1/MODELS/digits/versions/1/METADATA"):
        status, body = http(path)
        assert status == 200, body
        assert json_format.Parse(body, predict_pb2.GetModelMetaResponse()).config == answer.config
    assert http("/v1/models/ghost/metadata")[0] == 404
    print("metadata")


def check_rest(http):
    content = base64.b64encode(struct.pack("<16i", *A)).decode()
    inputs = {"INPUT0": {"dtype": "DT_INT32", "tensor_content": content}, "INPUT1": {"int_val": B}}
    status, body = http("/v1/models/simple:predict", json.dumps({"batch_size": 1, "inputs": inputs, "unknown": 1}).encode())
    assert status == 200, body
    output = json.loads(body)["outputs"]["OUTPUT0"]["tensor"]
    assert output["tensor_shape"] == {"dim": [{"size": "1"}, {"size": "16"}]}
    assert integers(base64.b64decode(output["tensor_content"])) == [a + b for a, b in zip(A, B, strict=True)]
    for path, given, expected in (
        ("/v1/models/simple:predict", b"{", 400),
        ("/v1/models/ghost:predict", b'{"batch_size": 1}', 400),
        ("/v1/models/simple:ml_predict", b"{}", 501),
        ("/v1/models/simple:predict", b'{"instances": [1]}', 400),
        ("/v1/other", None, 400),
    ):
        status, body = http(path, given)
        assert (status, list(json.loads(body))) == (expected, ["error"]), (path, status, body)
    assert http("/v2/health/ready")[0] == 200
    assert b"nv_inference_request_success" in http("/metrics")[1]
    print("rest")


def broken(change):
    request = simple_request(2)
    change(request)
    return request


#: Every kind of bad request, and what its error must name.
BAD = (
    (lambda r: setattr(r.inputs["INPUT0"], "dtype", FLOAT), "DT_FLOAT"),
    (lambda r: r.inputs.pop("INPUT1"), "INPUT1"),
    (lambda r: setattr(r.inputs["INPUT0"], "tensor_content", bytes(100)), "100 bytes"),
    (lambda r: setattr(r.inputs["INPUT0"], "tensor_content", bytes(132)), "132 bytes"),
    (lambda r: (r.inputs["wrong"].CopyFrom(r.inputs["INPUT1"]), r.inputs.pop("INPUT1")), "wrong"),
    (lambda r: setattr(r, "batch_size", 9), "max_batch_size 8"),
    (lambda r: setattr(r, "batch_size", 0), "batch_size"),
    (lambda r: setattr(r.inputs["INPUT0"].tensor_shape.dim[0], "size", 1), "batch_size is 2"),
    (lambda r: r.output_filter["none"].SetInParent(), "Output none does not exist"),
    (lambda r: setattr(r.model_spec, "name", "ghost"), "ghost"),
    (lambda r: setattr(r.model_spec.version, "value", 7), "version 7"),
)


def check_bad_requests_harm_no_other(stub):
    failures = []

    def good():
        expected = [a + b for a, b in zip(A, B, strict=True)]
        for _ in range(40):
            found = integers(stub.predict(simple_request()).outputs["OUTPUT0"].tensor.tensor_content)
            if found != expected:
                failures.append(found)

    mates = [threading.Thread(target=good) for _ in range(4)]
    for mate in mates:
        mate.start()
    for change, text in BAD:
        code, details = refusal(stub.predict, broken(change))
        assert code is grpc.StatusCode.INVALID_ARGUMENT, (code, details)
        assert text in details, details
    for mate in mates:
        mate.join()
    assert not failures
    print("bad-requests")


def check_tasks_and_status(channel):
    assert operate_pb2_grpc.ServerStatusServiceStub(channel).serverStatus(operate_pb2.ServerStatusRequest()).status == "running"
    code, details = refusal(operate_pb2_grpc.TaskServiceStub(channel).create, operate_pb2.CreateTaskRequest())
    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert "tasks" in details
    print("tasks-and-status")


def check_operations(stub, predict, incoming):
    def do(method, **fields):
        answer = getattr(stub, method)(operate_pb2.ModelOperateRequest(**fields), timeout=60)
        assert (answer.status == "ERROR") == bool(answer.error_message), answer
        return answer

    def sums(version=None):
        request = simple_request(**({} if version is None else {"version": version}))
        request.model_spec.name = "added"
        return integers(predict.predict(request).outputs["OUTPUT0"].tensor.tensor_content)

    expected = [a + b for a, b in zip(A, B, strict=True)]
    for path in ("../simple", "/etc", "outside", "missing"):
        assert do("addModel", model_name="added", path=path).status == "ERROR"
    done = do("addModel", model_name="added", path="simple")
    assert done.status == "SUCCESS", done
    assert sums() == expected
    done = do("addModelVersion", model_name="added", path=f"{incoming}/simple/1")
    assert done.status == "SUCCESS", done
    assert sums(2) == expected
    done = do("activateModel", model_name="added", model_version=1)
    assert done.status == "SUCCESS", done
    assert sums(1) == expected
    states = {version.version_no: version.state for version in do("queryModel", model_name="added").models["added"].versions}
    # The old version may still be on its way out.
    assert states in ({1: "READY", 2: "OFFLINE"}, {1: "READY", 2: "UNLOADING"}), states
    done = do("addModelVersion", model_name="added", path="broken", model_version=5)
    # The policy wants version 1 only, so nothing is loaded and nothing can fail.
    assert done.status == "SUCCESS", done
    failed = do("activateModel", model_name="added", model_version=5)
    assert failed.status == "ERROR", failed
    assert sums(1) == expected
    for version in (2, 5):
        done = do("deleteModelVersion", model_name="added", model_version=version)
        assert done.status == "SUCCESS", done
    assert do("deleteModelVersion", model_name="added", model_version=1).status == "ERROR"
    assert sums() == expected
    done = do("deleteModel", model_name="added")
    assert done.status == "SUCCESS", done
    assert "added" not in do("queryModel").models
    request = simple_request()
    request.model_spec.name = "added"
    assert refusal(predict.predict, request)[0] in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNAVAILABLE)
    print("operations")


def main():
    _, _, grpc_address, http_address, incoming = sys.argv

    def http(path, body=None):
        try:
            with urllib.request.urlopen(urllib.request.Request(f"http://{http_address}{path}", data=body), timeout=30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    with grpc.insecure_channel(grpc_address) as channel:
        predict = predict_pb2_grpc.PredictServiceStub(channel)
        check_predict(predict)
        check_classes(predict, http)
        check_metadata(predict, http)
        check_rest(http)
        check_tasks_and_status(channel)
        check_bad_requests_harm_no_other(predict)
        check_operations(operate_pb2_grpc.ModelOperateServiceStub(channel), predict, incoming)


if __name__ == "__main__":
    main()
