// @grpc/grpc-js over mutual TLS: node live_over_tls.js HOST:PORT PROTO_FOLDER CA KEY CERT. Prints each check that held.
'use strict';

const assert = require('node:assert/strict');
const fs = require('node:fs');
const path = require('node:path');
const grpc = require('@grpc/grpc-js');
const protoLoader = require('@grpc/proto-loader');

const [address, protos, ...files] = process.argv.slice(2);
const [ca, key, cert] = files.map((file) => fs.readFileSync(file));
const { inference } = grpc.loadPackageDefinition(protoLoader.loadSync(path.join(protos, 'grpc_service.proto')));

/** Asks whether the server is live: the answer, or the error. */
function live(credentials) {
  const client = new inference.GRPCInferenceService(address, credentials);
  return new Promise((resolve) => {
    client.ServerLive({}, { deadline: Date.now() + 30_000 }, (error, answer) => {
      client.close();
      resolve(error || answer);
    });
  });
}

async function main() {
  assert.equal((await live(grpc.credentials.createSsl(ca, key, cert))).live, true);
  console.log('live');
  assert.equal((await live(grpc.credentials.createSsl(ca))).code, grpc.status.UNAVAILABLE);
  console.log('refused');
}

main().catch((error) => { console.error(error); process.exit(1); });
