// A backend of Triton that runs ONNX models by onnxruntime's C API, on the CPU. The first dimension of each tensor is the batch.
//
//   requests of one execute call --gather--> one batch --OrtApi::Run--> outputs --slices--> one response for each request
//
// A batch of one request is run on the request's own buffer. Errors of a run go to every request of its batch.
// ONNXRUNTIME_LIBRARY is the path of libonnxruntime.so: wheels name it by its version, which a dependency by its soname would not find.

#include <dlfcn.h>
#include <onnxruntime_c_api.h>
#include <sched.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "triton_api.h"

namespace {

// A failure with its text for the client.
struct Failed {
  std::string text;
};

const OrtApi* ort = nullptr;

void check(OrtStatus* status) {
  if (status == nullptr) return;
  Failed failed{ort->GetErrorMessage(status)};
  ort->ReleaseStatus(status);
  throw failed;
}

void check(TRITONSERVER_Error* error, const char* what) {
  if (error == nullptr) return;
  TRITONSERVER_ErrorDelete(error);
  throw Failed{what};
}

// For calls after which nothing can be done.
void ignore(TRITONSERVER_Error* error) {
  if (error != nullptr) TRITONSERVER_ErrorDelete(error);
}

uint64_t now_ns() { return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// The element types that both sides have with a fixed size: onnxruntime's, Triton's, bytes.
struct ElementType {
  ONNXTensorElementDataType onnx;
  DataType triton;
  size_t bytes;
};
constexpr ElementType kTypes[] = {
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL, 1, 1},    {ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8, 2, 1},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16, 3, 2},  {ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32, 4, 4},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64, 5, 8},  {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8, 6, 1},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16, 7, 2},   {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, 8, 4},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, 9, 8},   {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, 10, 2},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, 11, 4},  {ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE, 12, 8},
};

template <typename Key>
const ElementType& element_type(Key key, Key ElementType::* field) {
  for (const ElementType& each : kTypes) {
    if (each.*field == key) return each;
  }
  throw Failed{"a tensor has an element type that this backend does not support"};
}

struct ReleaseValue {
  void operator()(OrtValue* value) const { ort->ReleaseValue(value); }
};
using Value = std::unique_ptr<OrtValue, ReleaseValue>;

// One loaded model: Triton calls it from one thread at a time.
class Instance {
 public:
  explicit Instance(const std::string& path) {
    check(ort->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "stoker-benchmarks", &env_));
    OrtSessionOptions* options = nullptr;
    check(ort->CreateSessionOptions(&options));
    cpu_set_t cores;
    sched_getaffinity(0, sizeof cores, &cores);
    check(ort->SetIntraOpNumThreads(options, CPU_COUNT(&cores)));
    check(ort->CreateSession(env_, path.c_str(), options, &session_));
    ort->ReleaseSessionOptions(options);
    check(ort->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory_));
    size_t inputs = 0, outputs = 0;
    check(ort->SessionGetInputCount(session_, &inputs));
    check(ort->SessionGetOutputCount(session_, &outputs));
    for (size_t each = 0; each < inputs; ++each) input_names_.push_back(name(each, ort->SessionGetInputName));
    for (size_t each = 0; each < outputs; ++each) output_names_.push_back(name(each, ort->SessionGetOutputName));
    gathered_.resize(inputs);
  }

  ~Instance() {
    ort->ReleaseSession(session_);
    ort->ReleaseMemoryInfo(memory_);
    ort->ReleaseEnv(env_);
  }

  // Runs one batch and fills the responses (nullptr: the request has none). Returns the rows, and the times of the model's run.
  uint64_t run(
      TRITONBACKEND_Request** requests, uint32_t count, std::vector<TRITONBACKEND_Response*>& responses, uint64_t* run_start_ns,
      uint64_t* run_end_ns) {
    std::vector<int64_t> rows(count);
    std::vector<Value> inputs;
    for (size_t each = 0; each < input_names_.size(); ++each) inputs.push_back(gather(each, requests, rows));
    std::vector<const OrtValue*> fed;
    for (const Value& each : inputs) fed.push_back(each.get());
    std::vector<OrtValue*> made(output_names_.size(), nullptr);
    *run_start_ns = now_ns();
    OrtStatus* status =
        ort->Run(session_, nullptr, input_names_.data(), fed.data(), fed.size(), output_names_.data(), made.size(), made.data());
    *run_end_ns = now_ns();
    std::vector<Value> outputs(made.begin(), made.end());
    check(status);
    const int64_t total = std::accumulate(rows.begin(), rows.end(), int64_t{0});
    for (size_t each = 0; each < outputs.size(); ++each) distribute(each, outputs[each].get(), total, rows, requests, responses);
    return total;
  }

 private:
  const char* name(size_t index, OrtStatus*(ORT_API_CALL* get)(const OrtSession*, size_t, OrtAllocator*, char**)) {
    OrtAllocator* allocator = nullptr;
    check(ort->GetAllocatorWithDefaultOptions(&allocator));
    char* text = nullptr;
    check(get(session_, index, allocator, &text));
    return text;  // lives as long as the process: one for each tensor of a model
  }

  // The tensor of all requests. Triton puts only requests with the same other dimensions into one batch.
  Value gather(size_t index, TRITONBACKEND_Request** requests, std::vector<int64_t>& rows) {
    struct Part {
      const char* data;
      size_t bytes;
    };
    std::vector<Part> parts;
    std::vector<int64_t> shape;
    DataType type = 0;
    size_t bytes = 0;
    for (size_t each = 0; each < rows.size(); ++each) {
      TRITONBACKEND_Input* input = nullptr;
      check(TRITONBACKEND_RequestInput(requests[each], input_names_[index], &input), "an input is missing");
      const int64_t* dimensions = nullptr;
      uint32_t rank = 0, buffers = 0;
      check(TRITONBACKEND_InputProperties(input, nullptr, &type, &dimensions, &rank, nullptr, &buffers), "an input has no properties");
      if (rank == 0) throw Failed{"an input has no batch dimension"};
      rows[each] = dimensions[0];
      if (each == 0) {
        shape.assign(dimensions, dimensions + rank);
      } else {
        shape[0] += dimensions[0];
      }
      for (uint32_t buffer = 0; buffer < buffers; ++buffer) {
        const void* data = nullptr;
        uint64_t size = 0;
        MemoryType memory = kCpu;
        int64_t device = 0;
        check(TRITONBACKEND_InputBuffer(input, buffer, &data, &size, &memory, &device), "an input has no buffer");
        if (memory == kGpu) throw Failed{"an input is in the memory of a GPU"};
        parts.push_back({static_cast<const char*>(data), size});
        bytes += size;
      }
    }
    const ElementType& element = element_type(type, &ElementType::triton);
    const int64_t elements = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<int64_t>());
    if (bytes != elements * element.bytes) throw Failed{"the size of an input does not match its shape"};
    void* data = nullptr;
    if (parts.size() == 1) {
      data = const_cast<char*>(parts[0].data);
    } else {
      std::vector<char>& buffer = gathered_[index];
      if (buffer.size() < bytes) buffer.resize(bytes);
      char* end = buffer.data();
      for (const Part& part : parts) {
        std::memcpy(end, part.data, part.bytes);
        end += part.bytes;
      }
      data = buffer.data();
    }
    OrtValue* value = nullptr;
    check(ort->CreateTensorWithDataAsOrtValue(memory_, data, bytes, shape.data(), shape.size(), element.onnx, &value));
    return Value(value);
  }

  // Copies each request's rows of an output into its response, if the request asks for the output.
  void distribute(
      size_t index, OrtValue* output, int64_t total, const std::vector<int64_t>& rows, TRITONBACKEND_Request** requests,
      std::vector<TRITONBACKEND_Response*>& responses) {
    OrtTensorTypeAndShapeInfo* info = nullptr;
    check(ort->GetTensorTypeAndShape(output, &info));
    std::unique_ptr<OrtTensorTypeAndShapeInfo, decltype(ort->ReleaseTensorTypeAndShapeInfo)> held(
        info, ort->ReleaseTensorTypeAndShapeInfo);
    ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
    check(ort->GetTensorElementType(info, &type));
    size_t rank = 0, elements = 0;
    check(ort->GetDimensionsCount(info, &rank));
    std::vector<int64_t> shape(rank);
    check(ort->GetDimensions(info, shape.data(), rank));
    check(ort->GetTensorShapeElementCount(info, &elements));
    if (rank == 0 || shape[0] != total) throw Failed{"an output has not as many rows as the inputs"};
    const ElementType& element = element_type(type, &ElementType::onnx);
    const size_t row_bytes = total == 0 ? 0 : elements / total * element.bytes;
    void* data = nullptr;
    check(ort->GetTensorMutableData(output, &data));
    const char* next = static_cast<const char*>(data);
    for (size_t each = 0; each < rows.size(); ++each) {
      shape[0] = rows[each];
      const size_t bytes = rows[each] * row_bytes;
      if (responses[each] != nullptr && is_requested(requests[each], output_names_[index])) {
        TRITONBACKEND_Output* place = nullptr;
        check(
            TRITONBACKEND_ResponseOutput(responses[each], &place, output_names_[index], element.triton, shape.data(), rank),
            "a response has no place for an output");
        void* buffer = nullptr;
        MemoryType memory = kCpu;
        int64_t device = 0;
        check(TRITONBACKEND_OutputBuffer(place, &buffer, bytes, &memory, &device), "an output has no buffer");
        if (memory == kGpu) throw Failed{"an output is in the memory of a GPU"};
        std::memcpy(buffer, next, bytes);
      }
      next += bytes;
    }
  }

  static bool is_requested(TRITONBACKEND_Request* request, const char* name) {
    uint32_t count = 0;
    check(TRITONBACKEND_RequestOutputCount(request, &count), "a request has no outputs");
    for (uint32_t each = 0; each < count; ++each) {
      const char* requested = nullptr;
      check(TRITONBACKEND_RequestOutputName(request, each, &requested), "a requested output has no name");
      if (std::strcmp(requested, name) == 0) return true;
    }
    return false;
  }

  OrtEnv* env_ = nullptr;
  OrtSession* session_ = nullptr;
  OrtMemoryInfo* memory_ = nullptr;
  std::vector<const char*> input_names_, output_names_;
  std::vector<std::vector<char>> gathered_;  // for each input, the memory of a batch
};

TRITONSERVER_Error* error_of(const Failed& failed) { return TRITONSERVER_ErrorNew(kInternal, failed.text.c_str()); }

}  // namespace

struct TRITONBACKEND_Backend;

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend*) {
  uint32_t major = 0, minor = 0;
  ignore(TRITONBACKEND_ApiVersion(&major, &minor));
  if (major != kApiMajor) return TRITONSERVER_ErrorNew(kUnsupported, "this backend is for another version of the backend API");
  void* library = dlopen(ONNXRUNTIME_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return TRITONSERVER_ErrorNew(kUnsupported, dlerror());
  const auto base = reinterpret_cast<const OrtApiBase* (*)()>(dlsym(library, "OrtGetApiBase"));
  ort = base == nullptr ? nullptr : base()->GetApi(ORT_API_VERSION);
  return ort == nullptr ? TRITONSERVER_ErrorNew(kUnsupported, "onnxruntime is older than the headers of this backend") : nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance) {
  try {
    TRITONBACKEND_Model* model = nullptr;
    check(TRITONBACKEND_ModelInstanceModel(instance, &model), "an instance has no model");
    int artifact = 0;
    const char* folder = nullptr;
    uint64_t version = 0;
    check(TRITONBACKEND_ModelRepository(model, &artifact, &folder), "a model has no folder");
    check(TRITONBACKEND_ModelVersion(model, &version), "a model has no version");
    const std::string path = std::string(folder) + "/" + std::to_string(version) + "/model.onnx";
    return TRITONBACKEND_ModelInstanceSetState(instance, new Instance(path));
  } catch (const Failed& failed) {
    return error_of(failed);
  }
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* instance) {
  void* state = nullptr;
  ignore(TRITONBACKEND_ModelInstanceState(instance, &state));
  delete static_cast<Instance*>(state);
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count) {
  const uint64_t start_ns = now_ns();
  uint64_t run_start_ns = start_ns, run_end_ns = start_ns, rows = 0;
  void* state = nullptr;
  ignore(TRITONBACKEND_ModelInstanceState(instance, &state));
  std::vector<TRITONBACKEND_Response*> responses(count, nullptr);
  for (uint32_t each = 0; each < count; ++each) ignore(TRITONBACKEND_ResponseNew(&responses[each], requests[each]));
  std::unique_ptr<Failed> failed;
  try {
    rows = static_cast<Instance*>(state)->run(requests, count, responses, &run_start_ns, &run_end_ns);
  } catch (const Failed& why) {
    failed = std::make_unique<Failed>(why);
  }
  for (TRITONBACKEND_Response* each : responses) {
    if (each == nullptr) continue;
    TRITONSERVER_Error* error = failed == nullptr ? nullptr : error_of(*failed);
    ignore(TRITONBACKEND_ResponseSend(each, kResponseFinal, error));
    ignore(error);
  }
  const uint64_t end_ns = now_ns();
  for (uint32_t each = 0; each < count; ++each) {
    ignore(TRITONBACKEND_ModelInstanceReportStatistics(
        instance, requests[each], failed == nullptr, start_ns, run_start_ns, run_end_ns, end_ns));
  }
  if (failed == nullptr) {
    ignore(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, rows, start_ns, run_start_ns, run_end_ns, end_ns));
  }
  for (uint32_t each = 0; each < count; ++each) ignore(TRITONBACKEND_RequestRelease(requests[each], kReleaseAll));
  return nullptr;
}
}
