// A gRPC client that shares no code with Python's: @grpc/grpc-js has its own HTTP/2 (Node's nghttp2) and its own gRPC.
//
//   node judge.js HOST:PORT PROTO_FOLDER CALLS_AT_ONCE
//
// The server has the models `simple`, `echo` (FP32, any length) and `slow` (as `echo`, but seconds a request). Prints each check that held.
'use strict';

const assert = require('node:assert/strict');
const path = require('node:path');
const grpc = require('@grpc/grpc-js');
const protoLoader = require('@grpc/proto-loader');

const [address, protos, atOnce] = process.argv.slice(2);
const PATIENCE_MS = 30_000;
const LOAD = { keepCase: true, longs: String, enums: String, defaults: true, oneofs: true };
const load = (file) => grpc.loadPackageDefinition(protoLoader.loadSync(file, LOAD));
const { inference } = load(path.join(protos, 'grpc_service.proto'));
const { grpc: { health: { v1: health } } } = load(path.join(__dirname, 'health.proto'));
const ANY_SIZE = { 'grpc.max_receive_message_length': -1, 'grpc.max_send_message_length': -1 };
const connect = (options = {}) =>
  new inference.GRPCInferenceService(address, grpc.credentials.createInsecure(), { ...ANY_SIZE, 'grpc.use_local_subchannel_pool': 1, ...options });

/** A unary call as a promise: the answer with the metadata and the status that came with it; fails with grpc-js's own error. */
function ask(client, method, request, { metadata = new grpc.Metadata(), patienceMs = PATIENCE_MS } = {}) {
  return new Promise((resolve, reject) => {
    let initial, status, answer;
    const finish = () => status && answer && resolve({ answer, initial, status });
    const call = client[method](request, metadata, { deadline: Date.now() + patienceMs }, (error, response) => {
      if (error) return reject(error);
      answer = response;
      finish();
    });
    call.on('metadata', (received) => { initial = received; });
    call.on('status', (received) => { status = received; finish(); });
  });
}

/** The error that a call must end with. */
async function refusal(client, method, request, options) {
  try {
    await ask(client, method, request, options);
  } catch (error) {
    return error;
  }
  throw new Error(`${method} was expected to fail`);
}

const A = Int32Array.from({ length: 16 }, (_, place) => place);
const B = Int32Array.from({ length: 16 }, () => 1);
const bytesOf = (array) => Buffer.from(array.buffer, array.byteOffset, array.byteLength);
const SHAPED = ['INPUT0', 'INPUT1'].map((name) => ({ name, datatype: 'INT32', shape: [1, 16] }));
const raw = (more = {}) => ({ model_name: 'simple', inputs: SHAPED, raw_input_contents: [bytesOf(A), bytesOf(B)], ...more });
const typed = { model_name: 'simple', inputs: SHAPED.map((input, at) => ({ ...input, contents: { int_contents: [...(at ? B : A)] } })) };

function checkSum(answer) {
  assert.deepEqual(answer.outputs.map((output) => [output.name, output.datatype, output.shape]), [
    ['OUTPUT0', 'INT32', ['1', '16']],
    ['OUTPUT1', 'INT32', ['1', '16']],
  ]);
  const found = answer.raw_output_contents.map((data) => Array.from({ length: 16 }, (_, at) => data.readInt32LE(4 * at)));
  assert.deepEqual(found, [Array.from(A, (value, at) => value + B[at]), Array.from(A, (value, at) => value - B[at])]);
}

const floats = (model, count) => ({
  model_name: model,
  inputs: [{ name: 'INPUT', datatype: 'FP32', shape: [1, count] }],
  raw_input_contents: [Buffer.alloc(4 * count, 'digits of any kind')],
});

async function unary(client) {
  const { answer, status } = await ask(client, 'ModelInfer', raw({ id: 'n1' }));
  checkSum(answer);
  assert.deepEqual([answer.id, answer.model_name, answer.model_version, status.code], ['n1', 'simple', '1', grpc.status.OK]);
  const { answer: server } = await ask(client, 'ServerMetadata', {});
  assert.equal(server.name, 'stoker');
  const { answer: model } = await ask(client, 'ModelMetadata', { name: 'simple' });
  assert.deepEqual(model.inputs.map((input) => input.name), ['INPUT0', 'INPUT1']);
}

async function typedContents(client) {
  checkSum((await ask(client, 'ModelInfer', typed)).answer);
}

/** Where these are more calls than a connection may have streams, the client keeps the rest back until others end. */
async function many(client) {
  const answers = await Promise.all(Array.from({ length: Number(atOnce) }, (_, at) => ask(client, 'ModelInfer', raw({ id: `${at}` }))));
  answers.forEach(({ answer }, at) => { checkSum(answer); assert.equal(answer.id, `${at}`); });
}

async function metadata(client) {
  const sent = new grpc.Metadata();
  sent.set('x-text', 'some text');
  sent.set('x-data-bin', Buffer.from([0, 1, 255]));
  sent.add('x-many', 'one');
  sent.add('x-many', 'two');
  const { answer, initial } = await ask(client, 'ModelInfer', raw(), { metadata: sent });
  checkSum(answer);
  assert.deepEqual(initial.get('content-type'), ['application/grpc']);
  const refused = await refusal(client, 'ModelInfer', raw({ model_name: 'ghost' }), { metadata: sent });
  assert.equal(refused.metadata.get('grpc-status').length, 0, 'the status is no metadata');
}

/** What a stream of requests is answered with, and the error that ended it, if one did. */
function stream(client, requests, metadata = new grpc.Metadata()) {
  return new Promise((resolve) => {
    const answers = [];
    let error = null;
    const call = client.ModelStreamInfer(metadata, { deadline: Date.now() + PATIENCE_MS });
    call.on('data', (answer) => answers.push(answer));
    call.on('error', (found) => { error = found; });
    call.on('status', (status) => resolve({ answers, error, status }));
    requests.forEach((request) => call.write(request));
    call.end();
  });
}

async function bidi(client) {
  const { answers, error, status } = await stream(client, Array.from({ length: 50 }, (_, at) => raw({ id: `${at}` })));
  assert.deepEqual([error, status.code], [null, grpc.status.OK]);
  answers.forEach((answer) => { assert.equal(answer.error_message, ''); checkSum(answer.infer_response); });
  assert.deepEqual(answers.map((answer) => answer.infer_response.id), Array.from({ length: 50 }, (_, at) => `${at}`));

  // One request fails, and the stream goes on.
  const mixed = await stream(client, [raw({ model_name: 'ghost', id: 'a' }), raw({ id: 'b' })]);
  assert.equal(mixed.answers.length, 2);
  assert.match(mixed.answers[0].error_message, /unknown model: 'ghost'/);
  checkSum(mixed.answers[1].infer_response);
  assert.equal(mixed.status.code, grpc.status.OK);

  // By its metadata, the client asks for a status instead.
  const strict = new grpc.Metadata();
  strict.set('triton_grpc_error', 'true');
  const ended = await stream(client, [raw({ model_name: 'ghost' })], strict);
  assert.equal(ended.error.code, grpc.status.NOT_FOUND);
  assert.match(ended.error.details, /unknown model: 'ghost'/);
}

async function errors(client) {
  const unknown = await refusal(client, 'ModelInfer', raw({ model_name: 'gh\u00f6st 100%' }));
  assert.equal(unknown.code, grpc.status.NOT_FOUND);
  assert.match(unknown.details, /unknown model: 'gh\u00f6st 100%'/);
  const wrong = await refusal(client, 'ModelInfer', { ...raw(), inputs: SHAPED.slice(0, 1), raw_input_contents: [bytesOf(A)] });
  assert.equal(wrong.code, grpc.status.INVALID_ARGUMENT);
  assert.match(wrong.details, /INPUT1|2 inputs/);
  const absent = new grpc.Client(address, grpc.credentials.createInsecure());
  const code = await new Promise((resolve) => {
    const same = (data) => data;
    absent.makeUnaryRequest('/no.such.Service/Method', same, same, Buffer.alloc(0), { deadline: Date.now() + PATIENCE_MS }, (error) => resolve(error.code));
  });
  assert.equal(code, grpc.status.UNIMPLEMENTED);
  absent.close();
}

async function large(client) {
  const request = floats('echo', 4_000_000);
  const { answer } = await ask(client, 'ModelInfer', request);
  assert.ok(answer.raw_output_contents[0].equals(request.raw_input_contents[0]));
}

async function compression() {
  for (const algorithm of [grpc.compressionAlgorithms.gzip, grpc.compressionAlgorithms.deflate]) {
    const client = connect({ 'grpc.default_compression_algorithm': algorithm });
    const request = floats('echo', 100_000);
    const { answer } = await ask(client, 'ModelInfer', request);
    assert.ok(answer.raw_output_contents[0].equals(request.raw_input_contents[0]));
    const { answers } = await stream(client, [raw(), raw()]);
    answers.forEach(({ infer_response: each }) => checkSum(each));
    client.close();
  }
}

async function deadline(client) {
  const late = await refusal(client, 'ModelInfer', floats('slow', 2), { patienceMs: 200 });
  assert.equal(late.code, grpc.status.DEADLINE_EXCEEDED);
}

async function cancel(client) {
  const ended = new Promise((resolve) => {
    const call = client.ModelInfer(floats('slow', 2), new grpc.Metadata(), { deadline: Date.now() + PATIENCE_MS }, (error) => resolve(error));
    setTimeout(() => call.cancel(), 100);
  });
  assert.equal((await ended).code, grpc.status.CANCELLED);
  const call = client.ModelStreamInfer();
  const status = new Promise((resolve) => call.on('error', resolve));
  call.on('data', () => call.cancel());
  call.write(raw());
  assert.equal((await status).code, grpc.status.CANCELLED);
  // The connection serves on.
  checkSum((await ask(client, 'ModelInfer', raw())).answer);
}

async function healthChecks() {
  const client = new health.Health(address, grpc.credentials.createInsecure());
  for (const service of ['', 'inference.GRPCInferenceService', 'tensorflow.serving.PredictionService']) {
    assert.equal((await ask(client, 'Check', { service })).answer.status, 'SERVING', service);
  }
  assert.equal((await refusal(client, 'Check', { service: 'ghost' })).code, grpc.status.NOT_FOUND);
  const call = client.Watch({ service: '' });
  const first = await new Promise((resolve, reject) => { call.on('data', resolve); call.on('error', reject); });
  assert.equal(first.status, 'SERVING');
  const ended = new Promise((resolve) => { call.removeAllListeners('error'); call.on('error', resolve); });
  call.cancel();
  assert.equal((await ended).code, grpc.status.CANCELLED);
  client.close();
}

async function main() {
  const client = connect();
  const checks = { unary, typedContents, many, metadata, bidi, errors, large, compression, deadline, cancel, healthChecks };
  for (const [name, check] of Object.entries(checks)) {
    await check(client);
    console.log(name);
  }
  client.close();
}

main().catch((error) => { console.error(error); process.exit(1); });
