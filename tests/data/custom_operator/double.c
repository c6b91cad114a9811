/* A library of one ONNX Runtime custom operator, test.ops::Double, which gives twice its FLOAT input.

   ONNX Runtime's C interface is a table of functions that only ever grows at its end, so that the few we call are named by their places in it
   and no header is needed. */
#include <stddef.h>
#include <stdint.h>

enum { CREATE_DOMAIN = 26, DOMAIN_ADD = 27, ADD_DOMAIN = 28, TENSOR_DATA = 51, DIMENSIONS_COUNT = 61, DIMENSIONS = 62,
       ELEMENT_COUNT = 64, TYPE_AND_SHAPE = 65, GET_INPUT = 90, GET_OUTPUT = 91 };
enum { FLOAT = 1, REQUIRED = 0, API_VERSION = 8 };

typedef void *(*Function)();
typedef struct { const Function *(*get_api)(uint32_t version); const char *(*version)(void); } Base;

typedef struct CustomOp {
  uint32_t version;
  void *(*create_kernel)(const struct CustomOp *, const void *, const void *);
  const char *(*name)(const struct CustomOp *);
  const char *(*provider)(const struct CustomOp *);
  int (*input_type)(const struct CustomOp *, size_t);
  size_t (*input_count)(const struct CustomOp *);
  int (*output_type)(const struct CustomOp *, size_t);
  size_t (*output_count)(const struct CustomOp *);
  void (*compute)(void *, void *);
  void (*destroy)(void *);
  int (*input_characteristic)(const struct CustomOp *, size_t);
  int (*output_characteristic)(const struct CustomOp *, size_t);
} CustomOp;

static const Function *api;

static void *create_kernel(const CustomOp *op, const void *table, const void *info) { return (void *)op; }
static const char *name(const CustomOp *op) { return "Double"; }
static const char *provider(const CustomOp *op) { return NULL; }
static int type(const CustomOp *op, size_t at) { return FLOAT; }
static size_t one(const CustomOp *op) { return 1; }
static int required(const CustomOp *op, size_t at) { return REQUIRED; }
static void destroy(void *kernel) {}

static void compute(void *kernel, void *context) {
  const void *input; void *output, *shape; float *from, *to; size_t rank, count; int64_t sizes[8];
  api[GET_INPUT](context, (size_t)0, &input);
  api[TYPE_AND_SHAPE](input, &shape);
  api[DIMENSIONS_COUNT](shape, &rank);
  api[DIMENSIONS](shape, sizes, rank);
  api[ELEMENT_COUNT](shape, &count);
  api[GET_OUTPUT](context, (size_t)0, sizes, rank, &output);
  api[TENSOR_DATA](input, &from);
  api[TENSOR_DATA](output, &to);
  for (size_t at = 0; at < count; at++) to[at] = 2 * from[at];
}

static const CustomOp twice = {API_VERSION, create_kernel, name, provider, type, one, type, one, compute, destroy, required, required};

void *RegisterCustomOps(void *options, const Base *base) {
  void *domain;
  api = base->get_api(API_VERSION);
  api[CREATE_DOMAIN]("test.ops", &domain);
  api[DOMAIN_ADD](domain, &twice);
  return api[ADD_DOMAIN](options, domain);
}
