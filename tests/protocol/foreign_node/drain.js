// Three calls in work at a server that is told to stop, and one more afterwards: node drain.js HOST:PORT PROTO_FOLDER. Prints how each ended.
'use strict';

const path = require('node:path');
const grpc = require('@grpc/grpc-js');
const protoLoader = require('@grpc/proto-loader');

const [address, protos] = process.argv.slice(2);
const { inference } = grpc.loadPackageDefinition(protoLoader.loadSync(path.join(protos, 'grpc_service.proto'), { keepCase: true }));
const client = new inference.GRPCInferenceService(address, grpc.credentials.createInsecure());
const request = { model_name: 'slow', inputs: [{ name: 'INPUT', datatype: 'FP32', shape: [1, 2] }], raw_input_contents: [Buffer.alloc(8)] };

/** How a call of `slow` ends: its answer, or the name of its status. */
function infer() {
  return new Promise((resolve) => {
    client.ModelInfer(request, { deadline: Date.now() + 30_000 }, (error, answer) => {
      console.log(error ? grpc.status[error.code] : answer.raw_output_contents[0].length === 8 ? 'answered' : 'wrong');
      resolve();
    });
  });
}

Promise.all([infer(), infer(), infer()]).then(infer).then(() => client.close());
